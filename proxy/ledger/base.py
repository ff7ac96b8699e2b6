"""What a ledger must do. One protocol, one conformance suite (``tests/ledger``), several stores.

A ledger keeps, per operation, one row (its projection), an append-only history of events, and up to
two sealed contents: the request as sent and the answer as given. All methods are safe to call from
one event loop; none may be used from two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from proxy.core.model import Answer, Request
from proxy.core.operation import Consent, Event, Kind, Operation, State
from proxy.core.runs import Amendment, Charge, Exhausted, Run, RunRefused


class LedgerError(Exception):
    """The ledger cannot do it. Nothing may be sent when a commit raised this."""


class Conflict(LedgerError):
    """The row is not at the expected revision any more: load again, decide again."""


class Refused(LedgerError):
    """The change may not be made: a budget does not hold its charge, or the run's state forbids
    it. ``reason`` is RunRefused or Exhausted. Nothing was written."""

    def __init__(self, reason: RunRefused | Exhausted) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Damaged(LedgerError):
    """A row or content is there and fails its check. Never to be taken for "not found"."""


class Locked(LedgerError):
    """Another process has this ledger open; the message names it."""


class WrongKey(LedgerError):
    """The sealing key does not fit this ledger."""


@dataclass(frozen=True, slots=True)
class Change:
    """One atomic step of one operation.

    ``operation`` is the row as it shall be, already evolved through ``events``; its ``revision`` is
    the one that was loaded (0: to be inserted), and the stored one becomes that plus one.
    ``request`` and ``answer`` replace the sealed contents when given. ``charge`` is made in the
    same step, or the change is Refused.
    """

    operation: Operation
    events: tuple[Event, ...]
    request: Request | None = None
    answer: Answer | None = None
    charge: Charge | None = None


@dataclass(frozen=True, slots=True)
class Lookalike:
    """How to find an operation that the caller may mean under another name."""

    run: str
    step: str
    method: str
    url: str


UNKNOWN_ORIGIN = ""
"""The generation of a run that was met while there was a gap: it may have begun before."""


FAR_PAST = 86_400.0
"""Since when something may be missing, where nothing tells: a moment before any API's. Not 0, so
that a template that takes some minutes from it still makes a date."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A span of time of which this ledger does not know everything: it was restored, or it took the
    place of another one. Seconds since the epoch; ``until``: when this ledger's generation
    began."""

    since: float
    until: float


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What an agent saved of a run, to go on from. ``content``: None in lists, and where retention
    took it. ``after``: the last event of the history when it was saved."""

    run: str
    version: int
    created_at: float
    size: int
    after: int
    step: str | None = None
    kept: bool = True
    content: bytes | None = None


@dataclass(frozen=True, slots=True)
class Condition:
    """What must be true of a run's newest version, 0 where it has none, for another to be saved."""

    versions: frozenset[int]
    among: bool = True  # whether it is to be one of them

    def holds(self, newest: int) -> bool:
        return (newest in self.versions) is self.among


class StaleCheckpoint(Conflict):
    """Another writer was first. ``newest``: the version that is there, 0 for none."""

    def __init__(self, newest: int) -> None:
        super().__init__(newest)
        self.newest = newest

    def __str__(self) -> str:
        return f"the newest checkpoint is version {self.newest}" if self.newest else "there is none"


@dataclass(frozen=True, slots=True)
class Prompt:
    """What identical calls of a model have in common. ``run`` and ``step`` as in an operation key,
    ``step`` empty for a call that names none."""

    run: str
    step: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """An answer in the journal. ``heard``: the newest start of the run that has had it whole, 0 for
    none."""

    number: int
    epoch: int
    created_at: float
    size: int
    heard: int = 0


CHECKPOINTS_KEPT = 10
"""Of one run: the newest, and what to go back to."""


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event in the history. ``hash`` chains it to the run's previous event."""

    seq: int
    run: str
    key: str
    event: Event
    hash: str = ""


@dataclass(frozen=True, slots=True)
class Query:
    """Which operations to list; None means any. Newest first, at most ``limit``, all created
    before ``before``. ``step`` is a part of the step, as it stands in the key. ``moved_after``:
    only those of ``run`` with an event above that place in the history that moved them."""

    run: str | None = None
    step: str | None = None
    states: tuple[State, ...] = ()
    service: str | None = None
    limit: int = 100
    before: float | None = None
    moved_after: int | None = None


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Which runs to list. Newest first, at most ``limit``, all created before ``before``."""

    limit: int = 100
    before: float | None = None


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters of a ledger's own work, for metrics and the bench."""

    commits: int = 0
    changes: int = 0
    batch_sizes: Sequence[int] = field(default_factory=tuple)


