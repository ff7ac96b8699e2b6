"""R2: the proxy is killed when any task of its loop is about to go on, at every such point of every
kind of call, and started again; for APIs without a key it is killed once more at the points of its
recovery. Outside nothing may have happened twice, and every caller gets a true end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from tests.faults.lives import KINDS, Gone, Life, World, Zeros, Zygote
from tests.reliability import control, figure

POINTS_MAX = 400  # of one call: some fourteen, and more where it waits
SEED = 7

Scenario = Callable[[World, Life, str, str, int], Awaitable[None]]


async def first(world: World, life: Life, kind: str, reference: str, kill_at: int) -> None:
    await life.arm(kill_at)
    await world.call(life, kind, reference)


async def duplicate(world: World, life: Life, kind: str, reference: str, kill_at: int) -> None:
    await world.call(life, kind, reference)
    await life.arm(kill_at)
    await world.call(life, kind, reference)


async def coalesced(world: World, life: Life, kind: str, reference: str, kill_at: int) -> None:
    gate = world.api(kind).troubles.gate(reference, "received")
    leader = asyncio.create_task(world.call(life, kind, reference))
    await gate.reached.wait()
    await life.arm(kill_at)
    twin = asyncio.create_task(world.call(life, kind, reference))
    await life.count()
    gate.opened.set()
    ends = await asyncio.gather(leader, twin, return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end


async def reconcile(world: World, life: Life, kind: str, reference: str, kill_at: int) -> None:
    """The answer of the first send is lost, so that the API is asked, or gets it again."""
    world.api(kind).troubles.fault(reference, "drop_after")
    await life.arm(kill_at)
    await world.call(life, kind, reference)


async def absent(world: World, life: Life, kind: str, reference: str, kill_at: int) -> None:
    """The first send is lost without an effect."""
    world.api(kind).troubles.fault(reference, "drop_before")
    await life.arm(kill_at)
    await world.call(life, kind, reference)


async def every_point(
    zygote: Zygote, world: World, scenario: Scenario, kind: str, zeros: Zeros, *plants: str
) -> int:
    """Kills at one point after the other until a pass has none left; how many there were."""
    life = await zygote.life(world.config, plants=plants)
    for kill_at in range(1, POINTS_MAX):
        reference = f"{scenario.__name__}-{kind}-{kill_at}"
        try:
            await scenario(world, life, kind, reference, kill_at)
            await life.count()
            if life.steps < kill_at:
                await life.kill()
                return kill_at - 1
        except Gone:
            pass
        await life.kill()
        life = await zygote.life(world.config, plants=plants)
        await _ends(world, life, kind, reference, zeros, f"{scenario.__name__} at {kill_at}")
    raise AssertionError(f"more than {POINTS_MAX} points")


async def _ends(
    world: World, life: Life, kind: str, reference: str, zeros: Zeros, where: str
) -> None:
    got = await world.final(life, kind, reference)
    world.judge(zeros, kind, reference, got, where)
    if got is None or got.status != 201:
        return
    again = await world.final(life, kind, reference)
    world.judge(zeros, kind, reference, again, f"{where}, again")
    if again is None or again.body != got.body or again.all("onceproxy-outcome") != ["replayed"]:
        zeros.count("wrong_status", f"{where}, {kind}: another answer to the duplicate")


async def pair(
    zygote: Zygote, world: World, kind: str, points: tuple[int, int], zeros: Zeros
) -> tuple[bool, bool]:
    """Dies in the first call, then in what follows it, its start included. Whether it did."""
    reference = f"pair-{kind}-{points[0]}-{points[1]}"
    died = [False, False]
    life = await zygote.life(world.config)
    try:
        await first(world, life, kind, reference, points[0])
    except Gone:
        died[0] = True
    await life.kill()
    life = await zygote.life(world.config, kill_at=points[1])
    if life.alive:
        try:
            await _ends(world, life, kind, reference, Zeros(), "")
        except Gone:
            pass
    died[1] = life.ends.done()
    await life.kill()
    life = await zygote.life(world.config)
    await _ends(world, life, kind, reference, zeros, f"pair {points}")
    await life.kill()
    return died[0], died[1]


@pytest.mark.parametrize("kind", ["keyed", "plain"])
async def test_r2_killed_at_every_point_of_a_first_call_it_is_made_once(
    zygote: Zygote, world: World, kind: str
) -> None:
    zeros = Zeros()
    points = await every_point(zygote, world, first, kind, zeros)
    assert zeros.wrong == []
    assert points >= 8
    figure("R2", "first call, killed at every suspension point", points=points, **zeros.figures())


async def test_r2_killed_again_while_it_recovers_it_is_made_once(
    zygote: Zygote, world: World
) -> None:
    zeros, choice = Zeros(), random.Random(SEED)
    for _ in range(3):
        kind = choice.choice(["plain", "queried"])
        await pair(zygote, world, kind, (choice.randint(3, 14), choice.randint(1, 40)), zeros)
    assert zeros.wrong == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", [first, duplicate, coalesced, reconcile, absent])
async def test_r2_killed_at_every_point_of_every_kind_of_call(
    zygote: Zygote, world: World, scenario: Scenario, kind: str
) -> None:
    zeros = Zeros()
    points = await every_point(zygote, world, scenario, kind, zeros)
    assert zeros.wrong == []
    what = f"{scenario.__name__.replace('_', ' ')} call, killed at every suspension point"
    figure("R2", what, points=points, **zeros.figures())


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "some"), [("plain", 1.0), ("queried", 0.25), ("slow", 0.15)])
async def test_r2_killed_again_at_the_points_of_recovery(
    zygote: Zygote, world: World, kind: str, some: float
) -> None:
    zeros, choice, pairs = Zeros(), random.Random(SEED), 0
    for point in range(1, 20):
        for other in range(1, 200):
            if choice.random() > some:
                continue
            died = await pair(zygote, world, kind, (point, other), zeros)
            pairs += 1
            if not died[1]:
                break
        if not died[0]:
            break
    assert zeros.wrong == []
    figure("R2", f"two kills, {kind} API: in the call, then in its recovery", pairs=pairs)


async def test_r2_control_a_blind_resend_is_seen(zygote: Zygote, world: World) -> None:
    zeros = Zeros()
    points = await every_point(zygote, world, first, "plain", zeros, "resend_whatever")
    assert zeros.duplicates > 0
    control("R2", "an unknown call re-sent blindly", f"{zeros.duplicates} of {points} duplicate")
