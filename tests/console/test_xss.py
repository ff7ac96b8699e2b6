"""What agents and APIs write is text on every page, whatever it looks like: in a real browser."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio

from proxy.console import render
from proxy.control.tokens import Holder, Role
from proxy.core.identity import encode_part
from proxy.core.operation import Kind
from tests.console.conftest import Watched, watched
from tests.console.payloads import PAYLOADS
from tests.console.scene import OPERATOR, Scene, lost, scene, started

pytestmark = pytest.mark.asyncio(loop_scope="session")

NASTY = "<img src=x onerror=__xss(1)>"

# Elements and attributes that are none of ours, and what ran or was stopped.
FOREIGN = """() => {
  const known = new Set((
    "html head meta title link script body a header img nav ul li form input span button main " +
    "h1 h2 h3 h4 p section article div label textarea select option datalist fieldset legend dl " +
    "dt dd ol time code pre b bdi blockquote details summary table thead tbody tr th td svg path " +
    "circle rect").split(" "));
  const ours = (text) => (text.startsWith("/") && !text.startsWith("//")) || text.startsWith("#");
  const found = [];
  for (const element of document.querySelectorAll("*")) {
    const name = element.localName;
    if (!known.has(name)) found.push(name);
    if (name === "script" && !element.hasAttribute("src")) found.push("script");
    for (const { name: attribute, value } of element.attributes) {
      if (attribute.startsWith("on") || attribute === "style") found.push(name + " " + attribute);
      if (["href", "src", "action", "formaction"].includes(attribute) && !ours(value))
        found.push(name + " " + attribute + " " + value);
    }
  }
  if (window.__marks) found.push("it ran");
  return found.concat(window.__ran, window.__stopped);
}"""


async def found(browser: Watched) -> list[str]:
    """What is on this page that should not be."""
    return [*await browser.page.evaluate(FOREIGN), *browser.wrong]


async def nasty_operation(made: Scene, payload: str) -> str:
    """An operation with the payload in everything that an agent or an API may choose."""
    whole = whole_of(payload)
    operation = await made.add(
        started(reason=whole),
        lost(whole, reason=whole),
        run=f"run {whole}",
        step=f"step {whole}",
        name=f"POST {whole}",
        url=f"https://api.shop.test/{whole}?q={whole}",
        method="POST",
        body=json.dumps({"a": payload, payload: [payload]}).encode(),
        answer=json.dumps({"id": payload}).encode(),
    )
    await made.then(operation, Kind.LOOKUP_INCONCLUSIVE, blocked_by=whole, reason=whole)
    await made.then(
        operation, Kind.OPERATOR_RESOLVED,
        **{"as": "happened", "by": whole, "external_id": whole, "evidence": whole},
    )  # fmt: skip
    return operation.key


@pytest_asyncio.fixture(loop_scope="session")
async def made(tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene(tmp_path, tokens=[(OPERATOR, Holder(NASTY, Role.OPERATOR))]) as inside:
        yield inside


async def nasty_runs(made: Scene) -> None:
    """Runs and approvals with the payloads in whatever somebody names, says or asks."""
    approvals = made.services.approvals
    above = None
    for number, payload in enumerate(PAYLOADS):
        run = f"{number} " + "".join(char for char in whole_of(payload) if char >= " ")
        await made.run(run, by=f"by {run}", parent=above)
        above = run if number % 9 else None
        held = await made.hold(
            whole_of(payload), run=run, step=run, name=f"POST {run}",
            url=f"https://api.shop.test/{run}", method=run,
            body=json.dumps({payload: payload}).encode(),
        )  # fmt: skip
        if number % 3 == 1:
            await approvals.grant(held, {"note": run}, whole_of(NASTY))
        if number % 3 == 2:
            await approvals.deny(held, {"note": run}, run)
        if number % 5 == 4:
            await made.services.runs.revoke(run, {"reason": run}, run)


def whole_of(payload: str) -> str:
    """As it is after it went through a socket: without half characters."""
    return payload.encode("utf-8", "replace").decode()


async def test_forty_payloads_and_more() -> None:
    assert len(set(PAYLOADS)) >= 40


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
async def test_no_payload_is_anything_but_text_on_any_page(
    chromium: Any, made: Scene, every: int
) -> None:
    """The lists show all payloads at once, a page of its own has each one or every sixth."""
    keys = [await nasty_operation(made, payload) for payload in PAYLOADS]
    await nasty_runs(made)
    for payload in PAYLOADS:
        whole = whole_of(payload)
        unknown = await made.add(
            started(reason=whole), lost(whole), run=whole, step=whole, name=f"PUT {whole}",
            url=f"https://api.shop.test/{whole}", method=whole,
        )  # fmt: skip
    async with watched(chromium, made.url) as browser:
        await browser.let_in(made)
        await browser.page.add_init_script("window.__xss = () => { window.__marks = true; };")
        paths = ["/", "/operations", "/operations?state=succeeded", "/runs", "/approvals"]
        paths += [f"/operation?key={quote(key, safe='')}" for key in (unknown.key, *keys[::every])]
        asked = [quote(payload.encode("utf-8", "replace"), safe="") for payload in PAYLOADS]
        paths += [
            f"/operations?run={run}&step={step}&service={service}"
            for run, step, service in zip(asked[::3], asked[1::3], asked[2::3], strict=True)
        ][::every]
        paths += [f"/operation?key={key}" for key in asked[:2]]
        paths += [f"/operations?state={word}" for word in asked[:2]]
        paths += [f"/approval?id={held}" for held in made.held[:: every * 2]]
        paths += [f"/run?id={quote(encode_part(run), safe='')}" for run in made.runs[:: every * 2]]
        paths += ["/run?id=%3Cscript%3E", "/approval?id=%3Cscript%3E"]
        for path in paths:
            await browser.go(path)
            assert await found(browser) == [], path
        # The text is there, as text.
        await browser.go(f"/operation?key={quote(keys[0], safe='')}")
        page = await browser.text("body")
        assert page.count(PAYLOADS[0]) > 8
        assert NASTY in page  # the name of who is signed in


async def test_what_a_person_types_comes_back_as_text(chromium: Any, made: Scene) -> None:
    unknown = await made.add(started(), lost())
    async with watched(chromium, made.url) as browser:
        await browser.let_in(made)
        for payload in (PAYLOADS[30], PAYLOADS[6]):
            await browser.go(f"/operation?key={unknown.key}#resolve")
            await browser.page.get_by_label("It happened").check()
            await browser.page.get_by_label("External id").fill(payload)
            await browser.page.get_by_text("Answer that its calls get").click()
            await browser.page.get_by_label("JSON body").fill(payload)  # which it is not
            await browser.page.get_by_label("Evidence").fill(payload)
            await browser.page.get_by_role("button", name="Record it").click()
            assert await found(browser) == []
            assert await browser.page.get_by_label("Evidence").input_value() == payload
            assert "The answer is not JSON" in await browser.text("#problems")


async def test_a_template_that_forgot_to_escape_would_be_seen(
    chromium: Any, made: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: with escaping off, the same look at the same pages finds every kind of it."""
    plain = render.environment()
    broken = plain.overlay(autoescape=False, finalize=lambda value: "" if value is None else value)
    monkeypatch.setattr(render, "environment", lambda: broken)
    payloads = [p for p in PAYLOADS if p.startswith("<") and "\x00" not in p]
    seen = 0
    async with watched(chromium, made.url) as browser:
        await browser.page.add_init_script("window.__xss = () => { window.__marks = true; };")
        await browser.let_in(made)
        for payload in payloads[:4]:
            key = await nasty_operation(made, payload)
            await browser.go(f"/operation?key={quote(key, safe='')}")
            seen += bool(await found(browser))
    assert seen == 4
