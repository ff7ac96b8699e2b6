"""One request on one connection, and its answer.

The head, and what there is of the body, is handed to the transport in one write: before it nothing
was sent, after it something may have been. aiohttp's C parser reads the answer.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import RawResponseMessage, StreamWriter
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import StreamReader

from proxy.core.model import EMPTY, Body, Lost
from proxy.net.exchange import BrokenOff, Incomplete, Pipe
from proxy.net.headers import from_upstream
from proxy.net.pipe import StreamPipe
from proxy.net.spool import MEMORY, Collector, arrived, pieces

LINE_LIMIT = 1 << 16  # one header field or status line of an answer; cookies and CSPs get long
FIELD_COUNT = 512  # fields of one answer
INTERIM_LIMIT = 16  # 1xx answers before the final one; more is a flood

_WIRE_ERRORS = (aiohttp.ClientError, HttpProcessingError, OSError)


class Opened:
    """An answer whose head has come. Its body is read once, by ``read`` or ``chunks``.

    ``headers`` are end-to-end fields in wire order; ``length`` is the declared size of the body
    (for HEAD, of the body a GET would have had), None if it was not declared. ``pipe`` is set
    after a 101.
    """

    __slots__ = (
        "_connection",
        "_directory",
        "_payload",
        "_read_ahead",
        "_upload",
        "headers",
        "length",
        "pipe",
        "reason",
        "status",
    )

    def __init__(
        self,
        message: RawResponseMessage,
        payload: StreamReader,
        connection: Connection,
        upload: asyncio.Task[None] | None,
        directory: Path | None,
    ) -> None:
        self.status = message.code
        self.reason = message.reason
        self.headers, length = from_upstream(message.raw_headers)
        self.length = int(length) if length is not None and length.isdigit() else None
        self.pipe: Pipe | None = None
        self._payload = payload
        self._connection = connection
        self._upload = upload
        self._directory = directory
        self._read_ahead: Body | None = None
        if message.code != 101 and payload.is_eof() and payload.exception() is None:
            self._let_go()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises BrokenOff where it broke off. Closes at its end."""
        if self._read_ahead is not None:
            for piece in pieces(self._read_ahead):
                yield piece
        payload = self._payload
        try:
            while data := await payload.readany():
                yield data
        except _WIRE_ERRORS as error:
            raise BrokenOff(words(error)) from error
        finally:
            self._finish()

    async def read(self, limit: int) -> tuple[Body | None, bool]:
        """(body, complete). The body is None where it is larger than ``limit`` bytes; then nothing
        is lost, and ``chunks`` still yields all of it. ``complete`` is False where it broke off."""
        payload = self._payload
        if payload.is_eof() and payload.exception() is None and payload.total_bytes <= MEMORY:
            if payload.total_bytes > limit:
                return None, False
            if not payload.total_bytes:
                return EMPTY, True
            return Body.of(arrived(payload, payload._protocol._reading_paused)), True
        if self.length is not None and self.length > limit:
            return None, False
        collector = Collector(self._directory)
        try:
            while data := await payload.readany():
                collector.add(data)
                if collector.size > limit:
                    self._read_ahead = collector.finish()
                    return None, False
        except _WIRE_ERRORS:
            self.close()
            return collector.finish(), False
        self._finish()
        return collector.finish(), True

    def close(self) -> None:
        """Gives the connection up. Needed where the body is not read to its end; may be
        repeated."""
        if self._upload is not None:
            self._upload.cancel()
        self._connection.close()

    def _finish(self) -> None:
        if self._payload.is_eof() and self._payload.exception() is None:
            self._let_go()
        else:
            self.close()

    def _let_go(self) -> None:
        """The answer is whole: the connection may be used again, unless the upload goes on."""
        if self._upload is not None and not self._upload.done():
            self.close()
        else:
            self._connection.release()


