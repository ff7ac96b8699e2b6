"""An effect that shows too late to be the only one is an alarm, and never lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from proxy.core import settle
from proxy.core.model import Request
from proxy.core.operation import Event, Intent, Kind, Operation, State, changed
from proxy.core.transitions import evolve_all
from proxy.ledger.base import Change, LedgerError
from proxy.service.operations import OperationService
from tests.crash.support import OK, REFUND, REPLAYED, failing, key_of, keyed, kinds, refund
from tests.fakes.scripted import LOST, Proxy, answer
from tests.fakes.world import Opened, outcome
from tests.runs.support import MADE, World, payout, world
from tests.runs.support import refund as shop_refund

ABANDONED = (
    (Kind.ATTEMPT_LOST, {"attempt": 1, "reason": "taken over"}),
    (Kind.OPERATOR_RESOLVED, {"as": "abandoned", "by": "ann"}),
)
REJECTED = ((Kind.OUTCOME_RECORDED, {"attempt": 1, "verdict": "rejected", "status": 402}),)
NOT_SENT = ((Kind.ATTEMPT_NOT_SENT, {"attempt": 1, "reason": "connection refused"}),)
LATER = ((Kind.ATTEMPT_STARTED, {"attempt": 1, "keyed": True}),)


def conflicts(proxy: Proxy) -> int:
    return sum(call[0] == "conflict" for call in proxy.metrics.calls)


async def tell(proxy: Proxy, told: Operation, facts: Sequence[tuple[Kind, Any]]) -> Operation:
    """What another process that has the ledger writes down."""
    events = tuple(Event(kind, proxy.clock.time(), data) for kind, data in facts)
    return await proxy.ledger.commit(Change(evolve_all(told, events), events))


def meanwhile(
    facts: Sequence[tuple[Kind, Any]], later: Sequence[tuple[Kind, Any]], end: Opened
) -> Proxy:
    """The row moves on while its one attempt is on the wire; then its answer comes."""

    async def send(request: Request) -> Opened:
        held = proxy.operation(REFUND)
        await tell(proxy, held, facts)
        if later:
            blank = changed(held, state=None, attempts=(), outcome=None, revision=0)
            second = Operation(**{**_fields(blank), "version": 2})
            await tell(proxy, second, later)
        return end

    proxy = keyed(send)
    return proxy


def _fields(operation: Operation) -> dict[str, Any]:
    return {n: v for n, v in vars(operation).items() if n not in ("key", "base")}


@pytest.mark.parametrize(
    ("facts", "later", "said", "beside"),
    [
        (ABANDONED, (), "abandoned", None),
        (REJECTED, (), "failed", None),
        (REJECTED, LATER, "failed", f"{REFUND}/v2"),
        (REJECTED, (*LATER, *REJECTED), "failed", None),
    ],
    ids=["given up", "rejected", "sent anew", "rejected anew"],
)
async def test_a_late_success_closes_a_failed_version_and_is_an_alarm(
    facts: Any, later: Any, said: str, beside: str | None
) -> None:
    proxy = meanwhile(facts, later, answer(200, OK))
    reply = await proxy.call(refund())
    assert reply.status == 200, "the true answer"
    held = proxy.operation(REFUND)
    assert held.state is State.SUCCEEDED
    history = [s.event for s in await proxy.ledger.history(held.key)]
    assert [event.kind for event in history[-2:]] == [Kind.OUTCOME_RECORDED, Kind.EFFECT_CONFLICT]
    assert history[-1].data.get("said") == said
    assert history[-1].data.get("beside") == beside
    assert conflicts(proxy) == 1
    assert await proxy.ledger.conflicts("run-1") == 1

    async def reload() -> None: ...

    service = OperationService(
        ledger=proxy.ledger,
        clock=proxy.clock,
        services=tuple,
        settle=proxy.recovery.settle,
        reload=reload,
    )
    assert (await service.one(held.key))["conflict"] is True


@pytest.mark.parametrize("facts", [ABANDONED, REJECTED])
async def test_a_late_refusal_changes_nothing(facts: Any) -> None:
    proxy = meanwhile(facts, (), answer(402, {"error": "declined"}))
    await proxy.call(refund())
    held = proxy.operation(REFUND)
    assert held.state is State.FAILED
    assert conflicts(proxy) == 0


async def test_a_late_refusal_of_an_unknown_one_decides_nothing() -> None:
    proxy = meanwhile(ABANDONED[:1], (), answer(402, {"error": "declined"}))
    proxy.api.sends.append(answer(200, OK, **REPLAYED))
    assert (await proxy.call(refund())).status == 200
    assert proxy.operation(REFUND).state is State.SUCCEEDED
    assert len({key_of(request) for request in proxy.api.writes}) == 1


async def test_what_is_found_after_it_was_only_unknown_is_no_conflict() -> None:
    proxy = meanwhile(ABANDONED[:1], (), answer(200, OK))
    assert (await proxy.call(refund())).status == 200
    assert proxy.operation(REFUND).state is State.SUCCEEDED
    assert conflicts(proxy) == 0
    assert Kind.EFFECT_CONFLICT not in await kinds(proxy, f"{REFUND}/v1")


@pytest.mark.parametrize("amount", [500, 501])
async def test_a_late_success_stops_a_later_version_that_has_not_left(amount: int) -> None:
    proxy = meanwhile(REJECTED, (*LATER, *NOT_SENT), answer(200, OK))
    assert (await proxy.call(refund())).status == 200
    assert proxy.operation(REFUND, 2).state is State.NOT_APPLIED
    again = await proxy.call(refund(amount=amount))
    assert again.status == (200 if amount == 500 else 422)
    assert len(proxy.api.writes) == 1


async def test_the_run_says_so(tmp_path: Path) -> None:
    async with world("memory", tmp_path) as proxy:

        async def send(request: Request) -> Opened:
            await tell(proxy, proxy.operation("run-1/step-1/shop.refunds.create"), ABANDONED)
            return answer(200, MADE)

        proxy.api.sends = [send]
        await proxy.call(shop_refund())
        told = await proxy.runs.close("run-1", {}, "ann")
        assert (told["status"], told["conflicts"]) == ("completed_with_conflict", 1)


def _lost_record(proxy: World) -> None:
    """The ledger fails once, when the outcome is to be recorded."""
    commit = proxy.ledger.commit

    async def fails(change: Change) -> Operation:
        if any(event.kind is Kind.OUTCOME_RECORDED for event in change.events):
            proxy.ledger.commit = commit  # type: ignore[method-assign]
            raise LedgerError("disk I/O error")
        return await commit(change)

    proxy.ledger.commit = fails  # type: ignore[method-assign]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_an_outcome_that_is_owed_outlives_a_change_of_the_row(
    store: str, tmp_path: Path
) -> None:
    """The ledger could not take the success; before it can, the approval is taken back."""
    name = "run-1/step-1/shop.payouts.create"
    async with world(store, tmp_path, [answer(200, MADE)]) as proxy:
        await proxy.call(payout())
        number = (await proxy.waiting())["id"]
        await proxy.desk.grant(number, {}, "ann")
        _lost_record(proxy)
        assert (await proxy.call(payout())).status == 200
        assert proxy.operation(name).state is State.IN_FLIGHT
        await proxy.desk.revoke(number, {}, "ann")
        again = await proxy.call(payout())
        assert (again.status, outcome(again)) == (200, "replayed")
        assert len(proxy.api.writes) == 1


async def test_a_refusal_that_is_owed_outlives_its_delivery() -> None:
    """That its caller heard it is written down before the refusal itself."""
    proxy = keyed(answer(402, {"error": "declined"}), answer(200, OK))
    ledger = failing(proxy)
    commit = ledger.commit

    async def fails(change: Change) -> Any:
        if any(event.kind is Kind.OUTCOME_RECORDED for event in change.events):
            ledger.commit = commit  # type: ignore[method-assign]
            raise LedgerError("disk I/O error")
        return await commit(change)

    ledger.commit = fails  # type: ignore[method-assign]
    assert (await proxy.call(refund())).status == 402
    assert (await proxy.call(refund())).status in (402, 200)
    assert proxy.operation(REFUND).state is State.FAILED, "and not unknown"


async def test_one_that_landed_all_the_same_is_written_once() -> None:
    proxy = keyed(answer(200, OK))
    ledger = failing(proxy)
    commit = ledger.commit

    async def lands(change: Change) -> Any:
        done = await commit(change)
        if any(event.kind is Kind.OUTCOME_RECORDED for event in change.events):
            ledger.commit = commit  # type: ignore[method-assign]
            raise LedgerError("disk I/O error")
        return done

    ledger.commit = lands  # type: ignore[method-assign]
    assert (await proxy.call(refund())).status == 200
    assert outcome(await proxy.call(refund())) == "replayed"
    assert (await kinds(proxy, f"{REFUND}/v1")).count(Kind.OUTCOME_RECORDED) == 1


async def test_an_owed_success_of_one_that_was_given_up_is_an_alarm() -> None:
    proxy = keyed(answer(200, OK), LOST)
    ledger = failing(proxy)
    commit = ledger.commit

    async def fails(change: Change) -> Any:
        if any(event.kind is Kind.OUTCOME_RECORDED for event in change.events):
            ledger.commit = commit  # type: ignore[method-assign]
            raise LedgerError("disk I/O error")
        return await commit(change)

    ledger.commit = fails  # type: ignore[method-assign]
    assert (await proxy.call(refund())).status == 200
    held = await tell(proxy, proxy.operation(REFUND), ABANDONED[:1])
    await proxy.engine.mend(held)
    assert proxy.operation(REFUND).state is State.SUCCEEDED
    assert conflicts(proxy) == 0, "it was unknown until now"


def test_only_a_success_is_late() -> None:
    base = _operation(State.FAILED)
    assert settle.late(base, base, None, 1.0) == ()
    won = _operation(State.SUCCEEDED)
    assert settle.late(won, won, None, 1.0) == ()
    assert [event.kind for event in settle.late(base, won, None, 1.0)] == [Kind.EFFECT_CONFLICT]
    assert settle.late(_operation(State.UNKNOWN), won, base, 1.0) == ()


def _operation(state: State) -> Operation:
    made = Operation("r", "s", "x.y", 1, "x", "y", "POST", "https://x/y", Intent("f", "f"), 0, 0)
    return changed(made, state=state)
