"""A run: what it may still spend, whether it is open, and what changes that.

A run's row changes by one of the functions here, inside the transaction that makes the change
durable, so two changes at once cannot both start from the same counters. A budget is only ever
charged and settled. What an operation was charged is never given back, since its effect may be
there; of a model call what was reserved is, once it is known not to have been used.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from proxy.core.model import frozen
from proxy.core.operation import Event, Kind, State

TOKENS_KEPT = 64  # of one run: each start mints one, and those of old starts are of no use
DEPTH = 16  # runs above a run that its charges and its standing hang on
RESERVED = "reserved"
"""The counter of tokens that are charged by reservations which have not been settled."""


class Unit(enum.StrEnum):
    """What a budget counts."""

    TURNS = "turns"  # model calls
    TOKENS = "tokens"
    TOOL_CALLS = "tool_calls"  # every other call that counts, reads included
    WRITES = "writes"  # the governed writes among them


Amounts = Mapping[str, int]
"""By ``Unit``."""


@frozen
class Revocation:
    reason: str
    by: str
    at: float


@frozen
class Closing:
    outcome: str  # completed | failed
    by: str
    at: float


@frozen
class RunToken:
    """``digest``: SHA-256 of its text, which is nowhere stored."""

    digest: str
    epoch: int
    revoked: Revocation | None = None


@dataclass(frozen=True)  # without slots, so that ``with_used`` can copy it in one go
class Run:
    """``generation``: of the ledger in which the run began. ``limits`` are those that were set for
    this run; a unit that is not in them has the configuration's, if that has one."""

    run: str  # as in an operation key
    epoch: int = 1
    created_at: float = 0.0
    generation: str = ""
    parent: str | None = None
    input_digest: str | None = None
    limits: Amounts = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)
    by: str | None = None  # who began it, where somebody did before its first call
    closed: Closing | None = None
    revoked: Revocation | None = None
    tokens: tuple[RunToken, ...] = ()
    revision: int = 0  # of the stored row; 0 = not stored yet

    def token(self, digest: str) -> RunToken | None:
        return next((token for token in self.tokens if token.digest == digest), None)


@frozen
class Charge:
    """What a call costs its run and all the runs above it. ``defaults``: the limits of units that a
    run sets none for. ``enforce`` False: it is written down whatever the limits are, since it has
    been spent."""

    amounts: Amounts
    defaults: Amounts = field(default_factory=dict)
    enforce: bool = True


class Exhausted(Exception):
    """A charge that a run's budget does not hold."""

    def __init__(self, shortage: Shortage) -> None:
        super().__init__(f"{shortage.unit} of {shortage.run} are used up")
        self.shortage = shortage


@frozen
class Shortage:
    """``run``: whose budget it is: the call's own, or that of one above it."""

    run: str
    unit: str
    limit: int
    used: int


