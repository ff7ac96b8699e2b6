"""R15: the wall clock jumps while the proxy runs and between its runs. R18: a key has outlived what
its API honours. The monotonic clock goes on as it is, as on a real machine.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from tests.faults import shim
from tests.faults.lives import Life, World, Zygote, nursery
from tests.reliability import control, figure

pytestmark = pytest.mark.skipif(shim.build() is None, reason="needs a C compiler (gcc or cc)")

DAY = 86_400.0
JUMPS = {"a day back": -DAY, "a day on": DAY + 60, "ten years on": 3650 * DAY}
ONE_QUICK = ["a day back", *(pytest.param(j, marks=pytest.mark.slow) for j in list(JUMPS)[1:])]


@pytest.fixture
async def zygote(tmp_path: Path) -> AsyncIterator[Zygote]:
    async with nursery(tmp_path, "nothing is watched") as made:
        yield made


async def left_open(zygote: Zygote, world: World, *kinds: str) -> None:
    """The proxy dies when the API has made the effect of each."""
    life = await zygote.life(world.config, steps=False)
    gates = [world.api(kind).troubles.gate(f"open-{kind}", "effect") for kind in kinds]
    calls = {asyncio.create_task(world.call(life, kind, f"open-{kind}")) for kind in kinds}
    for gate in gates:
        await gate.reached.wait()
    await life.kill()
    await asyncio.wait(calls)
    for gate in gates:
        gate.opened.set()


def times_go_on(life: Life) -> bool:
    """Whether no event of an operation is before the one before it."""
    with closing(sqlite3.connect(life.state_dir / "ledger.db")) as db:
        rows = db.execute("SELECT key, at FROM events ORDER BY key, seq").fetchall()
    return all(a[1] <= b[1] for a, b in pairwise(rows) if a[0] == b[0])


@pytest.mark.parametrize("jump", ONE_QUICK)
async def test_r15_a_jump_while_it_runs_ends_no_call_and_repeats_none(
    zygote: Zygote, world: World, jump: str
) -> None:
    life = await zygote.life(world.config, steps=False)
    done = await world.call(life, "plain", "done")
    gate = world.api("plain").troubles.gate("open", "effect")
    open_ = asyncio.create_task(world.call(life, "plain", "open"))
    await gate.reached.wait()
    await life.step_clock(JUMPS[jump])
    gate.opened.set()
    assert (await open_).status == 201
    again = await world.call(life, "plain", "done")
    assert (again.status, again.body) == (201, done.body)
    for kind in ("keyed", "queried"):
        world.api(kind).troubles.fault(f"later-{kind}", "drop_after")
        got = await world.final(life, kind, f"later-{kind}")
        assert got is not None
        assert (got.status, world.effects(kind, f"later-{kind}")) == (201, 1)
    assert world.effects("plain", "open") == world.effects("plain", "done") == 1
    assert times_go_on(life)
    await life.kill()
    figure("R15", "the wall clock jumps while calls are open", jumps=1, duplicates=0, negative=0)


@pytest.mark.parametrize("jump", ONE_QUICK)
async def test_r15_a_jump_between_two_lives_permits_no_second_send(
    zygote: Zygote, world: World, jump: str
) -> None:
    await left_open(zygote, world, "keyed", "queried", "plain")
    life = await zygote.life(world.config, clock=JUMPS[jump], steps=False)
    for kind, status in (("keyed", 424), ("queried", 201), ("plain", 424)):
        got = await world.final(life, kind, f"open-{kind}")
        assert got is not None
        assert (got.status, world.api(kind).requests[f"open-{kind}"]) == (status, 1)
        assert world.effects(kind, f"open-{kind}") == 1
    assert times_go_on(life)
    await life.kill()
    figure("R15", "the wall clock jumps between two lives", jumps=1, duplicates=0, negative=0)


async def test_r18_a_key_that_has_lapsed_is_not_sent_again(zygote: Zygote, world: World) -> None:
    await left_open(zygote, world, "keyed", "queried")
    life = await zygote.life(world.config, clock=2 * DAY, steps=False)
    asked = await world.final(life, "queried", "open-queried")
    person = await world.final(life, "keyed", "open-keyed")
    assert asked is not None
    assert person is not None
    assert (asked.status, person.status) == (201, 424)
    assert world.api("keyed").requests["open-keyed"] == world.effects("keyed", "open-keyed") == 1
    assert world.effects("queried", "open-queried") == 1
    await life.kill()
    figure("R18", "an unknown operation past its key's lifetime", sent_again=0, asked=1, person=1)


async def test_r18_control_a_lifetime_that_is_ignored_is_seen(zygote: Zygote, world: World) -> None:
    await left_open(zygote, world, "keyed")
    world.api("keyed").window = -1.0  # it has forgotten the key
    life = await zygote.life(world.config, clock=2 * DAY, plants=["key_for_ever"], steps=False)
    await world.final(life, "keyed", "open-keyed")
    assert world.effects("keyed", "open-keyed") == 2
    control("R18", "the key's lifetime ignored", "2 effects")
    await life.kill()
