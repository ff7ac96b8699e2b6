"""No run takes all of the proxy: each has so many calls in hand, and its others wait in order."""

from __future__ import annotations

import asyncio
from collections import deque


class Shares:
    """Places for calls, by run. ``take`` first, ``leave`` afterwards, whatever happened."""

    def __init__(self, each: int, waiting: int) -> None:
        """``each``: calls that a run has in hand at once. ``waiting``: calls of all runs together
        that may wait for a place."""
        self._each = each
        self._room = waiting
        self._taken: dict[str, int] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    def take(self, run: str) -> bool:
        """Takes a place at once; False if the run has none left."""
        taken = self._taken.get(run, 0)
        if taken >= self._each:
            return False
        self._taken[run] = taken + 1
        return True

    async def wait(self, run: str) -> bool:
        """Takes the next place that becomes free; False if too many wait already."""
        if self._room <= 0:
            return False
        self._room -= 1
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = self._waiting.setdefault(run, deque())
        queue.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.leave(run)
            elif place in queue:
                queue.remove(place)
            raise
        finally:
            self._room += 1
        return True

    def leave(self, run: str) -> None:
        queue = self._waiting.get(run)
        while queue:
            place = queue.popleft()
            if not place.done():
                place.set_result(None)  # the place goes over to it
                return
        if queue is not None:
            del self._waiting[run]
        left = self._taken[run] - 1
        if left:
            self._taken[run] = left
        else:
            del self._taken[run]