class RunRefused(Exception):
    """A change of a run that is not possible; ``code`` is one of the control API's."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


Amended = tuple[Run, tuple[Event, ...]]
Amendment = Callable[[Run], Amended]
"""A change of a run, as a function of its row as it is then. Raises RunRefused, Exhausted."""


def limit_of(run: Run, unit: str, defaults: Amounts) -> int | None:
    found = run.limits.get(unit)
    return found if found is not None else defaults.get(unit)


def shortage(run: Run, charge: Charge) -> Shortage | None:
    """The first unit of which there is not enough left."""
    for unit, amount in charge.amounts.items():
        limit = limit_of(run, unit, charge.defaults)
        if limit is not None:
            used = run.used.get(unit, 0)
            if used + amount > limit:
                return Shortage(run.run, unit, limit, used)
    return None


def charged(run: Run, charge: Charge) -> Run:
    """Raises Exhausted."""
    if charge.enforce:
        missing = shortage(run, charge)
        if missing is not None:
            raise Exhausted(missing)
    used = dict(run.used)
    for unit, amount in charge.amounts.items():
        used[unit] = max(0, used.get(unit, 0) + amount)
    return with_used(run, used)


def with_used(run: Run, used: Amounts) -> Run:
    """A copy, as ``replace`` makes one in five times as long: each first attempt needs it."""
    copy: Run = object.__new__(Run)
    copy.__dict__.update(run.__dict__)
    copy.__dict__["used"] = used
    return copy


def reservation(tokens: int) -> Amounts:
    """What a model call costs before its answer is known."""
    return {Unit.TURNS.value: 1, Unit.TOKENS.value: tokens, RESERVED: tokens}


def settlement(reserved: int, used: int, *, turn: bool = True) -> Amounts:
    """What is still to be charged once it is: less than nothing, where too much was reserved.
    ``turn``: whether the model was called; one that did not look at the call, or was not reached,
    is called again under the same unit, like an operation that is sent again."""
    amounts = {Unit.TOKENS.value: used - reserved, RESERVED: -reserved}
    return amounts if turn else {Unit.TURNS.value: -1, **amounts}


def limited(run: Run | None, above: Sequence[Run], charge: Charge) -> bool:
    """Whether any limit speaks of this charge, so that it must be durable before the call goes."""
    if any(unit in charge.defaults for unit in charge.amounts):
        return True
    chain = above if run is None else (run, *above)
    return any(unit in each.limits for each in chain for unit in charge.amounts)


# -- what people and programs change ---------------------------------------------------------------


def next_epoch(at: float) -> Amendment:
    def amend(run: Run) -> Amended:
        if not run.revision:
            return run, ()
        _must_be_open(run)
        return replace(run, epoch=run.epoch + 1), (
            _event(Kind.EPOCH_BEGAN, at, epoch=run.epoch + 1),
        )

    return amend


def begin(
    at: float, *, input_digest: str | None, parent: str | None, token: str | None, by: str
) -> Amendment:
    """The run as somebody begins it: bound to its input, under its parent, with a token. For a run
    that is there, what is given must agree with what it has."""

    def amend(run: Run) -> Amended:
        events: list[Event] = []
        if run.revision:
            _must_agree(run, input_digest, parent)
        else:
            run = replace(run, parent=parent, by=by)
        run = replace(run, input_digest=run.input_digest or input_digest)
        if not run.revision:
            data = {"parent": parent, "input_digest": input_digest, "by": by}
            events.append(_event(Kind.RUN_BEGAN, at, **data))
        if token is not None:
            kept = (*run.tokens, RunToken(token, run.epoch))[-TOKENS_KEPT:]
            run = replace(run, tokens=kept)
            events.append(_event(Kind.TOKEN_ISSUED, at, token=token[:16], epoch=run.epoch, by=by))
        return run, tuple(events)

    return amend


def resume(at: float, *, input_digest: str | None, token: str | None, by: str) -> Amendment:
    """The next start of a run, bound to its input and with a token of that start, in one act.
    ``by`` does not become the run's beginner: whoever starts an agent may approve what it does."""
    starting = next_epoch(at)
    if input_digest is None and token is None:
        return starting
    binding = begin(at, input_digest=input_digest, parent=None, token=token, by=by)

    def amend(run: Run) -> Amended:
        started, events = starting(run)
        bound, more = binding(started)
        return replace(bound, by=run.by), (*events, *more)

    return amend


def set_limits(
    at: float, limits: Mapping[str, int | None], *, raising: bool, by: str, defaults: Amounts
) -> Amendment:
    """``raising``: an operator asks, who may. None takes the run's own limit away."""

    def amend(run: Run) -> Amended:
        changed = dict(run.limits)
        for unit, limit in limits.items():
            before = limit_of(run, unit, defaults)
            after = defaults.get(unit) if limit is None else limit
            if not raising and before is not None and (after is None or after > before):
                raise RunRefused(
                    "forbidden",
                    f"The limit of {unit} is {before}: only an operator may raise it.",
                )
            if limit is None:
                changed.pop(unit, None)
            else:
                changed[unit] = limit
        data = {"limits": dict(limits), "by": by}
        return replace(run, limits=changed), (_event(Kind.BUDGET_SET, at, **data),)

    return amend


