"""One batch, one transaction: rows, events, contents and chains, run whole on the writing thread.

The transaction never spans two calls, so a cancelled task cannot leave it open. The usual rows go
together (``bulk``), the others one by one: there a change that finds another revision is told
Conflict and leaves no trace, and the others of its batch are not touched by that. Whatever else
goes wrong undoes the batch. What is remembered between batches (the next event number, the last
hashes, the rows that will be written again) is forgotten after any failure and read again, because
a COMMIT that was reported as failed may have landed.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Sequence
from typing import Any

from proxy.clock import Clock
from proxy.core.operation import changed
from proxy.core.runs import Exhausted, Run, RunRefused
from proxy.core.transitions import evolve
from proxy.ledger import checkpoints
from proxy.ledger.base import Conflict, Damaged, LedgerError, Refused
from proxy.ledger.bulk import BulkRows, Insert, Unusual
from proxy.ledger.chain import START, Head, HeadFile, batch_head, link
from proxy.ledger.codec import (
    COLUMNS,
    Row,
    decode,
    encode,
    encode_event,
    place_code,
)
from proxy.ledger.group import Entry
from proxy.ledger.journal import Recording
from proxy.ledger.runs import RunRows

RUNS_REMEMBERED = 4096  # last hashes of runs: about 1 MB

EXTRA = ("place", "request_id", "answer_id")
# Of an event: it wrote the row of its key, and the key was not forgotten since.
KNOWS = (
    "row IS NOT NULL AND NOT EXISTS (SELECT 1 FROM events f"
    " WHERE f.key = events.key AND f.seq > events.seq AND f.kind = 'KeyForgotten')"
)
# History that knows a key whose row is gone must not look like a key that was never used: then
# ``place``, which must not be NULL, is. (INSERT ... SELECT ... WHERE would cost three times that.)
_FRESH = f"CASE WHEN EXISTS (SELECT 1 FROM events WHERE key = ? AND {KNOWS}) THEN NULL ELSE ? END"
INSERT = (
    f"INSERT INTO operations ({', '.join(COLUMNS + EXTRA)})"
    f" VALUES ({', '.join('?' * len(COLUMNS))}, {_FRESH}, ?, ?)"
)
# The usual update leaves alone what most indexes are made of, which halves its cost.
_STEADY = ("service", "endpoint", "method", "url", "started_at", "created_at")
_IDENTITY = ("key", "run", "step", "name", "version")
_MOVING = tuple(c for c in COLUMNS if c not in _IDENTITY + _STEADY)
_CONTENTS = "request_id = ?, answer_id = ?"
UPDATE = (
    f"UPDATE operations SET {', '.join(f'{c} = ?' for c in _MOVING)}, {_CONTENTS}"
    f" WHERE id = ? AND {' AND '.join(f'{c} IS ?' for c in _STEADY)}"
)
_ALL = tuple(c for c in COLUMNS if c not in _IDENTITY)
UPDATE_ALL = (
    f"UPDATE operations SET {', '.join(f'{c} = ?' for c in _ALL)}, place = ?,"
    f" {_CONTENTS} WHERE id = ?"
)
_AT = {column: number for number, column in enumerate(COLUMNS)}
_MOVING_AT = tuple(_AT[c] for c in _MOVING)
_STEADY_AT = tuple(_AT[c] for c in _STEADY)
_ALL_AT = tuple(_AT[c] for c in _ALL)

BEFORE = "SELECT id, state, request_id, answer_id FROM operations WHERE key = ? AND revision = ?"
TALLY = "UPDATE tallies SET number = number + ? WHERE state = ?"
SELECT = f"SELECT {', '.join(COLUMNS)} FROM operations"
INSERT_EVENTS = Insert("events", 9)
INSERT_CONTENTS = Insert("contents", 4)
LAST_OF_RUN = (
    "SELECT hash FROM events WHERE seq = (SELECT max(seq) FROM events WHERE key >= ? AND key < ?)"
)
LAST = "SELECT seq, head FROM events ORDER BY seq DESC LIMIT 1"

EventTuple = tuple[int, str, str, str, float, str, bytes | None, bytes, bytes | None]


class BatchWriter:
    """Knows how to write a batch on the connection it is given."""

    def __init__(self, generation: str, clock: Clock, head_file: HeadFile, *, gap: bool) -> None:
        self._generation = generation
        self._generation = generation
        self._clock = clock
        self._run_rows = RunRows(generation, clock, gap=gap)
        self._head_file = head_file
        self._known = False
        self._next = 1
        self._head = START
        self._runs: dict[str, bytes] = {}
        self._rows = BulkRows()
        self.changed_runs: tuple[Run, ...] = ()  # by the batch that was written last

    def close_gap(self) -> None:
        self._run_rows.gap = False

    def forget(self) -> None:
        """Read the end of the history again before the next batch."""
        self._known = False
        self._rows.forget()
        self._run_rows.forget()

    def write(self, db: sqlite3.Connection, batch: Sequence[Entry]) -> None:
        """Make a batch durable. Conflicts are left in ``Entry.failure``. Raises LedgerError."""
        try:
            self._transaction(db, batch)
        except BaseException:
            self._undo(db)
            raise
        self._head_file.write(Head(self._generation, self._next - 1, self._head))

    def _transaction(self, db: sqlite3.Connection, batch: Sequence[Entry]) -> None:
        db.execute("BEGIN IMMEDIATE")
        if not self._known:
            self._recall(db)
        if len(self._runs) > RUNS_REMEMBERED:
            self._runs.clear()
        events: list[EventTuple] = []
        contents: list[tuple[int, str, str, bytes]] = []
        moved: Counter[str] = Counter()
        charged = self._charge(db, batch)
        written = self._write_rows(db, [e for e in batch if e.failure is None], moved)
        for entry in batch:
            if entry.failure is None:
                self._apply(db, entry, written, moved, events, contents)
            if entry.failure is not None and entry.charge is not None and id(entry) in charged:
                self._run_rows.take_back(charged[id(entry)], entry.charge)
        if events:
            self._head = batch_head(self._head, [event[7] for event in events])
            events[-1] = (*events[-1][:8], self._head)
            INSERT_EVENTS.run(db, events)
        if contents:
            INSERT_CONTENTS.run(db, contents)
        db.executemany(TALLY, [(n, state) for state, n in moved.items() if n])
        changed = self._run_rows.write(db)
        db.execute("COMMIT")
        self.changed_runs = changed

    def _charge(self, db: sqlite3.Connection, batch: Sequence[Entry]) -> dict[int, tuple[Run, ...]]:
        """Charge what the changes cost, before any of them is written; by entry, whom."""
        charged: dict[int, tuple[Run, ...]] = {}
        for entry in batch:
            entry.failure = None
            if entry.charge is None or entry.operation is None:
                continue
            epoch = max(1, entry.operation.intent.epoch)
            try:
                charged[id(entry)] = self._run_rows.charge(db, entry.run, epoch, entry.charge)
            except Exhausted as error:
                entry.failure = Refused(error)
            except Damaged as error:
                entry.failure = error
        return charged

    def _write_rows(
        self, db: sqlite3.Connection, batch: Sequence[Entry], moved: Counter[str]
    ) -> set[str]:
        """Write what can go together; its keys."""
        try:
            return self._rows.write(db, batch, moved)
        except Unusual:
            db.execute("ROLLBACK")
            db.execute("BEGIN IMMEDIATE")
            self._rows.forget()
            moved.clear()
            return set()

    def _undo(self, db: sqlite3.Connection) -> None:
        self.forget()
        if db.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")

    def _recall(self, db: sqlite3.Connection) -> None:
        last = db.execute(LAST).fetchone()
        if last is not None and last[1] is None:
            raise Damaged("the end of the ledger's history is damaged: restore it from a backup")
        self._next, self._head = (last[0] + 1, last[1]) if last else (1, START)
        self._runs.clear()
        self._known = True

    def _apply(
        self,
        db: sqlite3.Connection,
        entry: Entry,
        written: set[str],
        moved: Counter[str],
        events: list[EventTuple],
        contents: list[tuple[int, str, str, bytes]],
    ) -> None:
        if entry.saves is not None:
            self._save_checkpoint(db, entry)
        if entry.journal is not None:
            try:
                if isinstance(entry.journal, Recording):
                    self._run_rows.meet(db, entry.run, entry.journal.epoch)
                entry.failure = entry.journal.write(db)
            except Damaged as error:
                entry.failure = error
        if entry.amendment is not None:
            try:
                entry.amended, entry.events = self._run_rows.amend(
                    db, entry.run, entry.amendment, charge=entry.charge, new=entry.new
                )
            except (RunRefused, Exhausted) as error:
                entry.failure = Refused(error)
            except Damaged as error:
                entry.failure = error
        row: bytes | None = None
        if entry.operation is not None:
            if entry.key not in written:
                self._rows.forget(entry.key)
                entry.failure = _store(db, entry, moved)
                if entry.failure is not None:
                    return
            row = entry.row[-1]
        elif entry.moves is not None:
            self._rows.forget(entry.key)
            row = _move(db, entry)
        elif entry.forgets is not None:
            self._rows.forget(entry.key)
            entry.failure = _forget(db, entry)
            if entry.failure is not None:
                return
        if not entry.events or entry.failure is not None:
            return
        previous = self._last_of(db, entry)
        final = len(entry.events) - 1
        for number, event in enumerate(entry.events):
            bound = row if number == final else None
            seq = self._next
            previous = link(
                previous, seq, entry.run, entry.key, event.kind, event.at, event.data, bound
            )
            events.append(
                (seq, entry.run, entry.key, event.kind, event.at, event.data, bound, previous, None)
            )
            self._next += 1
        self._runs[entry.run] = previous
        if entry.request is not None:
            contents.append((entry.request[0], entry.key, "request", entry.request[1]))
        if entry.answer is not None:
            contents.append((entry.answer[0], entry.key, "answer", entry.answer[1]))

    def _last_of(self, db: sqlite3.Connection, entry: Entry) -> bytes:
        """The hash of the run's last event; a run's first change makes its row."""
        known = self._runs.get(entry.run)
        if known is not None:
            return known
        if entry.operation is not None:
            self._run_rows.meet(db, entry.run, max(1, entry.operation.intent.epoch))
        # A key is RUN/..., and no run has a slash in it; "0" follows "/".
        last = db.execute(LAST_OF_RUN, (f"{entry.run}/", f"{entry.run}0")).fetchone()
        return last[0] if last else START

    def _save_checkpoint(self, db: sqlite3.Connection, entry: Entry) -> None:
        assert entry.saves is not None
        try:
            newest = checkpoints.newest(db, entry.run)
            checkpoints.check(entry.saves, newest)
        except LedgerError as error:
            entry.failure = error
            return
        except FAULTS as error:
            entry.failure = explain(error)
            if not isinstance(entry.failure, Damaged):
                raise
            return  # what is damaged there is no reason to refuse the others
        here = self._run_rows.meet(db, entry.run, 1).generation == self._generation
        now, after = self._clock.time(), self._next - 1
        checkpoints.insert(db, entry.saves, newest, self._generation, now, after, new=here)
        assert entry.saves.saved is not None
        entry.events = (encode_event(checkpoints.saved(entry.saves.saved)),)


def _store(db: sqlite3.Connection, entry: Entry, moved: Counter[str]) -> LedgerError | None:
    """Write a change's row and say why not, if not."""
    row, operation = entry.row, entry.operation
    assert operation is not None
    new = tuple(content[0] if content else None for content in (entry.request, entry.answer))
    if operation.revision == 1:
        if not _insert(db, (*row, entry.key, place_code(operation.url), *new)):
            return _why_not(db, entry.key)
    else:
        before = db.execute(BEFORE, (entry.key, operation.revision - 1)).fetchone()
        if before is None:
            return _why_not(db, entry.key)
        number, state, *old = before
        for old_id, new_id in zip(old, new, strict=True):
            if old_id is not None and new_id is not None:
                db.execute("DELETE FROM contents WHERE id = ?", (old_id,))
        ids = [b if b is not None else a for a, b in zip(old, new, strict=True)]
        steady = [row[at] for at in _STEADY_AT]
        if not db.execute(UPDATE, (*_moving(row), *ids, number, *steady)).rowcount:
            every = [row[at] for at in _ALL_AT]
            db.execute(UPDATE_ALL, (*every, place_code(operation.url), *ids, number))
        moved[state] -= 1
    moved[row[_AT["state"]]] += 1
    return None


