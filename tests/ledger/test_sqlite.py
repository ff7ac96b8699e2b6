"""What only a ledger in a file can get wrong: durability, damage, disks, other processes."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from proxy.core.operation import Operation
from proxy.ledger import schema
from proxy.ledger.base import (
    UNKNOWN_ORIGIN,
    Damaged,
    LedgerError,
    Locked,
    Lookalike,
    Query,
    WrongKey,
)
from proxy.ledger.batch import BatchWriter
from proxy.ledger.group import Entry
from proxy.ledger.sqlite import SqliteLedger, WritingThread
from tests import reliability
from tests.fakes.clock import FakeClock
from tests.ledger.support import (
    ANSWER,
    KEY,
    REQUEST,
    URL,
    change,
    delivered,
    first,
    operation,
    started,
    succeeded,
)

ROOT = Path(__file__).parents[2]


def made(path: Path, **options: Any) -> SqliteLedger:
    return SqliteLedger(path, **{"key": KEY, "clock": FakeClock(), **options})


@asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[SqliteLedger]:
    ledger = made(path, **options)
    await ledger.open()
    try:
        yield ledger
    finally:
        await ledger.close()


async def fill(ledger: SqliteLedger, number: int = 5) -> list[str]:
    """Settled operations; their keys."""
    keys = []
    for n in range(number):
        one = await ledger.commit(first(operation(f"s-{n}", run=f"r-{n % 2}")))
        await ledger.commit(change(one, succeeded(external_id=f"re_{n}"), answer=ANSWER))
        keys.append(one.key)
    return keys


def by_hand(path: Path, *statements: str) -> None:
    """Change the file as somebody with the sqlite3 command would."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)


# A file


async def test_everything_is_there_after_a_restart(path: Path) -> None:
    async with opened(path) as ledger:
        keys = await fill(ledger)
        before = [ledger.get(key) for key in keys]
        generation = ledger.generation
    async with opened(path) as ledger:
        assert [ledger.get(key) for key in keys] == before
        assert await ledger.request_of(keys[0]) == REQUEST
        assert await ledger.answer_of(keys[0]) == ANSWER
        assert ledger.generation == generation
        assert (ledger.alarms, ledger.warnings) == ((), ())
        await fill_more(ledger)
        assert await ledger.verify() == []


async def fill_more(ledger: SqliteLedger) -> None:
    await ledger.commit(first(operation("later", run="r-1")))


async def test_files_belong_to_their_owner_and_hold_no_body_in_the_clear(path: Path) -> None:
    async with opened(path) as ledger:
        await fill(ledger)
        files = sorted(path.parent.iterdir())
        assert {oct(file.stat().st_mode & 0o777) for file in files} == {"0o600"}
        everything = b"".join(file.read_bytes() for file in files)
    assert b"r-0/s-0/stripe.refunds.create/v1" in everything
    assert REQUEST.body.data is not None
    assert REQUEST.body.data not in everything
    assert b"X-A" not in everything


async def test_what_is_committed_together_shares_a_sync(sqlite: SqliteLedger) -> None:
    await asyncio.gather(*(sqlite.commit(first(operation(f"s-{n}"))) for n in range(64)))
    assert sqlite.stats().changes == 64
    assert sqlite.stats().commits <= 2


async def test_one_batch_never_holds_more_than_its_bound(sqlite: SqliteLedger) -> None:
    await asyncio.gather(*(sqlite.commit(first(operation(f"s-{n}"))) for n in range(600)))
    assert max(sqlite.stats().batch_sizes) == 256


async def test_settings_that_durability_rests_on(sqlite: SqliteLedger) -> None:
    assert sqlite._thread is not None

    def settings(db: sqlite3.Connection) -> tuple[Any, ...]:
        names = ("journal_mode", "synchronous", "mmap_size")
        return tuple(db.execute(f"PRAGMA {name}").fetchone()[0] for name in names)

    assert await sqlite._thread.run(settings) == ("wal", 2, 0)
    assert sqlite._reader is not None
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        sqlite._reader.execute("DELETE FROM contents")


async def test_notes_left_when_the_ledger_closes_are_written(path: Path) -> None:
    async with opened(path) as ledger:
        (key,) = await fill(ledger, 1)
        settled = ledger.get(key)
        assert settled is not None
        ledger.note(settled, delivered())
    async with opened(path) as ledger:
        found = ledger.get(key)
        assert found is not None
        assert found.delivered_epoch == 1


