"""Writing a ``Reply``: framing, and nothing else that the reply does not say.

A small answer is one write, head and body together. aiohttp's ``StreamResponse`` would add Date,
Server and Content-Type, and costs several times as much.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator

from aiohttp.http import HttpVersion10, HttpVersion11

from proxy.core.model import Body
from proxy.net import problem
from proxy.net.exchange import Reply
from proxy.net.headers import wire
from proxy.net.incoming import Incoming, Refused
from proxy.net.spool import pieces

log = logging.getLogger(__name__)

_FRAMING = frozenset({"content-length", "transfer-encoding", "connection", "keep-alive"})
_BODILESS = frozenset({204, 304})
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class Written:
    """What a handler returns to aiohttp's protocol when its answer has been written already."""

    __slots__ = ("keep_alive",)

    def __init__(self, keep_alive: bool) -> None:
        self.keep_alive = keep_alive

    async def prepare(self, request: object) -> None: ...

    async def write_eof(self) -> None: ...


KEEP = Written(True)
CLOSE = Written(False)


class Rejection(Written):
    """An answer to what the parser could not read; aiohttp asks for it outside of any handler."""

    __slots__ = ("_refused", "_timeout")

    def __init__(self, refused: Refused, timeout: float) -> None:
        super().__init__(False)
        self._refused = refused
        self._timeout = timeout

    async def prepare(self, request: object) -> None:
        assert isinstance(request, Incoming)
        await write(request, problem.reply(self._refused.refusal), self._timeout, close=True)


async def write(incoming: Incoming, reply: Reply, timeout: float, *, close: bool) -> bool:
    """Writes the answer and reports to ``reply.delivered``; True if the connection can go on.

    ``timeout``: seconds that a caller may take none of the answer before it is cut off.
    """
    delivered = False
    try:
        delivered = await _write(incoming, reply, timeout, close)
    except (ConnectionError, TimeoutError):
        _abort(incoming)
    finally:
        reply.delivered(delivered)
    return delivered and not close


async def _write(incoming: Incoming, reply: Reply, timeout: float, close: bool) -> bool:
    message = incoming.message
    body = reply.body
    silent = message.method == "HEAD" or reply.status in _BODILESS
    size: int | None
    if isinstance(body, Body):
        size = reply.length if reply.length is not None and silent else body.size
        if silent and not size:
            size = None
    else:
        size = reply.length
    if reply.status == 204:
        size = None
    chunked = size is None and not silent and message.version == HttpVersion11
    if size is None and not silent and not chunked:
        close = True  # HTTP/1.0: the end of the connection is the end of the body
    head = _head(reply, size, chunked, close, message.version == HttpVersion10)
    transport = incoming.transport
    if transport is None or transport.is_closing():
        await _drop(body)
        return False
    if isinstance(body, Body):
        if silent or body.data is not None:
            transport.write(head if silent else head + (body.data or b""))
            if incoming.protocol.writing_paused:
                await _drain(incoming, timeout)
        else:
            transport.write(head)
            for piece in pieces(body):
                transport.write(piece)
                await _drain(incoming, timeout)
        return not transport.is_closing()
    assert isinstance(body, AsyncIterator)
    transport.write(head)
    if silent:
        await _drop(body)
        return True
    return await _stream(incoming, body, size, chunked, timeout)


async def _stream(
    incoming: Incoming,
    body: AsyncIterator[bytes],
    size: int | None,
    chunked: bool,
    timeout: float,
) -> bool:
    """Piece by piece. A body that breaks off breaks the connection off, so that it shows."""
    transport = incoming.transport
    assert transport is not None
    sent = 0
    task = asyncio.current_task()
    incoming.streaming = task
    try:
        async for piece in body:
            if not piece:
                continue
            sent += len(piece)
            if size is not None and sent > size:
                raise ValueError("the answer is longer than it said")
            transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            if incoming.protocol.writing_paused:
                await _drain(incoming, timeout)
            if transport.is_closing():
                return False
        if size is not None and sent != size:
            raise ValueError("the answer is shorter than it said")
        if chunked:
            transport.write(b"0\r\n\r\n")
        return not transport.is_closing()
    except asyncio.CancelledError:
        if incoming.protocol.transport is not None or task is None:
            raise  # the whole process is stopping
        task.uncancel()
        return False
    except (ConnectionError, TimeoutError):
        raise
    except Exception as error:
        log.info("an answer broke off on its way to the caller: %s", error)
        transport.abort()
        return False
    finally:
        incoming.streaming = None
        await _drop(body)


def _head(reply: Reply, size: int | None, chunked: bool, close: bool, old: bool) -> bytes:
    reason = _CONTROL.sub(" ", reply.reason) if reply.reason else ""
    lines = [f"HTTP/1.1 {reply.status} {reason}"]
    lines += [f"{name}: {value}" for name, value in reply.headers if name.lower() not in _FRAMING]
    if chunked:
        lines.append("Transfer-Encoding: chunked")
    elif size is not None:
        lines.append(f"Content-Length: {size}")
    if close:
        lines.append("Connection: close")
    elif old:
        lines.append("Connection: keep-alive")
    lines.append("\r\n")
    head = "\r\n".join(lines)
    # One count finds a line break inside a field, whoever put it there.
    if head.count("\n") != len(lines) or head.count("\r") != len(lines) or "\0" in head:
        lines[:-1] = [_CONTROL.sub(" ", line) for line in lines[:-1]]
        head = "\r\n".join(lines)
    return wire(head)


async def _drain(incoming: Incoming, timeout: float) -> None:
    """Raises ConnectionError if the caller is gone, TimeoutError if it does not read."""
    async with asyncio.timeout(timeout):
        await incoming.protocol.drain()


async def _drop(body: object) -> None:
    """Let a body's source know that nobody reads on."""
    close = getattr(body, "aclose", None)
    if close is not None:
        await close()


def _abort(incoming: Incoming) -> None:
    transport = incoming.transport
    if transport is not None:
        transport.abort()
