"""An agent with three tool calls at once on one pool of connections: CLIENT URL.

Then the same calls one after the other, and once more at once, so that connections change hands.
Prints, for each call, the step it was made in and what came back.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from onceproxy_step import step  # type: ignore[import-not-found]

STEPS = ("call_a", "call_b", "call_c")
SECONDS = 30


def show(name: str, headers: Any, answer: Any) -> None:
    names = ("Onceproxy-Operation", "Onceproxy-Outcome")
    line = {"step": name, "said": json.loads(answer["echo"])["step"], "id": answer["id"]}
    line |= {known: headers[known] for known in names}
    sys.stdout.write(json.dumps(line) + "\n")  # one piece: threads write too


async def with_httpx(url: str) -> None:
    import httpx

    await with_module(httpx, url)


async def with_httpx2(url: str) -> None:
    """What openai-python sends with."""
    import httpx2

    await with_module(httpx2, url)


async def with_module(module: Any, url: str) -> None:
    limits = module.Limits(max_connections=3, max_keepalive_connections=3)
    async with module.AsyncClient(timeout=SECONDS, limits=limits) as client:

        async def call(name: str) -> None:
            with step(name):
                await asyncio.sleep(0)  # the others come in between
                answer = await client.post(url, json={"step": name})
            show(name, answer.headers, answer.json())

        await rounds(call)


async def with_aiohttp(url: str) -> None:
    import aiohttp

    async with aiohttp.ClientSession(
        trust_env=True, connector=aiohttp.TCPConnector(limit=3)
    ) as session:

        async def call(name: str) -> None:
            with step(name):
                await asyncio.sleep(0)
                async with session.post(url, json={"step": name}) as answer:
                    show(name, answer.headers, await answer.json())

        await rounds(call)


async def with_requests(url: str) -> None:
    import requests

    with requests.Session() as session, ThreadPoolExecutor(3) as threads:

        def post(name: str) -> None:
            with step(name):
                answer = session.post(url, json={"step": name}, timeout=SECONDS)
            show(name, answer.headers, answer.json())

        async def call(name: str) -> None:
            await asyncio.get_running_loop().run_in_executor(threads, post, name)

        await rounds(call)


async def rounds(call: Callable[[str], Awaitable[None]]) -> None:
    await asyncio.gather(*map(call, STEPS))
    for name in STEPS:
        await call(name)
    await asyncio.gather(*map(call, reversed(STEPS)))


CLIENTS = {
    "httpx": with_httpx,
    "httpx2": with_httpx2,
    "aiohttp": with_aiohttp,
    "requests": with_requests,
}

if __name__ == "__main__":
    asyncio.run(CLIENTS[sys.argv[1]](sys.argv[2]))