async def test_a_closed_ledger_refuses(path: Path) -> None:
    ledger = made(path)
    await ledger.open()
    await ledger.close()
    await ledger.close()
    with pytest.raises(LedgerError, match="not open"):
        await ledger.commit(first(operation()))
    with pytest.raises(LedgerError, match="not open"):
        ledger.get("a")


async def test_the_private_part_of_aiosqlite_that_batches_rest_on_is_still_there(
    tmp_path: Path,
) -> None:
    """If this fails after an upgrade: ``WritingThread`` must find another way to run one function
    whole, with the connection, on the connection's own thread."""
    connection = await aiosqlite.connect(tmp_path / "a.db", isolation_level=None)
    thread = WritingThread(connection)
    try:
        here = await thread.run(lambda db: (__import__("threading").get_ident(), type(db)))
        again = await thread.run(lambda db: (__import__("threading").get_ident(), type(db)))
        assert here == again
        assert here[0] != __import__("threading").get_ident()
        assert here[1] is sqlite3.Connection
        with pytest.raises(ZeroDivisionError):
            await thread.run(lambda db: 1 / 0)
    finally:
        await thread.close()


HOLDER = """
import asyncio, sys
from pathlib import Path
from proxy.clock import SystemClock
from proxy.ledger.sqlite import SqliteLedger

async def main():
    ledger = SqliteLedger(Path(sys.argv[1]), key=bytes(range(32)), clock=SystemClock())
    await ledger.open()
    print("open", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(main())
"""


