"""Checkpoints in the SQLite ledger: their rows, and all SQL about them.

A version is written in the transaction that looked at the one before it, so that of two writers who
saw the same version one is refused, and a reader finds the old content or the new one, never a
mixture. Its content is sealed under the name of its row and that row's hash: neither fits another.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from proxy.core.operation import Event, Kind
from proxy.ledger.base import Checkpoint, Condition, Damaged, StaleCheckpoint
from proxy.ledger.chain import START
from proxy.ledger.codec import fits, row_hash
from proxy.ledger.seal import Sealer

COLUMNS = (
    "run",
    "version",
    "step",
    "created_at",
    "size",
    "after",
    "generation",
    "previous",
    "hash",
)
LEAP: Final = 1000
"""Versions that are left out where a lost ledger may have given them: a writer that still has one
of those must find it stale. More than one run saves between two backups."""

_SELECT = f"SELECT {', '.join(COLUMNS)}, sealed IS NOT NULL FROM checkpoints"
_WHOLE = f"SELECT {', '.join(COLUMNS)}, sealed IS NOT NULL, sealed FROM checkpoints"
_NEWEST = f"{_SELECT} WHERE run = ? ORDER BY version DESC LIMIT 1"
_INSERT = f"INSERT INTO checkpoints VALUES ({', '.join('?' * (len(COLUMNS) + 1))})"
_TOO_MANY = (
    "DELETE FROM checkpoints WHERE run = ? AND version <= (SELECT version FROM checkpoints"
    " WHERE run = ? ORDER BY version DESC LIMIT 1 OFFSET ?)"
)
# A run that waits for a person, or for an outcome, is not over however long it is silent.
_OLD = (
    "SELECT rowid FROM checkpoints c WHERE created_at < ? AND sealed IS NOT NULL"
    " AND NOT EXISTS (SELECT 1 FROM operations o WHERE o.key >= c.run || '/'"
    " AND o.key < c.run || '0' AND o.state IN ('in_flight', 'unknown', 'awaiting_approval'))"
    " LIMIT ?"
)


@dataclass(slots=True, eq=False)
class Saving:
    """A version to be saved, and what it became."""

    run: str
    content: bytes
    step: str | None
    conditions: Sequence[Condition]
    keep: int
    sealer: Sealer
    saved: Checkpoint | None = None


class Newest(NamedTuple):
    version: int
    created_at: float
    generation: str
    hash: bytes


# Writing, on the writing thread


def newest(db: sqlite3.Connection, run: str) -> Newest | None:
    """Raises Damaged."""
    row = db.execute(_NEWEST, (run,)).fetchone()
    if row is None:
        return None
    found = decode(row)
    return Newest(found.version, found.created_at, row[6], row[8])


def check(saving: Saving, before: Newest | None) -> None:
    """Raises StaleCheckpoint."""
    version = before.version if before else 0
    if not all(condition.holds(version) for condition in saving.conditions):
        raise StaleCheckpoint(version)


def insert(
    db: sqlite3.Connection,
    saving: Saving,
    before: Newest | None,
    generation: str,
    now: float,
    after: int,
    *,
    new: bool,
) -> None:
    """Write the version that follows ``before``, within the transaction that is open. ``new``: the
    run began in this generation, so that no lost ledger knows it."""
    certain = new if before is None else before.generation == generation
    version = (before.version if before else 0) + (1 if certain else 1 + LEAP)
    # A clock that was set back does not date a version before the one it follows.
    created_at = max(now, before.created_at) if before else now
    made = Checkpoint(saving.run, version, created_at, len(saving.content), after, saving.step)
    columns = (
        made.run,
        made.version,
        made.step,
        float(made.created_at),
        made.size,
        made.after,
        generation,
        before.hash if before else START,
    )
    digest = row_hash(columns)
    sealed = saving.sealer.seal(saving.content, identity(made, digest))
    db.execute(_INSERT, (*columns, digest, sealed))
    db.execute(_TOO_MANY, (made.run, made.run, saving.keep))
    saving.saved = made


def saved(made: Checkpoint) -> Event:
    """What the history says of it, so that a newest version that is taken away is missed."""
    data = {"version": made.version, "step": made.step, "size": made.size}
    return Event(Kind.CHECKPOINT_SAVED, made.created_at, data)


def take(db: sqlite3.Connection, saved_before: float, limit: int) -> int:
    """Take the contents of so many old checkpoints, in a transaction of its own."""
    with _transaction(db):
        rows = db.execute(_OLD, (saved_before, limit)).fetchall()
        db.executemany("UPDATE checkpoints SET sealed = NULL WHERE rowid = ?", rows)
    return len(rows)


def reseal(db: sqlite3.Connection, sealer: Sealer, after: int) -> int | None:
    """Seal the first checkpoint behind that row under the key in use; its row, None when there are
    no more."""
    with _transaction(db):
        row = db.execute(
            f"SELECT rowid, sealed, {', '.join(COLUMNS)} FROM checkpoints"
            " WHERE rowid > ? AND sealed IS NOT NULL ORDER BY rowid LIMIT 1",
            (after,),
        ).fetchone()
        if row is None:
            return None
        number, sealed, *columns = row
        again = sealer.anew(sealed, lambda: identity(decode((*columns, True)), columns[-1]))
        if again is not None:
            db.execute("UPDATE checkpoints SET sealed = ? WHERE rowid = ?", (again, number))
        return int(number)


# Reading


def read(
    db: sqlite3.Connection, sealer: Sealer, run: str, version: int | None
) -> Checkpoint | None:
    """That version, or the newest, with its content. Raises Damaged."""
    if version is None:
        row = db.execute(f"{_WHOLE} WHERE run = ? ORDER BY version DESC LIMIT 1", (run,)).fetchone()
    else:
        row = db.execute(f"{_WHOLE} WHERE run = ? AND version = ?", (run, version)).fetchone()
    return None if row is None else _opened(row, sealer)


def listed(db: sqlite3.Connection, run: str) -> list[Checkpoint]:
    """Newest first, without their contents. Raises Damaged."""
    rows = db.execute(f"{_SELECT} WHERE run = ? ORDER BY version DESC", (run,))
    return [decode(row) for row in rows]


def faults(db: sqlite3.Connection, sealer: Sealer, run: str | None) -> Iterator[str]:
    """Every hash, chain and seal; one sentence per fault."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'checkpoints'").fetchone():
        return  # the file of an earlier release, before its upgrade
    scope, values = ("", ()) if run is None else (" WHERE run = ?", (run,))
    keys = db.execute(f"SELECT run, version FROM checkpoints{scope} ORDER BY run, version", values)
    last: tuple[str, bytes] = ("", b"")
    for name, version in keys.fetchall():
        row = db.execute(f"{_WHOLE} WHERE run = ? AND version = ?", (name, version)).fetchone()
        if row is None:
            continue  # a new one has come meanwhile, and this one is too many
        if last[0] == name and row[7] != last[1]:
            yield f"checkpoint {version} of {name} does not follow the one before it"
        last = (name, row[8])
        try:
            _opened(row, sealer)
        except Damaged as fault:
            yield str(fault)
    yield from _missing(db, run)