def _forget(db: sqlite3.Connection, entry: Entry) -> LedgerError | None:
    """Delete a row and its contents and say why not, if not."""
    found = db.execute(BEFORE, (entry.key, entry.forgets)).fetchone()
    if found is None:
        return Conflict(f"{entry.key} has changed since it was read")
    number, _, *contents = found
    db.execute("DELETE FROM contents WHERE id IN (?, ?)", contents)
    db.execute("DELETE FROM operations WHERE id = ?", (number,))  # a trigger counts it out
    return None


def _insert(db: sqlite3.Connection, values: tuple[Any, ...]) -> bool:
    try:
        db.execute(INSERT, values)
    except sqlite3.IntegrityError:  # only this statement is undone
        return False
    return True


def _why_not(db: sqlite3.Connection, key: str) -> LedgerError:
    if db.execute("SELECT 1 FROM operations WHERE key = ?", (key,)).fetchone():
        return Conflict(f"{key} has changed since it was read")
    if db.execute(f"SELECT 1 FROM events WHERE key = ? AND {KNOWS} LIMIT 1", (key,)).fetchone():
        return Damaged(f"the history knows {key}, but its row is gone: it was damaged")
    return Conflict(f"{key} is not in the ledger")


def _moving(row: Row) -> list[Any]:
    return [row[at] for at in _MOVING_AT]


