"""Reading the SQLite ledger.

Point reads are answered at once, in the caller's thread, on a connection that cannot write; what
may take long runs in a thread, on a connection of its own.

What was noted but is not durable yet is visible to reads, so that a call that follows an answer at
once finds it delivered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from proxy.core.model import Answer, Request
from proxy.core.operation import Consent, Kind, Operation, changed
from proxy.core.runs import DEPTH, Run
from proxy.core.transitions import NOTES, evolve
from proxy.ledger import checkpoints, codec, journal
from proxy.ledger.base import (
    Checkpoint,
    Damaged,
    LedgerError,
    Lookalike,
    Prompt,
    Query,
    Recorded,
    RunQuery,
    StoredEvent,
)
from proxy.ledger.batch import FAULTS, KNOWS, RUNS_REMEMBERED, SELECT, explain
from proxy.ledger.codec import COLUMNS, RUN_COLUMNS
from proxy.ledger.group import Entry
from proxy.ledger.recent import Recent
from proxy.ledger.runs import SELECT_RUN
from proxy.ledger.schema import reader
from proxy.ledger.seal import Sealer, content_identity
from proxy.ledger.steps import Steps

INLINE = 64 * 1024  # bytes sealed or opened in the caller's thread: some 50 us

# With max(), SQLite takes the other columns from the row that has it, and sorts nothing.
_NEWEST = f"SELECT {', '.join(COLUMNS)}, max(version) FROM operations WHERE key >= ? AND key < ?"
_EVENTS = "SELECT seq, run, key, kind, at, data, hash FROM events"
_HISTORY_OF_ANY = f"SELECT 1 FROM events WHERE key >= ? AND key < ? AND {KNOWS} LIMIT 1"
_HISTORY_OF = f"SELECT 1 FROM events WHERE key = ? AND {KNOWS} LIMIT 1"
WIDTH = len(COLUMNS)  # of a row of ``SELECT``; what follows is no part of the operation
_STEP = "SELECT 1 FROM operations WHERE run = ? AND step = ? LIMIT 1"
_STEPS = "SELECT DISTINCT step FROM operations WHERE run = ? LIMIT ?"
_EXACT = f"{SELECT} WHERE key = ?"
_APPROVED = f"{SELECT} WHERE approval IS NOT NULL"
_CONSENT = "json_extract(approval, '$.state')"
_UNSETTLED = "state IN ('in_flight', 'unknown')"  # spelled as the index has it

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

_MOVED = (
    "key IN (SELECT key FROM events WHERE key >= ? AND key < ? AND seq > ?"
    f" AND kind NOT IN ({', '.join(repr(str(kind)) for kind in sorted(NOTES))}))"
)

T = TypeVar("T")
log = logging.getLogger(__name__)


class SqliteReads:
    """The reading half of ``SqliteLedger``, which opens ``_reader`` and closes it."""

    def __init__(self, path: Path, sealer: Sealer) -> None:
        self.path = path
        self._sealer = sealer
        self._decoder = codec.Reader()  # of the loop's thread
        self._recent = Recent()
        self._steps = Steps(self._steps_of)
        self._noted: dict[str, list[Entry]] = {}
        self._runs: dict[str, Run] = {}
        self._reader: sqlite3.Connection | None = None

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

    def run(self, run: str) -> Run | None:
        known = self._runs.get(run)
        if known is None:
            rows = self._rows(SELECT_RUN, (run,))
            known = codec.decode_run(rows[0]) if rows else None
            if known is not None:
                self._remember_run(known)
        return known

    def _remember_run(self, row: Run) -> None:
        """Only this process writes runs, and each call asks for its own."""
        if len(self._runs) >= RUNS_REMEMBERED:
            self._runs.clear()
        self._runs[row.run] = row

    def above(self, run: Run) -> Sequence[Run]:
        found: list[Run] = []
        row: Run | None = run
        while row is not None and row.parent is not None and len(found) < DEPTH:
            row = self.run(row.parent)
            if row is not None:
                found.append(row)
        return found

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

    async def checkpoint(self, run: str, version: int | None = None) -> Checkpoint | None:
        return await self._ask(lambda db: checkpoints.read(db, self._sealer, run, version))

    async def checkpoints(self, run: str) -> Sequence[Checkpoint]:
        return await self._ask(lambda db: checkpoints.listed(db, run))

    def journaled(self, prompt: Prompt) -> Sequence[Recorded]:
        rows = self._rows(journal.LIST, (prompt.run, prompt.step, prompt.fingerprint))
        return [journal.decode(row) for row in rows]

    async def recorded(self, prompt: Prompt, number: int) -> Answer | None:
        return await self._ask(lambda db: journal.read(db, self._sealer, prompt, number))

    # Lists

    async def operations(self, query: Query) -> Sequence[Operation]:
        where, values = _conditions(query)
        return await self._list(
            f"{SELECT}{where} ORDER BY created_at DESC, rowid DESC LIMIT ?", (*values, query.limit)
        )

    async def unsettled(self) -> Sequence[Operation]:
        return await self._list(f"{SELECT} WHERE {_UNSETTLED} ORDER BY created_at, rowid", ())

    async def runs(self, query: RunQuery) -> Sequence[Run]:
        before = query.before if query.before is not None else math.inf
        rows = await self._apart(
            f"SELECT {', '.join(RUN_COLUMNS)} FROM runs WHERE created_at < ?"
            " ORDER BY created_at DESC, run DESC LIMIT ?",
            (before, query.limit),
        )
        found = []
        for row in rows:
            try:
                found.append(codec.decode_run(row))
            except Damaged as damage:
                log.error("left out of a list: %s", damage)
        return found

    async def children(self, run: str) -> Sequence[str]:
        rows = await self._apart("SELECT run FROM runs WHERE parent = ? ORDER BY run", (run,))
        return [row[0] for row in rows]

    async def states(self, run: str) -> dict[str, int]:
        rows = await self._apart(
            "SELECT state, count(*) FROM operations WHERE key >= ? AND key < ? GROUP BY state",
            (f"{run}/", f"{run}0"),
        )
        return dict(rows)

    async def conflicts(self, run: str) -> int:
        rows = await self._apart(
            "SELECT count(DISTINCT key) FROM events WHERE key >= ? AND key < ? AND kind = ?",
            (f"{run}/", f"{run}0", str(Kind.EFFECT_CONFLICT)),
        )
        return int(rows[0][0])

    async def approvals(
        self, states: Sequence[Consent], limit: int, *, run: str | None = None
    ) -> Sequence[Operation]:
        wanted = f" AND {_CONSENT} IN ({', '.join('?' * len(states))})" if states else ""
        within = " AND key >= ? AND key < ?" if run is not None else ""
        scope = (f"{run}/", f"{run}0") if run is not None else ()
        return await self._list(
            f"{_APPROVED}{wanted}{within} ORDER BY created_at DESC, id DESC LIMIT ?",
            (*map(str, states), *scope, limit),
        )

    async def waiting(self) -> int:
        rows = await self._apart(
            f"SELECT count(*) FROM operations WHERE approval IS NOT NULL AND {_CONSENT} = ?",
            (str(Consent.WAITING),),
        )
        return int(rows[0][0])

    async def by_approval(self, number: str) -> Operation | None:
        found = await self._list(f"{_APPROVED} AND json_extract(approval, '$.id') = ?", (number,))
        return found[0] if found else None

    async def history(self, key: str) -> Sequence[StoredEvent]:
        rows = await self._apart(f"{_EVENTS} WHERE key = ? ORDER BY seq", (key,))
        return [_stored(row) for row in rows]

    async def events(
        self, after: int, limit: int = 100, *, kinds: Sequence[Kind] = ()
    ) -> Sequence[StoredEvent]:
        among = f" AND kind IN ({', '.join('?' * len(kinds))})" if kinds else ""
        rows = await self._apart(
            f"{_EVENTS} WHERE seq > ?{among} ORDER BY seq LIMIT ?",
            (after, *map(str, kinds), limit),
        )
        return [_stored(row) for row in rows]

    def last_event(self) -> int:
        return int(self._rows("SELECT coalesce(max(seq), 0) FROM events", ())[0][0])

    async def bookmark(self, name: str) -> bytes | None:
        rows = await self._apart("SELECT value FROM meta WHERE name = ?", (bookmark_name(name),))
        return bytes(rows[0][0]) if rows else None

    async def counts(self) -> dict[tuple[str, str, str | None], int]:
        unsettled = (
            "SELECT service, state, blocked_by, count(*) FROM operations"
            f" WHERE {_UNSETTLED} GROUP BY service, state, blocked_by"
        )
        rows = await self._apart(unsettled, ())
        totals = await self._apart("SELECT '', state, NULL, number FROM tallies", ())
        return {(row[0], row[1], row[2]): row[3] for row in (*rows, *totals)}

    # Within

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
        found = self._decoder.decode(rows[0][:WIDTH])
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
        return await self._ask(lambda db: db.execute(sql, values).fetchall())

    async def _ask(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        if self._reader is None:
            raise LedgerError("the ledger is not open")
        return await asyncio.to_thread(self._in_thread, ask)

    def _in_thread(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        try:
            with contextlib.closing(reader(self.path)) as db:
                # Damaged text shows against its hash, row by row, instead of ending a whole list.
                db.text_factory = lambda raw: raw.decode("utf-8", "replace")
                return ask(db)
        except FAULTS as error:
            raise explain(error) from error


def bookmark_name(name: str) -> str:
    """Where in ``meta`` it stands, apart from what the ledger knows of itself."""
    return f"bookmark {name}"


def _versions(base: str) -> tuple[str, str]:
    """The range of keys base/v1, base/v2 ...: names have no slash, and "w" follows "v"."""
    return f"{base}/v", f"{base}/w"


def _conditions(query: Query) -> tuple[str, list[Any]]:
    conditions: list[str] = []
    values: list[Any] = []
    if query.run is not None:
        conditions.append("key >= ? AND key < ?")
        values += [f"{query.run}/", f"{query.run}0"]
    if query.step is not None:
        conditions.append("instr(step, ?) > 0")
        values.append(query.step)
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
    if query.moved_after is not None:
        conditions.append(_MOVED)
        values += [f"{query.run}/", f"{query.run}0", query.moved_after]
    return (" WHERE " + " AND ".join(conditions) if conditions else ""), values


def _stored(row: Sequence[Any]) -> StoredEvent:
    seq, run, key, kind, at, data, digest = row
    return StoredEvent(seq, run, key, codec.decode_event(kind, at, data), digest.hex())
