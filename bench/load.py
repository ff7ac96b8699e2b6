"""The load generator: a process of its own that speaks raw HTTP/1.1 to the proxy in absolute form.

Reads one JSON object from standard input (the fields of ``Plan``), warms up, prints ``warm``, waits
for a line, measures, prints its result as one JSON line. Every request carries X-Run-Id and
X-Step-Id; which step decides the load:

- ``unique``: every request is a new operation
- ``replay``: 1,000 operations over and over; the warm-up sends each once
- ``hot``: every operation 64 times, one right after the other, so that all of them are in flight
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field

from bench import http1, loop

REPLAY_KEYS = 1_000
HOT_TIMES = 64


@dataclass(frozen=True, slots=True)
class Plan:
    proxy_port: int
    upstream_port: int
    load: str
    connections: int
    seconds: float
    warm_seconds: float
    run: str  # keeps the operations of one measurement apart from those of all others


@dataclass(slots=True)
class Tally:
    latencies: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    broken: int = 0


class Generator:
    """Hands out requests, collects what came back."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.issued = 0
        self.limit: int | None = None
        self.stopping = False
        self.tally = Tally()
        self.bodies = [self._body(n) for n in range(64)]

    @staticmethod
    def _body(n: int) -> bytes:
        body = {"amount": 500 + n, "currency": "eur", "customer": f"cus_{n:08d}", "note": ""}
        return json.dumps(body | {"note": "x" * (500 - len(json.dumps(body)))}).encode()

    def key(self, n: int) -> int:
        if self.plan.load == "replay":
            return n % REPLAY_KEYS
        return n // HOT_TIMES if self.plan.load == "hot" else n

    @property
    def keys(self) -> int:
        """How many different operations were asked for so far."""
        if self.issued == 0:
            return 0
        last = min(self.issued, REPLAY_KEYS) if self.plan.load == "replay" else self.issued
        return self.key(last - 1) + 1

    def next(self) -> bytes | None:
        if self.stopping or (self.limit is not None and self.issued >= self.limit):
            return None
        key = self.key(self.issued)
        self.issued += 1
        body = self.bodies[key % len(self.bodies)]
        target = f"127.0.0.1:{self.plan.upstream_port}"
        return (
            f"POST http://{target}/v1/things HTTP/1.1\r\nHost: {target}\r\n"
            f"X-Run-Id: {self.plan.run}\r\nX-Step-Id: step-{key}\r\n"
            f"X-Bench-Key: {self.plan.run}-{key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body


class Connection(asyncio.Protocol):
    def __init__(self, generator: Generator, done: asyncio.Future[None]) -> None:
        self.generator = generator
        self.done = done
        self.buffer = bytearray()
        self.sent_at = 0.0
        self.waiting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.send()

    def send(self) -> None:
        request = self.generator.next()
        if request is None:
            self.transport.close()
            return
        self.waiting = True
        self.sent_at = time.perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = http1.message_end(self.buffer)
        if end < 0:
            return
        tally = self.generator.tally
        tally.latencies.append(time.perf_counter() - self.sent_at)
        status = int(self.buffer[9:12])
        tally.statuses[status] = tally.statuses.get(status, 0) + 1
        if status != 200 and tally.statuses[status] == 1:
            print(bytes(self.buffer[:end]).decode(errors="replace"), file=sys.stderr)
        del self.buffer[:end]
        self.waiting = False
        self.send()

    def connection_lost(self, error: Exception | None) -> None:
        self.generator.tally.broken += self.waiting
        if not self.done.done():
            self.done.set_result(None)


async def drive(generator: Generator, seconds: float | None) -> float:
    """Loads the proxy for so long, or until the generator has no more; returns the time it took."""
    running = asyncio.get_running_loop()
    generator.tally = Tally()
    generator.stopping = False
    start = time.perf_counter()
    ends = [running.create_future() for _ in range(generator.plan.connections)]
    for end in ends:
        await running.create_connection(
            lambda end=end: Connection(generator, end), "127.0.0.1", generator.plan.proxy_port
        )
    if seconds is not None:
        await asyncio.sleep(seconds)
        generator.stopping = True
    await asyncio.gather(*ends)
    return time.perf_counter() - start


def quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def bad(*tallies: Tally) -> dict[str, int]:
    """What was not a 200: its status, or ``broken`` for a connection that ended unanswered."""
    found: dict[str, int] = {}
    for tally in tallies:
        for status, times in tally.statuses.items():
            if status != 200:
                found[str(status)] = found.get(str(status), 0) + times
        if tally.broken:
            found["broken"] = found.get("broken", 0) + tally.broken
    return found


async def main(plan: Plan) -> None:
    generator = Generator(plan)
    generator.limit = REPLAY_KEYS if plan.load == "replay" else None
    await drive(generator, None if plan.load == "replay" else plan.warm_seconds)
    generator.limit = None
    warm = generator.tally
    print("warm", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    seconds = await drive(generator, plan.seconds)
    tally = generator.tally
    ordered = sorted(tally.latencies)
    result = {
        "requests": len(ordered),
        "per_second": len(ordered) / seconds,
        "p50": quantile(ordered, 0.50),
        "p99": quantile(ordered, 0.99),
        "bad": bad(warm, tally),
        "keys": generator.keys,
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    loop.run(main(Plan(**json.loads(sys.stdin.readline()))))
