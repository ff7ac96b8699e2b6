"""R17: what grows with the number of calls. Memory must not, nor the WAL; the file may, as
retention says.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.fakes.rawclient import RawClient
from tests.fakes.rawserver import Connection, RawServer, Received
from tests.fakes.whole import post
from tests.faults.lives import RULES, Life, World, Zygote
from tests.reliability import figure

MADE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
CLIENTS = 16
RSS_MORE = 20_000_000  # bytes
WAL_MOST = 64_000_000  # bytes


def rss(life: Life) -> int:
    """Bytes of memory that the process holds."""
    status = Path(f"/proc/{life.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


async def work(life: Life, url: str, first: int, number: int) -> None:
    """So many operations, each with a duplicate now and then."""
    numbers = iter(range(first, first + number))

    async def client() -> None:
        async with RawClient(life.port) as connection:
            for n in numbers:
                call = post(f"{url}/refunds", {"n": n}, f"run-{n // 50}", f"step-{n}")
                for _ in range(2 if n % 10 == 0 else 1):
                    got = await connection.ask(call)
                    assert got.status == 200, got.body

    await asyncio.gather(*(client() for _ in range(CLIENTS)))


async def grow(zygote: Zygote, world: World, warm: int, number: int) -> tuple[int, int, int]:
    """Growth of memory after ``warm`` operations, the WAL's and the file's size."""
    async with RawServer(_made) as service:
        host = f"127.0.0.1:{service.port}"
        rules = RULES.format(service="raw", host=host, running=0, settle=0)
        (world.folder / "rules" / "raw.yaml").write_text(rules)
        life = await zygote.life(world.config, steps=False)
        url = f"http://{host}"
        await work(life, url, 0, warm)
        before = rss(life)
        await work(life, url, warm, number)
        after = rss(life)
    wal, file = (life.state_dir / f"ledger.db{end}" for end in ("-wal", ""))
    sizes = wal.stat().st_size, file.stat().st_size
    await life.kill()
    return after - before, *sizes


async def _made(received: Received, connection: Connection) -> None:
    await connection.send(MADE)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_r17_two_hundred_thousand_operations_hold_no_more_memory(
    zygote: Zygote, world: World
) -> None:
    number = 200_000
    more, wal, file = await grow(zygote, world, 20_000, number)
    assert more < RSS_MORE
    assert wal < WAL_MOST
    figure(
        "R17",
        "memory and WAL over many operations",
        operations=number,
        MB_more_memory=more / 1e6,
        MB_of_WAL=wal / 1e6,
        bytes_of_ledger_per_operation=file // number,
    )


async def test_r17_a_slice(zygote: Zygote, world: World) -> None:
    more, wal, _ = await grow(zygote, world, 200, 300)
    assert more < RSS_MORE
    assert wal < WAL_MOST
