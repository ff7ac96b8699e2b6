"""R3: the power is cut. A run under load is traced write by write; what a disk may hold at a random
moment of it is built and opened again. The SIGKILLs of other tests cannot show this: the kernel
keeps what was written.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from proxy.ledger import audit
from proxy.ledger.base import LedgerError, Query
from proxy.ledger.chain import START, Head, HeadFile, went_back
from proxy.ledger.seal import Sealer, load_keys
from proxy.ledger.sqlite import SqliteLedger
from tests.fakes.clock import FakeClock
from tests.fakes.served import ROOT, environment
from tests.faults import images, shim
from tests.reliability import control, figure

pytestmark = pytest.mark.skipif(shim.build() is None, reason="needs a C compiler (gcc or cc)")

OPENED_WHOLE = 20  # of so many images one is opened as the proxy does it: some 30 ms
HEAD_AT = "SELECT head FROM events WHERE seq = ?"


@dataclass
class Tally:
    images: int = 0
    lost: int = 0  # images without an event or a checkpoint that had been acknowledged
    unannounced: int = 0  # images without the intent of a call that had arrived at the API
    broken: int = 0  # images whose chain, rows or contents do not fit
    alarms: int = 0  # images that were taken for another ledger
    unopened: int = 0
    budget_resets: int = 0  # images in which a call that had arrived is not one unit of its run
    wrong: list[str] = field(default_factory=list)

    def count(self, fault: str, sentence: str) -> None:
        setattr(self, fault, getattr(self, fault) + 1)
        self.wrong.append(f"{fault}: {sentence}")


def record(folder: Path, seed: int, calls: int, *plants: str) -> list[images.Step]:
    folder.mkdir()
    trace = folder / "trace"
    command = [sys.executable, "-m", "tests.faults.recorded", str(folder), str(seed), str(calls)]
    environ = environment(**shim.environment(watch=f"{folder}/state", trace=trace))
    subprocess.run([*command, *plants], env=environ, cwd=ROOT, check=True, timeout=100)
    return images.read(trace)


async def judge(
    steps: list[images.Step], folder: Path, number: int, seed: int, tally: Tally
) -> None:
    for moment, files, marks in images.cut(steps, number, seed):
        tally.images += 1
        where = f"image {tally.images} of seed {seed}, after step {moment}"
        state = folder / "image"
        _lay_out(files, state)
        sent = {mark.removeprefix("sent ") for mark in marks if mark.startswith("sent ")}
        told = {mark.removeprefix("told ") for mark in marks if mark.startswith("told ")}
        saved = {mark.removeprefix("saved ") for mark in marks if mark.startswith("saved ")}
        _look(state, sent, told, saved, tally, where)
        if tally.images % OPENED_WHOLE == 0:
            await _open(state, sent, tally, where)


def _lay_out(files: dict[str, bytes], state: Path) -> None:
    state.mkdir(exist_ok=True)
    for old in state.iterdir():
        old.unlink()
    for path, content in files.items():
        (state / os.path.basename(path)).write_bytes(content)


def _look(
    state: Path, sent: set[str], told: set[str], saved: set[str], tally: Tally, where: str
) -> None:
    """Without the ledger's own code where its code could hide a fault."""
    file = state / "ledger.db"
    try:
        with closing(sqlite3.connect(file)) as db:
            known = {
                run for (run,) in db.execute("SELECT run FROM events WHERE kind = 'AttemptStarted'")
            }
            done = {
                run
                for (run,) in db.execute(
                    "SELECT o.run FROM operations o JOIN contents c ON c.id = o.answer_id"
                    " WHERE o.state = 'succeeded' AND c.sealed IS NOT NULL"
                )
            }
            there = {
                f"{run} {version}"
                for run, version in db.execute(
                    "SELECT run, version FROM checkpoints WHERE sealed IS NOT NULL"
                )
            }
            units = {
                run: int(json.loads(used).get("writes", 0))
                for run, used in db.execute("SELECT run, counters FROM runs")
            }
            sealer = Sealer(load_keys(state / "ledger.key", create=False))
            faults = audit.verify(db, sealer, None, None)
            last = db.execute("SELECT seq, head FROM events ORDER BY seq DESC LIMIT 1").fetchone()
            meta = dict(db.execute("SELECT name, value FROM meta"))
            head = HeadFile(state / "ledger.db.head")
            head.open()
            now = Head(meta.get("generation", "0"), *(last or (0, START)))
            back = went_back(
                head.read(),
                now,
                lambda seq: db.execute(HEAD_AT, (seq,)).fetchone()[0],
            )
            head.close()
    except (sqlite3.Error, LedgerError, OSError) as error:
        if told or sent or saved:
            tally.count("lost", f"{where}: {error}")
        return
    if told - done:
        tally.count("lost", f"{where}: {sorted(told - done)}")
    if saved - there:
        tally.count("lost", f"{where}: checkpoints {sorted(saved - there)}")
    if sent - known:
        tally.count("unannounced", f"{where}: {sorted(sent - known)}")
    wrong = {run: n for run, n in units.items() if n > 1 or (n == 0 and run in known)}
    if wrong or any(run not in units for run in sent):
        tally.count("budget_resets", f"{where}: {wrong or sorted(sent - set(units))}")
    if faults:
        tally.count("broken", f"{where}: {faults[0]}")
    if back:
        tally.count("alarms", f"{where}: {back}")


