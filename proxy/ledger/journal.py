"""The journal of model answers in the SQLite ledger: its rows, and all SQL about them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from proxy.core.model import Answer
from proxy.ledger.base import Conflict, Damaged, LedgerError, Prompt, Recorded
from proxy.ledger.codec import fits, pack_answer, row_hash, unpack_answer
from proxy.ledger.seal import Sealer

COLUMNS = ("run", "step", "fingerprint", "number", "epoch", "created_at", "size", "heard", "hash")
_SELECT = f"SELECT {', '.join(COLUMNS)} FROM journal"
_WHOLE = f"SELECT {', '.join(COLUMNS)}, sealed FROM journal"
_CALL = "run = ? AND step = ? AND fingerprint = ?"
LIST = f"{_SELECT} WHERE {_CALL} ORDER BY number"
_ONE = f"WHERE {_CALL} AND number = ?"
_INSERT = f"INSERT INTO journal VALUES ({', '.join('?' * (len(COLUMNS) + 1))})"


@dataclass(slots=True, eq=False)
class Recording:
    """An answer to be recorded, sealed."""

    row: tuple[Any, ...]

    @classmethod
    def of(cls, prompt: Prompt, recorded: Recorded, answer: Answer, sealer: Sealer) -> Recording:
        sealed = sealer.seal(pack_answer(answer), _identity(prompt, recorded))
        return cls((*_row(prompt, recorded), sealed))

    @property
    def size(self) -> int:
        return len(self.row[-1])

    @property
    def epoch(self) -> int:
        return int(self.row[4])

    def write(self, db: sqlite3.Connection) -> LedgerError | None:
        """Within the transaction that is open; says why not, if not."""
        try:
            db.execute(_INSERT, self.row)
        except sqlite3.IntegrityError:  # only this statement is undone
            return Conflict("an answer with this number is recorded")
        return None


@dataclass(slots=True, eq=False)
class Hearing:
    """A recorded answer that has been given whole in a start of its run."""

    prompt: Prompt
    number: int
    epoch: int
    size: int = 0

    def write(self, db: sqlite3.Connection) -> LedgerError | None:
        """Within the transaction that is open. Raises Damaged."""
        row = db.execute(f"{_SELECT} {_ONE}", (*_names(self.prompt), self.number)).fetchone()
        if row is None:
            return None  # retention took it
        found = decode(row)
        after = replace(found, heard=max(found.heard, self.epoch))
        *_, heard, digest = _row(self.prompt, after)
        db.execute(
            f"UPDATE journal SET heard = ?, hash = ? {_ONE}",
            (heard, digest, *_names(self.prompt), self.number),
        )
        return None


def take(db: sqlite3.Connection, recorded_before: float, limit: int) -> int:
    """Delete so many old answers, in a transaction of its own."""
    return db.execute(
        "DELETE FROM journal WHERE rowid IN"
        " (SELECT rowid FROM journal WHERE created_at < ? LIMIT ?)",
        (recorded_before, limit),
    ).rowcount


def reseal(db: sqlite3.Connection, sealer: Sealer, after: int) -> int | None:
    """Seal the first answer behind that row under the key in use; its row, None when there are no
    more."""
    row = db.execute(
        f"SELECT rowid, sealed, {', '.join(COLUMNS)} FROM journal WHERE rowid > ?"
        " ORDER BY rowid LIMIT 1",
        (after,),
    ).fetchone()
    if row is None:
        return None
    number, sealed, *columns = row
    again = sealer.anew(sealed, lambda: _identity(_prompt(columns), decode(columns)))
    if again is not None:
        db.execute("UPDATE journal SET sealed = ? WHERE rowid = ?", (again, number))
    return int(number)


def read(db: sqlite3.Connection, sealer: Sealer, prompt: Prompt, number: int) -> Answer | None:
    """Raises Damaged."""
    row = db.execute(f"{_WHOLE} {_ONE}", (*_names(prompt), number)).fetchone()
    return None if row is None else _opened(row, sealer)


def faults(db: sqlite3.Connection, sealer: Sealer, run: str | None) -> Iterator[str]:
    """Every hash and seal; one sentence per fault."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'journal'").fetchone():
        return  # the file of an earlier release, before its upgrade
    scope, values = ("", ()) if run is None else (" WHERE run = ?", (run,))
    for (number,) in db.execute(f"SELECT rowid FROM journal{scope}", values).fetchall():
        row = db.execute(f"{_WHOLE} WHERE rowid = ?", (number,)).fetchone()
        if row is None:
            continue  # retention took it meanwhile
        try:
            _opened(row, sealer)
        except Damaged as fault:
            yield str(fault)


def decode(row: Sequence[Any]) -> Recorded:
    """What a row of ``LIST`` says. Raises Damaged when it does not fit its hash."""
    *columns, digest = row
    if not fits(columns, digest):
        raise Damaged(
            f"the row of a recorded answer of {row[0]} does not fit its hash: it was damaged"
        )
    _, _, _, number, epoch, created_at, size, heard = columns
    return Recorded(number, epoch, created_at, size, heard)


def _opened(row: Sequence[Any], sealer: Sealer) -> Answer:
    *columns, sealed = row
    found = decode(columns)
    return unpack_answer(sealer.unseal(sealed, _identity(_prompt(columns), found)))


def _row(prompt: Prompt, recorded: Recorded) -> tuple[Any, ...]:
    columns = (
        *_names(prompt),
        recorded.number,
        recorded.epoch,
        float(recorded.created_at),
        recorded.size,
        recorded.heard,
    )
    return (*columns, row_hash(columns))


def _names(prompt: Prompt) -> tuple[str, str, str]:
    return prompt.run, prompt.step, prompt.fingerprint


def _prompt(columns: Sequence[Any]) -> Prompt:
    return Prompt(*columns[:3])


def _identity(prompt: Prompt, recorded: Recorded) -> str:
    """What its sealed answer is bound to; not ``heard``, which changes."""
    where = f"{prompt.run}/{prompt.step}/{prompt.fingerprint}"
    return f"recorded answer {recorded.number} of {where} (epoch {recorded.epoch})"
