"""R7 and R8: every write of the ledger fails once, one after the other, with each error a disk has;
and a disk that is full for a while.

Before the send that means: nothing is sent, and the caller is told so. After it: the caller gets
the true answer, and the operation is unknown until the ledger can be written again.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.rawclient import Got, RawClient
from tests.faults import shim
from tests.faults.lives import Life, World, Zeros, Zygote, nursery
from tests.reliability import control, figure

pytestmark = pytest.mark.skipif(shim.build() is None, reason="needs a C compiler (gcc or cc)")

WATCHED = "state/ledger.db"
WRITES_MAX = 100  # of one call: about fifteen
FAULTS = {
    "no space": {"action": "fail", "error": "ENOSPC"},
    "i/o error": {"action": "fail", "error": "EIO"},
    "short write": {"action": "short", "error": "ENOSPC"},
}


@pytest.fixture
async def zygote(tmp_path: Path) -> AsyncIterator[Zygote]:
    async with nursery(tmp_path, WATCHED) as made:
        yield made


async def ready(life: Life) -> bool:
    async with RawClient(life.control) as client:
        got = await client.ask("GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    return got.status == 200


async def gets_ready(life: Life) -> bool:
    """It tries by itself, once a second."""
    try:
        async with asyncio.timeout(10):
            while not await ready(life):
                await asyncio.sleep(0.05)
    except TimeoutError:
        return False
    return True


def judge(world: World, zeros: Zeros, kind: str, reference: str, got: Got, where: str) -> None:
    """The call that met the fault: refused and not sent, or its true answer."""
    sent = world.api(kind).requests[reference]
    what = f"{where}: {got.status}, {sent} sent"
    if got.status == 503:
        code = json.loads(got.body)["type"]
        if sent or code != "urn:onceproxy:ledger-unavailable":
            zeros.count("wrong_status", f"{what}, {code}")
    elif got.status != 201 or sent != 1:
        zeros.count("wrong_status", what)


async def every_write(
    zygote: Zygote, world: World, fault: str, kind: str, zeros: Zeros, *, restart: bool
) -> int:
    """Each write of a call fails, and all after it, until there is none left to fail; how many.
    Then the disk is well again, with or without a restart."""
    life = await zygote.life(world.config, steps=False)
    for at in range(1, WRITES_MAX):
        reference = f"{fault}-{kind}-{at}-{restart}"
        await world.call(life, kind, f"warm-{reference}")
        await life.fail(at=at, **FAULTS[fault])
        got = await world.call(life, kind, reference)
        judge(world, zeros, kind, reference, got, f"{fault} at {at}")
        await life.count()
        met = life.writes >= at
        if met and got.status == 503 and await ready(life):
            zeros.count("wrong_status", f"{fault} at {at}: ready although it cannot write")
        if restart:
            await life.kill()
            life = await zygote.life(world.config, steps=False)
        else:
            await life.fail(at=0)
        again = await world.final(life, kind, reference)
        world.judge(zeros, kind, reference, again, f"{fault} at {at}, and after it")
        if not await gets_ready(life):
            zeros.count("stuck", f"{fault} at {at}: not ready although it can write")
        if not met:
            await life.kill()
            return at - 1
    raise AssertionError(f"more than {WRITES_MAX} writes")


@pytest.mark.parametrize(("fault", "kind", "restart"), [("no space", "plain", False)])
async def test_r7_a_write_that_fails_sends_nothing_or_tells_the_truth(
    zygote: Zygote, world: World, fault: str, kind: str, restart: bool
) -> None:
    await _r7(zygote, world, fault, kind, restart)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["keyed", "queried", "plain"])
@pytest.mark.parametrize("restart", [False, True], ids=["goes on", "restarted"])
async def test_r7_every_write_with_every_error(
    zygote: Zygote, world: World, fault: str, kind: str, restart: bool
) -> None:
    await _r7(zygote, world, fault, kind, restart)


async def _r7(zygote: Zygote, world: World, fault: str, kind: str, restart: bool) -> None:
    zeros = Zeros()
    writes = await every_write(zygote, world, fault, kind, zeros, restart=restart)
    assert zeros.wrong == []
    assert writes >= 6
    what = "every write of the ledger fails: no space, I/O error, short write"
    figure("R7", what, writes=writes, **zeros.figures())


async def test_r7_control_a_swallowed_error_is_seen(zygote: Zygote, world: World) -> None:
    life = await zygote.life(world.config, steps=False, plants=["swallowed_error"])
    await life.fail(at=1, **FAULTS["no space"])
    zeros = Zeros()
    got = await world.call(life, "plain", "swallowed")
    judge(world, zeros, "plain", "swallowed", got, "swallowed")
    await life.kill()
    life = await zygote.life(world.config, steps=False)
    again = await world.final(life, "plain", "swallowed")
    world.judge(zeros, "plain", "swallowed", again, "and after it")
    assert zeros.duplicates == 1
    control("R7", "an intent's failed write swallowed", "sent without an intent, 2 effects")
    await life.kill()


async def test_r8_a_full_disk_stops_sends_only_and_is_forgotten_once_there_is_space(
    zygote: Zygote, world: World
) -> None:
    life = await zygote.life(world.config, steps=False)
    choice = random.Random(1)
    before = {}
    for number in range(10):
        kind = choice.choice(["keyed", "queried", "plain"])
        before[kind, f"before-{number}"] = await world.call(life, kind, f"before-{number}")
    await life.fail(at=1, **FAULTS["no space"])
    refused = [await world.call(life, "keyed", f"full-{number}") for number in range(10)]
    assert {got.status for got in refused} == {503}
    assert not any(world.api("keyed").requests[f"full-{number}"] for number in range(10))
    for (kind, reference), got in before.items():
        again = await world.call(life, kind, reference)
        assert (again.status, again.body) == (201, got.body)
        assert again.all("onceproxy-outcome") == ["replayed"]
    assert not await ready(life)
    await life.fail(at=0)
    got = [await world.call(life, "keyed", f"full-{number}") for number in range(10)]
    assert {one.status for one in got} == {201}
    assert all(world.effects("keyed", f"full-{number}") == 1 for number in range(10))
    assert await gets_ready(life)
    await life.kill()
    figure(
        "R8",
        "disk full, then space again, without a restart",
        refused_unsent=len(refused),
        replayed_meanwhile=len(before),
        sent_afterwards=len(got),
    )
