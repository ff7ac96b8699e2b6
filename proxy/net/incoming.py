"""One request as aiohttp's parser hands it over, and its body.

aiohttp would build a ``web.Request`` for each call; this is the little of it that its protocol
needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from aiohttp.helpers import set_exception
from aiohttp.http import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import RequestPayloadError

from proxy.core.model import EMPTY, Body, Headers
from proxy.core.refusal import Refusal
from proxy.net.exchange import NO_BODY, Incomplete, TooLarge
from proxy.net.spool import MEMORY, Collector
from proxy.net.target import Place

if TYPE_CHECKING:
    from proxy.net.frontend import Handler

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Refused(Exception):
    """The front door answers itself: nothing is sent, nothing recorded, the connection closes."""

    def __init__(self, detail: str, status: int = 400, code: str = "bad-request") -> None:
        super().__init__(detail)
        self.refusal = Refusal(code, detail, status=status)


class Site(Protocol):
    """How a listener or a tunnel reads its requests' targets."""

    credential: tuple[str, str] | None  # named once for a whole tunnel

    def place(self, target: str, host: str, headers: Headers) -> Place:
        """``host`` is the value of ``Host``, "" without one. Raises BadTarget, Refused."""
        ...


class Incoming:
    """What stands between aiohttp's protocol and the engine for one request."""

    __slots__ = ("_task", "expects", "message", "payload", "protocol", "streaming")

    def __init__(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: Handler,
        writer: object,
        task: asyncio.Task[None],
    ) -> None:
        self.message = message
        self.payload = payload
        self.protocol = protocol
        self.expects = False  # the caller waits for 100 Continue
        self.streaming: asyncio.Task[object] | None = None  # stopped when the caller leaves
        self._task = task

    @property
    def transport(self) -> asyncio.Transport | None:
        return self.protocol.transport

    @property
    def gone(self) -> bool:
        transport = self.protocol.transport
        return transport is None or transport.is_closing()

    @property
    def body_pending(self) -> bool:
        """True while some of the body is still to come."""
        return not self.payload.is_eof()

    def proceed(self) -> None:
        """Tell a caller that waits for it to send its body."""
        if self.expects:
            self.expects = False
            transport = self.protocol.transport
            if transport is not None and not self.payload.total_bytes:
                transport.write(CONTINUE)

    # What aiohttp's RequestHandler calls on its requests:

    def _finish(self) -> None: ...

    def _cancel(self, error: BaseException) -> None:
        """The connection is lost."""
        if self.payload is not EMPTY_PAYLOAD:
            set_exception(self.payload, error)
        if self.streaming is not None:
            self.streaming.cancel()


class HttpInlet:
    """The body of a request, read once; see ``exchange.Inlet``."""

    __slots__ = ("_directory", "_incoming", "_timeout")

    def __init__(self, incoming: Incoming, timeout: float, directory: Path | None) -> None:
        self._incoming = incoming
        self._timeout = timeout
        self._directory = directory

    @property
    def gone(self) -> bool:
        return self._incoming.gone

    async def read(self, limit: int) -> Body:
        payload = self._incoming.payload
        if payload.is_eof() and payload.exception() is None and payload.total_bytes <= MEMORY:
            if payload.total_bytes > limit:
                raise TooLarge
            data = payload.read_nowait()
            return Body.of(data) if data else EMPTY
        collector = Collector(self._directory)
        async for piece in self.stream():
            if collector.size + len(piece) > limit:
                raise TooLarge
            collector.add(piece)
        return collector.finish()

    async def stream(self) -> AsyncIterator[bytes]:
        self._incoming.proceed()
        payload = self._incoming.payload
        try:
            while True:
                if payload.is_eof():
                    data = await payload.readany()
                else:
                    async with asyncio.timeout(self._timeout):
                        data = await payload.readany()
                if not data:
                    return
                yield data
        except (RequestPayloadError, OSError, RuntimeError) as error:
            raise Incomplete("the caller's body broke off") from error


class BodilessInlet:
    """A body-less request's inlet: nothing to read, but the caller may leave."""

    __slots__ = ("_incoming",)

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming

    @property
    def gone(self) -> bool:
        return self._incoming.gone

    async def read(self, limit: int) -> Body:
        return await NO_BODY.read(limit)

    def stream(self) -> AsyncIterator[bytes]:
        return NO_BODY.stream()
