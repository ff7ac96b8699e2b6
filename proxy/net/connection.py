"""One caller's connection: bytes in, one request after the other, and when it ends.

The parser stops after each request, so that what a caller sends ahead stays bytes until the answer
before it is written. A caller that leaves ends the connection and nothing else: its request's task
goes on, because the engine decides what a call still has to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from aiohttp.http_exceptions import HttpProcessingError

from proxy.net import parsing, problem
from proxy.net.incoming import Incoming, Refused, Site
from proxy.net.outgoing import whole
from proxy.net.parsing import HeadLimits, head_size
from proxy.net.pipe import StreamPipe

log = logging.getLogger(__name__)

AHEAD_LIMIT = 1 << 16  # bytes sent ahead of an answer before the caller has to wait
SPARED_AFTER = 1.0  # seconds without a request after which a connection may have to make room
LINGER = 5.0  # seconds to take in what a refused caller still sends, so that it reads the answer


@dataclass(frozen=True, slots=True)
class Waits:
    """How long a caller may take, seconds."""

    head: float = 10.0  # from the first byte of a request to the end of its head
    piece: float = 30.0  # between two pieces of a body
    body: float = 300.0  # for a whole body that is needed before anything is sent
    idle: float = 300.0  # between two requests
    write: float = 60.0  # for taking some of an answer


class Server:
    """What all connections have in common, and the list of open ones."""

    def __init__(
        self,
        handle: Callable[[Incoming], Awaitable[bool]],
        at_once: Callable[[Incoming], bool],
        again: Callable[[Connection, bytes], bool],
        *,
        waits: Waits,
        limits: HeadLimits,
        spool_dir: Path | None,
    ) -> None:
        """``handle`` answers a request; False ends its connection. ``at_once`` is asked before it:
        True where it has answered, and the connection goes on. ``again`` is asked first of all,
        with the bytes of a request that nobody has read yet."""
        self.handle = handle
        self.again = again
        self.waits = waits
        self.limits = limits
        self.at_once = at_once
        self.spool_dir = spool_dir
        self.connections: set[Connection] = set()

    def make(self, site: Site) -> Connection:
        return Connection(self, site)

    def dismiss(self) -> None:
        """Closes the connections that have no request."""
        for connection in list(self.connections):
            if connection.task is None:
                connection.transport.close()

    def make_room(self) -> bool:
        """Ends the connection that has waited longest for its caller to ask for something; False
        if none has for long enough to be spared."""
        waiting = [c for c in self.connections if c.task is None and not c.gone]
        longest = min(waiting, key=lambda c: c.idle_since, default=None)
        if longest is None or longest.idle_for() < SPARED_AFTER:
            return False
        longest.transport.abort()
        return True

    def calls(self) -> list[asyncio.Task[None]]:
        """The tasks of running calls; a tunnel is none."""
        return [c.task for c in self.connections if c.task is not None and not c.given]

    async def drained(self) -> None:
        """Returns when no call runs."""
        while calls := self.calls():
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Cuts off what is left."""
        busy = {c.task: c.transport for c in self.connections if c.task is not None}
        for task in busy:
            task.cancel()
        if busy:
            await asyncio.wait(busy, timeout=1.0)  # tasks end at once, unless something is wrong
        for transport in busy.values():
            transport.abort()
        self.dismiss()


