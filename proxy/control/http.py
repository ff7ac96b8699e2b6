"""What the routes share: their table, JSON answers, problems, and the guards before a handler.

A handler is reached only through ``guarded``, so that a route cannot be added without saying who
may use it. Names are checked before tokens: a page in a browser that reaches this port under a
foreign name learns nothing, not even that its token is wrong.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import orjson
import structlog
from aiohttp import web

from proxy.control.tokens import Holder, Role, Tokens
from proxy.core.identity import TOKEN_PREFIX, BadIdentity, Sources, identify
from proxy.errors import ServiceError
from proxy.ledger.base import Damaged, LedgerError

Handler = Callable[[web.Request, Holder], Awaitable[web.StreamResponse]]
Open = Callable[[web.Request], Awaitable[web.StreamResponse]]

_ANYBODY: Final = Holder("anybody", Role.AGENT)
# Browsers send ``*.localhost`` to this machine without asking anybody; what else is served under
# 127.0.0.1 is not shown the cookies of such a name.
_LOCAL_NAMES: Final = frozenset({"localhost", "onceproxy.localhost"})

# Texts of services and callers are in these answers: data, whatever a browser may see in them.
_SAFE: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}

log = structlog.get_logger(component="control")


@dataclass(frozen=True, slots=True)
class Route:
    """``role``: the least that may use it; None: needs no token. One with ``{run}`` in its path
    that a run may use is for the run's own token, for operators, and, as long as the run has no
    token, for agents. ``guards``: it is about a run that its body names."""

    method: str
    path: str
    role: Role | None
    handler: Handler
    guards: bool = False


class RunTokens(Protocol):
    """What is known of the tokens of runs; a run as the agent names it."""

    def holds(self, name: str, token: str) -> bool: ...
    def guarded(self, name: str) -> bool: ...


def answer(data: object, status: int = 200) -> web.Response:
    return raw_json(orjson.dumps(data), status)


def raw_json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json", headers=_SAFE)


def problem(
    code: str, detail: str, problems: Sequence[str] = (), **members: object
) -> web.Response:
    meaning = ServiceError(code, detail).meaning
    body: dict[str, Any] = {
        "type": f"urn:onceproxy:{code}",
        "title": meaning.title,
        "status": meaning.status,
        "detail": detail,
        "code": code,
    }
    if problems:
        body["problems"] = list(problems)
    body |= members
    response = web.Response(
        body=orjson.dumps(body), status=meaning.status, content_type="application/problem+json"
    )
    response.headers.update(_SAFE)
    if meaning.status == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="onceproxy"'
    return response


async def json_body(request: web.Request) -> Any:
    """The JSON of a body, {} without one. Raises ServiceError."""
    raw = await request.read()
    if not raw.strip():
        return {}
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ServiceError("bad-request", f"The body is not JSON: {error}") from error


def moment(request: web.Request, name: str) -> float | None:
    """A query parameter in seconds since the epoch. Raises ServiceError."""
    text = request.query.get(name)
    try:
        found = float(text) if text is not None else None
    except ValueError:
        found = math.nan
    if found is not None and not math.isfinite(found):
        raise ServiceError("bad-request", f"{name} must be seconds since the epoch.")
    return found


def whole_number(
    request: web.Request, name: str, default: int, most: int | None = None, least: int = 0
) -> int:
    """A query parameter that counts; what is over ``most`` is that. Raises ServiceError."""
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()):
        raise ServiceError("bad-request", f"{name} must be a whole number.")
    if len(text) > 18:
        if most is None:
            raise ServiceError("bad-request", f"{name} must have at most 18 digits.")
        return most
    if int(text) < least:
        raise ServiceError("bad-request", f"{name} must be {least} or more.")
    return min(int(text), most) if most else int(text)


def flag(request: web.Request, name: str) -> bool:
    """A query parameter that is set or not. Raises ServiceError."""
    text = request.query.get(name, "false").lower()
    if text not in ("", "1", "true", "0", "false"):
        raise ServiceError("bad-request", f"{name} must be true or false.")
    return text in ("", "1", "true")


def run_in_path(request: web.Request) -> str:
    """The run behind ``/v1/runs/``, as a call would name it. Raises ServiceError."""
    raw = request.rel_url.raw_path.removeprefix("/v1/runs/").partition("/")[0]
    try:
        run = identify(Sources(run=raw)).run
    except BadIdentity as error:
        raise ServiceError("bad-request", f"{error.detail}.") from error
    if run is None:
        raise ServiceError("bad-request", "The path names no run.")
    return run


def _run_of(request: web.Request) -> str | None:
    """The run whose right is asked about: the same that the handler takes from the path."""
    try:
        return run_in_path(request)
    except ServiceError:
        return None  # the handler says so


def guarded(route: Route, tokens: Tokens, runs: RunTokens) -> Open:
    """The handler behind its check of token and role."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if route.role is None:
            return await route.handler(request, _ANYBODY)
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        token = token.strip() if scheme.lower() == "bearer" else ""
        run = _run_of(request) if route.role is Role.RUN else None
        holder = tokens.holder(token) if token else None
        if holder is None and route.role > Role.RUN and token.startswith(TOKEN_PREFIX):
            return problem("forbidden", "A run's token is for what is under its own /v1/runs/RUN.")
        if holder is None and run is not None and token and runs.holds(run, token):
            holder = Holder(f"run {run}"[:200], Role.RUN, run)
        if holder is None:
            return problem(
                "unauthorized",
                "Send Authorization: Bearer with a token of state_dir/tokens.json"
                + (", or the run's own." if route.role is Role.RUN else "."),
            )
        if holder.role < route.role:
            return problem(
                "forbidden",
                f"The token {holder.name} is for reading; this needs an operator's.",
            )
        if route.guards and holder.role is Role.AGENT:
            body = await json_body(request)
            run = body.get("run") if isinstance(body, dict) else None
        if holder.role is Role.AGENT and isinstance(run, str) and runs.guarded(run):
            return problem(
                "forbidden",
                "This run has a token of its own: use that, or an operator's.",
            )
        return await route.handler(request, holder)

    return handle


