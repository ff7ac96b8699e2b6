"""The pages as an operator uses them: Chromium against a proxy over real sockets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio

from proxy.core.operation import Kind
from proxy.drill.toyapi import ToyApi
from proxy.ledger.base import Gap
from tests.console.conftest import Watched, watched
from tests.console.scene import AGENT, Scene, answered, furnish, lost, scene, started
from tests.fakes.whole import Door, assert_refused, outcome, toy_rules, whole

pytestmark = pytest.mark.asyncio(loop_scope="session")

LISTS = ("/", "/operations?run=nobody", "/operation?key=nope", "/runs", "/approvals")
PHONE = {"viewport": {"width": 360, "height": 740}}


@pytest_asyncio.fixture(loop_scope="session")
async def made(tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene(tmp_path) as inside:
        yield inside


@pytest_asyncio.fixture(loop_scope="session")
async def browser(chromium: Any, made: Scene) -> AsyncIterator[Watched]:
    async with watched(chromium, made.url) as found:
        yield found
        assert found.wrong == []


async def act(browser: Watched, button: str) -> None:
    await browser.page.get_by_role("button", name=button).first.click()


# Signing in


async def test_signing_in_leads_to_the_page_that_was_asked_for(
    browser: Watched, made: Scene
) -> None:
    operation = await made.add(started(), lost())
    await browser.go(f"/operation?key={quote(operation.key, safe='')}")
    await browser.page.get_by_label("Operator token").fill("a wrong one")
    await act(browser, "Sign in")
    assert "not known" in await browser.text("[role=alert]")
    await browser.page.get_by_label("Operator token").fill(AGENT)
    await act(browser, "Sign in")
    assert "is an agent's" in await browser.text("[role=alert]")
    await browser.page.get_by_label("Operator token").fill("operator-token-of-ada")
    await act(browser, "Sign in")
    assert "shop.refunds.create" in await browser.text("h1")
    assert await browser.page.evaluate("document.cookie") == ""  # no script can see it
    await act(browser, "Sign out")
    await browser.go("/")
    assert await browser.text("h1") == "Sign in"


# What needs a person


async def test_nothing_to_do_says_so(browser: Watched, made: Scene) -> None:
    await browser.let_in(made)
    await browser.go("/")
    assert "Nothing needs you" in await browser.text()


async def test_what_needs_a_person_comes_oldest_first_with_words_for_why(
    browser: Watched, made: Scene
) -> None:
    await made.add(started(), lost("no_query"), run="younger", ago=600)
    await made.add(started(), lost("key_expired"), run="older", ago=6000)
    await made.add(started(), lost("lag"), run="by itself", ago=60)
    await made.add(started(), lost("lag"), run="far too long", ago=90_000)
    await browser.let_in(made)
    await browser.go("/")
    cards = await browser.page.locator("article.need").all_inner_texts()
    assert ["far too long" in cards[0], "older" in cards[1], "younger" in cards[2]] == [True] * 3
    assert len(cards) == 3
    assert "sending again could do it twice" in cards[1]
    assert "Look at the service yourself" in cards[2]
    assert "1 being settled without you" in await browser.text(".settling")


async def test_trouble_and_a_gap_of_the_ledger_are_alarms(
    browser: Watched, made: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    gap = Gap(made.clock.time() - 7200, made.clock.time() - 3600)
    for name, value in (
        ("gap", gap), ("trouble", "disk full"), ("alarms", ["it is behind its head file"]),
    ):  # fmt: skip
        held = property(lambda _, value=value: value)
        monkeypatch.setattr(type(made.ledger), name, held, raising=False)
    await browser.let_in(made)
    await browser.go("/")
    alarms = " ".join(await browser.page.locator(".alarm").all_inner_texts())
    for words in ("Disk full.", "2 h ago", "1 h ago", "behind its head file", "cannot be written"):
        assert words in alarms
    assert "Nothing needs you" not in await browser.text()


# Lists


async def test_operations_are_filtered_and_paged(browser: Watched, made: Scene) -> None:
    for number in range(55):
        await made.add(started(), answered("succeeded", 200), run="many", step=f"s-{number:02}",
                       ago=1000 - number)  # fmt: skip
    await made.add(started(), lost(), run="odd run/1", step="send mail", ago=5)
    await browser.let_in(made)
    await browser.go("/operations")
    assert await browser.page.locator(".row").count() == 50
    assert "odd run/1" in await browser.text(".row")
    await browser.page.get_by_role("link", name="Older").click()
    assert await browser.page.locator(".row").count() == 6
    assert "s-00" in (await browser.page.locator(".row").all_inner_texts())[-1]

    await browser.go("/operations")
    await browser.page.get_by_label("Run").fill("odd run/1")
    await browser.page.get_by_label("Step has").fill("d m")
    await browser.page.get_by_label("State").select_option("unknown")
    await act(browser, "Show")
    assert await browser.page.locator(".row").count() == 1
    await browser.page.get_by_label("State").select_option("failed")
    await act(browser, "Show")
    assert "None like that" in await browser.text()


# One operation


async def test_an_operation_tells_its_story_and_masks_its_secrets(
    browser: Watched, made: Scene
) -> None:
    await furnish(made)
    await browser.let_in(made)
    await browser.go("/operations?run=support-case-181")
    await browser.page.locator(".row a.name").click()
    page = await browser.text()
    assert "The API answered 201. It made re_1." in page
    assert "Answered from the ledger 2 times" in page
    for masked in ("4242424242424242", "cs_1", "hunter2hunter2"):
        assert masked not in await browser.page.content()
    assert '"number": "***"' in page
    assert '"amount": 42.50' in page
    lines = await browser.page.locator(".event-title").all_inner_texts()
    assert [line.split(" ")[0] for line in lines] == ["Attempt", "The", "The", "Answered"]


async def test_asking_the_api_finds_it(browser: Watched, made: Scene) -> None:
    operation = await made.add(started(), lost("query_failed"))
    await browser.let_in(made)
    await browser.go(f"/operation?key={operation.key}")
    await act(browser, "Ask the API now")
    assert "Still unknown" in await browser.text("[role=status]")
    made.finds = "re_7"
    await act(browser, "Ask the API now")
    assert "It is succeeded now" in await browser.text("[role=status]")
    assert "re_7" in await browser.text(".why")
    assert made.settles == [operation.key] * 2
    await browser.go(f"/operation?key={operation.key}")
    assert await browser.page.locator("[role=status]").count() == 0  # told once


async def test_a_stale_form_is_told_what_changed_and_records_nothing(
    browser: Watched, made: Scene
) -> None:
    operation = await made.add(started(), lost("ambiguous"))
    await browser.let_in(made)
    await browser.go(f"/operation?key={operation.key}")
    old = await browser.page.context.new_page()
    await old.goto(browser.page.url)
    await browser.page.get_by_label("It did not happen").check()
    await browser.page.get_by_label("Evidence").fill("I looked")
    await made.then(operation, Kind.LOOKUP_INCONCLUSIVE, blocked_by="credentials", reason="gone")
    await act(browser, "Record it")
    told = await browser.text("#problems")
    assert "It changed while you looked at it" in told
    assert "Its caller's credential is needed" in told
    assert "Attempt 1 started" not in told  # that was known
    held = made.ledger.get(operation.key)
    assert held is not None
    assert held.state == "unknown"
    assert await browser.page.get_by_label("Evidence").input_value() == "I looked"
    await act(browser, "Record it")  # knowing that, it is what they say
    assert "It is not_applied now" in await browser.text("[role=status]")

    await old.get_by_label("It happened").check()  # and another tab that was open all the time
    await old.get_by_label("Evidence").fill("I looked as well")
    await old.get_by_role("button", name="Record it").click()
    assert "ada said: it did not happen" in await old.locator("#problems").inner_text()


async def test_a_form_that_lacks_something_keeps_the_rest(browser: Watched, made: Scene) -> None:
    operation = await made.add(started(), lost())
    await browser.let_in(made)
    await browser.go(f"/operation?key={operation.key}")
    await browser.page.evaluate("document.querySelector('form.resolve').noValidate = true")
    await browser.page.get_by_label("It happened").check()
    await browser.page.get_by_label("External id").fill("re_1")
    await act(browser, "Record it")
    assert "Say how you know" in await browser.text("#problems")
    assert await browser.page.get_by_label("External id").input_value() == "re_1"
    assert await browser.page.get_by_label("It happened").is_checked()


async def test_two_clicks_are_one_act(browser: Watched, made: Scene) -> None:
    operation = await made.add(started(), lost())
    await browser.let_in(made)
    await browser.go(f"/operation?key={operation.key}")
    await browser.page.get_by_label("Give it up").check()
    await browser.page.get_by_label("Evidence").fill("the case is over")
    await browser.page.get_by_role("button", name="Record it").dblclick()
    await browser.page.wait_for_selector("[role=status]")
    assert "It is failed now" in await browser.text("[role=status]")
    events = [stored.event.kind for stored in await made.ledger.history(operation.key)]
    assert events.count(Kind.OPERATOR_RESOLVED) == 1


# Approvals


async def test_the_inbox_shows_what_would_be_sent_the_soonest_to_end_first(
    browser: Watched, made: Scene
) -> None:
    body = b'{"amount": 10.50, "card": {"number": "4242424242424242"}}'
    await made.hold("Later", expires=7200, step="a", body=body)
    await made.hold("Soon", expires=270, step="b", body=body)
    await made.hold("Too late", expires=-1, step="c", ago=7200)
    await browser.let_in(made)
    await browser.go("/approvals")
    cards = await browser.page.locator("article.approval").all_inner_texts()
    assert [("Soon" in cards[0]), ("Later" in cards[1]), len(cards)] == [True, True, 2]
    assert "expires in 4 min" in cards[0]
    for words in ("POST https://api.shop.test/v1/refunds", '"amount": 10.50', '"number": "***"'):
        assert words in cards[0]
    assert "4242424242424242" not in await browser.page.content()
    assert "Too late" in await browser.text("[aria-labelledby=decided]")
    assert (await browser.text("nav .count")).split() == ["2", "waiting"]


async def test_granting_and_denying_are_recorded_under_who_did_it(
    browser: Watched, made: Scene
) -> None:
    first = await made.hold("One", step="a", expires=60)
    second = await made.hold("Two", step="b")
    await browser.let_in(made)
    await browser.go("/approvals")
    card = browser.page.locator("article.approval").first
    await card.get_by_label("Note").fill("checked with finance")
    await card.get_by_role("button", name="Grant").click()
    assert "Granted." in await browser.text("[role=status]")
    assert "granted by ada" in await browser.text("article")
    await act(browser, "Revoke before it is sent")
    assert "Revoked." in await browser.text("[role=status]")
    await browser.go("/")
    await browser.page.get_by_label("Note").fill("offer a voucher instead")
    await act(browser, "Deny")
    assert "Denied." in await browser.text("[role=status]")
    told = [await made.services.approvals.one(each) for each in (first, second)]
    assert [(one["state"], one["by"], one["note"]) for one in told] == [
        ("revoked", "ada", ""),
        ("denied", "ada", "offer a voucher instead"),
    ]


async def test_what_was_decided_meanwhile_is_not_decided_again(
    browser: Watched, made: Scene
) -> None:
    held = await made.hold()
    await browser.let_in(made)
    await browser.go(f"/approval?id={held}")
    await made.services.approvals.deny(held, {"note": "no"}, "grace")
    await act(browser, "Grant")
    assert "It was denied" in await browser.text("[role=status]")
    assert (await made.services.approvals.one(held))["state"] == "denied"


async def test_a_form_for_another_request_decides_nothing(browser: Watched, made: Scene) -> None:
    held = await made.hold()
    await browser.let_in(made)
    await browser.go(f"/approval?id={held}")
    await browser.page.evaluate("document.querySelector('[name=digest]').value = 'other'")
    await act(browser, "Grant")
    assert "another one than you saw" in await browser.text("[role=status]")
    assert (await made.services.approvals.one(held))["state"] == "waiting"


async def test_who_began_a_run_does_not_approve_what_it_does(browser: Watched, made: Scene) -> None:
    await made.run("case-1", by="ada")
    held = await made.hold(run="case-1")
    await browser.let_in(made)
    await browser.go(f"/approval?id={held}")
    await act(browser, "Grant")
    assert "somebody else must approve" in await browser.text("[role=status]")
    assert (await made.services.approvals.one(held))["state"] == "waiting"


# Runs


async def test_a_run_shows_its_budget_and_is_revoked_restored_and_closed(
    browser: Watched, made: Scene
) -> None:
    await made.run("case 1/a")
    await made.services.runs.set_budget("case 1/a", {"tokens": 1000}, "ada", raising=True)
    await made.spend("case 1/a", tokens=1000, writes=3)
    await made.add(started(), lost(), run="case 1/a")
    await made.services.checkpoints.save("case 1/a", b'{"step": "refund it"}')
    await browser.let_in(made)
    await browser.go("/runs")
    await browser.page.get_by_role("link", name="case 1/a").click()
    page = await browser.text()
    for words in ("1,000 of 1,000, used up", "3, no limit", "1 unknown", "refund it", "version 1"):
        assert words in page
    await browser.page.get_by_text("Revoke", exact=True).first.click()
    await browser.page.get_by_label("Reason").fill("the customer withdrew it")
    await act(browser, "Revoke")
    assert "It is revoked" in await browser.text("[role=status]")
    held = await made.services.runs.one("case 1/a")
    assert held["revoked"]["reason"] == "the customer withdrew it"
    assert held["revoked"]["by"] == "ada"
    assert "the customer withdrew it" in await browser.text(".state-card")
    await act(browser, "Restore")
    assert (await made.services.runs.one("case 1/a"))["status"] == "open"
    await browser.page.get_by_text("Close", exact=True).first.click()
    await browser.page.get_by_label("failed").check()
    await act(browser, "Close the run")
    assert "It is closed" in await browser.text("[role=status]")
    assert (await made.services.runs.one("case 1/a"))["status"] == "failed"


async def test_an_effect_that_should_not_be_there_is_an_alarm(
    browser: Watched, made: Scene
) -> None:
    given_up = await made.add(started(), lost(), run="case-7")
    await made.run("case-7")
    await made.then(given_up, Kind.OPERATOR_RESOLVED, **{"as": "abandoned", "by": "ada"})
    await made.then(given_up, Kind.EFFECT_CONFLICT, external_id="re_9", said="abandoned")
    await browser.let_in(made)
    await browser.go("/")
    assert "case-7" in await browser.text(".alarm")


# How it looks and reads


async def test_no_page_is_wider_than_a_phone_and_all_text_stands_out_in_both_themes(
    chromium: Any, made: Scene
) -> None:
    await furnish(made)
    (held,) = made.held
    async with watched(chromium, made.url, **PHONE) as browser:
        await browser.let_in(made)
        await browser.go("/operations")
        links = "links => links.map(link => link.getAttribute('href'))"
        one_by_one = await browser.page.locator(".row a.name").evaluate_all(links)
        for path in (*one_by_one, *LISTS, "/run?id=support-case-1842", f"/approval?id={held}"):
            await browser.go(path)
            assert await browser.page.evaluate(TOO_WIDE) == [], path
            for scheme in ("light", "dark"):
                await browser.page.emulate_media(color_scheme=scheme)
                assert await browser.page.evaluate(FAINT) == [], (path, scheme)


async def test_pages_can_be_used_without_a_mouse_and_by_ear(browser: Watched, made: Scene) -> None:
    operation = await made.add(started(), lost("ambiguous"), run="case-1")
    held = [await made.hold(step="a", run="case-1"), await made.hold(step="b", run="case-1")]
    await browser.let_in(made)
    for path in (
        "/", "/operations", f"/operation?key={operation.key}", "/runs", "/run?id=case-1",
        "/approvals", f"/approval?id={held[0]}",
    ):  # fmt: skip
        await browser.go(path)
        assert await browser.page.evaluate(UNNAMED) == [], path
        assert await browser.page.locator("main, nav, header, h1").count() >= 4
        assert await browser.page.title() != ""
    await browser.page.keyboard.press("Tab")
    assert await browser.page.evaluate("document.activeElement.textContent") == "Skip to content"


async def test_without_scripts_everything_works(chromium: Any, made: Scene) -> None:
    operation = await made.add(started(), lost())
    async with watched(chromium, made.url, java_script_enabled=False) as browser:
        await browser.let_in(made)
        await browser.go(f"/operation?key={operation.key}")
        await browser.page.get_by_label("It did not happen").check()
        await browser.page.get_by_label("Evidence").fill("not in the list")
        await act(browser, "Record it")
        assert "It is not_applied now" in await browser.text("[role=status]")


# A real proxy: what a person says decides about the next call


BODY = {"reference": "it", "amount": 4200}
KEY = "run-1/step-1/toy.messages.send/v1"


@pytest_asyncio.fixture(loop_scope="session")
async def toy() -> AsyncIterator[ToyApi]:
    api = ToyApi()
    await api.start()
    yield api
    await api.close()


async def say(chromium: Any, door: Door, what: str, **fields: str) -> None:
    """An operator signs in at the proxy and says what became of the operation."""
    token = json.loads((door.state_dir / "tokens.json").read_text())["operator"]
    async with watched(chromium, f"http://127.0.0.1:{door.control}") as browser:
        await browser.sign_in(token)
        await browser.page.get_by_role("link", name="Say what you found").click()
        await browser.page.get_by_label(what).check()
        for label, text in fields.items():
            await browser.page.get_by_label(label.replace("_", " ")).fill(text)
        await act(browser, "Record it")
        assert "Recorded." in await browser.text("[role=status]")
        assert browser.wrong == []


async def test_what_did_not_happen_is_sent_by_the_next_call_and_only_then(
    chromium: Any, toy: ToyApi, tmp_path: Path
) -> None:
    toy.troubles.fault("it", "drop_before")
    async with whole(tmp_path, toy_rules(toy.url)) as door:
        assert_refused(await door.call(toy.url + "/messages", BODY), 424, "outcome-unresolved")
        await say(chromium, door, "It did not happen", Evidence="not in the outbox")
        assert toy.effects.counts().get("it", 0) == 0
        assert (await door.call(toy.url + "/messages", BODY)).status == 201
        assert (await door.call(toy.url + "/messages", BODY)).status == 201
        assert toy.effects.counts()["it"] == 1
        _, history = await door.ask("GET", f"/v1/operations/{quote(KEY, safe='')}/history")
        (said,) = [e["data"] for e in history["events"] if e["event"] == "OperatorResolved"]
        assert (said["by"], said["evidence"]) == ("operator", "not in the outbox")


async def test_what_happened_is_never_sent_again(
    chromium: Any, toy: ToyApi, tmp_path: Path
) -> None:
    toy.troubles.fault("it", "drop_after")
    async with whole(tmp_path, toy_rules(toy.url)) as door:
        assert_refused(await door.call(toy.url + "/messages", BODY), 424, "outcome-unresolved")
        await say(chromium, door, "It happened", External_id="ms_1", Evidence="in the outbox")
        got = await door.call(toy.url + "/messages", BODY)
        assert_refused(got, 409, "outcome-not-kept", "ms_1")
        assert toy.effects.counts()["it"] == 1


APPROVAL = """    match: POST /messages
    approval: {required: true, summary: "Message {body.reference}", expires: 1h}