def _missing(db: sqlite3.Connection, run: str | None) -> Iterator[str]:
    """Newest versions that the history knows of, and that are gone."""
    scope, values = ("", ()) if run is None else (" AND key = ?", (f"{run}/",))
    known = (
        "SELECT run, max(json_extract(data, '$.version')) FROM events"
        f" WHERE kind = 'CheckpointSaved'{scope} GROUP BY run"
    )
    for name, version in db.execute(known, values).fetchall():
        newest = "SELECT 1 FROM checkpoints WHERE run = ? AND version >= ?"
        if db.execute(newest, (name, version)).fetchone() is None:
            yield f"the history knows checkpoint {version} of {name}, but it is gone"


def _opened(row: Sequence[Any], sealer: Sealer) -> Checkpoint:
    """The checkpoint of a row of ``_WHOLE``. Raises Damaged."""
    *columns, sealed = row
    found = decode(columns)
    if sealed is None:
        return found
    return replace(found, content=sealer.unseal(sealed, identity(found, columns[8])))


def decode(row: Sequence[Any]) -> Checkpoint:
    """The checkpoint of a row of ``_SELECT``. Raises Damaged when it does not fit its hash."""
    *columns, digest, kept = row
    if not fits(columns, digest):
        raise Damaged(f"the row of a checkpoint of {row[0]} does not fit its hash: it was damaged")
    run, version, step, created_at, size, after, *_ = columns
    return Checkpoint(run, version, created_at, size, after, step, bool(kept))


def identity(checkpoint: Checkpoint, digest: bytes) -> str:
    """What its sealed content is bound to."""
    return f"checkpoint {checkpoint.version} of {checkpoint.run} ({digest.hex()[:32]})"


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
