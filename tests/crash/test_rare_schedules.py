"""Schedules that led to a second effect, a lost success or a wrong word, found by trying."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from proxy.core.model import Request
from proxy.core.operation import Kind, State
from proxy.resolution import Resolution
from proxy.service import OperationService
from tests.crash.support import Cut, Gate, kinds, note, note_key, page, plain, queried
from tests.fakes.scripted import LOST, Proxy, answer
from tests.fakes.world import Opened, body_of, outcome
from tests.reports.service import Held, keyed, slow, world

FOUND = {"id": "n1"}


async def says(proxy: Proxy, key: str, what: str) -> None:
    """A person resolves the operation."""

    async def reload() -> None: ...

    service = OperationService(
        ledger=proxy.ledger,
        clock=proxy.clock,
        services=tuple,
        settle=proxy.recovery.settle,
        reload=reload,
    )
    await service.resolve(key, Resolution(as_=what, by="ops"))


@pytest.mark.parametrize("what", ["did_not_happen", "abandoned"])
async def test_what_a_lookup_has_seen_outweighs_a_person_who_spoke_meanwhile(what: str) -> None:
    """The person judged while the lookup was on its way. It comes back with the object."""

    async def look(request: Request) -> Opened:
        key = f"{note_key(proxy)}/v1"
        await says(proxy, key, what)
        return page(FOUND | {"mark": key})

    proxy = queried(LOST, answer(201, {"id": "n2"}), lookups=[look])
    reply = await proxy.call(note())
    assert len(proxy.api.writes) == 1
    assert (reply.status, outcome(reply)) == (201, "reconciled")
    operation = proxy.operation(note_key(proxy))
    assert operation.state is State.SUCCEEDED
    assert operation.outcome is not None
    assert operation.outcome.external_id == "n1"
    conflict = Kind.EFFECT_CONFLICT in await kinds(proxy, operation.key)
    assert conflict is (what == "abandoned")


async def test_a_person_who_spoke_while_a_lookup_found_nothing_is_heard() -> None:
    async def look(request: Request) -> Opened:
        await says(proxy, f"{note_key(proxy)}/v1", "did_not_happen")
        return page()

    proxy = queried(LOST, answer(201, {"id": "n2"}), lookups=[look])
    assert (await proxy.call(note())).status == 201
    assert len(proxy.api.writes) == 2


async def test_an_object_of_another_operation_does_not_outweigh_a_person() -> None:
    async def look(request: Request) -> Opened:
        key = f"{note_key(proxy)}/v1"
        if not proxy.api.lookups:
            await says(proxy, key, "abandoned")
        return page(FOUND | {"mark": key})

    proxy = queried(LOST, LOST, lookups=[look])
    proxy.engine._adopting.add(("notes", "notes.create", None, "n1"))
    await proxy.call(note())
    assert proxy.operation(note_key(proxy)).state is State.FAILED


@pytest.mark.parametrize("status", [401, 429])
async def test_a_throttle_whose_body_broke_off_is_still_a_throttle(status: int) -> None:
    fields = (("Content-Type", "application/json"), ("Retry-After", "3"))
    cut = Cut(status, "", fields, b'{"error": "slow down"}')
    proxy = queried(cut)
    calls = [asyncio.create_task(proxy.call(plain())) for _ in range(2)]
    for reply in await asyncio.gather(*calls):
        assert (reply.status, body_of(reply)) == (status, b"")
        assert ("Retry-After", "3") in reply.headers or outcome(reply) == "coalesced"
    assert len(proxy.api.writes) == 1
    proxy.api.sends = [answer(201, {"id": "p1"})]
    assert (await proxy.call(plain())).status == 201


async def test_a_new_wording_that_was_answered_is_answered_again() -> None:
    """Its caller repeats it, at the same moment or later: it is no second message."""
    async with world(keyed("/payments", "wording: [body.reason]")) as w:
        held = Held()
        w.service.fates = [held, slow(2)]
        w.begin("/payments", {"amount": 7, "reason": "late"})
        await held.reached()
        await w.restart()
        await w.resume()
        worded = ("/payments", {"amount": 7, "reason": "too late"})
        replies = await asyncio.gather(w.post(*worded), w.post(*worded))
        replies.append(await w.post(*worded))
        assert [reply.status for reply in replies] == [201] * 3
        assert w.service.made() == 1
        assert (await w.post("/payments", {"amount": 7, "reason": "very late"})).status == 422


async def test_a_new_wording_that_only_waited_is_not_taken_for_answered() -> None:
    """In the start of the run that made the first one it may be a second message, however often it
    is said."""
    proxy = queried(gate := Gate(answer(201, FOUND)))
    proxy.settings = replace(proxy.settings, patience=60)
    proxy.start()
    first = asyncio.create_task(proxy.call(note("started")))
    await gate.reached()
    worded = [asyncio.create_task(proxy.call(note("failed"))) for _ in range(2)]
    await proxy.clock.sleep(1)
    gate.open.set()
    assert (await first).status == 201
    assert [reply.status for reply in await asyncio.gather(*worded)] == [422, 422]
    assert (await proxy.call(note("failed"))).status == 422
