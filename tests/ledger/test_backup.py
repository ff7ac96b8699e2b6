"""Copies of a ledger, made while it is written to, and put back."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from proxy.ledger.backup import copy, restore
from proxy.ledger.base import LedgerError, Locked, WrongKey
from tests.ledger.support import ANSWER, KEY, change, first, operation, succeeded
from tests.ledger.test_sqlite import by_hand, fill, opened
from tests.reliability import figure

NOW = 1_800_000_000.0


async def test_a_copy_made_under_load_is_whole(path: Path, tmp_path: Path) -> None:
    """Eight writers go on; each copy is verified as a ledger of its own, and has everything that
    was acknowledged before it began."""
    acknowledged: list[str] = []
    stop = asyncio.Event()

    async def write(who: int) -> None:
        number = 0
        while not stop.is_set():
            one = await ledger.commit(first(operation(f"s-{number}", run=f"r-{who}")))
            await ledger.commit(change(one, succeeded(), answer=ANSWER))
            acknowledged.append(one.key)
            number += 1

    known = []
    async with opened(path) as ledger, asyncio.TaskGroup() as group:
        for who in range(8):
            group.create_task(write(who))
        for number in range(3):
            before = len(acknowledged)
            while len(acknowledged) < before + 50:
                await asyncio.sleep(0)
            known.append(list(acknowledged))
            file = tmp_path / f"copy-{number}.db"
            made = await asyncio.to_thread(copy, path, file, NOW)
            assert made.size == file.stat().st_size
        after = len(acknowledged)
        while len(acknowledged) < after + 8:  # the writers were not stopped by it
            await asyncio.sleep(0)
        stop.set()
    for number, keys in enumerate(known):
        async with opened(tmp_path / f"copy-{number}.db") as found:
            assert await found.verify() == []
            assert [key for key in keys if await found.answer_of(key) is None] == []
            assert "backup" in found.alarms[0]
            assert found.gap is not None
    figure("R20", "online backup under load, opened again", copies=len(known), lost=0)


async def test_a_copy_is_one_file_for_its_owner_only(path: Path, tmp_path: Path) -> None:
    async with opened(path) as ledger:
        await fill(ledger, 1)
        copy(path, tmp_path / "copy.db", NOW)
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600
    names = sorted(name.name for name in tmp_path.iterdir())
    assert [name for name in names if "copy" in name] == ["copy.db"]


async def test_a_copy_needs_no_proxy_that_runs(path: Path, tmp_path: Path) -> None:
    async with opened(path) as ledger:
        await fill(ledger, 3)
    made = copy(path, tmp_path / "copy.db", NOW)
    assert (made.operations, made.events) == (3, 6)


async def test_a_copy_never_overwrites(path: Path, tmp_path: Path) -> None:
    async with opened(path) as ledger:
        await fill(ledger, 1)
    taken = tmp_path / "taken"
    taken.write_text("precious")
    with pytest.raises(LedgerError, match="is there already"):
        copy(path, taken, NOW)
    assert taken.read_text() == "precious"
    assert [name for name in tmp_path.iterdir() if name.name.startswith(".taken")] == []


def test_what_is_no_ledger_is_not_copied(path: Path, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no ledger"):
        copy(path, tmp_path / "copy.db", NOW)
    by_hand(path, "CREATE TABLE of_somebody_else (x)")
    with pytest.raises(LedgerError, match="not a onceproxy ledger"):
        copy(path, tmp_path / "copy.db", NOW)
    path.write_bytes(b"no database at all, but long enough to look at" * 100)
    with pytest.raises(LedgerError, match="cannot copy"):
        copy(path, tmp_path / "copy.db", NOW)
    assert not (tmp_path / "copy.db").exists()


async def test_a_damaged_ledger_gives_no_copy_that_looks_whole(path: Path, tmp_path: Path) -> None:
    async with opened(path) as ledger:
        await fill(ledger, 200)
    whole = bytearray(path.read_bytes())
    for at in range(4096 * 10, len(whole) - 4096, 4096):
        whole[at : at + 40] = os.urandom(40)
    path.write_bytes(whole)
    with pytest.raises(LedgerError, match=r"damaged|cannot copy"):
        copy(path, tmp_path / "copy.db", NOW)
    assert not (tmp_path / "copy.db").exists()


async def test_a_copy_is_put_back_and_what_was_there_is_kept(path: Path, tmp_path: Path) -> None:
    async with opened(path) as ledger:
        before = await fill(ledger, 2)
        copy(path, tmp_path / "copy.db", NOW)
        later = await ledger.commit(first(operation("later")))
        # As after a crash: the log is there, and would be read into the file put in its place.
        log = path.with_name("ledger.db-wal").read_bytes()
    path.with_name("ledger.db-wal").write_bytes(log)
    kept = restore(tmp_path / "copy.db", path, KEY, NOW + 60)
    assert all(file.name.startswith("ledger.db.replaced-") for file in kept)
    async with opened(path) as ledger:
        assert [key for key in before if ledger.get(key) is None] == []
        assert ledger.get(later.key) is None
        assert len(ledger.alarms) == 2  # it is a backup, and behind its head file
        assert ledger.gap is not None
        assert await ledger.verify() == []
    async with opened(path) as ledger:
        assert ledger.alarms == ()
        assert ledger.gap is not None
    with closing(sqlite3.connect(kept[-1])) as db:
        assert db.execute("SELECT count(*) FROM operations").fetchone() == (3,)


async def test_a_ledger_in_use_is_not_replaced(path: Path, tmp_path: Path) -> None:
    async with opened(path) as ledger:
        await fill(ledger, 1)
        copy(path, tmp_path / "copy.db", NOW)
        with pytest.raises(Locked):
            restore(tmp_path / "copy.db", path, KEY, NOW)
        assert await ledger.verify() == []


async def test_a_copy_under_another_key_or_of_a_newer_release_is_refused(
    path: Path, tmp_path: Path
) -> None:
    async with opened(path) as ledger:
        key = (await fill(ledger, 1))[0]
    copy(path, tmp_path / "copy.db", NOW)
    with pytest.raises(WrongKey):
        restore(tmp_path / "copy.db", path, bytes(32), NOW)
    by_hand(tmp_path / "copy.db", "PRAGMA user_version = 99")
    with pytest.raises(LedgerError, match="newer onceproxy"):
        restore(tmp_path / "copy.db", path, KEY, NOW)
    async with opened(path) as ledger:  # as it was
        assert ledger.get(key) is not None
        assert ledger.alarms == ()
