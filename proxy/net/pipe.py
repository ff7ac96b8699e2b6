"""A raw byte stream in both directions with back-pressure, and two of them joined.

Used where a connection no longer speaks HTTP: blind tunnels and switched protocols. Each direction
ends by itself, so that a side that has finished sending can still receive.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from proxy.net.exchange import Pipe

KEEP_ALIVE = 60  # seconds of silence after which the system asks whether the peer is still there
HIGH_WATER = 1 << 18
"""Bytes held for a side that does not read before its peer is told to stop sending."""


class StreamPipe(asyncio.Protocol):
    """One side: a transport whose bytes are read with ``read`` and written with ``write``."""

    def __init__(self, on_close: Callable[[], None] | None = None) -> None:
        self._transport: asyncio.Transport | None = None
        self._chunks: deque[bytes] = deque()
        self._held = 0
        self._ended = False
        self._lost = False
        self._reading_paused = False
        self._reader: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._writing_paused = False
        self._on_close = on_close

    def take(self, transport: asyncio.Transport, early: bytes = b"") -> None:
        """Become the protocol of a transport that had another one; ``early`` came before that."""
        if early:
            self.data_received(early)
        transport.set_protocol(self)
        self.connection_made(transport)
        if transport.is_closing():
            self._end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        _watch(self._transport)
        if self._held > HIGH_WATER:
            self._pause()

    def data_received(self, data: bytes) -> None:
        self._chunks.append(data)
        self._held += len(data)
        if self._held > HIGH_WATER and not self._reading_paused and self._transport is not None:
            self._pause()
        self._wake()

    def eof_received(self) -> bool:
        self._end()
        transport = self._transport
        # A TLS transport cannot stay half open; it closes whatever is returned here.
        return transport is not None and transport.get_extra_info("sslcontext") is None

    def connection_lost(self, exc: BaseException | None) -> None:
        self._lost = True
        self._end()
        self.resume_writing()
        if self._on_close is not None:
            self._on_close()
            self._on_close = None

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def give(self) -> tuple[asyncio.Transport, bytes]:
        """The transport, for another protocol, and what was received and not read."""
        assert self._transport is not None
        if self._reading_paused and not self._transport.is_closing():
            self._transport.resume_reading()
        self._reading_paused = False
        return self._transport, self.rest()

    def rest(self) -> bytes:
        """What was received and not read."""
        data = b"".join(self._chunks)
        self._chunks.clear()
        self._held = 0
        return data

    async def read(self) -> bytes:
        """The next bytes, ``b""`` at the end. For one reader at a time."""
        while not self._chunks:
            if self._ended:
                return b""
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        data = self._chunks.popleft()
        self._held -= len(data)
        if self._reading_paused and self._held <= HIGH_WATER // 2:
            self._reading_paused = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()
        return data

    def unread(self, data: bytes) -> None:
        """Put back what belongs to the next reader."""
        self._chunks.appendleft(data)
        self._held += len(data)

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    async def drain(self) -> None:
        """Returns when more may be written. Raises ConnectionError once it is closed."""
        while self._writing_paused and not self._lost:
            self._writable = asyncio.get_running_loop().create_future()
            await self._writable
        if self._lost or self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the connection is closed")

    def write_eof(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _pause(self) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.pause_reading()
            self._reading_paused = True

    def _end(self) -> None:
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def _watch(transport: asyncio.Transport) -> None:
    """A peer that is gone without a word is found out by the system: tunnels have no time-outs,
    because what runs in them may be silent for as long as it likes."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEP_ALIVE // 4)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


async def relay(one: Pipe, other: Pipe) -> None:
    """Copies both ways until both have ended or one broke; closes both. Raises nothing."""
    pumps = [asyncio.ensure_future(_pump(one, other)), asyncio.ensure_future(_pump(other, one))]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        one.close()
        other.close()
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(source: Pipe, sink: Pipe) -> None:
    while data := await source.read():
        sink.write(data)
        await sink.drain()
    sink.write_eof()