"""


def asking(url: str) -> str:
    """The toy API's rules, by which every message waits for a person."""
    lines = [line for line in toy_rules(url).splitlines() if not line.startswith("    approval:")]
    return "\n".join(lines).replace("    match: POST /messages\n", APPROVAL) + "\n"


async def at_the_console(door: Door, browser: Watched) -> None:
    token = json.loads((door.state_dir / "tokens.json").read_text())["operator"]
    await browser.sign_in(token)


async def test_a_granted_call_is_sent_once_when_it_comes_again(
    chromium: Any, toy: ToyApi, tmp_path: Path
) -> None:
    rules = asking(toy.url)
    async with (
        whole(tmp_path, rules) as door,
        watched(chromium, f"http://127.0.0.1:{door.control}") as browser,
    ):
        held = await door.call(toy.url + "/messages", BODY)
        assert (held.status, outcome(held)) == (403, "held")
        await at_the_console(door, browser)
        assert "Message it" in await browser.text("article.approval")
        assert '"amount": 4200' in await browser.text("article.approval")
        await act(browser, "Grant")
        assert "Granted." in await browser.text("[role=status]")
        assert toy.effects.counts().get("it", 0) == 0  # a grant sends nothing
        changed = await door.call(toy.url + "/messages", BODY | {"amount": 9900})
        assert changed.status == 422
        assert (await door.call(toy.url + "/messages", BODY)).status == 201
        assert (await door.call(toy.url + "/messages", BODY)).status == 201
        assert toy.effects.counts()["it"] == 1
        await browser.go(f"/operation?key={quote(KEY, safe='')}")
        assert "operator granted it" in await browser.text(".timeline")


