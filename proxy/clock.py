"""Time as a value: everything that needs a clock is given one, so that tests never sleep."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def time(self) -> float:
        """Wall clock, seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment of this process; never steps."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    async def wait(self, future: asyncio.Future[None], seconds: float) -> bool:
        """Wait for a future, at most so long; whether it is done. The future is left alone."""
        ...


class SystemClock:
    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def wait(self, future: asyncio.Future[None], seconds: float) -> bool:
        await asyncio.wait({future}, timeout=seconds)
        return future.done()