@contextmanager
def process(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Another process with the package at hand; killed at the end."""
    child = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


async def test_a_second_process_is_refused_at_once_and_told_who_has_it(path: Path) -> None:
    with process(HOLDER, str(path), "--secret", "sk_live_1") as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        begun = time.monotonic()
        with pytest.raises(Locked, match=f"process {holder.pid} ") as refused:
            await made(path).open()
        assert time.monotonic() - begun < 1
        assert "sk_live" not in str(refused.value)
    async with opened(path):
        pass  # the holder was killed, and nothing is left to clean up


async def test_a_second_ledger_in_the_same_process_is_refused(
    sqlite: SqliteLedger, path: Path
) -> None:
    with pytest.raises(Locked):
        await made(path).open()
    await sqlite.commit(first(operation()))


WRITER = """
import asyncio, sys
from pathlib import Path
from proxy.clock import SystemClock
from proxy.ledger.sqlite import SqliteLedger
from tests.ledger.support import first, operation

async def one(ledger, who):
    for n in range(100000):
        made = await ledger.commit(first(operation(f"s-{who}-{n}", run=f"r-{who}")))
        print(made.key, flush=True)

async def main():
    ledger = SqliteLedger(Path(sys.argv[1]), key=bytes(range(32)), clock=SystemClock())
    await ledger.open()
    await asyncio.gather(*(one(ledger, who) for who in range(8)))

asyncio.run(main())
"""


async def test_what_was_acknowledged_survives_a_kill(path: Path) -> None:
    with process(WRITER, str(path)) as writer:
        assert writer.stdout is not None
        acknowledged = [writer.stdout.readline() for _ in range(100)]
        writer.kill()
        acknowledged += writer.stdout.read().splitlines(keepends=True)
    whole = [line.strip() for line in acknowledged if line.endswith("/v1\n")]
    async with opened(path) as ledger:
        assert ledger.alarms == ()
        assert [key for key in whole if ledger.get(key) is None] == []
        assert await ledger.verify() == []
        unsettled = await ledger.unsettled()
        assert {one.key for one in unsettled} >= set(whole)


# Files that are refused


async def test_a_wrong_key_is_refused_before_anything_is_read_or_written(path: Path) -> None:
    async with opened(path) as ledger:
        keys = await fill(ledger)
    with pytest.raises(WrongKey, match="put back the key file"):
        await made(path, key=b"x" * 32).open()
    async with opened(path) as ledger:
        assert await ledger.answer_of(keys[0]) == ANSWER


def somebody_elses(path: Path) -> None:
    by_hand(path, "CREATE TABLE t (a)")


def not_a_database(path: Path) -> None:
    path.write_bytes(b"not a database, but long enough to be looked at " * 100)


def newer(path: Path) -> None:
    by_hand(path, "PRAGMA user_version = 99")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (somebody_elses, "not a onceproxy ledger"),
        (not_a_database, "not a SQLite file"),
        (newer, "newer onceproxy .schema 99"),
    ],
)
async def test_a_file_that_is_no_ledger_of_ours_is_refused_and_left_alone(
    path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(path)
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=message):
        await made(path).open()
    assert path.read_bytes() == before


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"there is no directory .*/nowhere: make it"):
        await made(tmp_path / "nowhere" / "ledger.db").open()


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without the rights of root, which no mode keeps out."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_to_all(tmp_path: Path) -> Iterator[Path]:
    """A directory that other users can reach: the usual ones are below a private one."""
    top = Path(tempfile.gettempdir())
    above = [tmp_path, *(p for p in tmp_path.parents if p != top and p.is_relative_to(top))]
    modes = [(parent, parent.stat().st_mode) for parent in above]
    for parent, mode in modes:
        parent.chmod(mode | 0o011)
    yield tmp_path
    for parent, mode in modes:
        parent.chmod(mode)


async def test_a_directory_that_cannot_be_written_is_named(open_to_all: Path) -> None:
    directory = open_to_all / "locked"
    directory.mkdir()
    directory.chmod(0o555)
    with as_nobody(), pytest.raises(LedgerError, match=r"cannot write .*locked/ledger.db: Perm"):
        await made(directory / "ledger.db").open()


async def test_a_ledger_of_another_user_is_named(open_to_all: Path) -> None:
    path = open_to_all / "ledger.db"
    async with opened(path):
        pass
    path.chmod(0o400)
    with as_nobody(), pytest.raises(LedgerError, match=r"cannot write .*ledger.db"):
        await made(path).open()


async def test_a_migration_that_fails_leaves_the_ledger_as_it_was(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(path) as ledger:
        keys = await fill(ledger)
    folder = tmp_path / "migrations"
    shutil.copytree(schema.MIGRATIONS, folder)
    (folder / "0099.sql").write_text("CREATE TABLE later (a); CREATE TABLE later (a);")
    monkeypatch.setattr(schema, "MIGRATIONS", folder)
    with pytest.raises(LedgerError, match="later already exists"):
        await made(path).open()
    (folder / "0099.sql").write_text("CREATE TABLE later (a);")
    async with opened(path) as ledger:
        assert ledger.get(keys[0]) is not None


# Damage


@pytest.mark.parametrize(
    "damage",
    [
        "state = 'failed'",
        "version = 2",
        "url = 'https://elsewhere.example/'",
        "intent = replace(intent, 'f1', 'f9')",
        "attempts = '[]'",
        "external_id = NULL",
        "revision = 7",
        "delivered_epoch = 1",
        "created_at = 1",
        "hash = x'00'",
    ],
)
async def test_a_changed_row_is_damaged_and_never_absent(path: Path, damage: str) -> None:
    async with opened(path) as ledger:
        await fill(ledger)
    by_hand(path, f"UPDATE operations SET {damage} WHERE step = 's-1'")
    async with opened(path) as ledger:
        with pytest.raises(Damaged):
            ledger.get("r-1/s-1/stripe.refunds.create/v1")
        with pytest.raises(Damaged):
            ledger.find("r-1/s-1/stripe.refunds.create")
        assert ledger.get("r-0/s-0/stripe.refunds.create/v1") is not None
        faults = await ledger.verify()
        assert len(faults) == 1
        assert "s-1" in faults[0]
        assert len(await ledger.operations(Query())) == 4
        if "url" not in damage:
            with pytest.raises(Damaged):
                ledger.alike(Lookalike("r-1", "s-1", "POST", URL))


async def test_a_row_that_vanished_is_damaged_and_never_absent(path: Path) -> None:
    async with opened(path) as ledger:
        await fill(ledger)
    by_hand(path, "DELETE FROM operations WHERE step = 's-1'")
    async with opened(path) as ledger:
        for ask in (
            lambda: ledger.get("r-1/s-1/stripe.refunds.create/v1"),
            lambda: ledger.find("r-1/s-1/stripe.refunds.create"),
            lambda: ledger.find("r-1/s-1/renamed", ["r-1/s-1/stripe.refunds.create"]),
        ):
            with pytest.raises(Damaged, match="row is gone"):
                ask()
        with pytest.raises(Damaged, match="row is gone"):
            await ledger.commit(first(operation("s-1", run="r-1")))
        with pytest.raises(Damaged, match="row is gone"):
            await ledger.answer_of("r-1/s-1/stripe.refunds.create/v1")
        assert any("s-1" in fault for fault in await ledger.verify())
        assert ledger.get("r-1/s-2/stripe.refunds.create/v1") is None


async def test_a_row_set_back_to_an_earlier_revision_is_found_by_verify(path: Path) -> None:
    async with opened(path) as ledger:
        await ledger.commit(first(operation()))
    with closing(sqlite3.connect(path)) as db:
        columns = "state, attempts, outcome, updated_at, revision, hash"
        old = db.execute(f"SELECT {columns} FROM operations").fetchone()
    async with opened(path) as ledger:
        one = ledger.get(operation().key)
        assert one is not None
        await ledger.commit(change(one, succeeded(), answer=ANSWER))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"UPDATE operations SET ({columns}) = (?, ?, ?, ?, ?, ?)", old)
    async with opened(path) as ledger:
        assert await ledger.verify() == [
            f"the row of {operation().key} is not the one its newest event wrote"
        ]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE contents SET sealed = substr(sealed, 1, length(sealed) - 1) || x'00'",
        "UPDATE contents SET sealed = x'00'",
        "UPDATE contents SET sealed = (SELECT sealed FROM contents c WHERE c.id <> contents.id)",
        "UPDATE operations SET answer_id = request_id",
        "UPDATE operations SET answer_id = 1",
        "DELETE FROM contents",
    ],
)
async def test_a_changed_swapped_or_lost_answer_is_damaged(path: Path, damage: str) -> None:
    async with opened(path) as ledger:
        keys = await fill(ledger, 2)
    by_hand(path, damage)
    async with opened(path) as ledger:
        with pytest.raises(Damaged):
            await ledger.answer_of(keys[1])
        assert await ledger.verify() != []


async def test_an_answer_taken_by_retention_is_none(path: Path) -> None:
    async with opened(path) as ledger:
        keys = await fill(ledger, 2)
    by_hand(path, "UPDATE contents SET sealed = NULL WHERE kind = 'answer'")
    async with opened(path) as ledger:
        assert await ledger.answer_of(keys[0]) is None
        assert await ledger.request_of(keys[0]) == REQUEST
        assert await ledger.verify() == []


async def test_flipped_bytes_never_give_another_value_and_never_hide_one(path: Path) -> None:
    """Files with eight flipped bytes each: every answer is the true one or an error."""
    async with opened(path) as ledger:
        keys = await fill(ledger, 60)
        truth = {key: ledger.get(key) for key in keys}
    whole = path.read_bytes()
    wrong = []
    for seed in range(40):
        spoiled = bytearray(whole)
        for n in range(8):
            spot = 100 + (seed * 7919 + n * 104_729 + seed * n * 31) % (len(whole) - 100)
            spoiled[spot] ^= 0xFF
        path.write_bytes(spoiled)
        ledger = made(path)
        try:
            await ledger.open()
        except LedgerError:
            continue
        try:
            for key in keys:
                wrong += await _differs(ledger, key, truth[key])
        finally:
            await ledger.close()
    assert wrong == []


async def _differs(ledger: SqliteLedger, key: str, truth: object) -> list[str]:
    try:
        found = ledger.get(key)
        answer = await ledger.answer_of(key)
    except LedgerError:
        return []
    return [] if found == truth and answer == ANSWER else [key]


# History


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET data = '{}' WHERE seq = 1",
        "DELETE FROM events WHERE seq = 1",
        "DELETE FROM operations WHERE state = 'in_flight'",
    ],
)
async def test_the_database_itself_refuses_to_rewrite_history(path: Path, statement: str) -> None:
    async with opened(path) as ledger:
        await ledger.commit(first(operation()))
    with pytest.raises(sqlite3.IntegrityError, match=r"append-only|never deleted"):
        by_hand(path, statement)


@pytest.mark.parametrize(
    ("tampering", "fault"),
    [
        (["UPDATE events SET data = '{}' WHERE seq = 3"], "event 3 of run r-1 does not fit"),
        (["UPDATE events SET at = at + 1 WHERE seq = 3"], "event 3 of run r-1 does not fit"),
        (["UPDATE events SET data = x'ff' WHERE seq = 3"], "event 3 of run r-1 does not fit"),
        (["DELETE FROM events WHERE seq = 3"], "events 3 to 3 are missing"),
        (["DELETE FROM events WHERE seq > 7"], "the head file names event 10"),
        (["DELETE FROM events WHERE run = 'r-1'"], "events 3 to 4 are missing"),
        (["UPDATE events SET head = x'00' WHERE seq = 4"], "the batch that ends with event 4"),
        (
            [
                "UPDATE events SET seq = -1 WHERE seq = 3",
                "UPDATE events SET seq = 3 WHERE seq = 4",
                "UPDATE events SET seq = 4 WHERE seq = -1",
            ],
            "event 3 of run r-1 does not fit",
        ),
        (["UPDATE runs SET status = 'closed' WHERE run = 'r-1'"], "row of run r-1 does not fit"),
    ],
)
async def test_tampering_with_history_is_found(
    path: Path, tampering: Sequence[str], fault: str
) -> None:
    async with opened(path) as ledger:
        await fill(ledger)
        by_hand(path, "DROP TRIGGER events_update", "DROP TRIGGER events_delete", *tampering)
        found = await ledger.verify()
    assert any(fault in sentence for sentence in found), found
    reliability.figure("S15", "History edited, removed, swapped, cut off", cases=1, missed=0)


async def test_verify_of_one_run_looks_at_that_run_only(path: Path) -> None:
    async with opened(path) as ledger:
        await fill(ledger)
        by_hand(path, "DROP TRIGGER events_update", "UPDATE events SET at = 1 WHERE seq = 3")
        assert len(await ledger.verify("r-1")) == 1
        assert await ledger.verify("r-0") == []


# A ledger that went back in time


def copy_of(path: Path, name: str) -> Path:
    """A backup of a closed ledger: the database alone."""
    return Path(shutil.copy(path, path.with_name(name)))


async def test_an_older_copy_put_back_begins_a_new_generation(path: Path) -> None:
    async with opened(path) as ledger:
        await fill(ledger, 2)
        before = ledger.generation
    backup = copy_of(path, "backup")
    async with opened(path) as ledger:
        await ledger.commit(first(operation("lost with the disk")))
    shutil.copy(backup, path)
    async with opened(path) as ledger:
        assert "had event 5 when it last ran" in ledger.alarms[0]
        assert ledger.generation != before
        assert ledger.generation.startswith("2-")
        old = ledger.run("r-0")
        assert old is not None
        assert old.generation == before
        await ledger.commit(first(operation("new", run="r-9")))
        new = ledger.run("r-9")
        assert new is not None
        assert new.generation == UNKNOWN_ORIGIN  # it may have begun in the part that is lost
        assert await ledger.verify() == []
    async with opened(path) as ledger:
        assert ledger.alarms == ()
        assert ledger.generation.startswith("2-")


async def test_an_older_copy_that_has_grown_again_is_noticed(path: Path) -> None:
    async with opened(path) as ledger:
        await fill(ledger, 1)
    backup = copy_of(path, "backup")
    async with opened(path) as ledger:
        await ledger.commit(first(operation("one")))
    head = path.with_name("ledger.db.head").read_bytes()
    shutil.copy(backup, path)
    path.with_name("ledger.db.head").unlink()
    async with opened(path) as ledger:
        await ledger.commit(first(operation("another")))
    path.with_name("ledger.db.head").write_bytes(head)
    async with opened(path) as ledger:
        assert "is not the one that was written" in ledger.alarms[0]


async def test_a_ledger_that_is_gone_is_noticed(path: Path) -> None:
    async with opened(path) as ledger:
        await fill(ledger, 1)
    path.unlink()
    async with opened(path) as ledger:
        assert ledger.alarms == (
            "the ledger that ran here, up to event 2, is gone: a new generation begins",
        )
        assert ledger.generation.startswith("2-")


async def test_restored_begins_a_new_generation_each_time(path: Path) -> None:
    async with opened(path) as ledger:
        first_life = ledger.generation
    async with opened(path, restored=True) as ledger:
        assert ledger.generation.startswith("2-")
        second_life = ledger.generation
    async with opened(path) as ledger:
        assert ledger.generation == second_life != first_life
        assert ledger.alarms == ()


async def test_a_head_file_that_is_behind_is_no_alarm(path: Path) -> None:
    """As after a crash between the commit and the write, or a power cut."""
    async with opened(path) as ledger:
        await fill(ledger, 1)
        behind = path.with_name("ledger.db.head").read_bytes()
        await ledger.commit(first(operation()))
    path.with_name("ledger.db.head").write_bytes(behind)
    async with opened(path) as ledger:
        assert ledger.alarms == ()


@pytest.mark.parametrize("left", [b"", b"onceproxy-head 1-a 7", b"\x00" * 200])
async def test_a_torn_head_file_is_no_alarm(path: Path, left: bytes) -> None:
    async with opened(path) as ledger:
        await fill(ledger, 1)
    path.with_name("ledger.db.head").write_bytes(left)
    async with opened(path) as ledger:
        assert ledger.alarms == ()
        assert bool(ledger.warnings) is bool(left)


# Disks that refuse


async def many(ledger: SqliteLedger, tag: str, number: int = 40) -> list[BaseException | object]:
    body = REQUEST.with_(body=REQUEST.body.of(os.urandom(4000)))
    return await asyncio.gather(
        *(
            ledger.commit(change(operation(f"{tag}-{n}"), *first(operation()).events, request=body))
            for n in range(number)
        ),
        return_exceptions=True,
    )


async def until_full(ledger: SqliteLedger) -> None:
    """Write until a batch is refused; its every change must be."""
    for round_ in range(1000):
        results = await many(ledger, f"fill-{round_}")
        failed = [r for r in results if isinstance(r, BaseException)]
        if failed:
            assert {type(error) for error in failed} == {LedgerError}
            assert len(failed) == len(results)
            return
    pytest.fail("the disk never filled up")


async def note_until_full(ledger: SqliteLedger, settled: Operation) -> None:
    """Use up what is left in the files that are there already."""
    for _ in range(1000):
        ledger.note(settled, delivered())
        await ledger.flush()


async def test_a_full_disk_refuses_all_and_is_forgotten_once_there_is_space(
    tmp_path: Path,
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    try:
        (disk / "ballast").write_bytes(b"x" * 500_000)
        async with opened(disk / "ledger.db") as ledger:
            (key,) = await fill(ledger, 1)
            settled = ledger.get(key)
            assert settled is not None
            await until_full(ledger)
            with pytest.raises(OSError, match="No space"):
                (disk / "rest").write_bytes(b"x" * 3_000_000)
            with pytest.raises(LedgerError, match="free space"):
                await note_until_full(ledger, settled)
            assert await ledger.answer_of(key) == ANSWER
            noted = ledger.get(key)
            assert noted is not None
            assert noted.delivered_epoch == 1
            (disk / "ballast").unlink()
            assert not any(isinstance(r, BaseException) for r in await many(ledger, "after", 5))
            assert ledger.get(key) == noted, "a note outlives the full disk"
            assert await ledger.verify() == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


async def test_writes_that_the_kernel_refuses_are_refused_and_then_work_again(
    path: Path,
) -> None:
    import resource

    async with opened(path) as ledger:
        (key,) = await fill(ledger, 1)
        size = path.with_name("ledger.db-wal").stat().st_size
        usual = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50_000, usual[1]))
        try:
            await until_full(ledger)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, usual)
        assert await ledger.answer_of(key) == ANSWER
        assert not any(isinstance(result, BaseException) for result in await many(ledger, "after"))
        assert await ledger.verify() == []


async def test_a_commit_reported_failed_that_landed_is_resolved_by_reading_again(
    sqlite: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await sqlite.commit(first(operation("one")))
    write = BatchWriter.write

    def lands_and_fails(self: BatchWriter, db: sqlite3.Connection, batch: Sequence[Entry]) -> None:
        write(self, db, batch)
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(BatchWriter, "write", lands_and_fails)
        with pytest.raises(LedgerError, match="disk I/O error"):
            await sqlite.commit(change(one, succeeded(), answer=ANSWER))
    found = sqlite.get(one.key)
    assert found is not None
    assert (found.state, found.revision) == ("succeeded", 2)
    await sqlite.commit(first(operation("two")))
    assert await sqlite.verify() == []


async def test_one_change_that_cannot_be_stored_fails_alone(sqlite: SqliteLedger) -> None:
    results = await asyncio.gather(
        sqlite.commit(first(operation("a"))),
        sqlite.commit(change(operation("b"), started(strange=object()))),
        sqlite.commit(first(operation("c"))),
        return_exceptions=True,
    )
    assert [isinstance(result, LedgerError) for result in results] == [False, True, False]
    assert await sqlite.verify() == []
