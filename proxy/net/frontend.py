"""The front door: the listeners, and the way of one request from the socket to the engine and back.

aiohttp's low-level server protocol does the parsing (its C parser is required: the other one
accepts shapes that this proxy must refuse), keep-alive and pipelining. A handler is never
cancelled because its caller left: the engine decides what a call still has to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import aiohttp.http_parser
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMethod, LineTooLong

from proxy.core.model import Body, NotSent
from proxy.core.refusal import Refusal
from proxy.net import handoff, problem
from proxy.net.exchange import Handle, Pipe, Reply
from proxy.net.incoming import Incoming, Refused, Site
from proxy.net.outgoing import CLOSE, KEEP, Rejection, Written, write
from proxy.net.pipe import relay
from proxy.net.reception import Reception
from proxy.net.sites import FixedSite, ProxySite, TunnelSite
from proxy.net.tls import CertificateAuthority
from proxy.net.tunnel import Tunnels

log = logging.getLogger(__name__)

LINE_LIMIT = 1 << 16  # bytes of the request line: presigned addresses are long
FIELD_LIMIT = LINE_LIMIT - 1
"""Bytes of one header field. Not the same number, because the parser's error names only the
limit."""
FIELD_COUNT = 256
LINGER = 5.0  # seconds to take in what a refused caller still sends, so that it reads the answer
BACKLOG = 1024


class ParserMissing(RuntimeError):
    """aiohttp's C parser is not there."""


class Handler(web.RequestHandler):
    """aiohttp's server protocol for one connection, with the site it belongs to."""

    def __init__(self, server: Server, site: Site, **options: Any) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self.site = site
        self.busy = False  # a request is being handled
        self._over: asyncio.Future[None] | None = None
        self._timeout = server.write_timeout

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    async def over(self) -> None:
        """Returns when the connection has ended."""
        if self.transport is not None:
            self._over = asyncio.get_running_loop().create_future()
            await self._over

    async def drain(self) -> None:
        """Returns when more may be written. Raises ConnectionError if the caller is gone."""
        await self._drain_helper()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what the parser refused; never with a word of what was sent."""
        if status != 400:
            log.error("a request could not be handled", exc_info=exc)
        return cast(web.StreamResponse, Rejection(_unreadable(status, exc), self._timeout))


class Server(web.Server):
    """Makes handlers; aiohttp's server keeps the list of open ones."""

    def __init__(
        self, handle: Callable[[Incoming], Awaitable[Written]], write_timeout: float, **options: Any
    ) -> None:
        super().__init__(cast(Any, handle), request_factory=cast(Any, Incoming))
        self.write_timeout = write_timeout
        self._options = options

    def make(self, site: Site) -> Handler:
        return Handler(self, site, **self._options)


