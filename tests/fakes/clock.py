"""A clock whose time passes only when nobody has anything else to do, or when a test says so."""

from __future__ import annotations

import asyncio
import heapq
import itertools

QUIET = 50  # turns of the loop without a new sleeper after which everybody is taken to be waiting


class FakeClock:
    """Implements ``proxy.clock.Clock``.

    Sleepers wake in the order of their times, however many there are: once the loop has been quiet,
    the time jumps to the earliest of them. With ``auto=False`` it moves only by ``advance``.
    ``slept`` lists what was asked for. Real input and output is not waited for by a jump: give such
    a test ``auto=False``.
    """

    def __init__(
        self, time: float = 1_800_000_000.0, monotonic: float = 1_000.0, *, auto: bool = True
    ) -> None:
        self.slept: list[float] = []
        self._time = time
        self._monotonic = monotonic
        self._auto = auto
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._quiet = 0
        self._watching = False

    def time(self) -> float:
        return self._time

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Both clocks move on; who has slept long enough wakes."""
        self._time += seconds
        self._monotonic += seconds
        while self._sleepers and self._sleepers[0][0] <= self._monotonic:
            _, _, wake = heapq.heappop(self._sleepers)
            if not wake.done():
                wake.set_result(None)

    def step(self, seconds: float) -> None:
        """Only the wall clock is set, as by an administrator or a time server."""
        self._time += seconds

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await self._timer(seconds)

    async def wait(self, future: asyncio.Future[None], seconds: float) -> bool:
        timer = self._timer(seconds)
        await asyncio.wait({future, timer}, return_when=asyncio.FIRST_COMPLETED)
        timer.cancel()
        return future.done()

    def _timer(self, seconds: float) -> asyncio.Future[None]:
        wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        due = self._monotonic + max(seconds, 0.0)
        heapq.heappush(self._sleepers, (due, next(self._order), wake))
        self._quiet = 0
        if self._auto and not self._watching:
            self._watching = True
            asyncio.get_running_loop().call_soon(self._turn)
        return wake

    def _turn(self) -> None:
        """Once a turn of the loop while somebody sleeps."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        if not self._sleepers:
            self._watching = False
            return
        self._quiet += 1
        if self._quiet > QUIET:
            self._quiet = 0
            self.advance(max(0.0, self._sleepers[0][0] - self._monotonic))
        asyncio.get_running_loop().call_soon(self._turn)
