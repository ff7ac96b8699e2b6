"""R22: a checkpoint is the old one or the new one, whole, wherever the proxy dies while it is saved
and whichever write fails. What was answered with 200 is there.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from proxy.ledger import audit
from proxy.ledger.seal import load_keys
from tests.fakes.rawclient import Got, RawClient
from tests.faults import shim
from tests.faults.lives import Gone, Life, World, Zeros, Zygote, nursery
from tests.reliability import control, figure

pytestmark = pytest.mark.skipif(shim.build() is None, reason="needs a C compiler (gcc or cc)")

PATH = "/v1/runs/case-1/checkpoint"
POINTS_MAX = 400
SIZE = 10_000  # bytes: some pages of the file, each written by itself

Arm = Callable[[Life, int], Awaitable[None]]


@pytest.fixture
async def zygote(tmp_path: Path) -> AsyncIterator[Zygote]:
    async with nursery(tmp_path, "state/ledger.db") as made:
        yield made


async def at_step(life: Life, number: int) -> None:
    await life.arm(number)


async def at_write(life: Life, number: int) -> None:
    await life.fail(at=number, action="kill")


def content(number: int) -> str:
    return random.Random(number).randbytes(SIZE // 2).hex()


async def ask(life: Life, method: str, body: bytes = b"", *fields: str) -> Got:
    """Raises Gone."""
    token = json.loads((life.state_dir / "tokens.json").read_text())["agent"]
    lines = [
        f"{method} {PATH} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {token}",
        f"Content-Length: {len(body)}",
        *fields,
    ]
    try:
        async with RawClient(life.control) as client:
            return await client.ask("\r\n".join([*lines, "", ""]).encode() + body)
    except (OSError, asyncio.IncompleteReadError) as error:
        raise Gone from error


@dataclass
class Saved:
    """What is known to be there: the newest version that was found, whole."""

    version: int = 0
    number: int = 0  # of its content

    async def put(self, life: Life, number: int) -> Got:
        """Raises Gone."""
        body = json.dumps({"step": f"s{number}", "state": content(number)}).encode()
        seen = f'If-Match: "{self.version}"' if self.version else "If-None-Match: *"
        return await ask(life, "PUT", body, seen)

    async def look(self, life: Life, tried: int, zeros: Zeros, where: str, *, told: bool) -> None:
        """After version + 1 was tried; ``told``: it was answered with 200."""
        got = await ask(life, "GET")
        found = json.loads(got.body)
        there = (found.get("version", 0), found.get("step"), found.get("state"))
        old = (self.version, f"s{self.number}", content(self.number))
        new = (self.version + 1, f"s{tried}", content(tried))
        if there == new:
            self.version, self.number = self.version + 1, tried
        elif told:
            zeros.count("lost", f"{where}: answered, and not there")
        elif there != old and not (self.version == 0 and "No run" in found.get("detail", "")):
            zeros.count("wrong_status", f"{where}: {got.status}, {there[:2]}")
        key = load_keys(life.state_dir / "ledger.key", create=False)
        for fault in audit.verify_file(life.state_dir / "ledger.db", key):
            zeros.count("wrong_status", f"{where}: {fault}")


async def every_point(
    zygote: Zygote, world: World, arm: Arm, zeros: Zeros, *, plant: str = ""
) -> int:
    """Dies at each point of a save, one after the other, until one is answered; how many."""
    plants = [plant] if plant else []
    steps = arm is at_step
    saved, kills = Saved(), 0
    life = await zygote.life(world.config, steps=steps, plants=plants)
    for at in range(1, POINTS_MAX):
        await arm(life, at)
        told = False
        try:
            got = await saved.put(life, at)
            assert got.status == 200, got.body
            told = True
        except Gone:
            kills += 1
        await life.kill()
        life = await zygote.life(world.config, steps=steps, plants=plants)
        await saved.look(life, at, zeros, f"{arm.__name__} {at}", told=told)
        if told or zeros.wrong:
            await life.kill()
            return kills
    raise AssertionError(f"more than {POINTS_MAX} points")


@pytest.mark.parametrize("arm", [at_step, at_write])
async def test_r22_a_kill_at_any_point_leaves_the_old_one_or_the_new_one(
    zygote: Zygote, world: World, arm: Arm
) -> None:
    zeros = Zeros()
    kills = await every_point(zygote, world, arm, zeros)
    assert zeros.wrong == []
    assert kills >= 5
    figure("R22", "SIGKILL at every step and every write of a save", kills=kills, mixed=0, lost=0)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_r22_kills_in_saves_of_all_sizes(
    zygote: Zygote, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    zeros, kills, choice = Zeros(), 0, random.Random(22)
    saved = Saved()
    life = await zygote.life(world.config, steps=False)
    for number in range(1, 301):
        monkeypatch.setattr(
            "tests.faults.test_checkpoints.content",
            lambda n: random.Random(n).randbytes(random.Random(n).choice([9, 9000, 200_000])).hex(),
        )
        await at_write(life, choice.randrange(1, 130))
        told = False
        try:
            got = await saved.put(life, number)
            assert got.status == 200, got.body
            told = True
        except Gone:
            kills += 1
        await life.kill()
        life = await zygote.life(world.config, steps=False)
        await saved.look(life, number, zeros, f"save {number}", told=told)
    await life.kill()
    assert zeros.wrong == []
    assert kills > 100
    figure("R22", "SIGKILL at a random write of a save", kills=kills, mixed=0, lost=0)


async def test_r22_control_a_row_that_is_durable_before_its_content_is_seen(
    zygote: Zygote, world: World
) -> None:
    zeros = Zeros()
    kills = await every_point(zygote, world, at_write, zeros, plant="half_a_checkpoint")
    assert zeros.wrong_status > 0
    control("R22", "row and content in two transactions", f"half of one after {kills} kills")


@pytest.mark.parametrize("error", ["ENOSPC", pytest.param("EIO", marks=pytest.mark.slow)])
async def test_r22_a_write_that_fails_is_told_and_leaves_the_old_one_or_the_new_one(
    zygote: Zygote, world: World, error: str
) -> None:
    zeros, refused, saved = Zeros(), 0, Saved()
    life = await zygote.life(world.config, steps=False)
    for at in range(1, POINTS_MAX):
        await life.fail(at=at, error=error)
        got = await saved.put(life, at)
        await life.fail(at=0)
        assert got.status in (200, 503), got.body
        refused += got.status == 503
        await saved.look(life, at, zeros, f"{error} at {at}", told=got.status == 200)
        if got.status == 200:
            break
    await life.kill()
    assert zeros.wrong == []
    assert refused >= 5
    figure("R22", "every write of a save fails", writes=refused, mixed=0, lost=0)
