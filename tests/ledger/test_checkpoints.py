"""Checkpoints: what every ledger must do about them, and what only one in a file can get wrong."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from proxy.core.runs import next_epoch
from proxy.ledger import checkpoints
from proxy.ledger.backup import copy, restore
from proxy.ledger.base import (
    Condition,
    Conflict,
    Damaged,
    Ledger,
    LedgerError,
    Query,
    StaleCheckpoint,
)
from proxy.ledger.checkpoints import LEAP
from proxy.ledger.sqlite import SqliteLedger
from proxy.retention import Pruned, Retention, prune
from tests.fakes.clock import FakeClock
from tests.ledger.support import (
    ANSWER,
    KEY,
    NOW,
    change,
    delivered,
    first,
    lost,
    operation,
    succeeded,
)
from tests.ledger.test_sqlite import by_hand, opened
from tests.reliability import control, figure

DAY = 86_400.0
RUN = "case-7"
ABSENT = Condition(frozenset({0}))
ANY = Condition(frozenset({0}), among=False)


def newest(*versions: int) -> Condition:
    return Condition(frozenset(versions))


async def save(ledger: Ledger, *contents: bytes, run: str = RUN) -> list[int]:
    return [(await ledger.save_checkpoint(run, content)).version for content in contents]


async def content(ledger: Ledger, version: int | None = None, run: str = RUN) -> bytes | None:
    found = await ledger.checkpoint(run, version)
    return None if found is None else found.content


# Of every ledger


async def test_versions_count_from_one_and_each_is_given_back_to_the_byte(ledger: Ledger) -> None:
    everything = bytes(range(256)) * 3
    made = await ledger.save_checkpoint(RUN, everything, step="refund")
    assert (made.version, made.step, made.size) == (1, "refund", 768)
    assert await save(ledger, b"", b"third") == [2, 3]
    assert [await content(ledger, number) for number in (None, 1, 2, 3, 4)] == [
        b"third",
        everything,
        b"",
        b"third",
        None,
    ]
    found = await ledger.checkpoint(RUN, 1)
    assert found is not None
    assert (found.step, found.created_at, found.kept) == ("refund", NOW, True)
    assert await ledger.verify() == []


async def test_the_list_is_newest_first_and_has_no_contents(ledger: Ledger) -> None:
    await ledger.save_checkpoint(RUN, b"one", step="a")
    await ledger.save_checkpoint(RUN, b"other", step=None)
    found = await ledger.checkpoints(RUN)
    assert [(one.version, one.step, one.size, one.content) for one in found] == [
        (2, None, 5, None),
        (1, "a", 3, None),
    ]
    assert await ledger.checkpoints("another") == []
    assert await ledger.checkpoint("another") is None


async def test_runs_count_for_themselves_whatever_their_names(ledger: Ledger) -> None:
    for number, run in enumerate(("case", "case-7", "case-", "a%2Fb"), 1):
        for _ in range(number):
            await ledger.save_checkpoint(run, run.encode())
    assert [one.version for one in await ledger.checkpoints("case-7")] == [2, 1]
    assert await content(ledger, run="a%2Fb") == b"a%2Fb"
    assert await ledger.verify("case-7") == []


async def test_a_run_begins_with_its_first_checkpoint_and_goes_on_as_it_is(ledger: Ledger) -> None:
    assert ledger.run(RUN) is None
    await save(ledger, b"x")
    row = ledger.run(RUN)
    assert row is not None
    assert (row.epoch, row.generation) == (1, ledger.generation)
    await ledger.amend(RUN, next_epoch(0.0))
    await save(ledger, b"y")
    made = await ledger.commit(first(operation()))
    row = ledger.run(RUN)
    assert row is not None
    assert row.epoch == 2
    assert ledger.get(made.key) == made


@pytest.mark.parametrize(
    ("saved", "conditions", "there"),
    [
        (0, [newest(1)], 0),
        (0, [ANY], 0),
        (1, [ABSENT], 1),
        (3, [newest(2)], 3),
        (3, [newest(4)], 3),
        (3, [newest()], 3),
        (3, [newest(1, 2)], 3),
        (3, [Condition(frozenset({3}), among=False)], 3),
        (3, [newest(3), ABSENT], 3),
    ],
)
async def test_a_stale_writer_is_refused_and_leaves_no_trace(
    ledger: Ledger, saved: int, conditions: list[Condition], there: int
) -> None:
    await save(ledger, *(b"old" for _ in range(saved)))
    with pytest.raises(StaleCheckpoint) as refused:
        await ledger.save_checkpoint(RUN, b"new", conditions=conditions)
    assert isinstance(refused.value, Conflict)
    assert refused.value.newest == there
    assert [one.version for one in await ledger.checkpoints(RUN)] == list(range(saved, 0, -1))
    assert b"new" not in [await content(ledger, n) for n in range(5)]
    assert (ledger.run(RUN) is None) is (saved == 0), "a refused first one begins no run"


@pytest.mark.parametrize(
    ("saved", "conditions"),
    [
        (0, []),
        (0, [ABSENT]),
        (3, []),
        (3, [newest(3)]),
        (3, [newest(1, 3)]),
        (3, [ANY]),
        (3, [Condition(frozenset({2}), among=False)]),
        (3, [newest(3), ANY]),
    ],
)
async def test_a_writer_whose_conditions_hold_is_taken(
    ledger: Ledger, saved: int, conditions: list[Condition]
) -> None:
    await save(ledger, *(b"old" for _ in range(saved)))
    made = await ledger.save_checkpoint(RUN, b"new", conditions=conditions)
    assert made.version == saved + 1
    assert await content(ledger) == b"new"


async def test_of_writers_that_saw_the_same_version_one_wins_in_every_round(
    ledger: Ledger,
) -> None:
    rounds, writers = 500, random.Random(4)
    version, refused = 0, 0
    for number in range(rounds):
        seen = newest(version) if version else ABSENT
        contents = [b"%d by %d" % (number, who) for who in range(writers.choice([2, 2, 3, 5]))]
        ends = await asyncio.gather(
            *(ledger.save_checkpoint(RUN, one, conditions=[seen]) for one in contents),
            return_exceptions=True,
        )
        won = [end for end in ends if not isinstance(end, BaseException)]
        assert len(won) == 1
        assert all(isinstance(end, StaleCheckpoint) for end in ends if end not in won)
        version, refused = version + 1, refused + len(ends) - 1
        assert won[0].version == version
        assert await content(ledger) == contents[ends.index(won[0])]
    assert await ledger.verify() == []
    figure("R22", "writers at once that saw the same version", rounds=rounds, refused=refused)


async def test_the_control_a_condition_that_is_looked_at_before_the_queue_lets_two_win(
    sqlite: SqliteLedger,
) -> None:
    """As a service would do it that asks first and then saves."""
    seen = await asyncio.gather(sqlite.checkpoint(RUN), sqlite.checkpoint(RUN))
    assert seen == [None, None]
    ends = await asyncio.gather(*(sqlite.save_checkpoint(RUN, b"x") for _ in seen))
    assert sorted(end.version for end in ends) == [1, 2]
    control("R22", "the condition looked at before the transaction", "both writers won")


async def test_the_newest_few_are_kept_and_versions_go_on(ledger: Ledger) -> None:
    for number in range(1, 8):
        await ledger.save_checkpoint(RUN, b"%d" % number, keep=3)
    await ledger.save_checkpoint("other", b"x", keep=3)
    assert [one.version for one in await ledger.checkpoints(RUN)] == [7, 6, 5]
    assert await content(ledger, 4) is None
    made = await ledger.save_checkpoint(RUN, b"8", keep=1)
    assert made.version == 8
    assert [one.version for one in await ledger.checkpoints(RUN)] == [8]
    assert [one.version for one in await ledger.checkpoints("other")] == [1]
    assert await ledger.verify() == []


async def test_contents_go_after_their_time_and_versions_are_never_given_twice(
    ledger: Ledger,
) -> None:
    await save(ledger, b"one", b"two")
    ledger._clock.advance(50 * DAY)  # type: ignore[attr-defined]
    await save(ledger, b"three")
    assert await ledger.prune_checkpoints(NOW, 10) == 0, "nothing is that old"
    assert await ledger.prune_checkpoints(NOW + DAY, 1) == 1
    assert await ledger.prune_checkpoints(NOW + DAY, 10) == 1
    assert await ledger.prune_checkpoints(NOW + DAY, 10) == 0
    assert [(one.version, one.kept) for one in await ledger.checkpoints(RUN)] == [
        (3, True),
        (2, False),
        (1, False),
    ]
    assert await content(ledger) == b"three"
    assert await ledger.prune_checkpoints(NOW + 100 * DAY, 10) == 1
    found = await ledger.checkpoint(RUN)
    assert found is not None
    assert (found.version, found.kept, found.content) == (3, False, None)
    with pytest.raises(StaleCheckpoint):
        await ledger.save_checkpoint(RUN, b"stale", conditions=[newest(2)])
    assert await save(ledger, b"four") == [4]
    assert await ledger.verify() == []


async def test_a_run_that_waits_keeps_its_checkpoints_however_long(ledger: Ledger) -> None:
    one = await ledger.commit(first(operation(run="waits")))
    await ledger.commit(change(one, lost()))
    two = await ledger.commit(first(operation(run="done")))
    await ledger.commit(change(two, succeeded(), answer=ANSWER))
    for run in ("waits", "done", "wait", "waits-"):
        await ledger.save_checkpoint(run, b"x")
    assert await ledger.prune_checkpoints(NOW + DAY, 10) == 3
    assert await content(ledger, run="waits") == b"x"


async def test_retention_takes_them_in_slices_and_counts_them(ledger: Ledger) -> None:
    clock: FakeClock = ledger._clock  # type: ignore[attr-defined]
    for number in range(230):
        await ledger.save_checkpoint(f"run-{number}", b"x")
    clock.advance(100 * DAY)
    assert await prune(ledger, Retention(keep_checkpoints=101 * DAY), clock) == Pruned()
    held = Retention(keep_checkpoints=90 * DAY)
    assert await prune(ledger, held, clock) == Pruned(checkpoints=230)


async def test_operations_since_a_checkpoint_are_those_that_something_moved_after_it(
    ledger: Ledger,
) -> None:
    before = await ledger.commit(first(operation("before")))
    before = await ledger.commit(change(before, succeeded(), answer=ANSWER))
    open_ = await ledger.commit(first(operation("open")))
    made = await ledger.save_checkpoint(RUN, b"x")
    ledger._clock.step(-DAY)  # type: ignore[attr-defined]
    ledger.note(before, delivered())  # its answer was on its way when the agent saved
    await ledger.flush()
    await ledger.commit(change(open_, succeeded()))
    await ledger.commit(first(operation("after", at=NOW - DAY)))
    await ledger.commit(first(operation("after", run="case-70")))
    found = await ledger.operations(Query(run=RUN, moved_after=made.after))
    assert {one.step for one in found} == {"open", "after"}
    assert len(await ledger.operations(Query(run=RUN, moved_after=0))) == 3


async def test_a_clock_that_is_set_back_dates_no_version_before_the_one_it_follows(
    ledger: Ledger,
) -> None:
    await save(ledger, b"one")
    ledger._clock.step(-DAY)  # type: ignore[attr-defined]
    await save(ledger, b"two")
    assert [one.created_at for one in await ledger.checkpoints(RUN)] == [NOW, NOW]


async def test_an_older_one_that_is_saved_again_changes_nothing_else(ledger: Ledger) -> None:
    made = await ledger.commit(first(operation()))
    await save(ledger, b"before")
    ended = await ledger.commit(change(made, succeeded(), answer=ANSWER))
    await ledger.amend(RUN, next_epoch(0.0))
    await save(ledger, b"after")
    history, row = await ledger.history(made.key), ledger.run(RUN)
    old = await content(ledger, 1)
    assert old is not None
    assert await save(ledger, old) == [3]
    assert await content(ledger) == b"before"
    assert ledger.get(made.key) == ended
    assert await ledger.answer_of(made.key) == ANSWER
    assert (await ledger.history(made.key), ledger.run(RUN)) == (history, row)


async def test_checkpoints_and_operations_share_batches_without_harm(ledger: Ledger) -> None:
    new = [first(operation(f"s-{number}")) for number in range(20)]
    ends = await asyncio.gather(
        *(ledger.commit(one) for one in new),
        *(ledger.save_checkpoint(RUN, b"%d" % n, conditions=[ABSENT]) for n in range(5)),
        *(ledger.save_checkpoint("other", b"%d" % n) for n in range(5)),
        ledger.amend(RUN, next_epoch(0.0)),
        return_exceptions=True,
    )
    assert sum(isinstance(end, StaleCheckpoint) for end in ends) == 4
    assert sum(isinstance(end, BaseException) for end in ends) == 4
    assert [one.version for one in await ledger.checkpoints("other")] == [5, 4, 3, 2, 1]
    assert len(await ledger.operations(Query(run=RUN))) == 20
    assert await ledger.verify() == []


# Of one in a file


async def test_they_are_there_after_a_restart_and_a_stale_writer_still_loses(path: Path) -> None:
    long = os.urandom(8_000_000)
    async with opened(path) as ledger:
        await save(ledger, b"one", long)
    async with opened(path) as ledger:
        assert await content(ledger) == long
        assert await content(ledger, 1) == b"one"
        with pytest.raises(StaleCheckpoint) as refused:
            await ledger.save_checkpoint(RUN, b"late", conditions=[newest(1)])
        assert refused.value.newest == 2
        assert await save(ledger, b"three") == [3]
        assert await ledger.verify() == []


async def test_no_content_is_in_the_clear(path: Path) -> None:
    secret = b"canary-5d1c"
    async with opened(path) as ledger:
        await save(ledger, secret * 100, secret * 100)
        everything = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert b"case-7" in everything
    assert secret not in everything


@pytest.mark.parametrize(
    "damage",
    [
        "step = 'other'",
        "created_at = 1",
        "size = 1",
        "after = 7",
        "generation = 'x'",
        "previous = x'00'",
        "hash = x'00'",
        "step = cast(x'ff' AS TEXT)",
        "version = 9",
        "run = 'case-8'",
        "sealed = x'00'",
        "sealed = 'text'",
        "sealed = (SELECT sealed FROM checkpoints WHERE version = 1)",
    ],
)
async def test_damage_is_told_and_never_taken_for_absence(path: Path, damage: str) -> None:
    async with opened(path) as ledger:
        await save(ledger, b"one", b"two")
        assert await ledger.verify() == []
    by_hand(path, f"UPDATE checkpoints SET {damage} WHERE version = 2")
    run = "case-8" if damage.startswith("run") else RUN
    async with opened(path) as ledger:
        assert await ledger.verify() != []
        assert await content(ledger, 1) == b"one"
        with pytest.raises(Damaged):
            await ledger.checkpoint(run)
        made = await ledger.commit(first(operation()))
        if damage.startswith("sealed"):  # what follows needs the row, not what is in it
            assert await save(ledger, b"three") == [3]
        else:
            ends = await asyncio.gather(
                ledger.save_checkpoint(run, b"three"),
                ledger.save_checkpoint("another", b"one"),
                ledger.commit(change(made, succeeded())),
                return_exceptions=True,
            )
            assert isinstance(ends[0], Damaged)
            assert not any(isinstance(end, BaseException) for end in ends[1:])


@pytest.mark.parametrize(("column", "value"), [("version", 5), ("step", "other"), ("after", 7)])
async def test_a_row_with_a_new_hash_does_not_open_its_content(
    path: Path, column: str, value: object
) -> None:
    """Whoever can write the file, but has no key."""
    async with opened(path) as ledger:
        await save(ledger, b"one")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        names = checkpoints.COLUMNS
        row = list(db.execute(f"SELECT {', '.join(names)} FROM checkpoints").fetchone())
        row[names.index(column)] = value
        digest = checkpoints.row_hash(tuple(row[:-1]))
        db.execute(f"UPDATE checkpoints SET {column} = ?, hash = ?", (value, digest))
    async with opened(path) as ledger:
        assert [one.size for one in await ledger.checkpoints(RUN)] == [3]
        with pytest.raises(Damaged, match="cannot be opened"):
            await ledger.checkpoint(RUN)


async def test_a_missing_version_in_between_shows(path: Path) -> None:
    async with opened(path) as ledger:
        await save(ledger, b"one", b"two", b"three")
    by_hand(path, "DELETE FROM checkpoints WHERE version = 2")
    async with opened(path) as ledger:
        assert await ledger.verify() == ["checkpoint 3 of case-7 does not follow the one before it"]
        assert await ledger.verify("other") == []


async def test_a_copy_that_is_put_back_gives_no_version_twice(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "copy.db"
    async with opened(path) as ledger:
        await save(ledger, b"one", b"two")
        copy(path, file, NOW)
        await save(ledger, b"three, which will be lost")
    restore(file, path, KEY, NOW)
    async with opened(path) as ledger:
        assert await content(ledger) == b"two"
        with pytest.raises(StaleCheckpoint):
            await ledger.save_checkpoint(RUN, b"x", conditions=[newest(3)])
        assert await save(ledger, b"again", b"and on") == [LEAP + 3, LEAP + 4]
        with pytest.raises(StaleCheckpoint):
            await ledger.save_checkpoint(RUN, b"x", conditions=[newest(3)])
        assert await save(ledger, b"x", run="may have begun in the lost one") == [LEAP + 1]
        await ledger.close_gap()
        assert await save(ledger, b"x", run="new") == [1]
        assert await ledger.verify() == []


async def test_another_key_seals_them_anew(path: Path) -> None:
    other = b"k" * 32
    async with opened(path) as ledger:
        await save(ledger, b"one", b"two")
    async with opened(path, key=(other, KEY)) as ledger:
        await save(ledger, b"three")
        last: int | None = 0
        while last is not None:
            last = await ledger.reseal(last, 10)
    async with opened(path, key=other) as ledger:
        assert [await content(ledger, n) for n in (1, 2, 3)] == [b"one", b"two", b"three"]
        assert await ledger.verify() == []


async def test_a_closed_ledger_saves_and_shows_nothing(path: Path) -> None:
    async with opened(path) as ledger:
        pass
    for ask in (
        ledger.save_checkpoint(RUN, b"x"),
        ledger.checkpoint(RUN),
        ledger.checkpoints(RUN),
        ledger.prune_checkpoints(NOW, 1),
    ):
        with pytest.raises(LedgerError, match=r"not open|closed"):
            await ask


async def test_a_newest_version_that_is_taken_away_is_missed(path: Path) -> None:
    async with opened(path) as ledger:
        for _ in range(2):
            await ledger.save_checkpoint(RUN, b'{"state": 1}')
        assert await ledger.verify() == []
        kinds = [str(stored.event.kind) for stored in await ledger.events(0)]
        assert kinds == ["CheckpointSaved"] * 2
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM checkpoints WHERE version = 2")
        db.commit()
    async with opened(path) as ledger:
        assert await ledger.verify() == [f"the history knows checkpoint 2 of {RUN}, but it is gone"]