async def _open(state: Path, sent: set[str], tally: Tally, where: str) -> None:
    """As the next start of the proxy does."""
    file = state / "ledger.db"
    try:
        key = load_keys(state / "ledger.key", create=not file.exists())
        ledger = SqliteLedger(file, key=key, clock=FakeClock())
        await ledger.open()
    except LedgerError as error:
        tally.count("unopened", f"{where}: {error}")
        return
    try:
        if ledger.alarms:
            tally.count("alarms", f"{where}: {ledger.alarms}")
        found = {operation.run for operation in await ledger.operations(Query(limit=1000))}
        if sent - found:
            tally.count("unannounced", f"{where}: {sorted(sent - found)}")
    finally:
        await ledger.close()


async def test_r3_nothing_acknowledged_is_lost_when_the_power_is_cut(tmp_path: Path) -> None:
    await _cut(tmp_path, seed=1, calls=20, number=60)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [11, 12, 13, 14])
async def test_r3_ten_thousand_cuts(tmp_path: Path, seed: int) -> None:
    await _cut(tmp_path, seed=seed, calls=60, number=2500)


async def _cut(tmp_path: Path, seed: int, calls: int, number: int) -> None:
    steps = record(tmp_path / "run", seed, calls)
    assert sum(step.kind == "S" and step.path.endswith("ledger.db") for step in steps) > 3, (
        "checkpoints belong to it"
    )
    tally = Tally()
    await judge(steps, tmp_path, number, seed, tally)
    assert tally.wrong == []
    figure(
        "R3",
        "power cut at a random moment: a disk image with any part of what was not synced",
        images=tally.images,
        lost=tally.lost,
        sends_without_intent=tally.unannounced,
        broken_chains=tally.broken,
        budget_resets=tally.budget_resets,
        false_alarms=tally.alarms,
    )


async def test_r3_control_without_a_sync_per_commit_it_is_seen(tmp_path: Path) -> None:
    steps = record(tmp_path / "run", 1, 20, "sync_normal")
    tally = Tally()
    await judge(steps, tmp_path, 40, 1, tally)
    assert tally.lost > 0
    assert tally.unannounced > 0
    assert tally.budget_resets > 0
    control("R3", "`synchronous = NORMAL`", f"{tally.lost} of {tally.images} images lost records")


@pytest.mark.slow
async def test_r3_control_a_charge_after_the_answer_is_seen(tmp_path: Path) -> None:
    steps = record(tmp_path / "run", 1, 20, "charged_late")
    tally = Tally()
    await judge(steps, tmp_path, 40, 1, tally)
    assert tally.budget_resets > 0
    control("R21", "charged late, power cut", f"{tally.budget_resets} of {tally.images} images")
