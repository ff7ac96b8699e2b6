"""Who gets in, and what a browser is told it may do, byte by byte."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy.console.sessions import IDLE_SECONDS, LIFE_SECONDS, TRIES, TRIES_SECONDS, Sessions, Tries
from proxy.control.tokens import Holder, Role
from tests.console.scene import AGENT, OPERATOR, Scene, lost, scene, started

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


@dataclass
class Visitor:
    """A client that follows no redirect and keeps no cookie by itself."""

    scene: Scene
    session: aiohttp.ClientSession
    cookie: str = ""
    form: str = ""

    async def get(self, path: str, **headers: str) -> tuple[int, str, Any]:
        return await self._ask("GET", path, None, headers)

    async def post(
        self, path: str, fields: dict[str, str] | None = None, **headers: str
    ) -> tuple[int, str, Any]:
        """As a form of our own page would be sent; ``headers`` replace, empty takes away."""
        known = {"Origin": self.scene.url, "Sec-Fetch-Site": "same-origin"}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        fields = {"form": self.form} | (fields or {})
        return await self._ask("POST", path, fields, known | named)

    async def sign_in(self, token: str = OPERATOR) -> None:
        status, _, headers = await self.post("/sign-in", {"token": token})
        assert status == 303
        self.cookie = headers["Set-Cookie"].partition(";")[0]
        _, page, _ = await self.get("/")
        found = re.search(r'name="form" value="([^"]+)"', page)
        assert found is not None
        self.form = found[1]

    async def _ask(
        self, method: str, path: str, fields: dict[str, str] | None, headers: dict[str, str]
    ) -> tuple[int, str, Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items() if value}
        if self.cookie:
            named["Cookie"] = self.cookie
        async with self.session.request(
            method, self.scene.url + path, data=fields, headers=named, allow_redirects=False
        ) as response:
            return response.status, await response.text(), response.headers


@pytest.fixture
async def visitor(tmp_path: Path) -> AsyncIterator[Visitor]:
    async with (
        scene(tmp_path) as made,
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
    ):
        yield Visitor(made, session)


PAGES = (
    "/",
    "/operations",
    "/operation?key=k",
    "/runs",
    "/run?id=r",
    "/approvals",
    "/approval?id=a",
)
ACTS = (
    "/operation/reconcile", "/operation/resolve", "/run/close", "/run/revoke", "/run/restore",
    "/approval/grant", "/approval/deny", "/approval/revoke",
)  # fmt: skip


async def test_the_lists_above_name_every_page(visitor: Visitor) -> None:
    served = {
        (route.method, route.resource.canonical)
        for route in visitor.scene.control.application.router.routes()
        if route.resource is not None and not route.resource.canonical.startswith("/v1")
    }
    ours = {("GET", path.partition("?")[0]) for path in PAGES} | {("POST", path) for path in ACTS}
    for path in ("/sign-in", "/sign-out", "/assets/{name}"):
        ours |= {("GET", path), ("POST", path)}
    pages = {(m, p) for m, p in served if m != "HEAD" and p.split("/")[1] not in PROBES}
    assert pages <= ours
    assert {(m, p) for m, p in ours if p.startswith(("/op", "/run", "/app"))} <= pages


PROBES = ("metrics", "healthz", "readyz", "openapi.json")


@pytest.mark.parametrize("path", PAGES)
async def test_nobody_sees_a_page_without_signing_in(visitor: Visitor, path: str) -> None:
    status, page, headers = await visitor.get(path)
    assert status == 303
    assert headers["Location"].startswith("/sign-in")
    assert page == ""
    visitor.cookie = f"onceproxy-{visitor.scene.url.rpartition(':')[2]}=guessed"
    assert (await visitor.get(path))[0] == 303


@pytest.mark.parametrize("path", [*PAGES, "/sign-in", "/operations?state=wrong"])
async def test_every_page_has_the_same_strict_headers(visitor: Visitor, path: str) -> None:
    await visitor.sign_in()
    _, _, headers = await visitor.get(path)
    assert headers["Content-Security-Policy"] == CSP
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "same-origin"
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert "Access-Control-Allow-Origin" not in headers
    if headers.get("Location") is None:
        assert headers["Cache-Control"] == "no-store"


async def test_pages_hold_no_script_or_style_of_their_own_and_load_nothing_from_elsewhere(
    visitor: Visitor,
) -> None:
    await visitor.sign_in()
    operation = await visitor.scene.add(started(), lost())
    for path in (*PAGES, f"/operation?key={operation.key}", "/sign-in"):
        _, page, _ = await visitor.get(path)
        assert not re.search(r"<script(?![^>]*src=\"/assets/)", page)
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=", page)
        assert not re.search(r"(src|href|action)=\"(?!/(?!/)|#)", page)


async def test_the_cookie_is_for_this_site_alone_and_for_no_script(visitor: Visitor) -> None:
    _, _, headers = await visitor.post("/sign-in", {"token": OPERATOR})
    (morsel,) = SimpleCookie(headers["Set-Cookie"]).values()
    assert morsel.key == f"onceproxy-{visitor.scene.url.rpartition(':')[2]}"
    assert len(morsel.value) >= 43
    assert (morsel["httponly"], morsel["samesite"], morsel["path"]) == (True, "Strict", "/")
    assert morsel["domain"] == ""
    assert int(morsel["max-age"]) <= LIFE_SECONDS
    assert OPERATOR not in headers["Set-Cookie"]


async def test_a_session_ends_when_nobody_used_it_and_after_a_shift(visitor: Visitor) -> None:
    await visitor.sign_in()
    visitor.scene.clock.advance(IDLE_SECONDS - 1)
    assert (await visitor.get("/"))[0] == 200
    visitor.scene.clock.advance(IDLE_SECONDS + 1)
    assert (await visitor.get("/"))[0] == 303
    await visitor.sign_in()
    for _ in range(int(LIFE_SECONDS / IDLE_SECONDS) + 1):
        visitor.scene.clock.advance(IDLE_SECONDS - 1)
        status, _, _ = await visitor.get("/")
    assert status == 303


async def test_signing_out_ends_the_session_and_signing_in_again_makes_another(
    visitor: Visitor,
) -> None:
    await visitor.sign_in()
    first = visitor.cookie
    assert (await visitor.post("/sign-out"))[0] == 303
    assert (await visitor.get("/"))[0] == 303
    await visitor.sign_in()
    assert visitor.cookie != first
    second = visitor.cookie
    await visitor.sign_in()  # without signing out: the earlier id is worth nothing any more
    third, visitor.cookie = visitor.cookie, second
    assert (await visitor.get("/"))[0] == 303
    visitor.cookie = third
    assert (await visitor.get("/"))[0] == 200


async def test_an_agents_token_is_refused_with_a_clear_word(visitor: Visitor) -> None:
    status, page, headers = await visitor.post("/sign-in", {"token": AGENT})
    assert status == 403
    assert "is an agent" in page
    assert "Set-Cookie" not in headers


async def test_wrong_tokens_are_slowed_down_and_a_right_one_in_between_too(
    visitor: Visitor,
) -> None:
    for _ in range(TRIES):
        assert (await visitor.post("/sign-in", {"token": "guess"}))[0] == 401
    status, page, headers = await visitor.post("/sign-in", {"token": OPERATOR})
    assert (status, headers["Retry-After"]) == (429, str(int(TRIES_SECONDS) + 1))
    assert "Too many wrong tokens" in page
    visitor.scene.clock.advance(TRIES_SECONDS + 1)
    await visitor.sign_in()


def test_tries_count_by_address_and_are_not_remembered_without_end() -> None:
    now = [0.0]
    tries = Tries(lambda: now[0])
    for _ in range(TRIES):
        tries.failed("2001:db8::1")
    assert tries.wait("2001:db8::2") == TRIES_SECONDS  # the same household
    assert tries.wait("192.0.2.1") == 0
    for number in range(5_000):
        tries.failed(f"198.51.{number // 250}.{number % 250}")
    assert len(tries._wrong) <= 1_000
    assert tries.wait("not an address") == 0


def test_sessions_are_not_remembered_without_end() -> None:
    sessions = Sessions(lambda: 0.0)
    ids = [sessions.open(Holder("ada", Role.OPERATOR)) for _ in range(300)]
    assert sessions.find(ids[0]) is None
    assert sessions.find(ids[-1]) is not None


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "", "Sec_Fetch_Site": ""},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Host": "evil.example"},
    ],
    ids=lambda h: " ".join(f"{k}={v}" for k, v in h.items()),
)
async def test_a_form_of_another_page_does_nothing(
    visitor: Visitor, headers: dict[str, str]
) -> None:
    await visitor.sign_in()
    operation = await visitor.scene.add(started(), lost())
    held = await visitor.scene.hold(run="case-1")
    await visitor.scene.run("case-1")
    fields = {
        "key": operation.key, "as": "abandoned", "evidence": "x", "revision": "1", "id": held,
        "digest": "9f2c" * 16, "run": "case-1", "reason": "x",
    }  # fmt: skip
    for path in (*ACTS, "/sign-out"):
        assert (await visitor.post(path, fields, **headers))[0] == 403, path
    assert visitor.scene.ledger.get(operation.key) == operation
    assert visitor.scene.settles == []
    assert (await visitor.scene.services.approvals.one(held))["state"] == "waiting"
    assert (await visitor.scene.services.runs.one("case-1"))["status"] == "open"
    assert (await visitor.get("/"))[0] == 200  # still signed in


@pytest.mark.parametrize("token", ["", "guess", "another session's"])
async def test_a_form_without_its_sessions_token_does_nothing(visitor: Visitor, token: str) -> None:
    await visitor.sign_in()
    cookie, form = visitor.cookie, visitor.form
    if token.startswith("another"):
        visitor.cookie = ""
        await visitor.sign_in()
        token, visitor.cookie = visitor.form, cookie
        assert token != form
    operation = await visitor.scene.add(started(), lost())
    held = await visitor.scene.hold(run="case-1")
    fields = {"form": token, "key": operation.key, "as": "abandoned", "evidence": "x"}
    for path in (*ACTS, "/sign-out"):
        assert (await visitor.post(path, fields | {"revision": "1", "id": held}))[0] == 403, path
    assert visitor.scene.ledger.get(operation.key) == operation
    assert (await visitor.get("/"))[0] == 200


async def test_what_is_no_form_is_not_read_as_one(visitor: Visitor) -> None:
    await visitor.sign_in()
    status, _, _ = await visitor._ask(
        "POST",
        "/operation/reconcile",
        {},
        {"Origin": visitor.scene.url, "Content-Type": "text/plain"},
    )
    assert status == 403


async def test_acts_cannot_be_reached_by_a_link(visitor: Visitor) -> None:
    await visitor.sign_in()
    for path in ACTS:
        assert (await visitor.get(path))[0] == 405


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", ""])
async def test_a_foreign_name_is_refused_before_anything_is_told(
    visitor: Visitor, host: str
) -> None:
    headers = {"Host": host} if host else {"Host": "[::1"}
    status, page, answer = await visitor.get("/sign-in", **headers)
    assert (status, answer["Content-Type"]) == (403, "application/problem+json")
    assert "Operator token" not in page


@pytest.mark.parametrize(
    ("asked", "goes"),
    [
        ("/operations?run=a", "/operations?run=a"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example/", "/"),
        ("javascript:alert(1)", "/"),
        ("/a\r\nSet-Cookie: x=1", "/"),
        ("/sign-in?next=/", "/"),
        ("/" + "a" * 5_000, "/"),
    ],
)
async def test_signing_in_leads_to_our_own_pages_only(
    visitor: Visitor, asked: str, goes: str
) -> None:
    _, _, headers = await visitor.post("/sign-in", {"token": OPERATOR, "next": asked})
    assert headers["Location"] == goes


async def test_a_link_from_elsewhere_is_opened_by_the_page_itself(visitor: Visitor) -> None:
    """The browser leaves the cookie out of it; the second load is from here and has it."""
    status, page, _ = await visitor.get("/approval?id=apr-1", Sec_Fetch_Site="cross-site")
    assert status == 200
    assert 'content="0;url=/approval?id=apr-1"' in page
    assert "ap_1" not in page.replace("/approval?id=apr-1", "")


async def test_a_form_that_comes_after_the_session_ended_says_so(visitor: Visitor) -> None:
    await visitor.sign_in()
    operation = await visitor.scene.add(started(), lost())
    visitor.scene.clock.advance(IDLE_SECONDS + 1)
    status, page, _ = await visitor.post("/operation/reconcile", {"key": operation.key})
    assert status == 401
    assert "nothing was done" in page
    assert visitor.scene.settles == []


async def test_assets_may_be_kept_and_nothing_else_is_served(visitor: Visitor) -> None:
    _, page, _ = await visitor.get("/sign-in")
    for path in re.findall(r'"(/assets/[^"]+)"', page):
        status, _, headers = await visitor.get(path)
        assert status == 200
        assert "immutable" in headers["Cache-Control"]
        assert headers["X-Content-Type-Options"] == "nosniff"
    for path in ("/assets/sessions.py", "/assets/..%2Fsite.py", "/assets/"):
        assert (await visitor.get(path))[0] == 404
