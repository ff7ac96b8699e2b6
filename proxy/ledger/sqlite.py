"""The ledger in one SQLite file.

One process, one file, one connection that writes and checkpoints (SQLite before 3.51.3 can corrupt
a WAL that two connections write). Commits go through ``group`` to ``batch``, on that connection's
own thread. Point reads are answered at once, in the caller's thread, on a connection that cannot
write; what may take long runs in a thread, on a connection of its own.

What was noted but is not durable yet is visible to reads, so that a call that follows an answer at
once finds it delivered.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import secrets
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, TypeVar, cast

import aiosqlite
import orjson

from proxy.clock import Clock
from proxy.core.model import Answer, Request
from proxy.core.operation import Event, Kind, Operation, changed, evolve
from proxy.ledger import audit, codec
from proxy.ledger.backup import BACKUP
from proxy.ledger.base import (
    FAR_PAST,
    Change,
    Conflict,
    Damaged,
    Gap,
    LedgerError,
    Lookalike,
    Query,
    RunRow,
    Stats,
    StoredEvent,
    WrongKey,
)
from proxy.ledger.batch import (
    FAULTS,
    KNOWS,
    LAST,
    RUNS_REMEMBERED,
    SELECT,
    SELECT_RUN,
    BatchWriter,
    explain,
)
from proxy.ledger.chain import START, Head, HeadFile, went_back
from proxy.ledger.codec import COLUMNS
from proxy.ledger.group import Entry, GroupCommit
from proxy.ledger.lock import LockFile, network_file_system
from proxy.ledger.recent import Recent
from proxy.ledger.schema import create_file, prepare, reader
from proxy.ledger.seal import ID_BYTES, Sealer, content_identity
from proxy.ledger.steps import Steps

INLINE = 64 * 1024  # bytes sealed or opened in the caller's thread: some 50 us

# With max(), SQLite takes the other columns from the row that has it, and sorts nothing.
_NEWEST = f"SELECT {', '.join(COLUMNS)}, max(version) FROM operations WHERE key >= ? AND key < ?"
_EVENTS = "SELECT seq, run, key, kind, at, data, hash FROM events"
_HISTORY_OF_ANY = f"SELECT 1 FROM events WHERE key >= ? AND key < ? AND {KNOWS} LIMIT 1"
_HISTORY_OF = f"SELECT 1 FROM events WHERE key = ? AND {KNOWS} LIMIT 1"
_WIDTH = len(COLUMNS)
_STEP = "SELECT 1 FROM operations WHERE run = ? AND step = ? LIMIT 1"
_STEPS = "SELECT DISTINCT step FROM operations WHERE run = ? LIMIT ?"
_EXACT = f"{SELECT} WHERE key = ?"
_UNSETTLED = "state IN ('in_flight', 'unknown')"  # spelled as the index has it

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

_CONTENT = {
    kind: f"SELECT o.{kind}_id, c.id, length(c.sealed), {{}} FROM operations o"
    f" LEFT JOIN contents c ON c.id = o.{kind}_id WHERE o.key = ?"
    for kind in ("request", "answer")
}
_SHORT = {
    kind: sql.format(f"CASE WHEN length(c.sealed) <= {INLINE} THEN c.sealed END")
    for kind, sql in _CONTENT.items()
}
_WHOLE = {kind: sql.format("c.sealed") for kind, sql in _CONTENT.items()}

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


class SqliteLedger:
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
        self.path = path
        self.generation = ""
        self.trouble: str | None = None
        self.alarms: tuple[str, ...] = ()
        self.warnings: tuple[str, ...] = ()
        self.gap: Gap | None = None
        self._sealer = Sealer(key)
        self._oldest_key = key if isinstance(key, bytes) else key[-1]
        self._found = 0  # the last content that was here when it was opened
        self._first_meta: dict[str, bytes] = {}  # of a ledger that is made now
        self.digest_key = b""  # of digests that must outlive a key; known once it is open
        self._clock = clock
        self._restored = restored
        self._observe = observe
        self._lock = LockFile(path.with_name(path.name + ".lock"))
        self._head_file = HeadFile(path.with_name(path.name + ".head"))
        self._decoder = codec.Reader()  # of the loop's thread
        self._recent = Recent()
        self._steps = Steps(self._steps_of)
        self._noted: dict[str, list[Entry]] = {}
        self._runs: dict[str, RunRow] = {}
        self._content_numbers = count(1)  # one step, since large bodies are sealed in threads
        self._thread: WritingThread | None = None
        self._reader: sqlite3.Connection | None = None
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
            head = await self._thread.run(lambda db: self._identify(db, created))
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
        self._settle_keys(db, meta)
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
            known = {"generation": self.generation, "lives": lives, **self._first_meta}
            if self.gap is not None:
                known["gap"] = orjson.dumps((self.gap.since, self.gap.until))
            _remember(db, forget=BACKUP, **known)
        else:
            self.generation = now.generation
        if self.gap is not None:
            self.warnings += (GAP_WARNING,)
        last_content = db.execute("SELECT coalesce(max(id), 0) FROM contents").fetchone()[0]
        self._found = last_content
        self._content_numbers = count(last_content + 1)
        return replace(now, generation=self.generation)

    # Point reads

    def has_step(self, run: str, step: str) -> bool:
        known = self._steps.has(run, step)
        return bool(self._rows(_STEP, (run, step))) if known is None else known

    def _steps_of(self, run: str, limit: int) -> list[str]:
        return [row[0] for row in self._rows(_STEPS, (run, limit))]

    def find(self, base: str, names: Sequence[str] = ()) -> Operation | None:
        newest: Operation | None = None
        for name in (base, *names):
            found = self._recent.operation(name)
            if found is not None:
                found = self._with_notes(found)
            else:
                found = self._known(_NEWEST, _HISTORY_OF_ANY, _versions(name), name)
            if found is not None and (newest is None or found.version > newest.version):
                newest = found
        return newest

    def get(self, key: str) -> Operation | None:
        return self._known(_EXACT, _HISTORY_OF, (key,), key)

    def alike(self, lookalike: Lookalike) -> Sequence[Operation]:
        run, step, method, url = lookalike.run, lookalike.step, lookalike.method, lookalike.url
        rows = self._rows(
            f"{SELECT} WHERE run = ? AND step = ? AND place = ? AND method = ? AND url = ?"
            " ORDER BY created_at DESC, rowid DESC",
            (run, step, codec.place_code(url), method, codec.text(url)),
        )
        return [self._with_notes(self._decoder.decode(row)) for row in rows]

    def by_caller_key(self, service: str, caller_key: str) -> Operation | None:
        return self._row(
            f"{SELECT} WHERE service = ? AND caller_key = ?"
            " ORDER BY created_at DESC, rowid DESC LIMIT 1",
            (service, caller_key),
        )

    def adopted(
        self, service: str, endpoint: str, account: str | None, external_id: str
    ) -> str | None:
        rows = self._rows(
            "SELECT key FROM operations WHERE external_id = ? AND service = ? AND endpoint = ?"
            " AND account IS ? ORDER BY rowid LIMIT 1",
            (codec.text(external_id), service, endpoint, account),
        )
        return rows[0][0] if rows else None

    def written_since(self, method_url: tuple[str, str], when: float, but: str) -> bool:
        url = method_url[1]
        rows = self._rows(
            "SELECT 1 FROM operations WHERE place = ? AND started_at > ? AND url = ? AND key <> ?"
            " LIMIT 1",
            (codec.place_code(url), when, codec.text(url), but),
        )
        return bool(rows)

    def run(self, run: str) -> RunRow | None:
        known = self._runs.get(run)
        if known is None:
            rows = self._rows(SELECT_RUN, (run,))
            known = codec.decode_run(rows[0]) if rows else None
            if known is not None:
                self._remember_run(known)
        return known

    async def begin_epoch(self, run: str, *, new: bool = False) -> RunRow:
        entry = Entry(run=run, begins=True, new=new)
        await self._open_group().submit(entry)
        assert entry.began is not None
        self._remember_run(entry.began)
        return entry.began

    def _remember_run(self, row: RunRow) -> None:
        """Only this process writes runs, and each call asks for its own."""
        if len(self._runs) >= RUNS_REMEMBERED:
            self._runs.clear()
        self._runs[row.run] = row

    async def request_of(self, key: str) -> Request | None:
        packed = await self._content(key, "request")
        return None if packed is None else codec.unpack_request(packed)

    async def answer_of(self, key: str) -> Answer | None:
        packed = await self._content(key, "answer")
        return None if packed is None else codec.unpack_answer(packed)

    def answer_at_hand(self, key: str) -> Answer | None:
        answer = self._recent.answer(key)
        if answer is None:
            packed = self._short(key, "answer")
            if isinstance(packed, bytes):
                answer = codec.unpack_answer(packed)
                self._recent.keep_answer(key, answer)
        return answer

    # Writing

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
            await self._thread.run(lambda db: _remember(db, written=self._clock.time()))
        except FAULTS as error:
            self.trouble = str(explain(error))
        else:
            self.trouble = None

    def stats(self) -> Stats:
        return self._group.stats() if self._group is not None else Stats()

    async def close_gap(self) -> None:
        self._open_group()
        assert self._thread is not None
        assert self._batches is not None
        try:
            await self._thread.run(lambda db: _remember(db, forget="gap"))
        except FAULTS as error:
            raise explain(error) from error
        self.gap, self._batches.gap = None, False

    # Retention

    async def prune(self, ended_before: float, limit: int) -> int:
        rows = await self._apart(_PRUNABLE, (ended_before, ended_before, limit))
        done = await self._each(rows, self._pruned)
        pruned = [row for row, was in zip(rows, done, strict=True) if was]
        contents = [number for row in pruned for number in row[_WIDTH:] if number is not None]
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

    async def _each(
        self, rows: Sequence[Any], act: Callable[[Operation], Awaitable[bool]]
    ) -> list[bool]:
        """Whether it was done, for each row; in as few batches as may be."""
        return list(await asyncio.gather(*(self._if_whole(row, act) for row in rows)))

    def _settle_keys(self, db: sqlite3.Connection, meta: Mapping[str, Any]) -> None:
        """Which keys have sealed what is here; what is sealed for the ledger itself follows the key
        in use. Raises WrongKey."""
        held = [name.hex() for name in self._sealer.ids]
        under = orjson.loads(meta["sealed_under"]) if "sealed_under" in meta else []
        if missing := [name for name in under if name not in held]:
            raise WrongKey(
                f"{self.path} has bodies sealed under keys that the key file no longer holds (ids "
                f"{', '.join(missing)}): put their lines back, behind the first"
            )
        if "digest_key" in meta:
            self.digest_key = self._sealer.unseal(meta["digest_key"], "digest key")
        else:
            self.digest_key = hmac.digest(self._oldest_key, b"onceproxy digests", hashlib.sha256)
        if not meta or under[:1] != held[:1]:
            known: dict[str, Any] = {
                "canary": self._sealer.canary(),
                "digest_key": self._sealer.seal(self.digest_key, "digest key"),
                "sealed_under": orjson.dumps(list(dict.fromkeys([held[0], *under]))),
            }
            if meta:
                _remember(db, **known)
            else:
                self._first_meta = known

    def _reseal(self, db: sqlite3.Connection, after: int, most: int) -> int | None:
        db.execute("BEGIN IMMEDIATE")
        try:
            rows = db.execute(
                "SELECT id, key, kind, sealed FROM contents WHERE id > ? AND id <= ?"
                " AND sealed IS NOT NULL ORDER BY id LIMIT ?",
                (after, self._found, most),
            ).fetchall()
            for number, key, kind, sealed in rows:
                if sealed[:ID_BYTES] == self._sealer.ids[0]:
                    continue
                identity = content_identity(key, kind, number)
                try:
                    again = self._sealer.seal(self._sealer.unseal(sealed, identity), identity)
                except Damaged as damage:
                    log.error("left as it is: %s", damage)
                    continue
                db.execute("UPDATE contents SET sealed = ? WHERE id = ?", (again, number))
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        return rows[-1][0] if rows else None

    async def _if_whole(self, row: Any, act: Callable[[Operation], Awaitable[bool]]) -> bool:
        try:
            return await act(codec.decode(row[:_WIDTH]))
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

    # Lists

    async def operations(self, query: Query) -> Sequence[Operation]:
        where, values = _conditions(query)
        return await self._list(
            f"{SELECT}{where} ORDER BY created_at DESC, rowid DESC LIMIT ?", (*values, query.limit)
        )

    async def unsettled(self) -> Sequence[Operation]:
        return await self._list(f"{SELECT} WHERE {_UNSETTLED} ORDER BY created_at, rowid", ())

    async def history(self, key: str) -> Sequence[StoredEvent]:
        rows = await self._apart(f"{_EVENTS} WHERE key = ? ORDER BY seq", (key,))
        return [_stored(row) for row in rows]

    async def events(self, after: int, limit: int = 100) -> Sequence[StoredEvent]:
        rows = await self._apart(f"{_EVENTS} WHERE seq > ? ORDER BY seq LIMIT ?", (after, limit))
        return [_stored(row) for row in rows]

    async def counts(self) -> dict[tuple[str, str, str | None], int]:
        unsettled = (
            "SELECT service, state, blocked_by, count(*) FROM operations"
            f" WHERE {_UNSETTLED} GROUP BY service, state, blocked_by"
        )
        rows = await self._apart(unsettled, ())
        totals = await self._apart("SELECT '', state, NULL, number FROM tallies", ())
        return {(row[0], row[1], row[2]): row[3] for row in (*rows, *totals)}

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
            last = await self._thread.run(lambda db: self._reseal(db, after, most))
            if last is None:
                current = orjson.dumps([self._sealer.ids[0].hex()])
                await self._thread.run(lambda db: _remember(db, sealed_under=current))
            return last
        except FAULTS as error:
            raise explain(error) from error

    @property
    def keys_in_use(self) -> int:
        """How many keys the file holds; more than one: bodies may wait to be sealed anew."""
        return len(self._sealer.ids)

    # Within

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
        for entry in batch:
            if entry.operation or entry.moves or entry.forgets:
                self._recent.forget(entry.key.rpartition("/")[0])
            if entry.moves is not None:
                noted = self._noted[entry.key]
                noted.remove(entry)
                if not noted:
                    del self._noted[entry.key]

    def _with_notes(self, operation: Operation) -> Operation:
        """The operation as it will be once what was noted has landed, revision included."""
        noted = self._noted.get(operation.key) if self._noted else None
        for entry in noted or ():
            # ``landed`` is set before the COMMIT, so a row that has the note is told by it.
            if entry.moves and (entry.landed is None or operation.revision < entry.landed):
                after = evolve(operation, entry.moves)
                operation = changed(after, revision=operation.revision + 1)
        return operation

    def _row(self, sql: str, values: Sequence[Any]) -> Operation | None:
        rows = self._rows(sql, values)
        if not rows or rows[0][0] is None:  # max() of nothing
            return None
        found = self._decoder.decode(rows[0][:_WIDTH])
        if sql is _NEWEST:
            self._recent.keep(found)
        return self._with_notes(found)

    def _known(self, sql: str, history: str, values: Sequence[str], name: str) -> Operation | None:
        """The operation of a row. Where there is none, the history must not know it either; a
        commit that lands between the two questions is found by asking for the row again."""
        found = self._row(sql, values)
        if found is None and self._rows(history, values):
            found = self._row(sql, values)
            if found is None:
                raise Damaged(f"the history knows {name}, but its row is gone: it was damaged")
        return found

    def _rows(self, sql: str, values: Sequence[Any]) -> list[Any]:
        if self._reader is None:
            raise LedgerError("the ledger is not open")
        try:
            return self._reader.execute(sql, values).fetchall()
        except FAULTS as error:
            raise explain(error) from error

    async def _content(self, key: str, kind: str) -> bytes | None:
        packed = self._short(key, kind)
        if not isinstance(packed, int):
            return packed
        rows = await self._apart(_WHOLE[kind], (key,))
        identity = content_identity(key, kind, packed)
        return await asyncio.to_thread(self._sealer.unseal, rows[0][3], identity)

    def _short(self, key: str, kind: str) -> bytes | int | None:
        """The bytes of a content; None where it is not kept, its number where it is long."""
        rows = self._rows(_SHORT[kind], (key,))
        if not rows:
            if self._rows(_HISTORY_OF, (key,)):
                raise Damaged(f"the history knows {key}, but its row is gone: it was damaged")
            return None
        number, stored, length, sealed = rows[0]
        if number is None:
            return None
        if stored is None:
            raise Damaged(f"the stored {kind} of {key} is gone: it was damaged")
        if length is None:
            return None  # retention took it
        if sealed is None:
            return int(number)
        return self._sealer.unseal(sealed, content_identity(key, kind, number))

    async def _list(self, sql: str, values: Sequence[Any]) -> list[Operation]:
        """Operations of a list. A damaged row is left out and logged: it must not hide the rest,
        and whoever asks for it by its key is told."""
        found = []
        for row in await self._apart(sql, values):
            try:
                found.append(self._with_notes(codec.decode(row)))
            except Damaged as damage:
                log.error("left out of a list: %s", damage)
        return found

    async def _apart(self, sql: str, values: Sequence[Any]) -> list[Any]:
        self._open_group()
        return await asyncio.to_thread(
            self._in_thread, lambda db: db.execute(sql, values).fetchall()
        )

    def _in_thread(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        try:
            with contextlib.closing(reader(self.path)) as db:
                # Damaged text shows against its hash, row by row, instead of ending a whole list.
                db.text_factory = lambda raw: raw.decode("utf-8", "replace")
                return ask(db)
        except FAULTS as error:
            raise explain(error) from error


def _weight(change: Change) -> int:
    """Bytes of the bodies."""
    request, answer = change.request, change.answer
    size = 0 if request is None else request.body.size
    return size if answer is None or answer.body is None else size + answer.body.size


def _versions(base: str) -> tuple[str, str]:
    """The range of keys base/v1, base/v2 ...: names have no slash, and "w" follows "v"."""
    return f"{base}/v", f"{base}/w"


def _conditions(query: Query) -> tuple[str, list[Any]]:
    conditions: list[str] = []
    values: list[Any] = []
    if query.run is not None:
        conditions.append("key >= ? AND key < ?")
        values += [f"{query.run}/", f"{query.run}0"]
    if query.states:
        conditions.append(f"state IN ({', '.join('?' * len(query.states))})")
        values += [state.value for state in query.states]
        if all(state.value in ("in_flight", "unknown") for state in query.states):
            conditions.append(_UNSETTLED)
    if query.service is not None:
        conditions.append("service = ?")
        values.append(query.service)
    if query.before is not None:
        conditions.append("created_at < ?")
        values.append(query.before)
    return (" WHERE " + " AND ".join(conditions) if conditions else ""), values


def _stored(row: Sequence[Any]) -> StoredEvent:
    seq, run, key, kind, at, data, digest = row
    return StoredEvent(seq, run, key, codec.decode_event(kind, at, data), digest.hex())


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


def _remember(db: sqlite3.Connection, *, forget: str = "", **values: Any) -> None:
    db.execute("BEGIN IMMEDIATE")
    try:
        db.execute("DELETE FROM meta WHERE name = ?", (forget,))
        db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
        raise


def _cannot_open(path: Path, error: Exception) -> LedgerError:
    if isinstance(error, OSError):
        return LedgerError(f"cannot open {path}: {error.strerror}")
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
        return LedgerError(f"{path} is not a SQLite file: choose another ledger.url")
    reason = explain(error)
    return type(reason)(f"cannot open {path}: {reason}")
