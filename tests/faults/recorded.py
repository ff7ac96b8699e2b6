"""A proxy under load whose every write to disk is traced; run with the shim, by test_power_loss.py.

python -m tests.faults.recorded FOLDER SEED CALLS [PLANT ...]
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path

from aiohttp import web

from proxy import log
from proxy.drill.toyapi import ToyApi
from proxy.ledger import schema
from tests.fakes.whole import Door, toy_rules, whole
from tests.faults.plants import PLANTS
from tests.faults.shim import mark

AT_ONCE = 4
CHECKPOINT = 30  # pages: the run is short, and checkpoints belong to it


class Marking(ToyApi):
    """Every arrival is a mark in the trace, before anything is done with it."""

    async def _create(self, request: web.Request) -> web.StreamResponse:
        mark(f"sent {json.loads(await request.read())['reference']}")
        return await super()._create(request)


async def load(folder: Path, seed: int, calls: int) -> None:
    choice = random.Random(seed)
    api = Marking()
    url = await api.start()
    left = list(range(calls))

    async def agent(door: Door) -> None:
        while left:
            number = left.pop()
            reference = f"case-{number}"
            path = choice.choice(["refunds", "messages"])
            body = {"reference": reference, "text": "x" * choice.choice([10, 900, 9000])}
            got = await door.call(f"{url}/{path}", body, reference)
            if got.status == 201:
                mark(f"told {reference}")
            if choice.random() < 0.5:
                state = {"state": "x" * choice.choice([10, 20_000])}
                _, saved = await door.ask("PUT", f"/v1/runs/{reference}/checkpoint", state)
                mark(f"saved {reference} {saved['version']}")
            if choice.random() < 0.2:
                await door.call(f"{url}/{path}", body, reference)

    for _ in range(2):  # two lives: a start and a stop are among what the power may cut
        async with whole(folder, toy_rules(url), tls={"intercept": "none"}) as door:
            await asyncio.gather(*(agent(door) for _ in range(AT_ONCE)))
        left.extend(range(calls, calls + calls // 2))
    await api.close()


def main(folder: str, seed: str, calls: str, *plants: str) -> None:
    log.configure("error", "json")
    assert any("wal_autocheckpoint" in line for line in schema.WRITER)
    schema.WRITER = tuple(  # type: ignore[assignment]
        f"PRAGMA wal_autocheckpoint = {CHECKPOINT}" if "wal_autocheckpoint" in line else line
        for line in schema.WRITER
    )
    for plant in plants:
        PLANTS[plant]()
    asyncio.run(load(Path(folder), int(seed), int(calls)))


if __name__ == "__main__":
    main(*sys.argv[1:])
