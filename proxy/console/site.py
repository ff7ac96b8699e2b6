"""The pages on the control port, and what guards each of them.

A page is reached with a session, which only an operator's token opens. What changes anything is a
POST of one of our own forms: from this origin, and with the token that only this session's pages
carry. Names and origins were checked before (``control.http``).
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import structlog
from aiohttp import web

from proxy.clock import Clock
from proxy.console import render
from proxy.console.desk import Desk, Page, Visit, go
from proxy.console.pages import approvals, needs, operation, operations, runs
from proxy.console.sessions import LIFE_SECONDS, Session, Sessions, Tries
from proxy.control.tokens import Role, Tokens
from proxy.errors import ServiceError
from proxy.ledger.base import Damaged, LedgerError
from proxy.service.services import Services

FORM_MAX: Final = 1_000_000  # bytes; the largest is a resolution with an answer
NEXT_MAX: Final = 2_000
FORM: Final = "application/x-www-form-urlencoded"
SIGN_IN, SIGN_OUT = "/sign-in", "/sign-out"
TITLES: Final[Mapping[int, str]] = {
    400: "That cannot be done",
    403: "That may not be done",
    404: "There is no such thing",
    409: "It has changed",
    424: "Its record is damaged",
    503: "The ledger cannot be used",
}

log = structlog.get_logger(component="console")


class Console:
    """Adds its pages to the control port's application."""

    def __init__(
        self,
        *,
        services: Services,
        tokens: Tokens,
        clock: Clock,
    ) -> None:
        self._tokens = tokens
        self._clock = clock
        self._sessions = Sessions(clock.monotonic)
        self._tries = Tries(clock.monotonic)
        self._desk = Desk(services, clock)

    @property
    def pages(self) -> list[Page]:
        modules = (needs, operations, operation, runs, approvals)
        return [page for module in modules for page in module.pages(self._desk)]

    def mount(self, application: web.Application) -> None:
        add = application.router.add_route
        add("GET", "/assets/{name}", render.serve_asset)
        add("GET", SIGN_IN, self._ask_token)
        add("POST", SIGN_IN, self._take_token)
        add("POST", SIGN_OUT, self._sign_out)
        for page in self.pages:
            add(page.method, page.path, self._guarded(page))

    # Who

    def _session(self, request: web.Request) -> Session | None:
        given = request.cookies.get(_cookie(request), "")
        return self._sessions.find(given) if given else None

    async def _ask_token(self, request: web.Request) -> web.Response:
        target = _safe(request.query.get("next", "/"))
        if self._session(request) is not None:
            return go(target)
        return self._form(target)

    async def _take_token(self, request: web.Request) -> web.Response:
        """A right token opens a session; which names differ is not told by a wrong one."""
        fields = await _fields(request)
        if fields is None or not _from_here(request):
            return self._refused("Sign in on this page itself.", 403)
        target, address = _safe(fields.get("next", "/")), request.remote or ""
        wait = self._tries.wait(address)
        if wait > 0:
            answer = self._form(target, f"Too many wrong tokens: wait {int(wait) + 1} s.", 429)
            answer.headers["Retry-After"] = str(int(wait) + 1)
            return answer
        holder = self._tokens.holder(fields.get("token", "").strip())
        if holder is None:
            self._tries.failed(address)
            log.warning("wrong token at the console", address=address)
            return self._form(target, "That token is not known here.", 401)
        if holder.role < Role.OPERATOR:
            log.warning("an agent's token at the console", by=holder.name)
            return self._form(
                target,
                f"The token {holder.name} is an agent's. Agents may read through the API; what "
                "is decided here, an operator decides: sign in with an operator's token.",
                403,
            )
        self._sessions.close(request.cookies.get(_cookie(request), ""))
        answer = go(target)
        answer.set_cookie(
            _cookie(request),
            self._sessions.open(holder),
            max_age=int(LIFE_SECONDS),
            path="/",
            httponly=True,
            samesite="Strict",
            secure=request.secure,
        )
        log.info("signed in", by=holder.name, address=address)
        return answer

    async def _sign_out(self, request: web.Request) -> web.Response:
        session = self._session(request)
        fields = await _fields(request)
        if session is not None and not self._is_ours(request, session, fields):
            return self._refused("Sign out on a page of the console.", 403)
        self._sessions.close(request.cookies.get(_cookie(request), ""))
        answer = go(SIGN_IN)
        answer.del_cookie(_cookie(request), path="/", httponly=True, samesite="Strict")
        return answer

    def _form(self, target: str, error: str = "", status: int = 200) -> web.Response:
        return render.page("sign-in.html", {"next": target, "error": error}, status)

    def _refused(self, why: str, status: int) -> web.Response:
        return render.page("refused.html", {"why": why, "title": TITLES[status]}, status)

    # What guards a page

    def _guarded(self, page: Page) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.Response:
            session = self._session(request)
            if session is None:
                return self._nobody(request)
            form: Mapping[str, str] = {}
            if page.method == "POST":
                sent = await _fields(request)
                if not self._is_ours(request, session, sent):
                    log.warning("foreign form refused", by=session.holder.name, path=request.path)
                    return self._refused(
                        "This form is not of your session. Go back, load the page anew, and send "
                        "it again. Nothing was done.",
                        403,
                    )
                form = sent or {}
            return await self._answered(page, Visit(request, session, form))

        return handle

    def _nobody(self, request: web.Request) -> web.Response:
        """A link from elsewhere comes without the cookie, which is for this site alone: the page
        then loads itself once more, and is one of ours. Everybody else signs in."""
        if request.method != "GET":
            return self._form(
                "/", "You are signed out: nothing was done. Sign in and do it again.", 401
            )
        here = _safe(request.path_qs)
        if request.headers.get("Sec-Fetch-Site") == "cross-site":
            return render.page("again.html", {"here": here})
        return go(render.at(SIGN_IN, next=here if here != "/" else None))

    def _is_ours(
        self, request: web.Request, session: Session, fields: Mapping[str, str] | None
    ) -> bool:
        return (
            fields is not None and _from_here(request) and session.is_form(fields.get("form", ""))
        )

    async def _answered(self, page: Page, visit: Visit) -> web.Response:
        """The page; what goes wrong is told on one as well."""
        try:
            return await page.handler(visit)
        except ServiceError as error:
            status, detail = error.meaning.status, error.detail
        except Damaged as error:
            status, detail = 424, str(error)
        except LedgerError as error:
            status, detail = 503, str(error)
        return render.page(
            "refused.html",
            {"why": detail, "title": TITLES.get(status, "That cannot be done")},
            status,
        )


