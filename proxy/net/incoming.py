"""One request as aiohttp's parser hands it over, and its body."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Protocol

from aiohttp.http import RawRequestMessage
from aiohttp.streams import StreamReader

from proxy.core.model import EMPTY, Body
from proxy.core.refusal import Refusal
from proxy.net.exchange import Incomplete, TooLarge
from proxy.net.spool import MEMORY, Collector, arrived
from proxy.net.target import Place

if TYPE_CHECKING:
    from proxy.net.connection import Connection
    from proxy.net.repeats import Spelling

Fields = Sequence[tuple[str, str]]

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Refused(Exception):
    """The front door answers itself: nothing is sent, nothing recorded, the connection closes."""

    def __init__(self, detail: str, status: int = 400, code: str = "bad-request") -> None:
        super().__init__(detail)
        self.refusal = Refusal(code, detail, status=status)


class Site(Protocol):
    """How a listener or a tunnel reads its requests' targets. Equal ones read them alike."""

    @property
    def credential(self) -> tuple[str, str] | None:
        """Named once for a whole tunnel."""
        ...

    def place(self, target: str, host: str, headers: Fields) -> Place:
        """``host`` is the value of ``Host``, "" without one. Raises BadTarget, Refused."""
        ...


class Incoming:
    """A request in hand; for the engine its inlet, see ``exchange.Inlet``."""

    __slots__ = (
        "connection",
        "data",
        "expects",
        "message",
        "payload",
        "piece",
        "spelling",
        "streaming",
    )

    def __init__(
        self, message: RawRequestMessage, payload: StreamReader, connection: Connection
    ) -> None:
        self.message = message
        self.payload = payload
        self.connection = connection
        self.expects = False  # the caller waits for 100 Continue
        self.streaming: asyncio.Task[object] | None = None  # stopped when the caller leaves
        self.spelling: Spelling | None = None  # of a call that may come again
        self.piece: bytes | None = None  # its bytes, where they came by themselves
        self.data: bytes | None = None  # of a body that came whole with the head
        whole = payload.is_eof() and payload.exception() is None
        if whole and payload.total_bytes <= MEMORY:
            self.data = arrived(payload, connection.full) if payload.total_bytes else b""

    @property
    def gone(self) -> bool:
        return not self.connection.listening

    @property
    def body_pending(self) -> bool:
        """True while some of the body is still to come."""
        return not self.payload.is_eof()

    async def read(self, limit: int) -> Body:
        if self.data is not None:  # the usual case
            if len(self.data) > limit:
                raise TooLarge
            return Body.of(self.data) if self.data else EMPTY
        collector = Collector(self.connection.server.spool_dir)
        try:
            async with asyncio.timeout(self.connection.server.waits.body):
                async for piece in self.stream():
                    if collector.size + len(piece) > limit:
                        raise TooLarge
                    collector.add(piece)
        except TimeoutError:
            raise Incomplete("the caller's body took too long") from None
        return collector.finish()

    async def stream(self) -> AsyncIterator[bytes]:
        if self.data is not None:
            if self.data:
                yield self.data
            return
        self._proceed()
        payload, patience = self.payload, self.connection.server.waits.piece
        while True:
            try:
                async with asyncio.timeout(None if payload.is_eof() else patience):
                    data = await payload.readany()
            except (OSError, RuntimeError) as error:
                raise Incomplete("the caller's body broke off") from error
            if not data:
                return
            yield data

    def break_off(self) -> None:
        """Nothing more comes of its body."""
        if self.body_pending:
            self.payload.set_exception(Incomplete("the caller's body broke off"))

    def leave(self) -> None:
        """The caller has left."""
        self.break_off()
        if self.streaming is not None:
            self.streaming.cancel()

    def _proceed(self) -> None:
        """Tell a caller that waits for it to send its body."""
        if self.expects:
            self.expects = False
            if not self.payload.total_bytes:
                self.connection.transport.write(CONTINUE)