async def test_a_denied_call_is_never_sent_and_its_agent_is_told_why(
    chromium: Any, toy: ToyApi, tmp_path: Path
) -> None:
    rules = asking(toy.url)
    async with (
        whole(tmp_path, rules) as door,
        watched(chromium, f"http://127.0.0.1:{door.control}") as browser,
    ):
        held = await door.call(toy.url + "/messages", BODY)
        assert (held.status, outcome(held)) == (403, "held")
        await at_the_console(door, browser)
        await browser.page.get_by_label("Note").fill("Offer a voucher instead.")
        await act(browser, "Deny")
        assert "Denied." in await browser.text("[role=status]")
        got = await door.call(toy.url + "/messages", BODY)
        assert got.status == 403
        assert "Offer a voucher instead." in json.loads(got.body)["detail"]
        assert toy.effects.counts().get("it", 0) == 0


TOO_WIDE = """() => document.documentElement.scrollWidth <= innerWidth ? [] :
  [...document.querySelectorAll("body *")]
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1)
    .slice(0, 5).map(e => e.outerHTML.slice(0, 120))"""

# WCAG AA: 4.5 to 1 for text, against the first ground behind it.
FAINT = """() => {
  const channel = (c) => (c /= 255, c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
  const read = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b);
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const found = read(getComputedStyle(e).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element.checkVisibility()
        || element.closest(".hidden, option")) continue;
    const [one, other] = [light(read(getComputedStyle(element).color)), light(ground(element))];
    const ratio = (Math.max(one, other) + .05) / (Math.min(one, other) + .05);
    if (ratio < 4.5)
      faint.push(walker.currentNode.textContent.trim().slice(0, 40) + " " + ratio.toFixed(2));
  }
  return faint;
}"""

# Every control has a name, every field a label, every table's cells their headings, no id twice.
UNNAMED = """() => {
  const found = [];
  for (const field of document.querySelectorAll("input:not([type=hidden]), textarea, select"))
    if (!field.labels.length) found.push(field.outerHTML);
  for (const control of document.querySelectorAll("a, button, summary"))
    if (!control.textContent.trim()) found.push(control.outerHTML);
  for (const table of document.querySelectorAll("table"))
    if (!table.querySelector("th[scope]")) found.push("table");
  const ids = [...document.querySelectorAll("[id]")].map(e => e.id);
  if (new Set(ids).size !== ids.length) found.push("ids " + ids);
  for (const name of ["aria-labelledby", "aria-describedby"])
    for (const e of document.querySelectorAll("[" + name + "]"))
      for (const id of e.getAttribute(name).split(" "))
        if (!document.getElementById(id)) found.push("no " + id);
  if (document.querySelectorAll("h1").length !== 1) found.push("h1");
  if (document.documentElement.lang !== "en") found.push("lang");
  return found;
}"""
