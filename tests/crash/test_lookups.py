"""What asking the API may settle, and how often something is sent on the strength of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from proxy.core.matching import RuleSet
from proxy.core.model import Lost, Request
from proxy.core.operation import State
from proxy.ledger.base import Ledger
from proxy.ledger.memory import MemoryLedger
from proxy.rulefile.loader import load_text
from tests.crash.support import (
    IMPATIENT,
    QUERIED,
    boom,
    note,
    note_key,
    on_disk,
    page,
    queried,
    settle_often,
)
from tests.fakes.clock import FakeClock
from tests.fakes.scripted import LOST, Proxy, Scripted, answer, code, ruleset
from tests.fakes.world import body_of, engine, outcome, post

BY_CONTENT = """
service: sms
hosts: [api.world.test]
source: https://api.world.test/docs
confidence: documented
checked: "2026-11-30"
key: none
endpoints:
  messages.create:
    match: POST /messages
    external_id: id
    reconcile:
      request: GET /messages?to={body.to}
      items: data
      where: {to: "{body.to}", text: "{body.text}"}
      by: content
      running: 0s
      settle: 1s
"""
MESSAGE = {"to": "+1", "text": "hi"}
THE_ONE = answer(200, {"data": [{"id": "m1", **MESSAGE}]})


async def text_twice(rules: str, clock: FakeClock, ledger: Ledger) -> tuple[Proxy, list[Any]]:
    """Two steps send the same text at once; both connections break; one message exists."""
    api = Scripted([LOST, LOST], [THE_ONE] * 20)
    proxy = Proxy(ruleset(rules), api, clock=clock, ledger=ledger)
    replies = await asyncio.gather(
        *(proxy.call(post("/messages", MESSAGE, step=step)) for step in ("a", "b"))
    )
    return proxy, replies


async def test_one_object_is_the_effect_of_one_operation(tmp_path: Path) -> None:
    clock = FakeClock(auto=False)
    async with on_disk(tmp_path, clock) as ledger:
        proxy, replies = await text_twice(BY_CONTENT, clock, ledger)
    assert len(proxy.api.writes) == 2
    assert sorted(r.status for r in replies) == [200, 424]


async def test_objects_without_an_id_are_adopted_by_nobody() -> None:
    clock = FakeClock()
    rules = BY_CONTENT.replace("    external_id: id\n", "")
    proxy, replies = await text_twice(rules, clock, MemoryLedger(clock))
    assert len(proxy.api.writes) == 2
    assert [r.status for r in replies] == [424, 424]


async def test_quiet_counts_from_an_attempt_that_ended_in_a_fault_of_our_own() -> None:
    """The first attempt is known to be absent; of the second the bytes leave, and nothing more is
    known. A second later the old absence says nothing about it."""
    proxy = queried(LOST, settings=IMPATIENT, lookups=[page()] * 200)
    await proxy.call(note())
    await settle_often(proxy)
    assert proxy.operation(note_key(proxy)).state is State.NOT_APPLIED
    proxy.api.sends = [boom, answer(201, {"id": "n2"})]
    assert (await proxy.call(note())).status == 500
    reply = await proxy.call(note())
    assert len(proxy.api.writes) == 2
    assert (reply.status, code(reply)) == (409, "outcome-unknown")


async def test_looks_before_an_attempt_say_nothing_about_it() -> None:
    """It was absent, was sent again, and is lost again: the quiet before it is over."""
    proxy = queried(LOST, settings=IMPATIENT, lookups=[page()] * 200)
    await proxy.call(note())
    await settle_often(proxy)
    proxy.api.sends = [LOST]
    await proxy.call(note())
    await settle_often(proxy, rounds=3)
    reply = await proxy.call(note())
    assert len(proxy.api.writes) == 2
    assert proxy.operation(note_key(proxy)).state is State.UNKNOWN
    assert code(reply) == "outcome-unknown"


async def test_one_call_sends_at_most_five_times_however_quick_absence_is_proven() -> None:
    rules = (
        QUERIED.replace("running: 60s", "running: 0s")
        .replace("settle: 5s", "settle: 0s")
        .replace("looks: 2", "looks: 1")
    )
    proxy = queried(*[answer(500, {})] * 50, rules=rules, lookups=[page()] * 50)
    reply = await proxy.call(note())
    assert len(proxy.api.writes) == 5
    assert sum(proxy.clock.slept) > 5  # and not in one burst
    assert outcome(reply) == "refused"


async def test_half_a_surrogate_pair_in_a_call_is_no_fault_of_a_lookup() -> None:
    """A text that a client cut through the middle of an emoji: no address can hold it."""
    rule = """
service: notes
hosts: [notes.test]
source: here
confidence: documented
key: none
endpoints:
  asked:
    match: POST /asked
    reconcile: {request: "GET /notes?title={body.title}", by: content, items: notes}
  found:
    match: POST /found
    reconcile: {request: POST /find, json: {title: "{body.title}"}, by: content, items: notes}
"""
    rules, clock = RuleSet([load_text(rule).service]), FakeClock()
    sent: list[Request] = []

    class Notes:
        async def open(self, request: Request, **kwargs: Any) -> Any:
            sent.append(request)
            if request.path == "/find":
                return answer(200, {"notes": []})
            return Lost("connection reset")

    _, callers, _ = engine(MemoryLedger(clock), Notes(), clock, rules)
    for path in ("/asked", "/found"):
        reply = await callers.handle(post(path, {"title": "so \ud83d"}, host="notes.test"))
        assert (reply.status, outcome(reply)) == (409, "refused"), body_of(reply)
    looked = [request for request in sent if request.path == "/find"]
    assert {request.body.data for request in looked} == {b'{"title":"so \\ud83d"}'}
    assert [request.path for request in sent if request.path != "/find"] == ["/asked", "/found"]
