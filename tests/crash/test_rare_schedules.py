"""Schedules that led to a second effect, a lost success or a wrong word, found by trying."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from proxy.core.model import Request
from proxy.core.operation import Kind, State
from proxy.service.operations import OperationService
from proxy.service.resolution import Resolution
from tests.crash.support import (
    IMPATIENT,
    Cut,
    Failing,
    Gate,
    kinds,
    note,
    note_key,
    page,
    plain,
    queried,
)
from tests.fakes.scripted import LOST, Proxy, answer, code, ruleset
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
    proxy.engine._lookups._adopting.add(("notes", "notes.create", None, "n1"))
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


NOISY = "noise: [body.trace]"
SENT = {"amount": 5, "trace": "t-1"}


@pytest.mark.parametrize("before", ["unruled", "ruled"])
@pytest.mark.parametrize("lost", [False, True])
async def test_a_rule_with_noise_that_comes_later_makes_no_second_effect(
    before: str, lost: bool
) -> None:
    """The fingerprint of then was worked out by another rule; what was sent then is compared."""
    first = keyed("/payments") if before == "ruled" else keyed("/elsewhere")
    async with world(first) as w:
        if lost:
            held = Held()
            w.service.fates = [held]
            w.begin("/payments", SENT)
            await held.reached()
        else:
            assert (await w.post("/payments", SENT)).status == 201
        w.proxy.rules = ruleset(keyed("/payments", NOISY))
        await w.restart()
        reply = await w.post("/payments", SENT)
        assert w.service.made() == 1
        unkeyed = lost and before == "unruled"  # nothing can settle it, and nothing is sent
        assert reply.status == (424 if unkeyed else 201)
        assert len(await w.operations()) == 1
        if not unkeyed:
            assert (await w.post("/payments", SENT | {"trace": "t-2"})).status == 201
        if before == "ruled":
            assert (await w.post("/payments", SENT | {"amount": 6})).status == 422
        assert w.service.made() == 1
        w.said.clear()


async def test_a_rule_that_learns_of_wording_later_lets_a_resumed_run_go_on() -> None:
    async with world(keyed("/payments")) as w:
        payment = {"amount": 5, "reason": "late"}
        assert (await w.post("/payments", payment)).status == 201
        await w.resume()
        worded = payment | {"reason": "too late"}
        assert (await w.post("/payments", worded)).status == 422
        w.proxy.rules = ruleset(keyed("/payments", "wording: [body.reason]"))
        await w.restart()
        assert outcome(await w.post("/payments", worded)) == "replayed"
        assert w.service.made() == 1


async def test_the_same_body_to_another_address_of_an_endpoint_stays_another_request() -> None:
    async with world(keyed("/things/{id}")) as w:
        assert (await w.post("/things/1", SENT)).status == 201
        w.proxy.rules = ruleset(keyed("/things/{id}", NOISY))
        await w.restart()
        assert (await w.post("/things/2", SENT)).status == 422
        assert w.service.made() == 1


async def test_a_ledger_that_fails_while_an_older_send_is_settled_says_nothing_of_not_sent() -> (
    None
):
    proxy = queried(LOST, settings=IMPATIENT, lookups=[answer(500)])
    proxy.ledger = ledger = Failing(proxy.clock)
    proxy.start()
    await proxy.call(note())
    await proxy.restart(seconds=60)

    def look(request: Request) -> Opened:
        ledger.fail = 1
        return page(FOUND | {"mark": f"{note_key(proxy)}/v1"})

    proxy.api.lookups = [look]
    reply = await proxy.call(note())
    assert (reply.status, code(reply)) == (409, "outcome-unknown")
    proxy.api.lookups = [page(FOUND | {"mark": f"{note_key(proxy)}/v1"})]
    proxy.clock.advance(60)
    assert (await proxy.call(note())).status == 201
    assert len(proxy.api.writes) == 1
