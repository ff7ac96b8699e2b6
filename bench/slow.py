"""``python -m bench.slow``: what 500 slow callers cost the others.

Rounds of normal calls alone and beside 500 callers that never come to an end: heads that drip,
bodies that drip, callers that only connect. Told is the ratio of the 99th percentiles within a
round, and the median of the rounds; the goal is less than 2. The exit code is 1 where it is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import processes

CALLERS = 500
GOAL = 2.0
CONNECTIONS = 8  # of normal calls
DRIP_SECONDS = 1.0


class Slow(asyncio.Protocol):
    """One of them. ``lost`` counts those that the proxy has let go."""

    lost = 0

    def __init__(self, number: int, upstream_port: int) -> None:
        host = f"127.0.0.1:{upstream_port}"
        self.first = [
            f"POST http://{host}/v1/things HTTP/1.1\r\nHost: {host}\r\nX-Slow: ",
            f"POST http://{host}/v1/things HTTP/1.1\r\nHost: {host}\r\nX-Run-Id: slow\r\n"
            f"X-Step-Id: {number}\r\nContent-Length: 100000\r\n\r\n",
            "",
        ][number % 3].encode()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        if self.first:
            transport.write(self.first)
            self.drip()

    def drip(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(b"x")
            asyncio.get_running_loop().call_later(DRIP_SECONDS, self.drip)

    def connection_lost(self, error: Exception | None) -> None:
        Slow.lost += 1


@contextmanager
def crowd(proxy_port: int, upstream_port: int) -> Iterator[None]:
    """The slow callers, in a thread of their own."""
    loop = asyncio.new_event_loop()
    here, over = threading.Event(), asyncio.Event()

    async def stay() -> None:
        Slow.lost = 0
        callers = []
        for number in range(CALLERS):
            transport, _ = await loop.create_connection(
                lambda number=number: Slow(number, upstream_port), "127.0.0.1", proxy_port
            )
            callers.append(transport)
        here.set()
        await over.wait()
        for transport in callers:  # the next round's need the room
            transport.abort()
        await asyncio.sleep(0.5)  # until the proxy has seen it too

    def run() -> None:
        loop.run_until_complete(stay())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    here.wait()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m bench.slow", description=__doc__)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--seconds", type=float, default=4.0, help="of one reading")
    options = arguments.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    ratios, readings = [], []
    with (
        tempfile.TemporaryDirectory() as name,
        processes.upstream(Path(name)) as upstream,
        processes.onceproxy(Path(name), upstream) as proxy,
    ):
        for number in range(options.rounds):
            alone = reading(proxy.port, upstream, options.seconds, f"alone-{number}")
            with crowd(proxy.port, upstream):
                beside = reading(proxy.port, upstream, options.seconds, f"beside-{number}")
                lost = Slow.lost
            ratios.append(beside / alone)
            readings.append({"alone_ms": alone * 1e3, "beside_ms": beside * 1e3, "lost": lost})
    median = statistics.median(ratios)
    print(json.dumps({"callers": CALLERS, "p99_ratio": median, "rounds": readings}, indent=2))
    print(f"p99 beside {CALLERS} slow callers: {median:.2f} times that alone (goal: {GOAL:g})")
    return int(median >= GOAL)


def reading(proxy_port: int, upstream_port: int, seconds: float, run: str) -> float:
    """The 99th percentile of normal calls, seconds."""
    plan = {
        "proxy_port": proxy_port,
        "upstream_port": upstream_port,
        "load": "unique",
        "connections": CONNECTIONS,
        "seconds": seconds,
        "warm_seconds": 0.5,
        "run": run,
    }
    with processes.load(plan) as load:
        result = load.measure()
    if result["bad"]:
        raise SystemExit(f"normal calls failed: {result['bad']}")
    return float(result["p99"])


if __name__ == "__main__":
    sys.exit(main())
