"""The rows of a whole batch in few statements.

Around each statement the writing thread lets go of the interpreter lock and waits for it again;
under load that costs both threads more than the row itself. So rows of one shape go together, as
long as everything is as usual: keys that were never used, and rows that still are what this process
wrote last. Whatever is not is found by the database (``Unusual``), before anything is durable, or
left to the caller, who then goes entry by entry and says what is wrong with which.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any

from proxy.ledger.codec import COLUMNS, Row, place_code
from proxy.ledger.group import Entry

SIZES = (32, 8, 2, 1)  # rows per statement: few enough statements to keep all of them prepared
ROWS_REMEMBERED = 4096  # of unsettled operations: about 8 MB

AT = {column: number for number, column in enumerate(COLUMNS)}
CONTENTS = ("request_id", "answer_id")
_ENDING = (
    "state",
    "blocked_by",
    "external_id",
    "updated_at",
    "delivered_epoch",
    "revision",
    "attempts",
    "outcome",
    "hash",
)
"""What changes when an attempt ends; of all indexes it touches two, which are partial."""
_ending = itemgetter(*(AT[c] for c in _ENDING))
_settled = itemgetter(*(AT[c] for c in COLUMNS if c not in _ENDING))
_UPDATE = (
    f"UPDATE operations SET {', '.join(f'{c} = ?' for c in _ENDING + CONTENTS)}"
    " WHERE id = ? AND key = ? AND hash = ?"
)
_STATE, _HASH = AT["state"], AT["hash"]
_UNSETTLED = ("in_flight", "unknown")


class Unusual(Exception):
    """The rows cannot go together. What was written of them must be undone."""


class Insert:
    """INSERTs of any number of rows. An error leaves some of them: the batch must be undone."""

    def __init__(self, into: str, width: int) -> None:
        row = f"({', '.join('?' * width)})"
        self._sql = {
            size: f"INSERT OR FAIL INTO {into} VALUES {', '.join([row] * size)}" for size in SIZES
        }

    def run(self, db: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        for start, size in _parts(len(rows)):
            values = list(chain.from_iterable(rows[start : start + size]))
            db.execute(self._sql[size], values)


_INSERT = Insert(
    f"operations (id, {', '.join(COLUMNS)}, place, {', '.join(CONTENTS)})", len(COLUMNS) + 4
)
_USED = {
    size: f"SELECT 1 FROM events WHERE key IN ({', '.join('?' * size)}) AND row IS NOT NULL LIMIT 1"
    for size in SIZES
}


@dataclass(frozen=True, slots=True)
class _Placed:
    """A row as it was written last."""

    id: int
    row: Row
    request_id: int | None
    answer_id: int | None


class BulkRows:
    """Writes rows together, and remembers those that will be written again."""

    def __init__(self) -> None:
        self._placed: dict[str, _Placed] = {}

    def forget(self, key: str | None = None) -> None:
        """That row, or every row, is not known to be as it was written any more."""
        if key is None:
            self._placed.clear()
        else:
            self._placed.pop(key, None)

    def write(
        self, db: sqlite3.Connection, batch: Sequence[Entry], moved: Counter[str]
    ) -> set[str]:
        """The keys whose changes were written. Raises Unusual."""
        touched = [entry for entry in batch if entry.operation is not None or entry.moves]
        keys = {entry.key for entry in touched}
        if len(keys) < len(touched):
            return set()  # their order matters
        new: list[Entry] = []
        old: list[tuple[Entry, _Placed]] = []
        for entry in touched:
            if entry.operation is None:
                continue
            if entry.operation.revision == 1:
                new.append(entry)
            elif (placed := self._usual(entry)) is not None:
                old.append((entry, placed))
        if len(self._placed) + len(new) > ROWS_REMEMBERED:
            self._placed.clear()
        if new:
            self._insert(db, new, moved)
        if old:
            self._update(db, old, moved)
        return {entry.key for entry in new} | {entry.key for entry, _ in old}

    def _usual(self, entry: Entry) -> _Placed | None:
        """The row to update, if the change is one that ``_UPDATE`` can make."""
        placed = self._placed.get(entry.key)
        if placed is None or entry.operation is None:
            return None
        fits = (
            placed.row[AT["revision"]] == entry.operation.revision - 1
            and _settled(placed.row) == _settled(entry.row)
            and (entry.request is None or placed.request_id is None)
            and (entry.answer is None or placed.answer_id is None)
        )
        return placed if fits else None

    def _insert(self, db: sqlite3.Connection, new: list[Entry], moved: Counter[str]) -> None:
        # History that knows a key whose row is gone must not look like a key that was never used.
        for start, size in _parts(len(new)):
            keys = [entry.key for entry in new[start : start + size]]
            if db.execute(_USED[size], keys).fetchone():
                raise Unusual
        first = db.execute("SELECT coalesce(max(id), 0) + 1 FROM operations").fetchone()[0]
        rows = []
        for number, entry in enumerate(new, first):
            assert entry.operation is not None
            contents = _number(entry.request), _number(entry.answer)
            rows.append((number, *entry.row, place_code(entry.operation.url), *contents))
            self._remember(entry, _Placed(number, entry.row, *contents))
            moved[entry.row[_STATE]] += 1
        try:
            _INSERT.run(db, rows)
        except sqlite3.IntegrityError as error:
            raise Unusual from error

    def _update(
        self, db: sqlite3.Connection, old: list[tuple[Entry, _Placed]], moved: Counter[str]
    ) -> None:
        rows = []
        for entry, placed in old:
            request = _number(entry.request) or placed.request_id
            answer = _number(entry.answer) or placed.answer_id
            known = (placed.id, entry.key, placed.row[_HASH])
            rows.append((*_ending(entry.row), request, answer, *known))
            self._remember(entry, _Placed(placed.id, entry.row, request, answer))
            moved[placed.row[_STATE]] -= 1
            moved[entry.row[_STATE]] += 1
        if db.executemany(_UPDATE, rows).rowcount != len(rows):
            raise Unusual

    def _remember(self, entry: Entry, placed: _Placed) -> None:
        if placed.row[_STATE] in _UNSETTLED:
            self._placed[entry.key] = placed
        else:
            self._placed.pop(entry.key, None)


def _number(content: tuple[int, bytes] | None) -> int | None:
    return None if content is None else content[0]


def _parts(number: int) -> list[tuple[int, int]]:
    """So many rows in parts of the ``SIZES``: (start, size)."""
    parts, start = [], 0
    for size in SIZES:
        while number - start >= size:
            parts.append((start, size))
            start += size
    return parts