def noted(*events: Event) -> Amendment:
    """Nothing but what the charge beside it changes, and the events that say so."""
    return lambda run: (run, events)


def revoke(at: float, reason: str, by: str) -> Amendment:
    def amend(run: Run) -> Amended:
        if run.revoked is not None:
            return run, ()
        event = _event(Kind.RUN_REVOKED, at, reason=reason, by=by)
        return replace(run, revoked=Revocation(reason, by, at)), (event,)

    return amend


def restore(at: float, reason: str, by: str) -> Amendment:
    """Undo a revocation or a closing."""

    def amend(run: Run) -> Amended:
        if run.revoked is None and run.closed is None:
            return run, ()
        event = _event(Kind.RUN_RESTORED, at, reason=reason, by=by)
        return replace(run, revoked=None, closed=None), (event,)

    return amend


def revoke_token(at: float, digest: str, reason: str, by: str) -> Amendment:
    """``digest``: of the token, or its first characters as lists show them."""

    def amend(run: Run) -> Amended:
        hit = [token for token in run.tokens if token.digest.startswith(digest)]
        if len(digest) < 8 or len(hit) != 1:
            raise RunRefused("not-found", "This run has no such token.")
        if hit[0].revoked is not None:
            return run, ()
        ended = replace(hit[0], revoked=Revocation(reason, by, at))
        tokens = tuple(ended if token is hit[0] else token for token in run.tokens)
        event = _event(Kind.TOKEN_REVOKED, at, token=ended.digest[:16], reason=reason, by=by)
        return replace(run, tokens=tokens), (event,)

    return amend


def close(at: float, outcome: str, by: str) -> Amendment:
    def amend(run: Run) -> Amended:
        if run.closed is not None:
            return run, ()
        event = _event(Kind.RUN_CLOSED, at, outcome=outcome, by=by)
        return replace(run, closed=Closing(outcome, by, at)), (event,)

    return amend


def _must_agree(run: Run, input_digest: str | None, parent: str | None) -> None:
    if input_digest is not None and run.input_digest not in (None, input_digest):
        raise RunRefused("run-reused", "This run id was begun for another input: choose another.")
    if parent is not None and run.parent != parent:
        raise RunRefused("run-reused", "This run id was begun under another parent, or none.")


def _must_be_open(run: Run) -> None:
    if run.revoked is not None:
        raise RunRefused("run-revoked", f"The run was revoked: {run.revoked.reason}")
    if run.closed is not None:
        raise RunRefused("run-closed", "The run is closed: restore it first.")


def _event(kind: Kind, at: float, **data: Any) -> Event:
    return Event(kind, at, {name: value for name, value in data.items() if value is not None})


# -- what is said of a run -------------------------------------------------------------------------


def budget(run: Run, defaults: Amounts) -> dict[str, dict[str, int | None]]:
    """By unit: limit, used, remaining; for tokens also what is only reserved."""
    told: dict[str, dict[str, int | None]] = {}
    for unit in map(str, Unit):
        limit, used = limit_of(run, unit, defaults), run.used.get(unit, 0)
        remaining = None if limit is None else max(0, limit - used)
        told[unit] = {"limit": limit, "used": used, "remaining": remaining}
    told[Unit.TOKENS][RESERVED] = run.used.get(RESERVED, 0)
    return told


def status(run: Run, states: Mapping[str, int], conflicts: int) -> str:
    """open, completed, completed_with_unknown, completed_with_conflict, failed or revoked.
    ``states``: how many of its operations are in each."""
    if run.revoked is not None:
        return "revoked"
    if run.closed is None:
        return "open"
    if run.closed.outcome == "failed":
        return "failed"
    if conflicts:
        return "completed_with_conflict"
    if _any(states, (State.UNKNOWN, State.IN_FLIGHT)):
        return "completed_with_unknown"
    return "completed"


def _any(states: Mapping[str, int], wanted: Iterable[State]) -> bool:
    return any(states.get(state.value, 0) for state in wanted)
