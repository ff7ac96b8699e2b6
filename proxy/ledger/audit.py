"""Verification of a SQLite ledger: every hash, every chain, every seal, against each other.

Reads in slices of their own, so that it may run beside a working proxy. Each fault is one sentence;
after a fault the walk goes on from what is stored, so that one damaged event is one sentence.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from proxy.ledger.base import Damaged
from proxy.ledger.chain import START, Head, batch_head, link
from proxy.ledger.codec import COLUMNS, RUN_COLUMNS, decode, decode_run
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
    ]


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
        f"SELECT DISTINCT key FROM events WHERE {scope} row IS NOT NULL"
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
