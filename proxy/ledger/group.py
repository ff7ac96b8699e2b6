"""Group commit: what is queued while one batch is being made durable goes into the next.

No timer forms a batch, the disk does: with one committer each change is a batch, with many they
share a sync. Each batch is one call of ``write``; its waiters are woken together, in one turn of
the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from proxy.clock import Clock
from proxy.core.operation import Event, Operation
from proxy.core.runs import Amendment, Charge, Run
from proxy.ledger.base import LedgerError, Stats
from proxy.ledger.checkpoints import Saving
from proxy.ledger.codec import EventRow, Row
from proxy.ledger.journal import Hearing, Recording

BATCH = 256  # entries; more only lengthens the wait of the first in it
BATCH_BYTES = 32 * 1024 * 1024  # of contents: bounds memory and the size of one transaction
LINGER = 0.05  # seconds a note waits for a commit to travel with, so that replays cost no sync each
NOTES_KEPT = 10_000  # notes carried over while the disk refuses: about 5 MB

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Entry:
    """One thing to make durable: a change, a note, an amendment of a run, its next checkpoint,
    something of the journal, or (empty) a barrier."""

    run: str = ""
    key: str = ""
    events: tuple[EventRow, ...] = ()
    operation: Operation | None = None  # of a change: as it will be, at its new revision
    row: Row = ()
    request: tuple[int, bytes] | None = None  # content number, sealed bytes
    answer: tuple[int, bytes] | None = None
    moves: Event | None = None  # of a note that changes the row
    forgets: int | None = None  # the revision of the row to be deleted
    charge: Charge | None = None
    amendment: Amendment | None = None  # of a run
    new: bool = False  # of a run whose name was made just now
    amended: Run | None = None  # what it became
    saves: Saving | None = None  # the run's next checkpoint
    journal: Recording | Hearing | None = None
    waiter: asyncio.Future[None] | None = None
    landed: int | None = None  # of a moving note: the row's revision that has it
    failure: LedgerError | None = None

    @property
    def empty(self) -> bool:
        work = self.amendment, self.saves, self.journal
        return not self.events and all(each is None for each in work)

    @property
    def size(self) -> int:
        size = 0 if self.request is None else len(self.request[1])
        if self.saves is not None:
            size += len(self.saves.content)
        if self.journal is not None:
            size += self.journal.size
        return size if self.answer is None else size + len(self.answer[1])


@dataclass(slots=True)
class Counters:
    commits: int = 0
    changes: int = 0
    sizes: deque[int] = field(default_factory=lambda: deque(maxlen=1000))


class GroupCommit:
    """The queue in front of ``write``, which makes a batch durable or raises.

    ``done`` is told of every entry that will not be tried again; ``observe``, after each batch, how
    many seconds it took and how many changes were in it."""

    def __init__(
        self,
        write: Callable[[Sequence[Entry]], Awaitable[None]],
        done: Callable[[Sequence[Entry]], None],
        clock: Clock,
        observe: Callable[[float, int], None] | None = None,
    ) -> None:
        self._write = write
        self._clock = clock
        self._observe = observe
        self._done = done
        self._queue: deque[Entry] = deque()
        self._deferred: list[Entry] = []  # notes of failed batches; they go first
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._counters = Counters()
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._drain(), name="ledger group commit")

    def submit(self, entry: Entry) -> asyncio.Future[None]:
        """Queue an entry; the future is done once it is durable.

        Giving up the wait does not take the entry back."""
        if self._closing:
            raise LedgerError("the ledger is closed: nothing more can be written")
        entry.waiter = self._loop.create_future()
        self._queue.append(entry)
        self._wake.set()
        return entry.waiter

    def later(self, entry: Entry) -> None:
        """Queue an entry that nobody waits for."""
        if self._closing:
            return
        self._queue.append(entry)
        if len(self._queue) >= BATCH:
            self._wake.set()
        elif self._timer is None:
            self._timer = self._loop.call_later(LINGER, self._wake.set)

    async def close(self) -> None:
        """Write what is queued, then stop."""
        self._closing = True
        self._wake.set()
        await self._task
        if self._deferred:
            log.error("%d events of replays could not be written", len(self._deferred))

    def stats(self) -> Stats:
        counters = self._counters
        return Stats(counters.commits, counters.changes, tuple(counters.sizes))

    async def _drain(self) -> None:
        while not (self._closing and not self._queue):
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                await self._one(self._take())

    async def _one(self, batch: list[Entry]) -> None:
        if not all(entry.empty for entry in batch):
            begun = self._clock.monotonic()
            try:
                await self._write(batch)
            except Exception as error:
                self._refuse(batch, error)
                return
            self._count(batch, self._clock.monotonic() - begun)
        for entry in batch:
            _wake_waiter(entry)
        self._done(batch)

    def _take(self) -> list[Entry]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._deferred = self._deferred, []
        size = 0
        for _ in range(min(BATCH, len(self._queue))):
            entry = self._queue.popleft()
            batch.append(entry)
            size += entry.size
            if size >= BATCH_BYTES:
                break
        return batch

    def _refuse(self, batch: list[Entry], error: Exception) -> None:
        if not isinstance(error, LedgerError):
            log.error("a batch of the ledger failed", exc_info=error)
            error = LedgerError(f"the ledger cannot write: {error}")
        notes = [entry for entry in batch if entry.waiter is None]
        self._deferred = notes[-NOTES_KEPT:]
        given_up = notes[:-NOTES_KEPT]
        for entry in batch:
            if entry.waiter is not None:
                entry.failure = type(error)(*error.args)
                _wake_waiter(entry)
                given_up.append(entry)
        self._done(given_up)

    def _count(self, batch: list[Entry], seconds: float) -> None:
        changes = len([entry for entry in batch if entry.operation is not None])
        if self._observe is not None:
            self._observe(seconds, changes)
        self._counters.commits += 1
        self._counters.changes += changes
        self._counters.sizes.append(changes)


def _wake_waiter(entry: Entry) -> None:
    if entry.waiter is None or entry.waiter.done():
        return
    if entry.failure is not None:
        entry.waiter.set_exception(entry.failure)
    else:
        entry.waiter.set_result(None)
