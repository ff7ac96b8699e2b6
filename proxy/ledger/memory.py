"""A ledger that forgets when the process ends: for tests, and to compare the durable ones with.

It keeps the same promises otherwise; ``tests/ledger`` asks both the same questions.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from proxy.clock import Clock
from proxy.core.model import Answer, Request
from proxy.core.operation import Consent, Event, Kind, Operation, State, changed
from proxy.core.runs import DEPTH, Amendment, Charge, Exhausted, Run, RunRefused, charged
from proxy.core.transitions import NOTES, evolve
from proxy.ledger import codec
from proxy.ledger.base import (
    CHECKPOINTS_KEPT,
    UNKNOWN_ORIGIN,
    Change,
    Checkpoint,
    Condition,
    Conflict,
    Gap,
    Lookalike,
    Prompt,
    Query,
    Recorded,
    Refused,
    RunQuery,
    StaleCheckpoint,
    Stats,
    StoredEvent,
)
from proxy.ledger.chain import START, link
from proxy.ledger.checkpoints import saved

ENDED = (State.SUCCEEDED, State.FAILED, State.NOT_APPLIED)
UNSETTLED = (State.IN_FLIGHT, State.UNKNOWN)


class MemoryLedger:
    def __init__(self, clock: Clock) -> None:
        self.generation = f"1-{secrets.token_hex(8)}"
        self.alarms: tuple[str, ...] = ()
        self.gap: Gap | None = None
        self._clock = clock
        self._operations: dict[str, Operation] = {}  # in order of their first commit
        self._steps: dict[tuple[str, str], list[str]] = defaultdict(list)  # (run, step) -> keys
        self._contents: dict[tuple[str, str], bytes] = {}
        self._events: list[tuple[StoredEvent, codec.EventRow]] = []
        self._runs: dict[str, Run] = {}
        self._checkpoints: dict[str, list[Checkpoint]] = defaultdict(list)  # newest first
        self._journal: dict[Prompt, dict[int, tuple[Recorded, bytes]]] = defaultdict(dict)
        self._last: dict[str, bytes] = {}
        self._bookmarks: dict[str, bytes] = {}
        self._commits = 0

    async def close_gap(self) -> None:
        self.gap = None

    @property
    def trouble(self) -> str | None:
        return None

    async def try_again(self) -> None: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def has_step(self, run: str, step: str) -> bool:
        return any(o.run == run and o.step == step for o in self._operations.values())

    def find(self, base: str, names: Sequence[str] = ()) -> Operation | None:
        bases = {base, *names}
        found = [
            operation
            for run, step, _ in (name.split("/", 2) for name in sorted(bases))
            for operation in self._of_step(run, step)
            if operation.base in bases
        ]
        return max(found, key=lambda operation: operation.version, default=None)

    def get(self, key: str) -> Operation | None:
        return self._operations.get(key)

    def alike(self, lookalike: Lookalike) -> Sequence[Operation]:
        return [
            operation
            for operation in _newest_first(self._of_step(lookalike.run, lookalike.step))
            if (operation.method, operation.url) == (lookalike.method, lookalike.url)
        ]

    def by_caller_key(self, service: str, caller_key: str) -> Operation | None:
        wanted = (service, caller_key)
        for operation in _newest_first(self._operations.values()):
            if (operation.service, operation.caller_key) == wanted:
                return operation
        return None

    def adopted(
        self, service: str, endpoint: str, account: str | None, external_id: str
    ) -> str | None:
        wanted = (service, endpoint, account, external_id)
        for operation in self._operations.values():
            if operation.outcome is not None and wanted == (
                operation.service,
                operation.endpoint,
                operation.intent.account,
                operation.outcome.external_id,
            ):
                return operation.key
        return None

    def written_since(self, method_url: tuple[str, str], when: float, but: str) -> bool:
        return any(
            attempt.maybe_sent and attempt.started_at > when
            for operation in self._operations.values()
            if operation.url == method_url[1] and operation.key != but
            for attempt in operation.attempts
        )

    def run(self, run: str) -> Run | None:
        return self._runs.get(run)

    def above(self, run: Run) -> Sequence[Run]:
        found: list[Run] = []
        row: Run | None = run
        while row is not None and row.parent is not None and len(found) < DEPTH:
            row = self._runs.get(row.parent)
            if row is not None:
                found.append(row)
        return found

    async def runs(self, query: RunQuery) -> Sequence[Run]:
        before = query.before if query.before is not None else math.inf
        found = [run for run in self._runs.values() if run.created_at < before]
        newest = sorted(found, key=lambda run: (run.created_at, run.run), reverse=True)
        return newest[: query.limit]

    async def children(self, run: str) -> Sequence[str]:
        return sorted(each.run for each in self._runs.values() if each.parent == run)

    async def states(self, run: str) -> dict[str, int]:
        mine = (o.state for o in self._operations.values() if o.run == run)
        return dict(Counter(str(state) for state in mine))

    async def conflicts(self, run: str) -> int:
        stored = (stored for stored, _ in self._events if stored.run == run)
        return len({each.key for each in stored if each.event.kind is Kind.EFFECT_CONFLICT})

    async def amend(
        self, run: str, amendment: Amendment, *, charge: Charge | None = None, new: bool = False
    ) -> Run:
        before = self._runs.get(run) or self._new_run(run, 1, new=new)
        try:
            after, events = amendment(before)
        except (RunRefused, Exhausted) as error:
            raise Refused(error) from error
        rows = [codec.encode_event(event) for event in events]
        if after is not before or not before.revision:
            self._keep_run(after)
        if charge is not None:
            self._charge(run, charge)
        for row in rows:
            self._append(run, f"{run}/", row)
        return self._runs[run]

    async def save_checkpoint(
        self,
        run: str,
        content: bytes,
        *,
        step: str | None = None,
        conditions: Sequence[Condition] = (),
        keep: int = CHECKPOINTS_KEPT,
    ) -> Checkpoint:
        before = self._checkpoints[run]
        newest = before[0].version if before else 0
        if not all(condition.holds(newest) for condition in conditions):
            raise StaleCheckpoint(newest)
        if run not in self._runs:
            self._keep_run(self._new_run(run, 1))
        now, after = self._clock.time(), len(self._events)
        at = max(now, before[0].created_at) if before else now
        made = Checkpoint(run, newest + 1, at, len(content), after, step)
        self._checkpoints[run] = [replace(made, content=content), *before][:keep]
        self._append(run, f"{run}/", codec.encode_event(saved(made)))
        return made

    async def checkpoint(self, run: str, version: int | None = None) -> Checkpoint | None:
        for found in self._checkpoints[run]:
            if version in (None, found.version):
                return found
        return None

    async def checkpoints(self, run: str) -> Sequence[Checkpoint]:
        return [replace(found, content=None) for found in self._checkpoints[run]]

    async def prune_checkpoints(self, saved_before: float, limit: int) -> int:
        taken = 0
        open_runs = {o.run for o in self._operations.values() if o.state not in ENDED}
        for run, found in self._checkpoints.items():
            for place, one in enumerate(found):
                old = one.content is not None and one.created_at < saved_before
                if taken < limit and old and run not in open_runs:
                    found[place] = replace(one, content=None, kept=False)
                    taken += 1
        return taken

    def journaled(self, prompt: Prompt) -> Sequence[Recorded]:
        found = self._journal[prompt]
        return [found[number][0] for number in sorted(found)]

    async def record(self, prompt: Prompt, recorded: Recorded, answer: Answer) -> None:
        if recorded.number in self._journal[prompt]:
            raise Conflict("an answer with this number is recorded")
        if prompt.run not in self._runs:
            self._keep_run(self._new_run(prompt.run, recorded.epoch))
        self._journal[prompt][recorded.number] = recorded, codec.pack_answer(answer)

    async def recorded(self, prompt: Prompt, number: int) -> Answer | None:
        found = self._journal[prompt].get(number)
        return None if found is None else codec.unpack_answer(found[1])

    async def heard(self, prompt: Prompt, number: int, epoch: int) -> None:
        found = self._journal[prompt].get(number)
        if found is not None:
            after = replace(found[0], heard=max(found[0].heard, epoch))
            self._journal[prompt][number] = after, found[1]

    async def prune_journal(self, recorded_before: float, limit: int) -> int:
        old = [
            (found, number)
            for found in self._journal.values()
            for number, (recorded, _) in found.items()
            if recorded.created_at < recorded_before
        ][:limit]
        for found, number in old:
            del found[number]
        return len(old)

    def count(self, run: str, charge: Charge) -> None:
        if run not in self._runs:
            self._keep_run(self._new_run(run, 1))
        self._charge(run, charge)

    def _keep_run(self, run: Run) -> None:
        row = codec.encode_run(replace(run, revision=run.revision + 1))
        self._runs[run.run] = codec.decode_run(row)

    def _charge(self, run: str, charge: Charge) -> None:
        chain = [self._runs[run], *self.above(self._runs[run])]
        try:
            after = [charged(each, charge) for each in chain]
        except Exhausted as error:
            raise Refused(error) from error
        for each in after:
            self._keep_run(each)

    async def approvals(
        self, states: Sequence[Consent], limit: int, *, run: str | None = None
    ) -> Sequence[Operation]:
        found = [
            operation
            for operation in _newest_first(self._operations.values())
            if operation.approval is not None
            and run in (None, operation.run)
            and (not states or operation.approval.state in states)
        ]
        return found[:limit]

    async def waiting(self) -> int:
        return len(await self.approvals((Consent.WAITING,), len(self._operations)))

    async def by_approval(self, number: str) -> Operation | None:
        for operation in self._operations.values():
            if operation.approval is not None and operation.approval.id == number:
                return operation
        return None

    async def request_of(self, key: str) -> Request | None:
        packed = self._contents.get((key, "request"))
        return None if packed is None else codec.unpack_request(packed)

    def answer_at_hand(self, key: str) -> Answer | None:
        packed = self._contents.get((key, "answer"))
        return None if packed is None else codec.unpack_answer(packed)

    async def answer_of(self, key: str) -> Answer | None:
        packed = self._contents.get((key, "answer"))
        return None if packed is None else codec.unpack_answer(packed)

    async def commit(self, change: Change) -> Operation:
        operation = change.operation
        key = operation.key
        if not change.events:
            raise ValueError(f"a change of {key} without an event has no reason")
        stored = self._operations.get(key)
        if operation.revision != (stored.revision if stored else 0):
            raise Conflict(f"{key} has changed since it was read")
        after = changed(operation, revision=operation.revision + 1)
        row = codec.encode(after)
        events = [codec.encode_event(event) for event in change.events]
        if operation.run not in self._runs:
            epoch = max(1, operation.intent.epoch)
            self._keep_run(self._new_run(operation.run, epoch))
        if change.charge is not None:
            self._charge(operation.run, change.charge)
        if stored is None:
            self._steps[operation.run, operation.step].append(key)
        self._operations[key] = codec.decode(row)
        if change.request is not None:
            self._contents[key, "request"] = codec.pack_request(change.request)
        if change.answer is not None:
            self._contents[key, "answer"] = codec.pack_answer(change.answer)
        for event in events:
            self._append(operation.run, key, event)
        self._commits += 1
        return after

    def note(self, operation: Operation, event: Event) -> None:
        moves = evolve(operation, event) != operation
        stored = self._operations.get(operation.key)
        self._append(operation.run, operation.key, codec.encode_event(event))
        if moves and stored is not None:
            after = evolve(stored, event)
            self._operations[operation.key] = changed(after, revision=stored.revision + 1)

    async def flush(self) -> None: ...

    async def prune(self, ended_before: float, limit: int) -> int:
        taken = 0
        for operation in list(self._operations.values()):
            kinds = [k for k in ("request", "answer") if (operation.key, k) in self._contents]
            if taken >= limit or not kinds or not _ended(operation, ended_before):
                continue
            event = Event(Kind.BODIES_PRUNED, self._clock.time(), {})
            await self.commit(Change(evolve(operation, event), (event,)))
            for kind in kinds:
                del self._contents[operation.key, kind]
            taken += 1
        return taken

    async def forget(self, ended_before: float, limit: int) -> int:
        now = self._clock.time()
        gone = [
            operation
            for operation in self._operations.values()
            if _ended(operation, ended_before)
            and now > (operation.first_maybe_sent_at or 0) + (operation.intent.valid_for or 0)
        ][:limit]
        for operation in gone:
            del self._operations[operation.key]
            self._steps[operation.run, operation.step].remove(operation.key)
            for kind in ("request", "answer"):
                self._contents.pop((operation.key, kind), None)
            event = codec.encode_event(Event(Kind.KEY_FORGOTTEN, now, {}))
            self._append(operation.run, operation.key, event)
        return len(gone)

    async def operations(self, query: Query) -> Sequence[Operation]:
        found = [
            operation
            for operation in _newest_first(self._operations.values())
            if query.run in (None, operation.run)
            and (query.step is None or query.step in operation.step)
            and (not query.states or operation.state in query.states)
            and query.service in (None, operation.service)
            and (query.before is None or operation.created_at < query.before)
            and (query.moved_after is None or self._moved(operation, query.moved_after))
        ]
        return found[: query.limit]

    async def unsettled(self) -> Sequence[Operation]:
        newest = _newest_first(o for o in self._operations.values() if o.state in UNSETTLED)
        return newest[::-1]

    async def history(self, key: str) -> Sequence[StoredEvent]:
        return [stored for stored, _ in self._events if stored.key == key]

    async def events(
        self, after: int, limit: int = 100, *, kinds: Sequence[Kind] = ()
    ) -> Sequence[StoredEvent]:
        if not kinds:
            return [stored for stored, _ in self._events[after : after + limit]]
        later = (stored for stored, _ in self._events[after:])
        return [stored for stored in later if stored.event.kind in kinds][:limit]

    def last_event(self) -> int:
        return len(self._events)

    async def bookmark(self, name: str) -> bytes | None:
        return self._bookmarks.get(name)

    async def set_bookmark(self, name: str, value: bytes) -> None:
        self._bookmarks[name] = value

    async def counts(self) -> dict[tuple[str, str, str | None], int]:
        counted: Counter[tuple[str, str, str | None]] = Counter()
        for state in State:
            counted["", state.value, None] = 0
        for operation in self._operations.values():
            assert operation.state is not None
            counted["", operation.state.value, None] += 1
            if operation.state in UNSETTLED:
                counted[operation.service, operation.state.value, operation.blocked_by] += 1
        return dict(counted)

    async def verify(self, run: str | None = None) -> Sequence[str]:
        faults = []
        last: dict[str, bytes] = {}
        for stored, row in self._events:
            expected = _link(last.get(stored.run, START), stored, row)
            if expected.hex() != stored.hash and run in (None, stored.run):
                faults.append(f"event {stored.seq} of run {stored.run} does not fit its hash")
            last[stored.run] = expected
        return faults

    def stats(self) -> Stats:
        return Stats(self._commits, self._commits, (1,) * min(self._commits, 1000))

    def _new_run(self, run: str, epoch: int, *, new: bool = False) -> Run:
        certain = new or self.gap is None
        generation = self.generation if certain else UNKNOWN_ORIGIN
        return Run(run, epoch, created_at=self._clock.time(), generation=generation)

    def _moved(self, operation: Operation, after: int) -> bool:
        return any(
            stored.key == operation.key and stored.event.kind not in NOTES
            for stored, _ in self._events[after:]
        )

    def _of_step(self, run: str, step: str) -> list[Operation]:
        return [self._operations[key] for key in self._steps.get((run, step), ())]

    def _append(self, run: str, key: str, row: codec.EventRow) -> None:
        event = codec.decode_event(row.kind, row.at, row.data)
        stored = StoredEvent(len(self._events) + 1, run, key, event)
        digest = _link(self._last.get(run, START), stored, row)
        self._last[run] = digest
        self._events.append((replace(stored, hash=digest.hex()), row))


def _ended(operation: Operation, before: float) -> bool:
    return operation.state in ENDED and operation.updated_at < before


def _newest_first(operations: Iterable[Operation]) -> list[Operation]:
    # Sorting keeps the order of equals, and of two at one moment the later comes first.
    oldest_first = sorted(operations, key=lambda operation: operation.created_at)
    return oldest_first[::-1]


def _link(previous: bytes, stored: StoredEvent, row: codec.EventRow) -> bytes:
    return link(previous, stored.seq, stored.run, stored.key, row.kind, row.at, row.data, None)
