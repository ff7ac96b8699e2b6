"""The rows of runs, on the writing thread: read once, changed in memory, written once per batch.

Only this process writes them, so what is here is what the file has or will have when the batch is
durable. After a batch that failed everything is forgotten and read again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from proxy.clock import Clock
from proxy.core.runs import DEPTH, Amendment, Charge, Run, RunRefused, charged
from proxy.ledger.base import UNKNOWN_ORIGIN
from proxy.ledger.codec import RUN_COLUMNS, EventRow, decode_run, encode_event, encode_run

REMEMBERED = 4096  # runs: about 4 MB

_PLACES = ", ".join("?" * len(RUN_COLUMNS))
_SET = ", ".join(f"{column} = excluded.{column}" for column in RUN_COLUMNS[1:])
WRITE = (
    f"INSERT INTO runs ({', '.join(RUN_COLUMNS)}) VALUES ({_PLACES})"
    f" ON CONFLICT (run) DO UPDATE SET {_SET}"
)
SELECT_RUN = f"SELECT {', '.join(RUN_COLUMNS)} FROM runs WHERE run = ?"


class RunRows:
    def __init__(self, generation: str, clock: Clock, *, gap: bool) -> None:
        self._generation = generation
        self._clock = clock
        self.gap = gap  # runs met now may have begun before
        self._rows: dict[str, Run] = {}
        self._changed: dict[str, Run] = {}

    def forget(self) -> None:
        self._rows.clear()
        self._changed.clear()

    def of(self, db: sqlite3.Connection, run: str) -> Run | None:
        """Raises Damaged."""
        known = self._rows.get(run)
        if known is None:
            found = db.execute(SELECT_RUN, (run,)).fetchone()
            if found is None:
                return None
            known = decode_run(found)
            self._remember(known)
        return known

    def meet(self, db: sqlite3.Connection, run: str, epoch: int, *, new: bool = False) -> Run:
        """The run, made where there is none. Raises Damaged."""
        known = self._rows.get(run) or self.of(db, run)
        if known is None:
            known = self._put(self._made(run, epoch, new=new))
        return known

    def amend(
        self,
        db: sqlite3.Connection,
        run: str,
        amendment: Amendment,
        *,
        charge: Charge | None = None,
        new: bool = False,
    ) -> tuple[Run, tuple[EventRow, ...]]:
        """Raises RunRefused, Exhausted, Damaged; then nothing has changed."""
        paid = self.charge(db, run, 1, charge) if charge is not None else ()
        before = self.of(db, run) or self._made(run, 1, new=new)
        try:
            after, events = amendment(before)
        except RunRefused:
            if charge is not None:
                self.take_back(paid, charge)
            raise
        if after is not before or not before.revision:
            after = self._put(after)
        return after, tuple(map(encode_event, events))

    def charge(
        self, db: sqlite3.Connection, run: str, epoch: int, charge: Charge
    ) -> tuple[Run, ...]:
        """Charge the run and all above it; the rows as they were. Raises Exhausted, Damaged."""
        row = self.meet(db, run, epoch)
        before = [row] if row.parent is None else [row, *self.above(db, run)]
        after = [charged(each, charge) for each in before]
        for each in after:
            self._put(each)
        return tuple(before)

    def take_back(self, rows: Sequence[Run], charge: Charge) -> None:
        """A charge whose change was not written."""
        for row in rows:
            now = self._rows[row.run]
            used = {unit: now.used[unit] - charge.amounts.get(unit, 0) for unit in now.used}
            self._put(replace(now, used=used))

    def above(self, db: sqlite3.Connection, run: str) -> list[Run]:
        found: list[Run] = []
        row = self.of(db, run)
        while row is not None and row.parent is not None and len(found) < DEPTH:
            row = self.of(db, row.parent)
            if row is not None:
                found.append(row)
        return found

    def write(self, db: sqlite3.Connection) -> tuple[Run, ...]:
        """The rows that this batch has changed."""
        changed = tuple(self._changed.values())
        if changed:
            db.executemany(WRITE, [encode_run(row) for row in changed])
            self._changed.clear()
        return changed

    def _made(self, run: str, epoch: int, *, new: bool) -> Run:
        generation = self._generation if new or not self.gap else UNKNOWN_ORIGIN
        return Run(run, epoch, created_at=self._clock.time(), generation=generation)

    def _put(self, row: Run) -> Run:
        """``row`` with its next revision, one per batch."""
        earlier = self._changed.get(row.run)
        revision = earlier.revision if earlier is not None else row.revision + 1
        if row.revision != revision:
            row = replace(row, revision=revision)
        self._changed[row.run] = row
        self._remember(row)
        return row

    def _remember(self, row: Run) -> None:
        if len(self._rows) >= REMEMBERED and row.run not in self._rows:
            kept = self._changed
            self._rows = dict(kept)
        self._rows[row.run] = row
