"""Bugs planted on purpose, by name: the controls. Each patches the proxy of this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from proxy import failpoints
from proxy.authority import Authority
from proxy.core.decide import state as by_state
from proxy.core.decide.budget import WRITE
from proxy.core.model import Answer, Answered, Body
from proxy.core.operation import Approval, Consent, Kind
from proxy.core.runs import Charge
from proxy.engine import Engine
from proxy.ledger import checkpoints, codec, schema
from proxy.ledger.base import Change
from proxy.ledger.memory import MemoryLedger
from proxy.ledger.runs import RunRows
from proxy.ledger.sqlite import SqliteLedger
from proxy.recovery import Recovery

Patch = Callable[[Any, str, Any], None]


def resend_whatever(patch: Patch = setattr) -> None:
    """An unknown operation is sent again, key or not."""
    patch(by_state, "_permit", lambda *args: by_state.UNDER_KEY)


def outcome_first(patch: Patch = setattr) -> None:
    """The outcome is on disk before the first byte leaves."""
    act, record = Engine._attempt, Engine._record

    async def attempt(self: Engine, flight: Any, bound: Any, operation: Any, request: Any) -> Any:
        hoped = Answered(Answer(201, "Created", (), Body.of(b"{}")), True)
        await record(self, flight, bound, operation, hoped)
        return await act(self, flight, bound, operation, request)

    async def keep(self: Engine, flight: Any, bound: Any, operation: Any, result: Any) -> Any:
        after = self.ledger.get(operation.key)
        flight.ended(after, operation.last.number, result)
        return after

    patch(Engine, "_attempt", attempt)
    patch(Engine, "_record", keep)


def no_recovery(patch: Patch = setattr) -> None:
    """What an earlier process left open stays as it is."""

    async def nothing(self: Any, *_: Any) -> None:
        return None

    async def same(self: Engine, operation: Any) -> Any:
        return operation

    patch(Recovery, "start", nothing)
    patch(Recovery, "settle_all", nothing)
    patch(Engine, "mend", same)


def no_row_hash(patch: Patch = setattr) -> None:
    """A damaged row is taken for what it says."""
    true = codec.row_hash
    patch(codec, "row_hash", lambda columns: _Anything(true(columns)))


def no_flights(patch: Patch = setattr) -> None:
    """Nobody knows that an identical call is under way."""
    patch(Engine, "flight", lambda self, base: None)
    depart = Engine.depart

    def apart(self: Engine, bound: Any) -> Any:
        if not isinstance(self._flights, _Forgetful):
            self._flights = _Forgetful()
        self._flights.pop(bound.base, None)
        return depart(self, bound)

    patch(Engine, "depart", apart)


def sync_normal(patch: Patch = setattr) -> None:
    """The WAL is synced at checkpoints only."""
    writer = tuple(
        line.replace("synchronous = FULL", "synchronous = NORMAL") for line in schema.WRITER
    )
    assert writer != schema.WRITER
    patch(schema, "WRITER", writer)


def swallowed_error(patch: Patch = setattr) -> None:
    """An intent that could not be written is taken for written."""
    from proxy.ledger.base import Conflict, LedgerError
    from proxy.ledger.sqlite import SqliteLedger

    commit = SqliteLedger.commit

    async def careless(self: Any, change: Any) -> Any:
        try:
            return await commit(self, change)
        except Conflict:
            raise
        except LedgerError:
            return change.operation

    patch(SqliteLedger, "commit", careless)


def half_a_checkpoint(patch: Patch = setattr) -> None:
    """The row of a checkpoint is durable before its content is."""
    whole = checkpoints.insert

    def apart(db: Any, saving: Any, *rest: Any, **more: Any) -> None:
        whole(db, saving, *rest, **more)
        where = "WHERE run = ? AND version = ?"
        which = (saving.run, saving.saved.version)
        row = db.execute(f"SELECT sealed FROM checkpoints {where}", which).fetchone()
        db.execute(f"UPDATE checkpoints SET sealed = NULL {where}", which)
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")
        db.execute(f"UPDATE checkpoints SET sealed = ? {where}", (*row, *which))

    patch(checkpoints, "insert", apart)


def cancelled(patch: Patch = setattr) -> None:
    """Not a bug, but what a failpoint that raises then does: the task is cancelled there."""
    patch(failpoints, "InjectedFault", asyncio.CancelledError)


def key_for_ever(patch: Patch = setattr) -> None:
    """The lifetime that a rule states for its API's keys is not looked at."""
    patch(by_state, "_key_holds", lambda _, operation: operation.intent.upstream_key is not None)


