"""The way out: one request on the wire per ``open``, and an honest word on whether it left.

aiohttp's connector supplies connections (pool, name resolution, TLS, parent proxy) and its C parser
reads the answers, but its ``ClientSession`` is not used: that one sends GET, HEAD, OPTIONS, TRACE,
PUT and DELETE again by itself when a connection drops, joins header fields, and normalises paths.
Here the head is written byte for byte from the request, once. So "not sent" needs no guessing from
exception types: it is everything that happens before the one ``write``.

Never followed, stored or added: redirects, cookies, environment settings, decompression.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import cast

import aiohttp
from aiohttp import ClientRequest, ClientTimeout, TCPConnector
from aiohttp.abc import AbstractResolver
from aiohttp.connector import Connection
from yarl import URL

from proxy.core.model import Denied, Headers, Lost, NotSent, Request
from proxy.net.egress import Egress, EgressDenied, GuardedResolver
from proxy.net.exchange import Incomplete, Pipe
from proxy.net.headers import NOT_FORWARDED, signed_names, text, wire
from proxy.net.pipe import StreamPipe
from proxy.net.sending import LINE_LIMIT, Exchange, Opened, words

DESTINATIONS = 1024  # remembered (scheme, host, port); bounded because callers choose them
KEEP_ALIVE = 15.0
"""Seconds an idle connection is kept. Short on purpose: the longer it is, the more often a server
has just closed it, and a request written into that gap is lost, not "not sent"."""

_BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})  # RFC 9110 8.6: these say so if they have none

__all__ = ["Denied", "Opened", "Upstream"]


class _Way:
    """The connections of all calls that one judge of addresses speaks for; no other call may use
    them, since it may be denied what they lead to."""

    def __init__(
        self, egress: Egress | None, resolver: GuardedResolver | None, context: ssl.SSLContext
    ) -> None:
        self.egress = egress
        self.resolver = resolver
        self.open: set[tuple[str, int]] = set()  # judged, and not denied as they are written
        self.pool = TCPConnector(
            ssl=context,
            resolver=resolver,
            limit=0,  # callers are bounded at the front door
            keepalive_timeout=KEEP_ALIVE,
        )
        self.single = TCPConnector(ssl=context, resolver=resolver, limit=0, force_close=True)

    async def close(self) -> None:
        await self.pool.close()
        await self.single.close()
        if self.resolver is not None:
            await self.resolver.close()


class Upstream:
    """Connections to services. One for the whole process; ``start`` before use."""

    def __init__(
        self,
        *,
        ssl_context: ssl.SSLContext | None = None,
        ca_file: str | Path | None = None,
        proxy: str | None = None,
        egress: Egress | None = None,
        resolver: AbstractResolver | None = None,
        connect_timeout: float = 10.0,
        answer_timeout: float = 300.0,
        idle_timeout: float = 300.0,
        pseudonym: str | None = "onceproxy",
        spool_dir: Path | None = None,
    ) -> None:
        """``ca_file`` adds to the system's roots; ``ssl_context`` replaces both. ``proxy`` is the
        ``http://[user:password@]host:port`` of a parent proxy; names are then resolved there, and
        ``egress`` sees names and literal addresses only. Time-outs are seconds: until connected,
        from the last byte sent to the answer's head, and between two pieces of an answer.
        ``resolver`` is asked for names instead of the system. ``pseudonym`` is our name in ``Via``,
        None for no such field."""
        self._ssl = ssl_context or _verified(ca_file)
        self._proxy = URL(proxy).with_user(None) if proxy else None
        self._proxy_headers: Headers = ()
        if proxy and (user := URL(proxy).user) is not None:
            credential = aiohttp.encode_basic_auth(user, URL(proxy).password or "")
            self._proxy_headers = (("Proxy-Authorization", credential),)
        self._egress = egress
        self._names = resolver
        self._timeout = ClientTimeout(
            total=None, connect=connect_timeout, sock_connect=connect_timeout
        )
        self._answer_timeout = answer_timeout
        self._idle_timeout = idle_timeout
        self._via = f"1.1 {pseudonym}" if pseudonym else None
        self._directory = spool_dir
        self._destinations: dict[tuple[str, str, int], ClientRequest] = {}
        self._ways: dict[Egress | None, _Way] = {}
        self._left: list[_Way] = []  # that take no new calls

    async def start(self) -> None:
        self._way("")

    async def close(self) -> None:
        """Closes every connection, those in use as well."""
        for way in (*self._ways.values(), *self._left):
            await way.close()
        self._ways.clear()
        self._left.clear()
        self._destinations.clear()

    async def open(
        self,
        request: Request,
        *,
        stream: AsyncIterator[bytes] | None = None,
        length: int | None = None,
        fresh: bool = False,
        timeout: float | None = None,
        upgrade: str = "",
        on_sent: Callable[[], object] | None = None,
        gate: Callable[[], str | None] | None = None,
        run: str = "",
    ) -> NotSent | Lost | Opened:
        """Sends the request once and waits for the head of its answer.

        ``stream`` is sent instead of ``request.body``, with ``length`` as its declared size (None:
        chunked). ``fresh`` takes a new connection and closes it afterwards. ``timeout`` replaces
        the answer time-out, seconds. ``upgrade`` asks for another protocol. ``on_sent`` is called
        once the first bytes were handed to the transport. ``gate`` is asked directly before: the
        reason why they must not be, or None. ``run`` is whose call it is, as in an
        operation key.

        NotSent (Denied, where the address may not be called): no byte was handed to the transport.
        Lost: bytes may have left and no answer came. Neither of the two leaves anything open.
        """
        way = self._way(run)
        denied = self._as_written(way, request.host, request.port)
        if denied is not None:
            return denied
        first = b""
        if stream is not None:
            # Before connecting: a caller that leaves now has provably sent nothing.
            try:
                first = await anext(stream, b"")
            except Incomplete:
                return NotSent("the caller's body broke off before its first byte")
            if length is not None and len(first) > length:
                return NotSent("the caller's body is longer than it said")
        head = self._head(request, stream is not None, length, fresh, upgrade)
        if head is None:
            return NotSent("the request cannot be written: a line break in a field or its target")
        connection = await self._connect(way, request, fresh)
        if isinstance(connection, NotSent):
            return connection
        exchange = Exchange(connection, request.method, self._idle_timeout, self._directory)
        try:
            if not exchange.usable():
                connection.close()
                return NotSent("the connection was given up before the request was written")
            objection = gate() if gate is not None else None
            if objection is not None:
                connection.close()
                return NotSent(objection)
            exchange.send(head, request.body, stream, first, length)
            if on_sent is not None:
                on_sent()
            answer = await exchange.answer(
                self._answer_timeout if timeout is None else timeout, upgrade
            )
            if isinstance(answer, Opened) and answer.status == 407 and self._absolute(request):
                # RFC 9110 15.5.8: only a proxy says so, and it has passed nothing on.
                answer.close()
                return NotSent("the parent proxy refused the call (407)")
            return answer
        except BaseException:
            exchange.abandon()
            raise

    async def tunnel(self, host: str, port: int, run: str = "") -> NotSent | Pipe:
        """A raw connection, for bytes that are passed on unread."""
        way = self._way(run)
        denied = self._as_written(way, host, port)
        if denied is not None:
            return denied
        limit = self._timeout.connect
        try:
            async with asyncio.timeout(limit):
                if self._proxy is not None:
                    return await self._through_parent(host, port)
                return await self._dial(way, host, port)
        except EgressDenied as error:
            return Denied(error.strerror or "denied")
        except OSError as error:
            return NotSent(words(error))

    def forget(self) -> None:
        """What may be called has changed: judge every destination anew, and call none of them over
        a connection that was opened under the old rules."""
        self._left += self._ways.values()
        self._ways.clear()

    def _way(self, run: str) -> _Way:
        egress = self._egress.for_run(run) if self._egress is not None else None
        way = self._ways.get(egress)
        if way is None:
            resolver = None
            if egress is not None and self._proxy is None:
                resolver = GuardedResolver(egress, self._names)
            way = self._ways[egress] = _Way(egress, resolver, self._ssl)
        return way

    def _as_written(self, way: _Way, host: str, port: int) -> Denied | None:
        """The connector dials a literal address without asking its resolver, and leaves names to a
        parent proxy, so both are judged here."""
        if way.egress is None or (host, port) in way.open:
            return None
        objection = way.egress.literal(host, port)
        if objection is None and self._proxy is not None:
            objection = way.egress.name(host, port)
        if objection is not None:
            return Denied(objection)
        if len(way.open) >= DESTINATIONS:
            way.open.clear()
        way.open.add((host, port))
        return None

    async def _connect(self, way: _Way, request: Request, fresh: bool) -> Connection | NotSent:
        connector = way.single if fresh else way.pool
        try:
            return await connector.connect(
                self._destination(request), traces=[], timeout=self._timeout
            )
        except aiohttp.ClientConnectorDNSError as error:
            if isinstance(error.os_error, EgressDenied):
                return Denied(error.os_error.strerror or "denied")
            return NotSent(f"its name does not resolve: {words(error)}")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return NotSent(words(error))

    def _destination(self, request: Request) -> ClientRequest:
        """What the connector wants to know about a destination; it never becomes bytes."""
        key = (request.scheme, request.host, request.port)
        known = self._destinations.get(key)
        if known is None:
            if len(self._destinations) >= DESTINATIONS:
                self._destinations.clear()
            known = self._destinations[key] = ClientRequest(
                "GET",
                URL.build(scheme=request.scheme, host=request.host, port=request.port, path="/"),
                loop=asyncio.get_running_loop(),
                session=cast(aiohttp.ClientSession, None),
                proxy=self._proxy,
                proxy_headers=dict(self._proxy_headers) if self._proxy else None,
            )
        return known

    def _head(
        self, request: Request, streamed: bool, length: int | None, fresh: bool, upgrade: str
    ) -> bytes | None:
        """The bytes before the body. None where a field would break the framing."""
        target = request.target
        if not (target.isascii() and target.isprintable()) or " " in target:
            return None
        via = self._absolute(request)
        lines = [
            f"{request.method} {request.url if via else target} HTTP/1.1",
            f"Host: {request.authority}",
        ]
        signed: frozenset[str] = frozenset()
        for name, value in request.headers:
            lower = name.lower()
            if lower in NOT_FORWARDED:
                continue
            if lower == "authorization":
                signed = signed_names(value)
            lines.append(f"{name}: {value}")
        if via:
            lines += [f"{name}: {value}" for name, value in self._proxy_headers]
        if self._via is not None and "via" not in signed:
            lines.append(f"Via: {self._via}")
        if upgrade:
            lines += ["Connection: Upgrade", f"Upgrade: {upgrade}"]
        elif fresh:
            lines.append("Connection: close")
        if streamed:
            framing = (
                "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
            )
            lines.append(framing)
        elif request.body.size or request.method in _BODY_METHODS:
            lines.append(f"Content-Length: {request.body.size}")
        head = "\r\n".join(lines) + "\r\n\r\n"
        breaks = len(lines) + 1
        if head.count("\n") != breaks or head.count("\r") != breaks or "\0" in head:
            return None
        return wire(head)

    def _absolute(self, request: Request) -> bool:
        """Whether it is a parent proxy that reads this request, and not one in a tunnel."""
        return self._proxy is not None and request.scheme == "http"

    async def _dial(self, way: _Way, host: str, port: int) -> Pipe:
        """Raises EgressDenied, OSError."""
        loop = asyncio.get_running_loop()
        addresses = [host]
        if way.resolver is not None and ":" not in host:
            addresses = [found["host"] for found in await way.resolver.resolve(host, port)]
        failure: OSError = OSError("its name has no address")
        for address in addresses:
            try:
                _, pipe = await loop.create_connection(StreamPipe, address, port)
                return pipe
            except OSError as error:
                failure = error
        raise failure

    async def _through_parent(self, host: str, port: int) -> Pipe | NotSent:
        """A CONNECT to the parent proxy. Raises OSError."""
        assert self._proxy is not None
        assert self._proxy.host is not None
        _, pipe = await asyncio.get_running_loop().create_connection(
            StreamPipe,
            self._proxy.host,
            self._proxy.port or 80,
            ssl=self._ssl if self._proxy.scheme == "https" else None,
        )
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
        lines += [f"{name}: {value}" for name, value in self._proxy_headers]
        pipe.write(wire("\r\n".join(lines) + "\r\n\r\n"))
        answer = b""
        while b"\r\n\r\n" not in answer and len(answer) < LINE_LIMIT:
            piece = await pipe.read()
            if not piece:
                break
            answer += piece
        head, _, rest = answer.partition(b"\r\n\r\n")
        status = head[9:12]
        if not head.startswith(b"HTTP/1.") or not status.startswith(b"2"):
            pipe.close()
            return NotSent(f"the parent proxy refused the tunnel ({text(status) or 'no answer'})")
        if rest:
            pipe.unread(rest)
        return pipe


def _verified(ca_file: str | Path | None) -> ssl.SSLContext:
    """The system's roots and the given ones. Raises OSError, ssl.SSLError for an unusable file."""
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    context.set_alpn_protocols(["http/1.1"])
    return context