class FrontDoor:
    """The listeners. ``start`` them, ``stop`` them; everything else happens by itself."""

    def __init__(
        self,
        engine_handle: Handle,
        *,
        ca: CertificateAuthority | None = None,
        intercept: str = "all",
        knows_host: Callable[[str, int], bool] = lambda host, port: False,
        tunnel_hosts: Sequence[str] = (),
        dial: Callable[[str, int], Awaitable[NotSent | Pipe]] | None = None,
        gateways: Sequence[tuple[str, int, str]] = (),
        own_names: Sequence[str] = (),
        run_tokens: bool = False,
        pseudonym: str | None = "onceproxy",
        idle_timeout: float = 300.0,
        body_timeout: float = 30.0,
        write_timeout: float = 60.0,
        spool_dir: Path | None = None,
        on_tunnel: Callable[[str, str], None] = lambda host, reason: None,
    ) -> None:
        """``engine_handle`` gets each call. ``ca`` and ``intercept`` (all | rules | none) say which
        TLS is opened; ``tunnel_hosts`` (``name``, ``*.name``) never is. ``dial`` connects blind
        tunnels (``Upstream.tunnel``). ``gateways`` are (host, port, address to send to);
        ``own_names`` are further names under which callers reach them. Time-outs are seconds: of a
        connection without a request, between two pieces of a request's body, and for a caller that
        takes nothing of its answer. ``on_tunnel`` gets (host, reason) of each blind tunnel.

        Raises BadTarget for a gateway's address, ValueError for ``intercept``.
        """
        if intercept not in ("all", "rules", "none"):
            raise ValueError("intercept is all, rules or none")
        self._engine = engine_handle
        self._reception = Reception(
            pseudonym=pseudonym,
            run_tokens=run_tokens,
            body_timeout=body_timeout,
            spool_dir=spool_dir,
        )
        self._tunnels = Tunnels(
            authority=ca,
            intercept=intercept,
            knows_host=knows_host,
            tunnel_hosts=tunnel_hosts,
            dial=dial,
            inner=self._inner,
            on_tunnel=on_tunnel,
        )
        self._own_names = tuple(name.lower() for name in own_names)
        self._gateways = [
            (host, port, FixedSite(to, self._names(host))) for host, port, to in gateways
        ]
        self._idle_timeout = idle_timeout
        self._write_timeout = write_timeout
        self._server: Server | None = None
        self._listeners: list[asyncio.Server] = []
        self._active = 0
        self._stopping: asyncio.Future[None] | None = None
        self.port = 0  # of the main listener, once it is started
        self.gateway_ports: list[int] = []

    async def start(self, host: str, port: int) -> None:
        """Opens all listeners; port 0 takes a free one. Raises OSError, ParserMissing."""
        if not aiohttp.http_parser.HttpRequestParser.__module__.endswith("_http_parser"):
            raise ParserMissing(
                "aiohttp runs without its C parser, which accepts requests that must be refused: "
                "unset AIOHTTP_NO_EXTENSIONS, or install a wheel of aiohttp for this platform"
            )
        self._server = Server(
            self._handle,
            self._write_timeout,
            keepalive_timeout=self._idle_timeout,
            lingering_time=LINGER,
            access_log=None,
            auto_decompress=False,
            max_line_size=LINE_LIMIT,
            max_field_size=FIELD_LIMIT,
            max_headers=FIELD_COUNT,
        )
        try:
            main = ProxySite(self._names(host))
            self.port = main.port = await self._listen(host, port, main)
            for gateway_host, gateway_port, site in self._gateways:
                self.gateway_ports.append(await self._listen(gateway_host, gateway_port, site))
        except OSError:
            await self.stop(0)
            raise

    async def stop(self, drain: float) -> None:
        """Takes no new connection or request, lets running calls end for ``drain`` seconds, then
        closes what is left."""
        for listener in self._listeners:
            listener.close()
        server = self._server
        if server is None:
            return
        loop = asyncio.get_running_loop()
        self._stopping = loop.create_future()
        server.pre_shutdown()
        for connection in server.connections:
            if isinstance(connection, Handler) and not connection.busy:
                connection.force_close()
        if self._active:
            try:
                async with asyncio.timeout(drain):
                    await self._stopping
            except TimeoutError:
                log.warning("%d calls were cut off by the stop", self._active)
        for pipe in list(self._tunnels.pipes):
            pipe.abort()
        await asyncio.sleep(0)  # tunnels see their end
        await server.shutdown(timeout=1.0)
        self._listeners.clear()

    def _names(self, host: str) -> set[str]:
        """Names under which a listener may be called. Not "all addresses": browsers take 0.0.0.0
        for this machine."""
        return {*self._own_names, host.lower()} - {"0.0.0.0", "::", ""}

    async def _listen(self, host: str, port: int, site: Site) -> int:
        server = self._server
        assert server is not None
        listener = await asyncio.get_running_loop().create_server(
            lambda: server.make(site), host, port, backlog=BACKLOG
        )
        self._listeners.append(listener)
        bound: int = listener.sockets[0].getsockname()[1]
        return bound

    def _inner(self, site: TunnelSite) -> Handler:
        assert self._server is not None
        return self._server.make(site)

    async def _handle(self, incoming: Incoming) -> Written:
        self._active += 1
        incoming.protocol.busy = True
        try:
            if incoming.message.method == "CONNECT":
                return await self._connect(incoming)
            return await self._call(incoming)
        except Refused as refused:
            reply = problem.reply(refused.refusal)
            await write(incoming, reply, self._write_timeout, close=True)
            return CLOSE
        finally:
            incoming.protocol.busy = False
            self._active -= 1
            self._check_drained()

    def _check_drained(self) -> None:
        if not self._active and self._stopping is not None and not self._stopping.done():
            self._stopping.set_result(None)

    async def _call(self, incoming: Incoming) -> Written:
        """Raises Refused."""
        arrival = self._reception.arrival(incoming, incoming.protocol.site)
        try:
            reply = await self._engine(arrival)
        except Exception:
            log.exception("the engine failed")
            refusal = Refusal("outcome-unresolved", "an internal error: see the proxy's log")
            reply = problem.reply(refusal)
        if not isinstance(reply.body, Body) and reply.status == 101:
            await self._switch(incoming, reply, arrival.upgrade)
            return CLOSE
        close = incoming.message.should_close or incoming.body_pending or self._stopping is not None
        kept = await write(incoming, reply, self._write_timeout, close=close)
        return KEEP if kept else CLOSE

    async def _connect(self, incoming: Incoming) -> Written:
        """Raises Refused."""
        if isinstance(incoming.protocol.site, FixedSite | TunnelSite):
            raise Refused("tunnels are opened at the proxy's own port")
        credential = self._reception.credential(incoming)
        self._active -= 1  # a tunnel is no call; the calls inside are counted by themselves
        self._check_drained()
        try:
            await self._tunnels.connect(incoming, credential)
        finally:
            self._active += 1
        return CLOSE

    async def _switch(self, incoming: Incoming, reply: Reply, protocol: str) -> None:
        """After a 101: joins both connections until they end."""
        upstream = cast(Pipe, reply.body)
        lines = ["HTTP/1.1 101 Switching Protocols"]
        lines += [f"{name}: {value}" for name, value in reply.headers]
        lines += ["Connection: Upgrade", f"Upgrade: {protocol}", "\r\n"]
        head = "\r\n".join(lines).encode("utf-8", "surrogateescape")
        handler = incoming.protocol
        # One write: some clients take a head in many small pieces for an attack.
        pipe = await handoff.detach(handler, head)
        reply.delivered(pipe is not None)
        if pipe is None:
            upstream.close()
            return
        self._tunnels.pipes.add(pipe)
        self._active -= 1
        self._check_drained()
        try:
            await relay(pipe, upstream)
        finally:
            self._active += 1
            self._tunnels.pipes.discard(pipe)
            handoff.release(handler)


def _unreadable(status: int, error: BaseException | None) -> Refused:
    if status != 400:
        return Refused("an internal error; the log has it", 500)
    if isinstance(error, LineTooLong):
        if str(FIELD_LIMIT) in str(error):
            return Refused(f"a header field is longer than {FIELD_LIMIT} bytes", 431)
        return Refused(f"the request line is longer than {LINE_LIMIT} bytes", 414)
    if isinstance(error, BadHttpMethod):
        return Refused("this is no HTTP request, or its method is not known")
    if "Too many headers" in str(error):
        return Refused(f"the request has more than {FIELD_COUNT} header fields", 431)
    return Refused("the request is malformed")
