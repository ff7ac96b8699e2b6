"""Giving a raw connection back to HTTP: as it is, or after a TLS handshake.

``start_tls`` loses bytes that came before it, in both directions of the hand-over; everything that
makes up for this is in this file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, cast

from proxy.net.pipe import StreamPipe

if TYPE_CHECKING:
    import ssl

    from proxy.net.connection import Connection

HANDSHAKE_TIMEOUT = 10.0  # seconds for a client to finish a TLS handshake on this machine


async def serve(pipe: StreamPipe, inner: Connection) -> None:
    """Lets ``inner`` speak HTTP on a pipe's connection; returns when that has ended."""
    transport, early = pipe.give()
    await _run(transport, early, inner)


async def serve_tls(pipe: StreamPipe, context: ssl.SSLContext, inner: Connection) -> None:
    """The same after a TLS handshake. Raises OSError (ssl.SSLError too) if that fails."""
    loop = asyncio.get_running_loop()
    transport, early = pipe.give()
    plain = _Plain()
    start: Awaitable[asyncio.Transport | None] = loop.start_tls(
        transport,
        plain,
        context,
        server_side=True,
        ssl_handshake_timeout=HANDSHAKE_TIMEOUT,
    )
    task = asyncio.ensure_future(start)
    # Nothing signals this; it takes one or two turns of the loop.
    while transport.get_protocol() is pipe and not task.done():  # noqa: ASYNC110
        await asyncio.sleep(0)
    await asyncio.sleep(0)  # the TLS protocol has met its transport now
    if not task.done():
        # start_tls knows only bytes that are still to come; these are here already.
        _feed(cast(asyncio.BufferedProtocol, transport.get_protocol()), early + pipe.rest())
    tls = await task
    if tls is None:
        raise ConnectionResetError("the client left during the TLS handshake")
    await _run(tls, bytes(plain.data), inner, plain.ended)


async def _run(
    transport: asyncio.Transport, early: bytes, inner: Connection, ended: bool = False
) -> None:
    transport.set_protocol(inner)
    inner.connection_made(transport)
    if early:
        inner.data_received(early)
    if ended or transport.is_closing():
        transport.close()
        inner.connection_lost(None)  # the loop may have told the protocol before it
    await inner.over()


class _Plain(asyncio.Protocol):
    """Holds decrypted bytes that come before ``start_tls`` has returned: with TLS 1.3 the client's
    first request may come together with the end of its handshake."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = False

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: BaseException | None) -> None:
        self.ended = True


def _feed(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    view = memoryview(data)
    while view:
        buffer = memoryview(protocol.get_buffer(len(view)))
        size = min(len(buffer), len(view))
        buffer[:size] = view[:size]
        protocol.buffer_updated(size)
        view = view[size:]
