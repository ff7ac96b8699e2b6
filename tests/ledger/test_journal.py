"""Recorded answers of models in the ledger: what every store does with them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.ledger.backup import copy
from proxy.ledger.base import Conflict, Damaged, Ledger, Prompt, Recorded
from proxy.ledger.seal import ID_BYTES, key_id
from proxy.ledger.sqlite import SqliteLedger
from proxy.retention import Pruned, Retention, prune
from tests.fakes.clock import FakeClock
from tests.ledger.support import ANSWER, KEY, NOW

HELLO = Prompt("run-1", "step-1", "f" * 64)
ONE = Recorded(1, 1, NOW, 13)
LONG = replace(ONE, number=2, size=1_000_000)


async def test_answers_are_given_back_in_their_order(ledger: Ledger) -> None:
    assert ledger.journaled(HELLO) == []
    await ledger.record(HELLO, LONG, ANSWER)
    await ledger.record(HELLO, ONE, ANSWER)
    assert list(ledger.journaled(HELLO)) == [ONE, LONG]
    assert await ledger.recorded(HELLO, 1) == await ledger.recorded(HELLO, 2) == ANSWER
    assert await ledger.recorded(HELLO, 3) is None
    for other in (replace(HELLO, run="run-2"), replace(HELLO, step=""), Prompt("r", "s", "f")):
        assert ledger.journaled(other) == []
    assert ledger.run("run-1") is not None, "a run exists from its first call"
    assert await ledger.verify() == []


async def test_a_number_is_taken_once(ledger: Ledger) -> None:
    await ledger.record(HELLO, ONE, ANSWER)
    with pytest.raises(Conflict):
        await ledger.record(HELLO, replace(ONE, epoch=2), ANSWER)
    assert list(ledger.journaled(HELLO)) == [ONE]


async def test_the_newest_start_that_heard_an_answer_is_remembered(ledger: Ledger) -> None:
    await ledger.record(HELLO, ONE, ANSWER)
    for epoch, newest in ((2, 2), (1, 2), (3, 3)):
        await ledger.heard(HELLO, 1, epoch)
        assert list(ledger.journaled(HELLO)) == [replace(ONE, heard=newest)]
    await ledger.heard(HELLO, 7, 1)  # retention was faster
    assert await ledger.recorded(HELLO, 1) == ANSWER
    assert await ledger.verify() == []


async def test_retention_takes_them_with_the_outcomes(ledger: Ledger) -> None:
    for number in range(1, 4):
        await ledger.record(HELLO, replace(ONE, number=number, created_at=NOW + number), ANSWER)
    assert await ledger.prune_journal(NOW + 3, 1) == 1
    clock = FakeClock()
    clock.advance(NOW + 103 - clock.time())
    assert await prune(ledger, Retention(keep_outcomes=100), clock) == Pruned(answers=1)
    assert [found.number for found in ledger.journaled(HELLO)] == [3]
    assert await ledger.recorded(HELLO, 2) is None


async def given(ledger: Ledger) -> None:
    """Ask for all answers."""
    for prompt in (HELLO, replace(HELLO, fingerprint="other")):
        for found in ledger.journaled(prompt):
            await ledger.recorded(prompt, found.number)


async def reopened(path: Path, key: bytes | list[bytes] = KEY) -> SqliteLedger:
    ledger = SqliteLedger(path, key=key, clock=FakeClock())
    await ledger.open()
    return ledger


async def test_they_are_there_after_a_restart_and_in_a_backup(
    sqlite: SqliteLedger, path: Path
) -> None:
    await sqlite.record(HELLO, ONE, ANSWER)
    await sqlite.heard(HELLO, 1, 1)
    await sqlite.close()
    copy(path, path.with_name("copy.db"), NOW)
    for file in (path, path.with_name("copy.db")):
        again = await reopened(file)
        assert list(again.journaled(HELLO)) == [replace(ONE, heard=1)]
        assert await again.recorded(HELLO, 1) == ANSWER
        await again.close()


@pytest.mark.parametrize(
    "harm",
    [
        "SET heard = 0",
        "SET epoch = 7",
        "SET number = 9",
        "SET fingerprint = 'other'",
        "SET sealed = zeroblob(60)",
        "SET sealed = (SELECT sealed FROM journal WHERE number = 2)",
    ],
)
async def test_damage_is_told_and_never_given_as_an_answer(
    sqlite: SqliteLedger, path: Path, harm: str
) -> None:
    await sqlite.record(HELLO, ONE, ANSWER)
    await sqlite.record(HELLO, LONG, replace(ANSWER, status=201))
    await sqlite.heard(HELLO, 1, 1)
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"UPDATE journal {harm} WHERE number = 1")
        db.commit()
    with pytest.raises(Damaged):  # by row or seal
        await given(sqlite)
    faults = await sqlite.verify()
    assert len(faults) == 1, faults
    assert len(await sqlite.verify("run-1")) == 1
    assert await sqlite.verify("run-2") == []


async def test_they_are_sealed_anew_with_the_bodies(sqlite: SqliteLedger, path: Path) -> None:
    new = bytes(reversed(KEY))
    for recorded in (ONE, LONG):
        await sqlite.record(HELLO, recorded, ANSWER)
    await sqlite.close()
    ledger = await reopened(path, [new, KEY])
    last: int | None = 0
    while last is not None:
        last = await ledger.reseal(last, 10)
    await ledger.close()
    with closing(sqlite3.connect(path)) as db:
        sql = "SELECT DISTINCT substr(sealed, 1, ?) FROM journal"
        assert db.execute(sql, (ID_BYTES,)).fetchall() == [(key_id(new),)]
    ledger = await reopened(path, new)
    assert await ledger.recorded(HELLO, 2) == ANSWER
    await ledger.close()
