"""R4: the windows of a call (nothing written; written, not sent; sent, no answer; answered, not
recorded; recorded, not told), each met by SIGKILL, an exception, a cancellation, and a caller that
leaves. Outside there is one effect, or an honest unknown where nothing can tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.failpoints import POINTS
from tests.faults.lives import KINDS, Gone, Life, World, Zeros, Zygote
from tests.reliability import control, figure

HOW = {"kill": "kill", "exception": "raise", "cancellation": "raise", "caller gone": "delay"}
DELAY = 0.2  # seconds in which the caller leaves


def with_faults(
    world: World, how: str, kinds: Iterable[str]
) -> tuple[Path, list[tuple[str, str, str]]]:
    """A configuration with a fault for one operation of each point and kind; those operations."""
    cases = [(point, kind, f"{point}-{kind}") for point in POINTS for kind in kinds]
    config: dict[str, Any] = yaml.safe_load(world.config.read_text())
    config["faults"] = [
        {point: HOW[how], "match": f"{reference}/*", "seconds": DELAY}
        for point, _, reference in cases
    ]
    file = world.folder / "faults.yaml"
    file.write_text(yaml.safe_dump(config))
    return file, cases


async def meets(world: World, life: Life, how: str, kind: str, reference: str) -> None:
    """The call that meets its fault."""
    calling = asyncio.create_task(world.call(life, kind, reference))
    if how == "caller gone":
        await asyncio.wait({calling}, timeout=DELAY / 2)
        assert not calling.done()
        calling.cancel()
        await asyncio.wait({calling})
        return
    try:
        await calling
    except Gone:
        pass


async def windows(
    zygote: Zygote, world: World, how: str, kinds: Iterable[str], zeros: Zeros, *plants: str
) -> int:
    config, cases = with_faults(world, how, kinds)
    plants = (*plants, "cancelled") if how == "cancellation" else plants
    life = await zygote.life(config, plants=plants, steps=False)
    for point, kind, reference in cases:
        await meets(world, life, how, kind, reference)
        if how == "kill":
            await asyncio.wait_for(asyncio.shield(life.ends), 10)
            life = await zygote.life(world.config, plants=plants, steps=False)
        got = await world.final(life, kind, reference)
        where = f"{how} at {point}"
        world.judge(zeros, kind, reference, got, where)
        honest = kind == "plain" and how != "caller gone" and point not in SURE
        if got is not None and got.status != 201 and not honest:
            zeros.count("wrong_status", f"{where}, {kind}: {got.status} {got.body!r}")
        if how == "kill":
            await life.kill()
            life = await zygote.life(config, plants=plants, steps=False)
    await life.kill()
    return len(cases)


SURE = ("before_intent", "after_outcome")  # nothing is unknown there, whatever the API can tell


@pytest.mark.parametrize("how", ["kill", "caller gone"])
async def test_r4_every_window_met_by_every_end_leaves_one_effect(
    zygote: Zygote, world: World, how: str
) -> None:
    await _r4(zygote, world, how, ["plain"])


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
async def test_r4_every_window_of_every_kind_of_call(
    zygote: Zygote, world: World, how: str
) -> None:
    await _r4(zygote, world, how, KINDS)


async def _r4(zygote: Zygote, world: World, how: str, kinds: Iterable[str]) -> None:
    zeros = Zeros()
    done = await windows(zygote, world, how, kinds, zeros)
    assert zeros.wrong == []
    figure("R4", f"{how} in each window of a call", windows=done, **zeros.figures())


async def test_r4_control_without_recovery_it_is_seen(
    zygote: Zygote, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.faults.lives.GIVE_UP", 1.0)
    monkeypatch.setattr("tests.faults.test_windows.POINTS", ("after_effect",))
    zeros = Zeros()
    done = await windows(zygote, world, "kill", ["keyed", "plain"], zeros, "no_recovery")
    assert len(zeros.wrong) >= done
    control("R4", "nothing mended after a restart", f"{done} of {done} operations without an end")
