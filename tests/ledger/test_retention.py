"""What every ledger keeps and what it gives up, and what calls get then."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from proxy.core.operation import Kind, State
from proxy.ledger.base import Ledger, Query
from proxy.ledger.sqlite import SqliteLedger
from proxy.retention import Pruned, Retention, prune
from tests.crash.support import OK, PLAIN, REFUND, keyed, plain, queried, refund
from tests.fakes.clock import FakeClock
from tests.fakes.scripted import LOST, Proxy, answer, code, fields
from tests.fakes.world import outcome
from tests.ledger.support import (
    ANSWER,
    NOW,
    change,
    first,
    lost,
    not_sent,
    operation,
    rejected,
    succeeded,
)
from tests.ledger.test_sqlite import by_hand, opened

DAY = 86_400.0
LATER = NOW + 200 * DAY


async def one_of_each(ledger: Ledger, **intent: object) -> dict[State, str]:
    """Keys of operations in every state that a ledger may hold, each with its bodies."""
    ends = {
        State.IN_FLIGHT: (),
        State.UNKNOWN: (lost(),),
        State.SUCCEEDED: (succeeded(external_id="re_1"),),
        State.FAILED: (rejected(),),
        State.NOT_APPLIED: (not_sent(),),
    }
    keys = {}
    for state, events in ends.items():
        one = await ledger.commit(first(operation(state.value, **intent)))
        if events:
            kept = ANSWER if state in (State.SUCCEEDED, State.FAILED) else None
            one = await ledger.commit(change(one, *events, answer=kept))
        assert one.state is state
        keys[state] = one.key
    ledger._clock.advance(LATER - NOW)  # type: ignore[attr-defined]
    return keys


async def test_bodies_go_and_keys_stay(ledger: Ledger) -> None:
    keys = await one_of_each(ledger)
    assert await ledger.prune(NOW - 1, 100) == 0, "nothing is that old"
    assert await ledger.prune(LATER, 100) == 3
    assert await ledger.prune(LATER, 100) == 0
    for state, key in keys.items():
        found = ledger.get(key)
        assert found is not None
        assert found.state is state
        unsettled = state in (State.IN_FLIGHT, State.UNKNOWN)
        assert (await ledger.request_of(key) is not None) is unsettled
        assert await ledger.answer_of(key) is None
        assert found.outcome is None or not found.outcome.kept
    done = ledger.get(keys[State.SUCCEEDED])
    assert done is not None
    assert done.outcome is not None
    assert done.outcome.external_id == "re_1"
    assert [s.event.kind for s in await ledger.history(done.key)][-1] is Kind.BODIES_PRUNED
    assert await ledger.verify() == []


async def test_keys_are_forgotten_but_never_what_may_have_been_sent(ledger: Ledger) -> None:
    keys = await one_of_each(ledger)
    assert await ledger.forget(LATER, 100) == 3
    left = {found.state for found in await ledger.operations(Query())}
    assert left == {State.IN_FLIGHT, State.UNKNOWN}
    gone = keys[State.SUCCEEDED]
    assert ledger.get(gone) is None
    assert ledger.find(gone.rpartition("/")[0]) is None
    assert await ledger.answer_of(gone) is None
    assert [s.event.kind for s in await ledger.history(gone)][-1] is Kind.KEY_FORGOTTEN
    counts = await ledger.counts()
    assert (counts["", "succeeded", None], counts["", "unknown", None]) == (0, 1)
    again = await ledger.commit(first(operation("succeeded")))
    assert again.key == gone
    assert ledger.get(gone) == again
    assert await ledger.verify() == []


@pytest.mark.parametrize("valid_for", [math.inf, 10_000 * DAY])
async def test_a_key_that_the_api_still_honours_is_not_forgotten(
    ledger: Ledger, valid_for: float
) -> None:
    keys = await one_of_each(ledger, valid_for=valid_for)
    short = await ledger.commit(first(operation("short", valid_for=DAY)))
    await ledger.commit(change(short, succeeded()))
    ledger._clock.advance(100 * DAY)  # type: ignore[attr-defined]
    while await ledger.forget(LATER, 1):  # those that stay do not stand in the way of others
        pass
    assert ledger.get(short.key) is None
    for state in (State.SUCCEEDED, State.FAILED):
        assert ledger.get(keys[state]) is not None


async def test_a_forgotten_row_that_is_gone_is_no_damage_and_a_vanished_one_is(path: Path) -> None:
    async with opened(path) as ledger:
        await one_of_each(ledger)
        await ledger.forget(LATER, 100)
        again = await ledger.commit(first(operation("succeeded")))
    by_hand(path, f"UPDATE operations SET state = 'succeeded' WHERE key = '{again.key}'")
    by_hand(path, f"DELETE FROM operations WHERE key = '{again.key}'")
    async with opened(path) as ledger:
        assert await ledger.verify() == [f"the history knows {again.key}, but its row is gone"]


async def test_pruning_works_in_slices_until_it_is_done(path: Path) -> None:
    clock = FakeClock()
    ledger = SqliteLedger(path, key=bytes(32), clock=clock)
    await ledger.open()
    try:
        new = [first(operation(f"s-{number}")) for number in range(450)]
        made = await asyncio.gather(*map(ledger.commit, new))
        ended = [change(one, succeeded(), answer=ANSWER) for one in made]
        await asyncio.gather(*map(ledger.commit, ended))
        clock.advance(50 * DAY)
        assert await prune(ledger, Retention(90 * DAY), clock) == Pruned()
        clock.advance(50 * DAY)
        assert await prune(ledger, Retention(90 * DAY), clock) == Pruned(bodies=450)
        assert await prune(ledger, Retention(90 * DAY, DAY), clock) == Pruned(keys=450)
        assert await ledger.verify() == []
    finally:
        await ledger.close()


# What calls get then, judged by what left


async def test_a_duplicate_of_a_pruned_success_sends_nothing_and_names_the_object() -> None:
    proxy = keyed(answer(200, OK))
    assert outcome(await proxy.call(refund())) == "sent"
    proxy.clock.advance(100 * DAY)
    assert await proxy.ledger.prune(proxy.clock.time() - 90 * DAY, 10) == 1
    reply = await proxy.call(refund())
    assert (reply.status, code(reply)) == (409, "outcome-not-kept")
    assert fields(reply)["external_id"] == "re_1"
    changed = await proxy.call(refund(700))
    assert (changed.status, code(changed)) == (422, "operation-mismatch")
    assert len(proxy.api.writes) == 1
    assert proxy.operation(REFUND).state is State.SUCCEEDED


async def test_a_duplicate_of_a_pruned_refusal_hears_its_status() -> None:
    proxy = keyed(answer(402, {"error": "declined"}))
    await proxy.call(refund(), heard=False)
    proxy.clock.advance(100 * DAY)
    await proxy.ledger.prune(proxy.clock.time(), 10)
    reply = await proxy.call(refund(), heard=False)
    assert reply.status == 402
    assert len(proxy.api.writes) == 1


async def test_an_unknown_operation_is_settled_however_old_it_is() -> None:
    proxy: Proxy = queried(LOST)
    assert (await proxy.call(plain())).status == 424
    proxy.clock.advance(1000 * DAY)
    assert await prune(proxy.ledger, Retention(DAY, DAY), proxy.clock) == Pruned()
    assert (await proxy.call(plain())).status == 424
    assert proxy.operation(PLAIN).state is State.UNKNOWN
    assert len(proxy.api.writes) == 1


async def test_a_forgotten_call_is_a_new_one() -> None:
    proxy = keyed(answer(200, OK), answer(200, OK))
    await proxy.call(refund())
    proxy.clock.advance(100 * DAY)
    assert await prune(proxy.ledger, Retention(DAY, DAY), proxy.clock) == Pruned(bodies=1, keys=1)
    assert outcome(await proxy.call(refund())) == "sent"
    assert len(proxy.api.writes) == 2