class Ledger(Protocol):
    generation: str
    """Identifies this ledger's life; a restored one is new. The number before its dash counts the
    lives: above 1, a run that this ledger does not know may have begun in one that was lost."""

    @property
    def gap(self) -> Gap | None:
        """What may be missing. While there is a gap, a run that has not begun in this generation
        may have done more than this ledger knows."""
        ...

    async def close_gap(self) -> None:
        """A person says that no call will come again that was made in the gap. Durable at
        return."""
        ...

    @property
    def alarms(self) -> Sequence[str]:
        """Why ``open`` found this not to be the ledger that ran here before; one sentence each."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why the last write failed; None while writes succeed."""
        ...

    async def try_again(self) -> None:
        """In trouble, write something small: without calls nothing else would tell that the disk
        is well again. Never raises LedgerError."""
        ...

    async def open(self) -> None:
        """Lock, migrate, verify the key. Raises Locked, WrongKey, LedgerError."""
        ...

    async def close(self) -> None: ...

    def has_step(self, run: str, step: str) -> bool:
        """Whether there is any operation of that run and step; cheaper than ``find`` and ``alike``,
        and mostly False: most calls are the first of their step. A damaged row may hide; then the
        insert of its key is refused."""
        ...

    def find(self, base: str, names: Sequence[str] = ()) -> Operation | None:
        """The newest version of RUN/STEP/OPERATION, under any of the given full bases
        (``names``: bases under earlier endpoint names). Microseconds; does not wait.

        Raises Damaged when the row fails its check, or when history knows the operation and the row
        is gone."""
        ...

    def get(self, key: str) -> Operation | None:
        """The operation of exactly this key (RUN/STEP/OPERATION/vN). Raises Damaged."""
        ...

    def alike(self, lookalike: Lookalike) -> Sequence[Operation]:
        """Operations of the same run, step, method and URL, under whatever name, newest first."""
        ...

    def by_caller_key(self, service: str, caller_key: str) -> Operation | None:
        """The newest operation whose caller sent that business key (a keyed digest) there."""
        ...

    def adopted(
        self, service: str, endpoint: str, account: str | None, external_id: str
    ) -> str | None:
        """The key of the operation that already owns this external object, if any."""
        ...

    def written_since(self, method_url: tuple[str, str], when: float, but: str) -> bool:
        """Whether an operation other than ``but`` has started an attempt that may have been sent
        to that URL after ``when``, by whatever method (a PUT may undo a DELETE)."""
        ...

    def run(self, run: str) -> Run | None:
        """A run, as it is once everything durable is counted. Raises Damaged."""
        ...

    def above(self, run: Run) -> Sequence[Run]:
        """Its parent, the parent of that, and so on."""
        ...

    async def runs(self, query: RunQuery) -> Sequence[Run]: ...

    async def children(self, run: str) -> Sequence[str]:
        """The runs directly under it."""
        ...

    async def states(self, run: str) -> dict[str, int]:
        """How many of its operations are in each state."""
        ...

    async def conflicts(self, run: str) -> int:
        """How many of its operations had an effect that a later version had already made."""
        ...

    async def amend(
        self, run: str, amendment: Amendment, *, charge: Charge | None = None, new: bool = False
    ) -> Run:
        """Change a run's row, which is made if it is not there, after the ``charge`` to it and all
        above it. Durable at return. Raises Refused. ``new``: its name was made just now, so no
        other ledger can know it."""
        ...

    def count(self, run: str, charge: Charge) -> None:
        """Charge without waiting and without an event, for what no limit speaks of."""
        ...

    async def approvals(
        self, states: Sequence[Consent], limit: int, *, run: str | None = None
    ) -> Sequence[Operation]:
        """Operations, of one run or of all, that have an approval in one of these states (none
        given: in any), newest first."""
        ...

    async def waiting(self) -> int:
        """How many approvals wait for a person."""
        ...

    async def by_approval(self, number: str) -> Operation | None:
        """The operation that has the approval with this id."""
        ...

    async def save_checkpoint(
        self,
        run: str,
        content: bytes,
        *,
        step: str | None = None,
        conditions: Sequence[Condition] = (),
        keep: int = CHECKPOINTS_KEPT,
    ) -> Checkpoint:
        """Save the run's next version, whole or not at all, and begin the run if it is new; of
        older ones the ``keep`` - 1 newest stay. Durable at return. Versions count from 1 and are
        never given twice. Raises StaleCheckpoint where a condition does not hold, LedgerError when
        it is not known to be durable, though it may have landed."""
        ...

    async def checkpoint(self, run: str, version: int | None = None) -> Checkpoint | None:
        """That version, or the newest, with its content. Raises Damaged."""
        ...

    async def checkpoints(self, run: str) -> Sequence[Checkpoint]:
        """All versions there are, newest first. Raises Damaged."""
        ...

    async def prune_checkpoints(self, saved_before: float, limit: int) -> int:
        """Take the contents of at most ``limit`` checkpoints saved before that moment; of how many.
        Not in a run with an operation that has not ended. They stay in the list."""
        ...

    def journaled(self, prompt: Prompt) -> Sequence[Recorded]:
        """The answers recorded to such calls, by number. Microseconds; does not wait. Raises
        Damaged."""
        ...

    async def record(self, prompt: Prompt, recorded: Recorded, answer: Answer) -> None:
        """Record an answer under a number that no other has. Durable at return. Raises Conflict."""
        ...

    async def recorded(self, prompt: Prompt, number: int) -> Answer | None:
        """That answer, None where retention took it. Raises Damaged."""
        ...

    async def heard(self, prompt: Prompt, number: int, epoch: int) -> None:
        """A start of the run has had that answer whole. Durable at return."""
        ...

    async def prune_journal(self, recorded_before: float, limit: int) -> int:
        """Delete at most ``limit`` answers recorded before that moment; how many it deleted."""
        ...

    async def request_of(self, key: str) -> Request | None:
        """The sealed request as sent, or None where it is not kept. Raises Damaged."""
        ...

    async def answer_of(self, key: str) -> Answer | None:
        """The sealed answer, or None where it is not kept. Raises Damaged."""
        ...

    def answer_at_hand(self, key: str) -> Answer | None:
        """The sealed answer where it is small, so that reading it takes microseconds; None where it
        is not, or is not kept. Raises Damaged."""
        ...

    async def commit(self, change: Change) -> Operation:
        """Make one change durable and return the operation with its new revision. A change has at
        least one event (ValueError): the history explains every row.

        Returns only when the change would survive a power cut. Raises Conflict when the revision is
        not the expected one, LedgerError when the outcome is not known to be durable: then nothing
        may be sent, though the change may turn out to have landed."""
        ...

    def note(self, operation: Operation, event: Event) -> None:
        """Append an event that moves nothing (``operation.NOTES``), without waiting; durable with
        the next batch. ``AnswerDelivered`` also marks the row, which gains a revision; reads see
        that at once."""
        ...

    async def flush(self) -> None:
        """Wait until everything noted so far is durable. Raises LedgerError."""
        ...

    async def prune(self, ended_before: float, limit: int) -> int:
        """Take the bodies of at most ``limit`` operations that ended before that moment, or are
        known since then to have had no effect; of how many it took them. Their rows stay, and say
        that the answer is not kept."""
        ...

    async def forget(self, ended_before: float, limit: int) -> int:
        """Forget at most ``limit`` operations that ended before that moment; how many it forgot.
        Their history stays, with an event that says so; a call with such a key is a new one. Not
        those whose API still honours the key."""
        ...

    async def operations(self, query: Query) -> Sequence[Operation]: ...

    async def unsettled(self) -> Sequence[Operation]:
        """Every operation in_flight or unknown, oldest first. Here and in ``operations`` a damaged
        row is left out and logged, so that it does not hide the others."""
        ...

    async def history(self, key: str) -> Sequence[StoredEvent]: ...

    async def events(
        self, after: int, limit: int = 100, *, kinds: Sequence[Kind] = ()
    ) -> Sequence[StoredEvent]:
        """History of all runs in order of ``seq``, from the first one above ``after``; of these
        kinds only, where any are given."""
        ...

    def last_event(self) -> int:
        """The ``seq`` of the newest event, 0 without one. Microseconds; does not wait."""
        ...

    async def bookmark(self, name: str) -> bytes | None:
        """What was put there last."""
        ...

    async def set_bookmark(self, name: str, value: bytes) -> None:
        """Keep how far a reader of the history has come. Durable at return. Raises LedgerError."""
        ...

    async def counts(self) -> dict[tuple[str, str, str | None], int]:
        """(service, state, blocked_by) -> number of unsettled operations; ("", state, None) -> the
        number of all in that state."""
        ...

    async def verify(self, run: str | None = None) -> Sequence[str]:
        """Check hash chains and row hashes; one sentence per fault found."""
        ...

    def stats(self) -> Stats: ...


def as_json(operation: Operation) -> dict[str, Any]:
    """The public view of an operation, as the API, CLI and console show it."""
    outcome = operation.outcome
    return {
        "key": operation.key,
        "run": operation.run,
        "step": operation.step,
        "operation": operation.name,
        "version": operation.version,
        "state": str(operation.state),
        "blocked_by": operation.blocked_by,
        "attempts": len(operation.attempts),
        "external_id": outcome.external_id if outcome else None,
        "service": operation.service,
        "endpoint": operation.endpoint,
        "method": operation.method,
        "url": operation.url,
        "how": outcome.how if outcome else None,
        "status": outcome.status if outcome else None,
        "accepted": outcome.accepted if outcome else False,
        "abandoned": outcome.abandoned if outcome else False,
        "created_at": operation.created_at,
        "updated_at": operation.updated_at,
        "epoch": operation.intent.epoch,
        "mode": operation.intent.mode,
        "revision": operation.revision,
        "approval": None
        if operation.approval is None
        else {"id": operation.approval.id, "state": str(operation.approval.state)},
    }