class Connection(asyncio.Protocol):
    """A caller's side of HTTP/1.1, with the site it belongs to."""

    transport: asyncio.Transport

    def __init__(self, server: Server, site: Site) -> None:
        self.server = server
        self.site = site
        self.task: asyncio.Task[None] | None = None  # that answers the request in hand
        self.given = False  # to another protocol
        self._loop = asyncio.get_running_loop()
        self._parser = parsing.parser(self, self._loop, server.limits)
        self._incoming: Incoming | None = None  # the request in hand
        self._ahead = b""  # what came after it
        self._apart = True  # each request so far was one piece: the parser holds nothing
        self._deaf = False  # nothing that still comes is looked at
        self.full = False  # the request's body has to be read before more of it is taken
        self._reading = True
        self._writable: asyncio.Future[None] | None = None  # there while writing has to wait
        self.idle_since = 0.0
        self._head_size = 0  # bytes of a request whose head is not whole yet
        self._half_closed = False  # the caller sends nothing more, and may still read
        self._timer: asyncio.TimerHandle | None = None
        self._over: asyncio.Future[None] = self._loop.create_future()

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self.server.connections.add(self)
        self.idle_since = self._loop.time()
        self._wake_up_at(self.idle_since + self.server.waits.idle, self._check_idle)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self._incoming is None or self._incoming.body_pending:
            if self._apart and self.server.again(self, data):
                self.idle_since = self._loop.time()
            else:
                self._feed(data)
        else:
            self._ahead += data
            self._balance()

    def eof_received(self) -> bool:
        """A caller may say that it sends no more and still wait for its answer; one that has left
        looks the same. So a call in hand is answered, and counted as not delivered."""
        incoming = self._incoming
        if incoming is None or incoming.streaming is not None:
            return False
        if self.transport.get_extra_info("sslcontext") is not None:
            return False  # a TLS transport closes whatever is returned
        self._half_closed = self._deaf = True
        incoming.break_off()
        return True

    def connection_lost(self, exc: BaseException | None) -> None:
        self.server.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._incoming is not None:
            self._incoming.leave()
        self.resume_writing()
        if not self._over.done():
            self._over.set_result(None)

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # What the reader of a body calls

    @property
    def connected(self) -> bool:
        return not self.gone

    def pause_reading(self) -> None:
        self.full = True
        self._parser.pause_reading()
        self._balance()

    def resume_reading(self, resume_parser: bool = True) -> None:
        if self.full:
            self.full = False
            if resume_parser and not self._deaf:
                self._feed(b"")  # what the parser holds back
            self._balance()

    # What a request's task calls

    @property
    def gone(self) -> bool:
        return self.transport.is_closing()

    @property
    def listening(self) -> bool:
        """Whether the caller is known to be there still."""
        return not self._half_closed and not self.transport.is_closing()

    def idle_for(self) -> float:
        return self._loop.time() - self.idle_since

    @property
    def writing_paused(self) -> bool:
        return self._writable is not None

    async def drain(self) -> None:
        """Returns when more may be written. Raises ConnectionError if the caller is gone,
        TimeoutError if it takes nothing."""
        if self._writable is not None:
            async with asyncio.timeout(self.server.waits.write):
                await self._writable
        if self.gone:
            raise ConnectionResetError("the caller is gone")

    async def over(self) -> None:
        """Returns when the connection has ended."""
        await self._over

    async def give(self, incoming: Incoming, first: bytes) -> StreamPipe | None:
        """Writes ``first`` and gives the connection away as a raw pipe, with all that came after
        the request; None if the caller is gone."""
        if self.gone:
            return None
        self.transport.write(first)
        try:
            # The next protocol does not know of this one's pauses.
            await self.drain()
        except (ConnectionError, TimeoutError):
            self.transport.abort()
            return None
        self.given = True
        early = self._take_ahead(incoming)
        self._balance()
        pipe = StreamPipe()
        pipe.take(self.transport, early)
        if self._half_closed:
            pipe.eof_received()
        return pipe

    # Requests

    def _feed(self, data: bytes) -> None:
        try:
            messages, _, _ = self._parser.feed_data(data)
        except HttpProcessingError as error:
            self._misread(error)
            return
        if data and self._apart:
            self._apart = len(messages) == 1 and parsing.alone(data, *messages[0])
        if not messages:
            if self._incoming is None and (data if self._head_size else data.strip(b"\r\n")):
                self._wait_for_head(len(data))
            return
        size, self._head_size = self._head_size + len(data), 0
        for message, payload in messages:  # at most one
            if size > self.server.limits.head and head_size(message) > self.server.limits.head:
                self._refuse(parsing.too_long(self.server.limits))
                return
            incoming = self._incoming = Incoming(message, payload, self)
            if self._apart:
                incoming.piece = data
            if self.server.at_once(incoming):
                self._incoming = None
                self.idle_since = self._loop.time()
                self._loop.call_soon(self._next)  # one call inside the other might have no end
            else:
                self.task = self._loop.create_task(self._serve(incoming))

    def _misread(self, error: HttpProcessingError) -> None:
        if self._incoming is not None:  # its body is broken: its task answers
            self._deaf = True
            self._incoming.break_off()
        else:
            self._refuse(parsing.refused(error, self.server.limits))

    def _refuse(self, refused: Refused) -> None:
        self.transport.write(whole(problem.reply(refused.refusal)))
        self._part(linger=True)

    def _wait_for_head(self, size: int) -> None:
        first = not self._head_size
        self._head_size += size
        if self._head_size > self.server.limits.head:
            self._refuse(parsing.too_long(self.server.limits))
        elif first:
            self._wake_up_at(self._loop.time() + self.server.waits.head, self._check_head)

    async def _serve(self, incoming: Incoming) -> None:
        goes_on = False
        try:
            goes_on = await self.server.handle(incoming)
        except Exception:
            log.exception("a request could not be answered")
            self.transport.abort()
        finally:
            self.task = self._incoming = None
            if self.given:
                self.connection_lost(None)  # the loop tells the other protocol
            elif goes_on:
                self._go_on(incoming)
            else:
                self._part(linger=incoming.body_pending or not incoming.message.should_close)

    def _go_on(self, incoming: Incoming) -> None:
        if self.gone:
            return
        if self._half_closed:
            self._end()
            return
        self.idle_since = self._loop.time()
        self._feed(self._take_ahead(incoming))
        self._balance()

    def _next(self) -> None:
        """What the parser holds back behind a request that was answered at once."""
        if self._incoming is None and not self._deaf and not self.gone:
            self._feed(b"")

    def _take_ahead(self, incoming: Incoming) -> bytes:
        ahead, self._ahead = self._ahead, b""
        if incoming.message.upgrade:
            # The parser has stopped for good behind it; this makes it give back what it holds.
            self._parser.set_upgraded(True)
            _, _, rest = self._parser.feed_data(b"")
            self._parser.set_upgraded(False)
            ahead = rest + ahead
        return ahead

    # Ends

    def _part(self, *, linger: bool) -> None:
        """Nothing more is taken from the caller, but it may still read."""
        self._deaf = True
        self._ahead = b""
        if self.gone:
            return
        if linger and not self._half_closed and self.transport.can_write_eof():
            self.transport.write_eof()
            self.full = False
            self._balance()
            self._wake_up_at(self._loop.time() + LINGER, self._end)
        else:
            self._end()

    def _check_idle(self) -> None:
        """Runs seldom, whatever goes on: a timer for each request would cost more than this."""
        now, limit = self._loop.time(), self.server.waits.idle
        due = self.idle_since + limit if self._incoming is None else now + limit
        if due > now:
            self._wake_up_at(due, self._check_idle)
        else:
            self._end()

    def _check_head(self) -> None:
        if self._head_size:
            self._refuse(Refused("the head of the request did not come in time", 408))
        else:
            self._check_idle()

    def _end(self) -> None:
        self.transport.close()
        # It may not even take its last answer.
        self._wake_up_at(self._loop.time() + self.server.waits.write, self.transport.abort)

    def _wake_up_at(self, due: float, action: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due, action)

    def _balance(self) -> None:
        """Lets the caller send, or not."""
        wanted = not self.full and len(self._ahead) <= AHEAD_LIMIT
        if wanted is not self._reading and not self.gone:
            self._reading = wanted
            if wanted:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()
