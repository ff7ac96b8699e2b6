"""Writing a ``Reply``: framing, and nothing else that the reply does not say.

A small answer is one write, head and body together.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator

from aiohttp.http import HttpVersion, HttpVersion10, HttpVersion11

from proxy.core.model import Body
from proxy.net.exchange import Reply
from proxy.net.headers import wire
from proxy.net.incoming import Incoming
from proxy.net.spool import pieces

log = logging.getLogger(__name__)

_FRAMING = frozenset({"content-length", "transfer-encoding", "connection", "keep-alive"})
_BODILESS = frozenset({204, 304})
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def whole(reply: Reply) -> bytes:
    """A small answer after which the connection closes."""
    assert isinstance(reply.body, Body)
    return _head(reply, reply.body.size, False, "close") + (reply.body.data or b"")


async def write(incoming: Incoming, reply: Reply, *, close: bool) -> bool:
    """Writes the answer and reports to ``reply.delivered``; True if the connection can go on."""
    connection, message, body = incoming.connection, incoming.message, reply.body
    transport = connection.transport
    delivered = False
    try:
        if transport.is_closing():
            await _drop(body)
        elif isinstance(body, Body) and body.data is not None:
            head, data = packed(message.method, message.version, reply, close=close)
            transport.write(head + data)
            if connection.writing_paused:
                await connection.drain()
            delivered = True
        else:
            silent = _silent(message.method, reply)
            size = _size(reply, silent)
            chunked = size is None and not silent and message.version == HttpVersion11
            # HTTP/1.0: the end of the connection is the end of the body.
            close = close or (size is None and not silent and not chunked)
            transport.write(_head(reply, size, chunked, _word(message.version, close)))
            if silent:
                await _drop(body)
                delivered = True
            elif isinstance(body, Body):
                for piece in pieces(body):
                    transport.write(piece)
                    await connection.drain()
                delivered = True
            else:
                assert isinstance(body, AsyncIterator)
                delivered = await _stream(incoming, body, size, chunked)
    except (ConnectionError, TimeoutError):
        transport.abort()
    finally:
        reply.delivered(delivered and connection.listening)
    return delivered and not close


def packed(
    method: str, version: HttpVersion, reply: Reply, *, close: bool = False
) -> tuple[bytes, bytes]:
    """Head and body of an answer whose body is in memory, to be written together. ``method`` and
    ``version`` are the request's."""
    body = reply.body
    assert isinstance(body, Body)
    silent = _silent(method, reply)
    head = _head(reply, _size(reply, silent), False, _word(version, close))
    return head, b"" if silent else body.data or b""


def _silent(method: str, reply: Reply) -> bool:
    """Whether the answer has no body, whatever its head says."""
    return method == "HEAD" or reply.status in _BODILESS


def _word(version: HttpVersion, close: bool) -> str:
    """What ``Connection`` says, "": nothing."""
    if close:
        return "close"
    return "keep-alive" if version == HttpVersion10 else ""


def _size(reply: Reply, silent: bool) -> int | None:
    """What Content-Length says, None: nothing."""
    if reply.status == 204:
        return None
    if not isinstance(reply.body, Body):
        return reply.length
    if not silent:
        return reply.body.size
    return (reply.body.size if reply.length is None else reply.length) or None


async def _stream(
    incoming: Incoming, body: AsyncIterator[bytes], size: int | None, chunked: bool
) -> bool:
    """Piece by piece. A body that breaks off breaks the connection off, so that it shows."""
    connection = incoming.connection
    transport = connection.transport
    sent = 0
    task = incoming.streaming = asyncio.current_task()
    try:
        async for piece in body:
            if not piece:
                continue
            sent += len(piece)
            if size is not None and sent > size:
                raise ValueError("the answer is longer than it said")
            transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            if connection.writing_paused:
                await connection.drain()
            if transport.is_closing():
                return False
        if size is not None and sent != size:
            raise ValueError("the answer is shorter than it said")
        if chunked:
            transport.write(b"0\r\n\r\n")
        return not transport.is_closing()
    except asyncio.CancelledError:
        if task is None or not transport.is_closing():
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


def _head(reply: Reply, size: int | None, chunked: bool, connection: str) -> bytes:
    reason = _CONTROL.sub(" ", reply.reason) if reply.reason else ""
    lines = [f"HTTP/1.1 {reply.status} {reason}"]
    lines += [f"{name}: {value}" for name, value in reply.headers if name.lower() not in _FRAMING]
    if chunked:
        lines.append("Transfer-Encoding: chunked")
    elif size is not None:
        lines.append(f"Content-Length: {size}")
    if connection:
        lines.append(f"Connection: {connection}")
    lines.append("\r\n")
    head = "\r\n".join(lines)
    # One count finds a line break inside a field, whoever put it there.
    if head.count("\n") != len(lines) or head.count("\r") != len(lines) or "\0" in head:
        lines[:-1] = [_CONTROL.sub(" ", line) for line in lines[:-1]]
        head = "\r\n".join(lines)
    return wire(head)


async def _drop(body: object) -> None:
    """Let a body's source know that nobody reads on."""
    close = getattr(body, "aclose", None)
    if close is not None:
        await close()