class Exchange:
    """One request and its answer on one connection."""

    __slots__ = (
        "_connection",
        "_deadline",
        "_directory",
        "_idle",
        "_method",
        "_patience",
        "_protocol",
        "_upload",
    )

    def __init__(
        self, connection: Connection, method: str, idle: float, directory: Path | None
    ) -> None:
        self._connection = connection
        self._method = method
        self._idle = idle
        self._directory = directory
        self._upload: asyncio.Task[None] | None = None
        self._patience: float | None = None  # while the answer's head is awaited
        self._deadline: asyncio.TimerHandle | None = None
        protocol = connection.protocol
        assert protocol is not None
        self._protocol: ResponseHandler = protocol

    def usable(self) -> bool:
        """False as well where something came that nobody asked for: it would be taken for the
        answer."""
        return self._protocol.is_connected() and not self._protocol.should_close

    def send(
        self,
        head: bytes,
        body: Body,
        stream: AsyncIterator[bytes] | None,
        first: bytes,
        length: int | None,
    ) -> None:
        """Hands the head, and what there is of the body, to the transport."""
        protocol = self._protocol
        protocol.set_response_params(
            skip_payload=self._method == "HEAD",
            read_until_eof=True,
            auto_decompress=False,
            read_timeout=None,
            max_line_size=LINE_LIMIT,
            max_field_size=LINE_LIMIT,
            max_headers=FIELD_COUNT,
        )
        transport = protocol.transport
        assert transport is not None
        if stream is not None:
            framed = _chunk(first) if length is None and first else first
            transport.write(head + framed)
            self._upload = asyncio.ensure_future(self._feed(stream, len(first), length))
        elif body.data is not None:
            transport.write(head + body.data)
        else:
            transport.write(head)
            self._upload = asyncio.ensure_future(self._feed_spool(body))

    async def answer(self, timeout: float, upgrade: str) -> Lost | Opened:
        protocol = self._protocol
        self._patience = timeout
        if self._upload is None:
            self._start_clock()
        else:
            self._upload.add_done_callback(self._start_clock)
        try:
            for _ in range(INTERIM_LIMIT):
                message, payload = await protocol.read()
                if message.code >= 200 or message.code == 101:
                    break
            else:
                self.abandon()
                return Lost("it sent interim answers without end")
        except _WIRE_ERRORS as error:
            self.abandon()
            return Lost(words(error))
        finally:
            self._patience = None
            if self._deadline is not None:
                self._deadline.cancel()
        if not payload.is_eof():
            protocol.read_timeout = self._idle
            protocol.start_timeout()
        if message.code != 101:
            return Opened(message, payload, self._connection, self._upload, self._directory)
        if not upgrade:
            self.abandon()
            return Lost("it switched to a protocol that nobody asked for")
        opened = Opened(message, payload, self._connection, self._upload, self._directory)
        opened.pipe = self._switch()
        return opened

    def _start_clock(self, _: object = None) -> None:
        """One timer until the head has come: aiohttp's own starts anew with every piece."""
        if self._patience is not None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(self._patience, self._late)

    def _late(self) -> None:
        self._protocol.set_exception(aiohttp.SocketTimeoutError())

    def abandon(self) -> None:
        if self._upload is not None:
            self._upload.cancel()
        self._connection.close()

    def _switch(self) -> Pipe:
        """Takes the transport out of aiohttp's hands, with the bytes that followed the 101."""
        protocol, connection = self._protocol, self._connection
        tail = _Tail()
        protocol.set_parser(tail, None)
        transport = protocol.transport
        assert transport is not None

        def closed() -> None:
            connection.close()
            protocol.connection_lost(None)

        pipe = StreamPipe(closed)
        pipe.take(transport, bytes(tail.data))
        return pipe

    async def _feed(self, stream: AsyncIterator[bytes], sent: int, length: int | None) -> None:
        writer = StreamWriter(self._protocol, asyncio.get_running_loop())
        try:
            async for piece in stream:
                sent += len(piece)
                if length is not None and sent > length:
                    raise Incomplete
                self._write(piece if length is not None else _chunk(piece))
                await writer.drain()
            if length is None:
                self._write(b"0\r\n\r\n")
            elif sent != length:
                raise Incomplete
        except Exception as error:  # whatever it is, the service must not wait for the rest
            self._break(error)

    async def _feed_spool(self, body: Body) -> None:
        writer = StreamWriter(self._protocol, asyncio.get_running_loop())
        try:
            for piece in pieces(body):
                self._write(piece)
                await writer.drain()
        except OSError as error:
            self._break(error)

    def _write(self, data: bytes) -> None:
        transport = self._protocol.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the connection was closed during the upload")
        transport.write(data)

    def _break(self, error: Exception) -> None:
        """The body cannot be finished: the service must not take a part of it for the whole."""
        transport = self._protocol.transport
        reason = "the caller's body broke off" if isinstance(error, Incomplete) else words(error)
        if not isinstance(error, ConnectionError) and transport is not None:
            transport.abort()
            self._protocol.set_exception(aiohttp.ClientConnectionError(reason))


class _Tail:
    """Receives what came after a 101; aiohttp hands it to whoever takes the connection over."""

    def __init__(self) -> None:
        self.data = bytearray()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""

    def feed_eof(self) -> None: ...


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def words(error: BaseException) -> str:
    """One short sentence for people, without what the other side wrote."""
    cause = getattr(error, "os_error", None) or error.__cause__ or error
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its TLS certificate was not accepted: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError):
        return f"the TLS handshake failed: {cause.reason or 'unknown reason'}"
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the parent proxy refused the tunnel ({error.status})"
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return "connecting took too long"
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "it closed the connection without an answer"
    if isinstance(cause, HttpProcessingError):
        return "its answer is malformed"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "its answer broke off"
    if isinstance(cause, ConnectionRefusedError):
        return "the connection was refused"
    if isinstance(cause, ConnectionResetError | BrokenPipeError):
        return "the connection was reset"
    if isinstance(cause, socket.gaierror):
        return cause.strerror or "unknown name"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    return type(error).__name__
