"""Ledger files of earlier releases: they open, whenever the upgrade was interrupted.

``kept/`` holds one small ledger per released schema, as that release wrote it; none is ever made
anew. A new migration brings a file of its predecessor's schema.
"""

from __future__ import annotations

import gzip
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from proxy.core.operation import State
from proxy.ledger import schema
from proxy.ledger.base import LedgerError, Query
from proxy.ledger.sqlite import SqliteLedger
from tests import reliability
from tests.ledger.support import ANSWER, REQUEST, change, first, operation, succeeded
from tests.ledger.test_sqlite import by_hand, opened

ROOT = Path(__file__).parents[2]
KEPT = sorted((Path(__file__).parent / "kept").glob("schema-*.db.gz"))

# A release that does not exist: what a next one may do to a file.
LATER = {
    "0098.sql": "ALTER TABLE operations ADD COLUMN shade TEXT;\n"
    "CREATE INDEX operations_shade ON operations (shade);\n"
    "UPDATE operations SET shade = state;",
    "0099.sql": "CREATE TABLE shades (shade TEXT PRIMARY KEY, number INTEGER) WITHOUT ROWID;\n"
    "INSERT INTO shades SELECT shade, count(*) FROM operations GROUP BY shade;",
}

UPGRADE = """
import os, signal, sqlite3, sys
from pathlib import Path
from proxy.ledger import schema

schema.MIGRATIONS = Path(sys.argv[2])
left = int(sys.argv[3])

def statement(text):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.set_trace_callback(statement)
schema.prepare(db)
db.close()
"""


def unpack(kept: Path, path: Path) -> Path:
    path.write_bytes(gzip.decompress(kept.read_bytes()))
    return path


@pytest.fixture
def later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The migrations of that release."""
    folder = tmp_path / "migrations"
    shutil.copytree(schema.MIGRATIONS, folder)
    for name, text in LATER.items():
        (folder / name).write_text(text)
    return folder


async def is_whole(ledger: SqliteLedger) -> None:
    """Everything that the kept ledgers hold."""
    found = {one.step: one for one in await ledger.operations(Query(run="run-1"))}
    assert {step: one.state for step, one in found.items()} == {
        state.value: state for state in State if state is not State.AWAITING_APPROVAL
    }
    done = found["succeeded"]
    assert await ledger.answer_of(done.key) == ANSWER
    assert await ledger.request_of(found["unknown"].key) == REQUEST
    assert done.outcome is not None
    assert done.outcome.external_id == "re_1"
    assert (done.intent.upstream_key, done.intent.valid_for) == ("k", 86400.0)
    run = ledger.run("run-1")
    assert run is not None
    assert run.epoch == 2
    assert await ledger.verify() == []
    assert ledger.gap is None


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.name.partition(".")[0])
async def test_a_ledger_of_an_earlier_release_opens_and_goes_on(kept: Path, path: Path) -> None:
    async with opened(unpack(kept, path)) as ledger:
        await is_whole(ledger)
        one = await ledger.commit(first(operation("after")))
        await ledger.commit(change(one, succeeded(), answer=ANSWER))
        pending = ledger.get("run-1/unknown/stripe.refunds.create/v1")
        assert pending is not None
        assert await ledger.verify() == []
    with closing(sqlite3.connect(path)) as db:
        newest = schema.migrations()[-1][0]
        assert db.execute("PRAGMA user_version").fetchone() == (newest,)


def test_every_released_schema_has_a_kept_ledger() -> None:
    numbers = [int(kept.name.removeprefix("schema-").partition(".")[0]) for kept in KEPT]
    assert numbers, "a ledger of the present schema is kept for the next release"
    assert set(numbers) <= {number for number, _ in schema.migrations()}


async def test_an_upgrade_that_is_killed_at_any_statement_is_finished_by_the_next_start(
    path: Path, tmp_path: Path, later: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = 0
    versions = set()
    while True:
        for old in tmp_path.glob("ledger.db*"):
            old.unlink()
        unpack(KEPT[-1], path)
        command = [sys.executable, "-c", UPGRADE, str(path), str(later), str(killed + 1)]
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        killed += 1
        with closing(sqlite3.connect(path)) as db:
            versions.add(db.execute("PRAGMA user_version").fetchone()[0])
        with monkeypatch.context() as patched:
            patched.setattr(schema, "MIGRATIONS", later)
            async with opened(path) as ledger:
                await is_whole(ledger)
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("PRAGMA user_version").fetchone() == (99,)
            assert dict(db.execute("SELECT * FROM shades"))["succeeded"] == 1
            assert db.execute("SELECT count(*) FROM operations WHERE shade IS NULL").fetchone() == (
                0,
            )
    assert killed >= 12, "it was killed before each of its statements"
    kept = int(KEPT[-1].name.removeprefix("schema-").partition(".")[0])
    passed = {number for number, _ in schema.migrations() if number >= kept}
    assert versions == passed | {98}, "each step is there whole or not at all"
    reliability.figure("R24", "SIGKILL before each statement of an upgrade", kills=killed, lost=0)


async def test_a_file_of_the_later_release_is_refused_by_this_one_and_left_alone(
    path: Path, later: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpack(KEPT[-1], path)
    with monkeypatch.context() as patched:
        patched.setattr(schema, "MIGRATIONS", later)
        async with opened(path):
            pass
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=r"written by a newer onceproxy \(schema 99") as refused:
        async with opened(path):
            pass
    assert "install that version or a later one" in str(refused.value)
    assert path.read_bytes() == before


async def test_the_control_an_upgrade_without_a_transaction_would_be_caught(
    path: Path, later: Path
) -> None:
    """A half-done step, as it would be left: the next start stumbles over it."""
    unpack(KEPT[-1], path)
    by_hand(path, "ALTER TABLE operations ADD COLUMN shade TEXT")
    command = [sys.executable, "-c", UPGRADE, str(path), str(later), "0"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "duplicate column" in done.stderr
    reliability.control("R24", "a step left half done", "the next start stumbles over it")