@web.middleware
async def problems_middleware(request: web.Request, handler: Open) -> web.StreamResponse:
    """Every failure becomes a problem document."""
    try:
        return await handler(request)
    except ServiceError as error:
        return problem(error.code, error.detail, error.problems)
    except Damaged as error:
        return problem("damaged", str(error))
    except LedgerError as error:
        return problem("ledger-unavailable", str(error))
    except web.HTTPRequestEntityTooLarge:
        return problem("too-large", "Send a smaller body.")
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        response = problem("method-not-allowed", f"Use {allowed}.")
        response.headers["Allow"] = allowed
        return response
    except web.HTTPNotFound:
        return problem("not-found", "No such address; /openapi.json lists them all.")
    except (web.HTTPException, ConnectionError):
        raise
    except Exception:
        log.exception("control request failed", method=request.method, path=request.path)
        return problem("internal-error", "It is in the log.")


def host_middleware(allowed: Sequence[str]) -> Any:
    """Refuse names that this port was not given: what keeps a web page that has its own name
    resolve to this address from talking to it. Plain addresses cannot be made to point elsewhere.
    """
    names = _LOCAL_NAMES | {name.lower().rstrip(".") for name in allowed}

    @web.middleware
    async def check(request: web.Request, handler: Open) -> web.StreamResponse:
        host = request.headers.get("Host", "")
        name = _name_of(host)
        if name not in names and not _is_address(name):
            return problem(
                "foreign-host", "Use an address or localhost, or list the name in control.hosts."
            )
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return problem("foreign-host", "Pages of another origin may not talk to this port.")
        return await handler(request)

    return check


def _name_of(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
