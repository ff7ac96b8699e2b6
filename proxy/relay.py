"""An answer that flows to its caller while it is still being recorded.

Short answers are recorded first and given afterwards. A long or endless one would keep its caller
waiting, so it is passed on as it comes, and only its last chunk waits for the outcome to be
durable: a caller that has the whole answer can rely on the record, and one that was cut off can
see it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from proxy.core.model import Answer

AHEAD = 16  # chunks that the upstream may be ahead of a slow caller


class CutOff(Exception):
    """The answer has no recorded end: the caller's connection must not end cleanly."""


class Relay:
    """One answer on its way to one caller. ``tell`` is called when it begins to flow."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._queue: asyncio.Queue[bytes | None] | None = None  # few answers ever flow
        self._last: bytes | None = None
        self._whole = False
        self._closed = False
        self.head: Answer | None = None
        self.length: int | None = None

    @property
    def wanted(self) -> bool:
        """Whether a caller still waits for an answer that has not begun to flow."""
        return self.head is None and not self._closed

    def open(self, head: Answer, length: int | None) -> None:
        """Begin: ``head`` has no body, ``length`` is its declared size or None."""
        self.head, self.length = head, length
        self._queue = asyncio.Queue(AHEAD)
        self._tell()

    async def feed(self, chunk: bytes) -> None:
        """The next chunk. Waits while the caller is slow, never for one that has left."""
        if self._last is not None:
            await self._put(self._last)
        self._last = chunk

    async def end(self, whole: bool) -> None:
        """The answer has ended; ``whole``: its outcome is recorded and it may end cleanly."""
        if self.head is None:
            return
        self._whole = whole
        if whole and self._last is not None:
            await self._put(self._last)
        await self._put(None)

    async def chunks(self) -> AsyncIterator[bytes]:
        """For the caller. Raises CutOff at the end of an answer that is not whole."""
        assert self._queue is not None, "open() was not called"
        try:
            while (chunk := await self._queue.get()) is not None:
                yield chunk
            if not self._whole:
                raise CutOff
        finally:
            self.close()

    def close(self) -> None:
        """The caller has left, or has been told something else: what still comes is dropped."""
        self._closed = True
        while self._queue is not None and not self._queue.empty():  # lets a waiting ``feed`` go on
            self._queue.get_nowait()

    async def _put(self, chunk: bytes | None) -> None:
        if not self._closed and self._queue is not None:
            await self._queue.put(chunk)
