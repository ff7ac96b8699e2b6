"""R9 and R11: what cannot work is refused at the start, in one line that says what and why. R23: a
proxy that is told to stop under load ends what it has begun.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from proxy.ledger import lock
from tests.faults.lives import Gone, Life, World, Zygote, nursery
from tests.faults.lives import world as made_world
from tests.reliability import figure

AT_ONCE = 1.0  # seconds of a processor, with everything imported
NOBODY = 65_534
REFUSED = "a directory that is missing, read-only, or another user's"


async def refused(zygote: Zygote, config: Path, user: int | None = None) -> str:
    """The words of a proxy that does not start."""
    life = await zygote.life(config, user=user, starts=False)
    await life.ends
    assert not life.begun.done(), "it started"
    assert life.failed_after < AT_ONCE
    return life.failed


@asynccontextmanager
async def open_to_all() -> AsyncIterator[tuple[Zygote, World]]:
    """A world that every user of this machine may look at."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with nursery(folder) as zygote, made_world(folder) as world:
            for path in (folder, *folder.rglob("*")):
                path.chmod(0o777)
            yield zygote, world


async def test_r9_a_directory_that_is_not_there_is_named(zygote: Zygote, world: World) -> None:
    config = yaml.safe_load(world.config.read_text())
    config["ledger"] = {"url": f"sqlite:{world.folder}/nowhere/ledger.db"}
    world.config.write_text(yaml.safe_dump(config))
    words = await refused(zygote, world.config)
    assert words.startswith("LedgerError: ")
    assert f"{world.folder}/nowhere" in words
    figure("R9", REFUSED, refused=1)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
@pytest.mark.parametrize("case", ["read-only", "another user's ledger"])
async def test_r9_what_cannot_be_written_is_named(case: str) -> None:
    async with open_to_all() as (zygote, world):
        life = await zygote.life(world.config)
        await life.stop()
        state = world.folder / "state"
        for path in (state, *state.iterdir()):
            os.chown(path, NOBODY, NOBODY)
        if case == "read-only":
            state.chmod(0o555)
            (state / "ledger.db").unlink()
        else:
            os.chown(state / "ledger.db", 0, 0)
        words = await refused(zygote, world.config, NOBODY)
    assert str(state) in words
    assert "denied" in words or "give it to the user" in words
    figure("R9", REFUSED, refused=1)


async def test_r11_a_second_process_is_refused_and_told_the_first(
    zygote: Zygote, world: World
) -> None:
    first = await zygote.life(world.config)
    words = await refused(zygote, world.config)
    assert words.startswith("Locked: ")
    assert f"process {first.pid} " in words
    assert (await world.call(first, "plain", "goes-on")).status == 201
    await first.kill()
    figure("R11", "a second process on one ledger, refused within a second", refused=1)


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "smb3", "9p", "fuse.sshfs"])
def test_r11_a_network_file_system_is_told_by_its_type(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "21 1 254:0 / / rw - ext4 /dev/vda rw\n"
        f"36 21 0:40 / {tmp_path} rw shared:1 - {kind} server:/export rw\n"
    )
    monkeypatch.setattr(lock, "MOUNTS", mounts)
    assert lock.network_file_system(tmp_path / "ledger.db") == kind
    assert lock.network_file_system(Path("/elsewhere/ledger.db")) is None
    figure("R11", "network file systems that are told by their type and warned of", types=1)


async def test_r23_told_to_stop_under_load_it_ends_what_it_has_begun(
    zygote: Zygote, world: World
) -> None:
    for api in world.apis.values():
        api.latency = 0.05
    life = await zygote.life(world.config, steps=False)
    told: dict[str, int] = {}
    callers = [asyncio.create_task(_calls(world, life, n, told)) for n in range(8)]
    while len(world.api("plain").requests) < 20:
        await asyncio.sleep(0.01)
    await life.stop()
    assert life.stopped, "by itself"
    await asyncio.gather(*callers)
    sent = list(world.api("plain").requests)
    after = await zygote.life(world.config, steps=False)
    for reference in sent:
        got = await world.call(after, "plain", reference)
        assert (got.status, got.all("onceproxy-outcome")) == (201, ["replayed"])
    assert set(world.api("plain").requests.values()) == {1}
    assert {reference for reference, status in told.items() if status == 201} <= set(sent)
    await after.kill()
    figure("R23", "SIGTERM under load", calls=len(sent), unrecorded=0, duplicates=0)


async def _calls(world: World, life: Life, number: int, told: dict[str, int]) -> None:
    try:
        for turn in range(1000):
            reference = f"case-{number}-{turn}"
            told[reference] = (await world.call(life, "plain", reference)).status
    except Gone:
        pass
