"""An answer that flows to its caller while it is still being recorded.

Short answers are recorded first and given afterwards. A long or endless one would keep its caller
waiting, so it is passed on as it comes, and only its last chunk waits for the outcome to be
durable: a caller that has the whole answer can rely on the record, and one that was cut off can
see it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from proxy.core.model import Answer

AHEAD = 16  # chunks that the upstream may be ahead of a slow caller


class CutOff(Exception):
    """The answer has no recorded end: the caller's connection must not end cleanly."""


class Relay:
    """One answer on its way to one caller. ``tell`` is called when it begins to flow."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._chunks: deque[bytes] = deque()
        self._moved: asyncio.Event | None = None  # something was put, taken, or ended
        self._last: bytes | None = None
        self._ended = False
        self._whole = False
        self._closed = False
        self.head: Answer | None = None
        self.length: int | None = None
        self.owed = False  # it ends with a word about its end, if not with its own

    @property
    def wanted(self) -> bool:
        """Whether a caller still waits for an answer that has not begun to flow."""
        return self.head is None and not self._closed

    def open(self, head: Answer, length: int | None) -> None:
        """Begin: ``head`` has no body, ``length`` is its declared size or None."""
        self.head, self.length = head, length
        self._moved = asyncio.Event()
        self._tell()

    async def feed(self, chunk: bytes, *, may_be_last: bool = True) -> None:
        """The next chunk. Waits while the caller is slow, never for one that has left. One that
        cannot be the last is passed on at once."""
        for ready in (self._last, None if may_be_last else chunk):
            if ready is not None:
                while len(self._chunks) >= AHEAD and not self._closed:
                    await self._move()
                self._put(ready)
        self._last = chunk if may_be_last else None

    def end(self, whole: bool) -> None:
        """The answer has ended; ``whole``: its outcome is recorded and it may end cleanly. Only the
        first word counts."""
        if self._moved is None or self._ended or (self.owed and not whole):
            return
        if whole and self._last is not None:
            self._put(self._last)
        self._ended, self._whole = True, whole
        self._moved.set()

    def conclude(self, last: bytes) -> None:
        """End what is owed: with these bytes, or without any as an answer that is cut off."""
        self.owed = False
        if last and self._moved is not None and not self._ended:
            self._last = last
        self.end(whole=bool(last))

    async def chunks(self) -> AsyncIterator[bytes]:
        """For the caller. Raises CutOff at the end of an answer that is not whole."""
        assert self._moved is not None, "open() was not called"
        try:
            while self._chunks or not self._ended:
                if self._chunks:
                    chunk = self._chunks.popleft()
                    self._moved.set()
                    yield chunk
                else:
                    await self._move()
            if not self._whole:
                raise CutOff
        finally:
            self.close()

    def close(self) -> None:
        """The caller has left, or has been told something else: what still comes is dropped."""
        self._closed = True
        self._chunks.clear()
        if self._moved is not None:
            self._moved.set()

    def _put(self, chunk: bytes) -> None:
        if not self._closed:
            self._chunks.append(chunk)
            assert self._moved is not None
            self._moved.set()

    async def _move(self) -> None:
        assert self._moved is not None
        self._moved.clear()
        await self._moved.wait()
