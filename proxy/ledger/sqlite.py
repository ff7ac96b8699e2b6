"""The ledger in one SQLite file.

One process, one file, one connection that writes and checkpoints (SQLite before 3.51.3 can corrupt
a WAL that two connections write). Commits go through ``group`` to ``batch``, on that connection's
own thread. How it is read is in ``reads``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar, cast

import aiosqlite
import orjson

from proxy.clock import Clock
from proxy.core.model import Answer
from proxy.core.operation import Event, Kind, Operation, changed
from proxy.core.runs import Amendment, Charge, Run, noted
from proxy.core.transitions import evolve
from proxy.ledger import audit, checkpoints, codec, journal
from proxy.ledger.backup import BACKUP
from proxy.ledger.base import (
    CHECKPOINTS_KEPT,
    FAR_PAST,
    Change,
    Checkpoint,
    Condition,
    Conflict,
    Damaged,
    Gap,
    LedgerError,
    Prompt,
    Recorded,
    Stats,
    WrongKey,
)
from proxy.ledger.batch import (
    FAULTS,
    LAST,
    SELECT,
    BatchWriter,
    explain,
)
from proxy.ledger.chain import START, Head, HeadFile, went_back
from proxy.ledger.codec import COLUMNS
from proxy.ledger.group import Entry, GroupCommit
from proxy.ledger.keyring import reseal, settle_keys
from proxy.ledger.lock import LockFile, network_file_system
from proxy.ledger.reads import INLINE, WIDTH, SqliteReads, bookmark_name
from proxy.ledger.schema import create_file, prepare, reader, remember
from proxy.ledger.seal import Sealer, content_identity

# The first condition is what the index is over; nothing is created after it has ended.
_ENDED = "created_at < ? AND updated_at < ? AND state IN ('succeeded', 'failed', 'not_applied')"
_PRUNABLE = (
    f"SELECT {', '.join(COLUMNS)}, request_id, answer_id FROM operations o WHERE {_ENDED}"
    " AND EXISTS (SELECT 1 FROM contents c"
    " WHERE c.id IN (o.request_id, o.answer_id) AND c.sealed IS NOT NULL) LIMIT ?"
)
# Not while the API honours the key, which may be for ever; JSON has no word for that.
_FORGETTABLE = (
    f"{SELECT} WHERE {_ENDED} AND CASE"
    " WHEN instr(intent, 'Infinity') OR NOT json_valid(intent) THEN 0"
    " ELSE coalesce(started_at, 0) + coalesce(json_extract(intent, '$.valid_for'), 0) < ? END"
    " ORDER BY created_at LIMIT ?"
)

GAP_WARNING = (
    "this ledger may lack calls that a lost one has sent: calls of runs that did not begin here "
    "are asked about before they are sent; once no such run will come back: onceproxy gap --close"
)

T = TypeVar("T")
log = logging.getLogger(__name__)


class WritingThread:
    """aiosqlite's connection, asked to run a whole function at once on its thread.

    The one place that leans on ``Connection._execute`` and ``_conn``, which are not public; a test
    guards them."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, path: Path) -> WritingThread:
        return cls(await aiosqlite.connect(path, isolation_level=None))

    async def run(self, function: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._connection
        done = await connection._execute(function, connection._conn)  # type: ignore[no-untyped-call]
        return cast(T, done)

    async def close(self) -> None:
        await self._connection.close()


class SqliteLedger(SqliteReads):
    """``key``: 32 bytes, or several such, of which the first seals. ``restored``: the file came
    from a backup; begin a new generation. ``observe``: told of each durable batch, its seconds and
    the number of its changes.

    ``alarms`` says why this is not, or may not be, the ledger that ran here before; ``warnings``
    what else a person should know. Both are filled by ``open``."""

    def __init__(
        self,
        path: Path,
        *,
        key: bytes | Sequence[bytes],
        clock: Clock,
        restored: bool = False,
        observe: Callable[[float, int], None] | None = None,
    ) -> None:
        super().__init__(path, Sealer(key))
        self.generation = ""
        self.trouble: str | None = None
        self.alarms: tuple[str, ...] = ()
        self.warnings: tuple[str, ...] = ()
        self.gap: Gap | None = None
        self._oldest_key = key if isinstance(key, bytes) else key[-1]
        self._found = 0  # the last content that was here when it was opened
        self.digest_key = b""  # of digests that must outlive a key; known once it is open
        self._clock = clock
        self._restored = restored
        self._observe = observe
        self._lock = LockFile(path.with_name(path.name + ".lock"))
        self._head_file = HeadFile(path.with_name(path.name + ".head"))
        self._content_numbers = count(1)  # one step, since large bodies are sealed in threads
        self._thread: WritingThread | None = None
        self._batches: BatchWriter | None = None
        self._group: GroupCommit | None = None

    # Opening and closing

    async def open(self) -> None:
        try:
            created = create_file(self.path)
            self._lock.acquire()
            self._head_file.open()
            self._thread = await WritingThread.open(self.path)
            await self._thread.run(prepare)
            try:
                head = await self._thread.run(lambda db: self._identify(db, created))
            except (TypeError, ValueError) as error:
                raise Damaged(
                    f"what {self.path} says of itself cannot be read: restore it from a backup"
                ) from error
            self._reader = reader(self.path)
            self._head_file.begin(head)
        except BaseException as error:
            await self.close()
            if isinstance(error, (*FAULTS, OSError)):
                raise _cannot_open(self.path, error) from error
            raise
        self._batches = BatchWriter(
            self.generation, self._clock, self._head_file, gap=self.gap is not None
        )
        self._group = GroupCommit(self._write, self._settled, self._clock, self._observe)
        network = network_file_system(self.path)
        if network:
            self.warnings += (
                f"{self.path} is on a network file system ({network}), where locks and syncs "
                "may not hold: use a local disk",
            )

    async def close(self) -> None:
        """Write what is queued, then let go of the file. Safe to call twice."""
        if self._group is not None:
            await self._group.close()
            self._group = None
        if self._reader is not None:  # before the writer, whose closing checkpoints
            self._reader.close()
            self._reader = None
        if self._thread is not None:
            thread, self._thread = self._thread, None
            with contextlib.suppress(sqlite3.Error):
                await thread.close()
        self._head_file.close()
        self._lock.release()

    def _identify(self, db: sqlite3.Connection, created: bool) -> Head:
        """Check the key, settle the generation. Runs on the writing thread, in one transaction."""
        meta = dict(db.execute("SELECT name, value FROM meta").fetchall())
        if meta and not self._sealer.opens(meta.get("canary", b"")):
            raise WrongKey(
                f"the key does not open {self.path}: put back the key file this ledger was made "
                "with (beside it, or ledger.key_file)"
            )
        keys = settle_keys(db, meta, self._sealer, self._oldest_key, self.path)
        self.digest_key = keys.digest_key
        last = db.execute(LAST).fetchone() or (0, START)
        now = Head(meta.get("generation", "0"), last[0], last[1] or START)
        seen = self._head_file.read()
        lost = went_back(seen, now, lambda seq: _head_at(db, seq))
        copied = meta.get(BACKUP)
        if seen is None and not created and not self._head_file.empty():
            self.warnings += (f"{self._head_file.path} could not be read and was written anew",)
        if copied is not None:
            self.alarms += (f"this is a backup, made {_when(copied)}: a new generation begins",)
        if lost is not None:
            self.alarms += (f"{lost.reason}: a new generation begins",)
        fresh = not meta
        again = lost is not None or self._restored or copied is not None
        if "gap" in meta:
            self.gap = Gap(*orjson.loads(meta["gap"]))
        if again:
            # Of the same ledger at an earlier moment nothing is missing before its newest event.
            earlier = self._restored or copied is not None or (lost is not None and lost.earlier)
            since = _newest_at(db) if earlier else None
            since = FAR_PAST if since is None else since
            if self.gap is not None:
                since = min(since, self.gap.since)
            self.gap = Gap(since, self._clock.time())
        if fresh or again:
            # The number before the dash counts the lives known of; a first, unbroken one is 1.
            lives = int(meta.get("lives", 0)) + (1 if not fresh or lost is None else 2)
            self.generation = f"{lives}-{secrets.token_hex(8)}"
            known = {"generation": self.generation, "lives": lives, **keys.to_remember}
            if self.gap is not None:
                known["gap"] = orjson.dumps((self.gap.since, self.gap.until))
            remember(db, forget=BACKUP, **known)
        else:
            self.generation = now.generation
        if self.gap is not None:
            self.warnings += (GAP_WARNING,)
        last_content = db.execute("SELECT coalesce(max(id), 0) FROM contents").fetchone()[0]
        self._found = last_content
        self._content_numbers = count(last_content + 1)
        return replace(now, generation=self.generation)

    async def amend(
        self, run: str, amendment: Amendment, *, charge: Charge | None = None, new: bool = False
    ) -> Run:
        entry = Entry(run=run, key=f"{run}/", amendment=amendment, charge=charge, new=new)
        await self._open_group().submit(entry)
        assert entry.amended is not None
        return entry.amended

    def count(self, run: str, charge: Charge) -> None:
        entry = Entry(run=run, key=f"{run}/", amendment=noted(), charge=charge)
        self._open_group().later(entry)

    # Writing

    async def save_checkpoint(
        self,
        run: str,
        content: bytes,
        *,
        step: str | None = None,
        conditions: Sequence[Condition] = (),
        keep: int = CHECKPOINTS_KEPT,
    ) -> Checkpoint:
        saving = checkpoints.Saving(run, content, step, conditions, keep, self._sealer)
        await self._open_group().submit(Entry(run=run, key=f"{run}/", saves=saving))
        assert saving.saved is not None
        return saving.saved

    async def record(self, prompt: Prompt, recorded: Recorded, answer: Answer) -> None:
        work = partial(journal.Recording.of, prompt, recorded, answer, self._sealer)
        recording = work() if recorded.size <= INLINE else await asyncio.to_thread(work)
        await self._open_group().submit(Entry(run=prompt.run, journal=recording))

    async def heard(self, prompt: Prompt, number: int, epoch: int) -> None:
        hearing = journal.Hearing(prompt, number, epoch)
        await self._open_group().submit(Entry(run=prompt.run, journal=hearing))

    async def commit(self, change: Change) -> Operation:
        if not change.events:
            raise ValueError(f"a change of {change.operation.key} without an event has no reason")
        group = self._open_group()
        if not change.operation.revision:
            self._steps.add(change.operation.run, change.operation.step)
        try:
            if _weight(change) > INLINE:
                entry = await asyncio.to_thread(self._entry, change)
            else:
                entry = self._entry(change)
        except (TypeError, ValueError) as error:
            raise LedgerError(f"{change.operation.key} cannot be stored: {error}") from error
        await group.submit(entry)
        assert entry.operation is not None
        return entry.operation

    def note(self, operation: Operation, event: Event) -> None:
        after = evolve(operation, event)
        moves = after is not operation and after != operation
        entry = Entry(
            run=operation.run,
            key=operation.key,
            events=(codec.encode_event(event),),
            moves=event if moves else None,
        )
        group = self._open_group()
        if moves:
            self._noted.setdefault(operation.key, []).append(entry)
        group.later(entry)

    async def flush(self) -> None:
        await self._open_group().submit(Entry())

    async def try_again(self) -> None:
        if self.trouble is None or self._thread is None:
            return
        try:
            await self._thread.run(lambda db: remember(db, written=self._clock.time()))
        except FAULTS as error:
            self.trouble = str(explain(error))
        else:
            self.trouble = None

    async def set_bookmark(self, name: str, value: bytes) -> None:
        known: dict[str, Any] = {bookmark_name(name): value}
        await self._write_apart(lambda db: remember(db, **known))

    def stats(self) -> Stats:
        return self._group.stats() if self._group is not None else Stats()

    async def close_gap(self) -> None:
        self._open_group()
        assert self._thread is not None
        assert self._batches is not None
        try:
            await self._thread.run(lambda db: remember(db, forget="gap"))
        except FAULTS as error:
            raise explain(error) from error
        self.gap = None
        self._batches.close_gap()

    # Retention

    async def prune(self, ended_before: float, limit: int) -> int:
        rows = await self._apart(_PRUNABLE, (ended_before, ended_before, limit))
        done = await self._each(rows, self._pruned)
        pruned = [row for row, was in zip(rows, done, strict=True) if was]
        contents = [number for row in pruned for number in row[WIDTH:] if number is not None]
        assert self._thread is not None
        try:
            # After the event: bytes that are gone before it would look like damage.
            await self._thread.run(lambda db: _take(db, contents))
        except FAULTS as error:
            raise explain(error) from error
        return len(pruned)

    async def forget(self, ended_before: float, limit: int) -> int:
        now = self._clock.time()
        rows = await self._apart(_FORGETTABLE, (ended_before, ended_before, now, limit))
        return sum(await self._each(rows, self._forgotten))

    async def prune_checkpoints(self, saved_before: float, limit: int) -> int:
        return await self._write_apart(lambda db: checkpoints.take(db, saved_before, limit))

    async def prune_journal(self, recorded_before: float, limit: int) -> int:
        return await self._write_apart(lambda db: journal.take(db, recorded_before, limit))

    async def _each(
        self, rows: Sequence[Any], act: Callable[[Operation], Awaitable[bool]]
    ) -> list[bool]:
        """Whether it was done, for each row; in as few batches as may be."""
        return list(await asyncio.gather(*(self._if_whole(row, act) for row in rows)))

    async def _if_whole(self, row: Any, act: Callable[[Operation], Awaitable[bool]]) -> bool:
        try:
            return await act(codec.decode(row[:WIDTH]))
        except Damaged as damage:
            log.error("left as it is: %s", damage)
        except Conflict:
            pass  # something happened to it just now
        return False

    async def _pruned(self, operation: Operation) -> bool:
        if operation.outcome is None or operation.outcome.kept:
            event = Event(Kind.BODIES_PRUNED, self._clock.time(), {})
            await self.commit(Change(evolve(operation, event), (event,)))
        return True

    async def _forgotten(self, operation: Operation) -> bool:
        event = codec.encode_event(Event(Kind.KEY_FORGOTTEN, self._clock.time(), {}))
        entry = Entry(
            run=operation.run, key=operation.key, events=(event,), forgets=operation.revision
        )
        await self._open_group().submit(entry)
        return True

    async def verify(self, run: str | None = None) -> Sequence[str]:
        self._open_group()
        head = self._head_file.read()
        return await asyncio.to_thread(
            self._in_thread, lambda db: audit.verify(db, self._sealer, run, head)
        )

    async def reseal(self, after: int, most: int) -> int | None:
        """Seal up to so many bodies behind the content ``after`` under the key in use; returns the
        last one looked at, None when there are no more. Raises LedgerError."""
        if self._thread is None:
            raise LedgerError("the ledger is not open")
        try:
            last = await self._thread.run(
                lambda db: reseal(db, self._sealer, after, most, self._found)
            )
            if last is None:
                await self._reseal_each(checkpoints.reseal)
                await self._reseal_each(journal.reseal)
                current = orjson.dumps([self._sealer.ids[0].hex()])
                await self._thread.run(lambda db: remember(db, sealed_under=current))
            return last
        except FAULTS as error:
            raise explain(error) from error

    async def _reseal_each(
        self, reseal: Callable[[sqlite3.Connection, Sealer, int], int | None]
    ) -> None:
        """One at a time, since they may be long and calls are first."""
        last: int | None = 0
        while last is not None:
            after = last
            last = await self._write_apart(lambda db: reseal(db, self._sealer, after))  # noqa: B023

    @property
    def keys_in_use(self) -> int:
        """How many keys the file holds; more than one: bodies may wait to be sealed anew."""
        return len(self._sealer.ids)

    # Within

    async def _write_apart(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Between two batches. ``work`` leaves no transaction open."""
        if self._thread is None:
            raise LedgerError("the ledger is not open")
        try:
            return await self._thread.run(work)
        except FAULTS as error:
            raise explain(error) from error

    def _open_group(self) -> GroupCommit:
        if self._group is None:
            raise LedgerError("the ledger is not open")
        return self._group

    def _entry(self, change: Change) -> Entry:
        """A change, encoded and sealed, at its new revision."""
        operation = changed(change.operation, revision=change.operation.revision + 1)
        key = operation.key
        request = answer = None
        if change.request is not None:
            request = self._seal(key, "request", codec.pack_request(change.request))
        if change.answer is not None:
            answer = self._seal(key, "answer", codec.pack_answer(change.answer))
        return Entry(
            run=operation.run,
            key=key,
            events=tuple(map(codec.encode_event, change.events)),
            operation=operation,
            row=codec.encode(operation),
            request=request,
            answer=answer,
            charge=change.charge,
        )

    def _seal(self, key: str, kind: str, packed: bytes) -> tuple[int, bytes]:
        number = next(self._content_numbers)
        return number, self._sealer.seal(packed, content_identity(key, kind, number))

    async def _write(self, batch: Sequence[Entry]) -> None:
        thread, batches = self._thread, self._batches
        assert thread is not None
        assert batches is not None
        try:
            await thread.run(lambda db: batches.write(db, batch))
        except BaseException as error:
            batches.forget()
            told = explain(error) if isinstance(error, FAULTS) else error
            self.trouble = str(told)
            if told is error:
                raise
            raise told from error
        self.trouble = None

    def _settled(self, batch: Sequence[Entry]) -> None:
        batches = self._batches
        if batches is not None and batches.changed_runs:
            for run in batches.changed_runs:
                self._remember_run(run)
            batches.changed_runs = ()
        for entry in batch:
            if entry.operation or entry.moves or entry.forgets:
                self._recent.forget(entry.key.rpartition("/")[0])
            if entry.moves is not None:
                noted = self._noted[entry.key]
                noted.remove(entry)
                if not noted:
                    del self._noted[entry.key]


def _weight(change: Change) -> int:
    """Bytes of the bodies."""
    request, answer = change.request, change.answer
    size = 0 if request is None else request.body.size
    return size if answer is None or answer.body is None else size + answer.body.size


def _take(db: sqlite3.Connection, contents: Sequence[int]) -> None:
    db.execute("BEGIN IMMEDIATE")
    db.executemany("UPDATE contents SET sealed = NULL WHERE id = ?", [(n,) for n in contents])
    db.execute("COMMIT")


def _head_at(db: sqlite3.Connection, seq: int) -> bytes | None:
    found = db.execute("SELECT head FROM events WHERE seq = ?", (seq,)).fetchone()
    return found[0] if found else None


def _newest_at(db: sqlite3.Connection) -> float | None:
    """When the newest event was; None without one."""
    last = db.execute("SELECT at FROM events ORDER BY seq DESC LIMIT 1").fetchone()
    return float(last[0]) if last else None


def _when(copied: bytes) -> str:
    return datetime.fromtimestamp(float(copied), UTC).isoformat(" ", "seconds")


def _cannot_open(path: Path, error: Exception) -> LedgerError:
    if isinstance(error, OSError):
        return LedgerError(f"cannot open {path}: {error.strerror}")
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
        return LedgerError(f"{path} is not a SQLite file: choose another ledger.url")
    reason = explain(error)
    return type(reason)(f"cannot open {path}: {reason}")