def _move(db: sqlite3.Connection, entry: Entry) -> bytes | None:
    """Apply a note that changes its row to the row as it is now; the row's new hash."""
    assert entry.moves is not None
    found = db.execute(f"{SELECT} WHERE key = ?", (entry.key,)).fetchone()
    if found is None:
        return None
    try:
        before = decode(found)
    except Damaged:
        return None  # whoever reads the row is told
    after = changed(evolve(before, entry.moves), revision=before.revision + 1)
    row = encode(after)
    number, _, *ids = db.execute(BEFORE, (entry.key, before.revision)).fetchone()
    db.execute(UPDATE, (*_moving(row), *ids, number, *(row[at] for at in _STEADY_AT)))
    entry.landed = after.revision
    return bytes(row[-1])


CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
FAULTS = (sqlite3.Error, UnicodeDecodeError)
"""What a database call raises; the second when damage has reached text, or an error's own text."""


def explain(error: BaseException) -> LedgerError:
    """One of ``FAULTS`` as the ledger's error, with what to do about it."""
    if isinstance(error, UnicodeDecodeError) or str(error).startswith("Could not decode"):
        # Text that is no text. The message would quote what is stored, so it is not passed on.
        return Damaged("a value in the ledger file cannot be read: restore it from a backup")
    code = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if isinstance(code, int) else None  # extended codes keep it in one byte
    if primary in CORRUPT:
        return Damaged(f"the ledger file is damaged ({error}): restore it from a backup")
    if primary == sqlite3.SQLITE_FULL:
        return LedgerError(f"the ledger cannot write ({error}): free space on its disk")
    return LedgerError(f"the ledger failed ({error}): check its disk")
