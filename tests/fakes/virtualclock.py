"""A clock for several tasks at once: time stands still while anything can run, and jumps to the
earliest sleeper when nothing can.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools

ROUNDS = 12  # turns of the loop without news after which nothing is taken to be running


class VirtualClock:
    """Implements ``proxy.clock.Clock``. Only for work that waits for this clock and no real thing."""

    def __init__(self, time: float = 1_800_000_000.0, monotonic: float = 1_000.0) -> None:
        self._time = time
        self._monotonic = monotonic
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = itertools.count()
        self._ticking = False

    def time(self) -> float:
        return self._time

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Both clocks move on, as while the process was down."""
        self._time += seconds
        self._monotonic += seconds

    def step(self, seconds: float) -> None:
        """Only the wall clock is set."""
        self._time += seconds

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        await self._at(seconds)

    async def wait(self, future: asyncio.Future[None], seconds: float) -> bool:
        timer = self._at(seconds)
        await asyncio.wait({future, timer}, return_when=asyncio.FIRST_COMPLETED)
        timer.cancel()
        return future.done()

    def _at(self, seconds: float) -> asyncio.Future[None]:
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._monotonic + seconds, next(self._count), future))
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_soon(self._tick, ROUNDS)
        return future

    def _tick(self, rounds: int) -> None:
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        if not self._sleepers:
            self._ticking = False
            return
        if rounds > 0:
            asyncio.get_running_loop().call_soon(self._tick, rounds - 1)
            return
        due, _, future = heapq.heappop(self._sleepers)
        self.advance(max(0.0, due - self._monotonic))
        future.set_result(None)
        asyncio.get_running_loop().call_soon(self._tick, ROUNDS)