def charged_late(patch: Patch = setattr) -> None:
    """A budget is charged once the answer is here, not with the intent."""
    for ledger in (MemoryLedger, SqliteLedger):
        _charge_late(patch, ledger, ledger.commit)


def _charge_late(patch: Patch, ledger: Any, commit: Any) -> None:
    owed: dict[str, Any] = {}

    async def late(self: Any, change: Change) -> Any:
        kinds = {event.kind for event in change.events}
        key = change.operation.key
        if change.charge is not None and Kind.ATTEMPT_STARTED in kinds:
            owed[key] = change.charge
            change = replace(change, charge=None)
        elif Kind.OUTCOME_RECORDED in kinds:
            change = replace(change, charge=owed.pop(key, None))
        return await commit(self, change)

    patch(ledger, "commit", late)


def charged_every_time(patch: Patch = setattr) -> None:
    """Each attempt of an operation is a unit, not each version."""
    for ledger in (MemoryLedger, SqliteLedger):
        _charge_often(patch, ledger, ledger.commit)


def _charge_often(patch: Patch, ledger: Any, commit: Any) -> None:
    async def often(self: Any, change: Change) -> Any:
        if any(event.kind is Kind.ATTEMPT_STARTED for event in change.events):
            change = replace(change, charge=Charge(WRITE, enforce=False))
        return await commit(self, change)

    patch(ledger, "commit", often)


def not_counted_above(patch: Patch = setattr) -> None:
    """What a child spends is not charged to the runs above it."""
    patch(MemoryLedger, "above", lambda self, run: ())
    patch(RunRows, "above", lambda self, db, run: [])


def approval_of_anything(patch: Patch = setattr) -> None:
    """An approval is good for the operation, whatever its call says now."""
    from proxy import engine as engines
    from proxy.core import decide
    from proxy.core.decide import approval, drift

    patch(approval, "same_request", lambda question, operation: True)
    patch(engines, "must_be_approved", lambda operation, request: None)
    patch(engines, "allowed", lambda operation: False)
    judge = drift.drifted

    def unlooked(question: Any) -> Any:
        operation = question.snapshot.operation
        given = operation is not None and operation.approval is not None
        return None if given and not operation.attempts else judge(question)

    for module in (drift, decide):
        patch(module, "drifted", unlooked)


def revoked_until_commit(patch: Patch = setattr) -> None:
    """What is revoked is looked at before the intent only, and not before the first byte."""
    patch(Authority, "objection", lambda self, access, operation=None, now=0.0: None)


def approval_for_ever(patch: Patch = setattr) -> None:
    """An approval holds for as long as nobody takes it back."""
    patch(
        Approval,
        "holds",
        lambda self, now, rule_digest: self.given and self.rule_digest == rule_digest,
    )


def status_of_the_close(patch: Patch = setattr) -> None:
    """A closed run is completed, whatever has become of its operations."""
    from proxy.core import runs

    true = runs.status
    patch(runs, "status", lambda run, states, conflicts: true(run, {}, 0))


def asked_again_after_a_start(patch: Patch = setattr) -> None:
    """A consumed approval does not outlive the process that consumed it."""
    start = Recovery.start

    async def forgetting(self: Any) -> None:
        await start(self)
        began = self._engine.clock.time()

        def holds(approval: Any, now: float, rule_digest: str) -> bool:
            decided = approval.decided_at or 0
            return approval.state is Consent.GRANTED or decided >= began

        patch(Approval, "holds", holds)

    patch(Recovery, "start", forgetting)


def journal_of_one_process(patch: Patch = setattr) -> None:
    """The recorded answers of models are not found by a later process."""
    began = time.time()
    for ledger in (MemoryLedger, SqliteLedger):
        _forget(patch, ledger, ledger.journaled, began)


def _forget(patch: Patch, ledger: Any, journaled: Any, began: float) -> None:
    def own(self: Any, prompt: Any) -> Any:
        return [found for found in journaled(self, prompt) if found.created_at >= began]

    patch(ledger, "journaled", own)


class _Forgetful(dict[str, Any]):
    def __delitem__(self, key: str) -> None:
        self.pop(key, None)


class _Anything(bytes):
    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = bytes.__hash__


PLANTS: dict[str, Callable[..., None]] = {
    plant.__name__: plant
    for plant in (
        resend_whatever,
        outcome_first,
        no_recovery,
        no_row_hash,
        no_flights,
        sync_normal,
        swallowed_error,
        half_a_checkpoint,
        key_for_ever,
        cancelled,
        charged_late,
        charged_every_time,
        not_counted_above,
        approval_of_anything,
        approval_for_ever,
        asked_again_after_a_start,
        journal_of_one_process,
        revoked_until_commit,
        status_of_the_close,
    )
}
