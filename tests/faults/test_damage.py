"""R10: damaged, cut and exchanged ledger files. What is read is the truth or an error; what
was there is never taken for never used, unless the ledger itself says that it may not know.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from proxy.core.operation import Operation
from proxy.ledger.base import LedgerError
from proxy.ledger.sqlite import SqliteLedger
from tests.fakes.clock import FakeClock
from tests.faults.plants import no_row_hash
from tests.ledger.support import ANSWER, KEY, change, first, operation, succeeded
from tests.reliability import control, figure

OPERATIONS = 40
PAGE = 4096


@dataclass
class Kept:
    """A ledger's files as they were at two moments, and another's; what the newest says."""

    new: Path  # closed: one file
    running: Path  # as a crash leaves it: with its WAL
    old: Path  # half as long
    other: Path  # of another proxy, under the same key
    truth: dict[str, Operation] = field(default_factory=dict)


def made(path: Path) -> SqliteLedger:
    return SqliteLedger(path, key=KEY, clock=FakeClock())


async def keep(folder: Path) -> Kept:
    kept = Kept(*(folder / name for name in ("new", "running", "old", "other")))
    for place, run in ((folder / "work", "r"), (kept.other, "somebody")):
        place.mkdir()
        ledger = made(place / "ledger.db")
        await ledger.open()
        for number in range(OPERATIONS):
            if run == "r" and number == OPERATIONS // 2:
                shutil.copytree(place, kept.old)
            one = await ledger.commit(first(operation(f"s-{number}", run=f"{run}-{number % 3}")))
            ended = succeeded(external_id=f"re_{number}")
            await ledger.commit(change(one, ended, answer=ANSWER))
            if run == "r":
                found = ledger.get(one.key)
                assert found is not None
                kept.truth[one.key] = found
        if run == "r":
            shutil.copytree(place, kept.running)
        await ledger.close()
    shutil.copytree(folder / "work", kept.new)
    return kept


Damage = Callable[[Kept, Path, random.Random], None]


def flipped(kept: Kept, place: Path, choice: random.Random) -> None:
    _lay(choice.choice([kept.new, kept.running]), place)
    file = choice.choice([f for f in place.glob("ledger.db*") if f.name[9:] in ("", "-wal")])
    content = bytearray(file.read_bytes())
    for _ in range(8):
        content[choice.randrange(len(content))] ^= 1 << choice.randrange(8)
    file.write_bytes(content)


def cut(kept: Kept, place: Path, choice: random.Random) -> None:
    _lay(choice.choice([kept.new, kept.running]), place)
    file = place / "ledger.db"
    if (place / "ledger.db-wal").exists() and choice.random() < 0.5:
        file = place / "ledger.db-wal"
    content = file.read_bytes()
    file.write_bytes(content[: choice.randrange(len(content))])


def zeroed(kept: Kept, place: Path, choice: random.Random) -> None:
    _lay(kept.new, place)
    content = bytearray((place / "ledger.db").read_bytes())
    page = choice.randrange(1, len(content) // PAGE)
    content[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
    (place / "ledger.db").write_bytes(content)


def foreign_wal(kept: Kept, place: Path, choice: random.Random) -> None:
    """The WAL of another file, or of an earlier time, beside it."""
    _lay(kept.new, place)
    shutil.copy(choice.choice([kept.running, kept.old]) / "ledger.db-wal", place)


def exchanged(kept: Kept, place: Path, choice: random.Random) -> None:
    """The ledger of another proxy, or an older copy, under the head file of this one."""
    _lay(kept.new, place)
    source = choice.choice([kept.other, kept.old])
    for file in source.glob("ledger.db*"):
        if file.name[9:] in ("", "-wal"):
            shutil.copy(file, place)


DAMAGES: list[Damage] = [flipped, flipped, cut, zeroed, foreign_wal, exchanged]


def _lay(source: Path, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source, place)
    (place / "ledger.db-shm").unlink(missing_ok=True)


@dataclass
class Seen:
    files: int = 0
    refused: int = 0  # at the start
    noticed: int = 0  # some of its operations, when they were read
    doubted: int = 0  # began a new generation
    harmless: int = 0
    wrong: list[str] = field(default_factory=list)


async def look(kept: Kept, place: Path, what: str, seen: Seen) -> None:
    seen.files += 1
    ledger = made(place / "ledger.db")
    try:
        await ledger.open()
    except LedgerError:
        seen.refused += 1
        return
    noticed = False
    try:
        for key, truth in kept.truth.items():
            try:
                found = ledger.find(truth.base)
                answer = await ledger.answer_of(key)
            except LedgerError:
                noticed = True
                continue
            except Exception as error:
                seen.wrong.append(f"{what}: {key} is an error of its own, {error!r}")
                continue
            if found is None:
                if not ledger.alarms:
                    seen.wrong.append(f"{what}: {key} is unknown")
            elif found.revision == truth.revision or not ledger.alarms:
                if found != truth:
                    seen.wrong.append(f"{what}: {key} is another")
                elif answer != ANSWER:
                    seen.wrong.append(f"{what}: {key} has another answer")
    finally:
        await ledger.close()
    if ledger.alarms:
        seen.doubted += 1
    elif noticed:
        seen.noticed += 1
    else:
        seen.harmless += 1


async def damage(folder: Path, number: int, seed: int) -> Seen:
    kept, seen = await keep(folder), Seen()
    choice = random.Random(seed)
    for n in range(number):
        how = DAMAGES[n % len(DAMAGES)]
        how(kept, folder / "place", choice)
        await look(kept, folder / "place", f"{how.__name__} {n} of seed {seed}", seen)
    return seen


async def test_r10_no_damage_gives_another_answer_or_hides_one(tmp_path: Path) -> None:
    await _r10(tmp_path, 24, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
async def test_r10_three_hundred_damaged_files(tmp_path: Path, seed: int) -> None:
    await _r10(tmp_path, 150, seed)


async def _r10(folder: Path, number: int, seed: int) -> None:
    seen = await damage(folder, number, seed)
    assert seen.wrong == []
    assert seen.refused + seen.noticed + seen.doubted > number / 3
    figure(
        "R10",
        "a ledger file with flipped bits, a cut tail, a zeroed page, a foreign WAL, or exchanged",
        files=seen.files,
        wrong_replays=0,
        refused_at_the_start=seen.refused,
        refused_when_read=seen.noticed,
        begun_as_a_new_generation=seen.doubted,
        harmless=seen.harmless,
    )


async def test_r10_control_without_the_hash_of_each_row_it_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_row_hash(monkeypatch.setattr)
    monkeypatch.setattr("tests.faults.test_damage.DAMAGES", [flipped])
    seen = await damage(tmp_path, 40, 1)
    wrong = {one.partition(":")[0] for one in seen.wrong if one.endswith(" is another")}
    assert wrong
    control("R10", "the hash of each row not looked at", f"{len(wrong)} of 40 files answer wrongly")