def _cookie(request: web.Request) -> str:
    """Cookies are of a host and not of a port: two proxies on one machine have two names."""
    try:
        port = urlsplit(f"//{request.host}").port
    except ValueError:
        port = None
    return f"onceproxy-{port or 'session'}"


def _from_here(request: web.Request) -> bool:
    """Whether a page of this very origin sent it, by the headers that scripts cannot set."""
    site = request.headers.get("Sec-Fetch-Site")
    origin = request.headers.get("Origin")
    if site not in (None, "same-origin"):
        return False
    if origin is not None:
        named, here = urlsplit(origin).netloc.lower(), request.headers.get("Host", "").lower()
        return hmac.compare_digest(named.encode(), here.encode())
    return site == "same-origin"


async def _fields(request: web.Request) -> Mapping[str, str] | None:
    """The fields of a form, None if it is none."""
    if request.content_type != FORM or (request.content_length or 0) > FORM_MAX:
        return None
    sent: Mapping[str, Any] = await request.post()
    return {name: value for name, value in sent.items() if isinstance(value, str)}


def _safe(target: str) -> str:
    """A path of ours to go to; anything else is the first page."""
    inside = target.startswith("/") and target[1:2] not in ("/", "\\")
    plain = target.isascii() and target.isprintable() and " " not in target
    if not (inside and plain and len(target) <= NEXT_MAX) or target.startswith(SIGN_IN):
        return "/"
    return target
