"""Verification of a SQLite ledger: every hash, every chain, every seal, against each other; and
its history as JSON lines.

Reads in slices of their own, so that it may run beside a working proxy. Each fault is one sentence;
after a fault the walk goes on from what is stored, so that one damaged event is one sentence.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from proxy.ledger import checkpoints, journal
from proxy.ledger.base import Damaged, LedgerError, WrongKey
from proxy.ledger.batch import KNOWS
from proxy.ledger.chain import START, Head, batch_head, link, read_head
from proxy.ledger.codec import COLUMNS, RUN_COLUMNS, decode, decode_run
from proxy.ledger.schema import check_ours, reader
from proxy.ledger.seal import Sealer, content_identity

SLICE = 2000  # rows per statement: some 10 ms, so that no read holds up a checkpoint


def verify(db: sqlite3.Connection, sealer: Sealer, run: str | None, head: Head | None) -> list[str]:
    """One sentence per fault. ``run``: only that run's events, rows and contents.
    ``head``: what the head file says."""
    return [
        *(_history(db) if run is None else _run_history(db, run)),
        *(_end(db, head) if run is None and head is not None else ()),
        *_rows(db, run),
        *_runs(db, run),
        *_contents(db, sealer, run),
        *checkpoints.faults(db, sealer, run),
        *journal.faults(db, sealer, run),
    ]


def verify_file(path: Path, key: Sequence[bytes] | bytes, run: str | None = None) -> list[str]:
    """The same for a file that another process may be working with. Raises LedgerError, WrongKey.
    Where a newer release wrote it nothing can be said."""
    sealer = Sealer(key)
    # Before the ledger is looked at: written after each batch, it is never ahead of what is read.
    head = read_head(path.with_name(path.name + ".head"))
    with closing(_open(path)) as db:
        try:
            canary = db.execute("SELECT value FROM meta WHERE name = 'canary'").fetchone()
            if canary is not None and not sealer.opens(canary[0]):
                raise WrongKey(f"the key does not open {path}: its bodies cannot be checked")
            return verify(db, sealer, run, head)
        except sqlite3.DatabaseError as error:
            return [f"the file itself is damaged: {error}"]


@dataclass(frozen=True, slots=True)
class Exported:
    file: Path
    digest_file: Path
    events: int
    sha256: str


def export(path: Path, to: Path, run: str | None = None) -> Exported:
    """Write the history as JSON lines, and beside it a file with its digest as ``sha256sum`` has
    it. Raises LedgerError."""
    digest_file = to.with_name(to.name + ".sha256")
    digest, number = hashlib.sha256(), 0
    try:
        with closing(_open(path)) as db, open(to, "xb", opener=_private) as file:
            scope, values = _scope(run)
            query = f"SELECT * FROM events WHERE {scope} seq > ?"
            for event in _sliced(db, "seq", query, *values):
                line = _as_line(event)
                file.write(line)
                digest.update(line)
                number += 1
            file.flush()
            os.fsync(file.fileno())
        with open(digest_file, "x", encoding="utf-8", opener=_private) as beside:
            beside.write(f"{digest.hexdigest()}  {to.name}\n")
    except FileExistsError as error:
        raise LedgerError(f"{error.filename} is there already: choose another name") from error
    except OSError as error:
        raise LedgerError(f"cannot write {to}: {error.strerror}") from error
    except sqlite3.Error as error:
        raise LedgerError(f"cannot read {path}: {error}") from error
    return Exported(to, digest_file, number, digest.hexdigest())


def _as_line(event: Sequence[Any]) -> bytes:
    """``data`` is text in the ledger, and is hashed as such; here it is what that text says."""
    seq, run, key, kind, at, data, row, digest, head = event
    known = {"seq": seq, "run": run, "operation": key, "event": kind, "at": at}
    hashes = {
        "row": row.hex() if isinstance(row, bytes) else None,
        "hash": digest.hex() if isinstance(digest, bytes) else str(digest),
        "head": head.hex() if isinstance(head, bytes) else None,
    }
    try:
        shown: Any = orjson.Fragment(orjson.dumps(orjson.loads(data)))
    except (orjson.JSONDecodeError, TypeError):
        shown = str(data)  # damaged; verify says so
    return orjson.dumps(known | {"data": shown} | hashes) + b"\n"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _open(path: Path) -> sqlite3.Connection:
    """Raises LedgerError."""
    if not path.is_file():
        raise LedgerError(f"there is no ledger {path}")
    try:
        db = reader(path)
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        check_ours(db)
    except sqlite3.Error as error:
        raise LedgerError(f"cannot read {path}: {error}") from error
    return db


def _history(db: sqlite3.Connection) -> Iterator[str]:
    last: dict[str, bytes] = {}
    batch: list[bytes] = []
    head, expected = START, 1
    for event in _sliced(db, "seq", "SELECT * FROM events WHERE seq > ?"):
        seq, run = event[0], event[1]
        if seq != expected:
            yield f"events {expected} to {seq - 1} are missing"
            head, batch = b"", []  # the batch they were in cannot be checked
        expected = seq + 1
        yield from _event(event, last.get(run, START))
        last[run] = event[7]
        batch.append(event[7])
        if event[8] is not None:
            if head and batch_head(head, batch) != event[8]:
                yield f"the batch that ends with event {seq} does not fit the one before it"
            head, batch = event[8], []
    if batch:
        yield f"the history breaks off within a batch, after event {expected - 1}"


def _run_history(db: sqlite3.Connection, run: str) -> Iterator[str]:
    last = START
    query = "SELECT * FROM events WHERE key >= ? AND key < ? AND seq > ?"
    for event in _sliced(db, "seq", query, f"{run}/", f"{run}0"):
        yield from _event(event, last)
        last = event[7]


def _event(event: Sequence[Any], previous: bytes) -> Iterator[str]:
    try:
        fits = link(previous, *event[:7]) == event[7]
    except (TypeError, ValueError):
        fits = False
    if not fits:
        yield (
            f"event {event[0]} of run {event[1]} does not fit the run's event before it: "
            "one of them was changed, or one between them is missing"
        )


def _end(db: sqlite3.Connection, head: Head) -> Iterator[str]:
    found = db.execute("SELECT head FROM events WHERE seq = ?", (head.seq,)).fetchone()
    if head.seq and (found is None or found[0] != head.hash):
        yield f"the head file names event {head.seq}, which is not in the ledger as it was written"


def _rows(db: sqlite3.Connection, run: str | None) -> Iterator[str]:
    newest = (
        "(SELECT row FROM events e WHERE e.key = o.key AND e.row IS NOT NULL"
        " ORDER BY seq DESC LIMIT 1)"
    )
    query = f"SELECT rowid, {', '.join(COLUMNS)}, {newest} FROM operations o WHERE "
    scope, values = _scope(run)
    for found in _sliced(db, "rowid", f"{query}{scope} rowid > ?", *values):
        row, bound = found[1:-1], found[-1]
        try:
            decode(row)
        except Damaged as fault:
            yield str(fault)
        else:
            if row[-1] != bound:
                yield f"the row of {row[0]} is not the one its newest event wrote"
    gone = (
        f"SELECT DISTINCT key FROM events WHERE {scope} {KNOWS}"
        " AND NOT EXISTS (SELECT 1 FROM operations o WHERE o.key = events.key)"
    )
    for (key,) in db.execute(gone, values):
        yield f"the history knows {key}, but its row is gone"


def _runs(db: sqlite3.Connection, run: str | None) -> Iterator[str]:
    where = "" if run is None else " WHERE run = ?"
    values = () if run is None else (run,)
    for row in db.execute(f"SELECT {', '.join(RUN_COLUMNS)} FROM runs{where}", values):
        try:
            decode_run(row)
        except Damaged as fault:
            yield str(fault)


def _contents(db: sqlite3.Connection, sealer: Sealer, run: str | None) -> Iterator[str]:
    scope, values = _scope(run, "o.key")
    for kind in ("request", "answer"):
        query = (
            f"SELECT o.rowid, o.key, o.{kind}_id, c.id, c.sealed FROM operations o"
            f" LEFT JOIN contents c ON c.id = o.{kind}_id"
            f" WHERE {scope} o.{kind}_id IS NOT NULL AND o.rowid > ?"
        )
        for _, key, number, stored, sealed in _sliced(db, "o.rowid", query, *values, size=50):
            if stored is None:
                yield f"the {kind} of {key} is gone"
            elif sealed is not None:
                try:
                    sealer.unseal(sealed, content_identity(key, kind, number))
                except Damaged as fault:
                    yield str(fault)


def _scope(run: str | None, key: str = "key") -> tuple[str, tuple[str, ...]]:
    if run is None:
        return "", ()
    return f"{key} >= ? AND {key} < ? AND", (f"{run}/", f"{run}0")


def _sliced(
    db: sqlite3.Connection, by: str, query: str, *values: str, size: int = SLICE
) -> Iterator[tuple[Any, ...]]:
    """The rows of a query whose last placeholder is the number to go on after."""
    after = 0
    while True:
        rows = db.execute(f"{query} ORDER BY {by} LIMIT {size}", (*values, after)).fetchall()
        yield from rows
        if len(rows) < size:
            return
        after = rows[-1][0]
