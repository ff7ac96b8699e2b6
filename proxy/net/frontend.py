"""The front door: the listeners, and the way of one request from the socket to the engine and back.

What a connection is, and that its caller's leaving cancels nothing, is in ``connection``; what a
request must look like is in ``parsing`` and ``reception``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from proxy.core.model import Body
from proxy.core.refusal import Refusal
from proxy.net import parsing, problem
from proxy.net.connection import Connection, Server, Waits
from proxy.net.exchange import AtOnce, Handle, Pipe, Reply
from proxy.net.headers import wire
from proxy.net.incoming import Incoming, Refused, Site
from proxy.net.listener import Listener, Room, bind
from proxy.net.outgoing import whole, write
from proxy.net.parsing import HeadLimits
from proxy.net.pipe import relay
from proxy.net.reception import Reception
from proxy.net.repeats import Known, Repeats
from proxy.net.shares import Shares
from proxy.net.sites import FixedSite, ProxySite, TunnelSite
from proxy.net.tls import Certificates
from proxy.net.tunnel import Dial, Tunnels

log = logging.getLogger(__name__)

WAITS, HEAD_LIMITS = Waits(), HeadLimits()
NO_ROOM = whole(
    problem.reply(Refusal("too-busy", "Too many connections are open (limits.connections)."))
)


class FrontDoor:
    """The listeners. ``start`` them, ``stop`` them; everything else happens by itself."""

    def __init__(
        self,
        engine_handle: Handle,
        engine_at_once: AtOnce = lambda arrival: None,
        *,
        ca: Certificates | None = None,
        intercept: str = "all",
        knows_host: Callable[[str, int], bool] = lambda host, port: False,
        tunnel_hosts: Sequence[str] = (),
        dial: Dial | None = None,
        gateways: Sequence[tuple[str, int, str]] = (),
        own_names: Sequence[str] = (),
        pseudonym: str | None = "onceproxy",
        waits: Waits = WAITS,
        head_limits: HeadLimits = HEAD_LIMITS,
        connections: int = 512,
        run_calls: int = 64,
        waiting_calls: int = 1000,
        spool_dir: Path | None = None,
        on_tunnel: Callable[[str, str], None] = lambda host, reason: None,
        on_listening: Callable[[int], None] = lambda port: None,
        on_turned_away: Callable[[str], None] = lambda why: None,
    ) -> None:
        """``engine_handle`` gets each call, ``engine_at_once`` before it those that came before in
        the same bytes. ``ca`` and ``intercept`` (all | rules | none) say which
        TLS is opened; ``tunnel_hosts`` (``name``, ``*.name``) never is. ``dial`` connects blind
        tunnels on behalf of a run. ``gateways`` are (host, port, address to
        send to); ``own_names`` are further names under which callers reach them. ``connections``
        may be open at once, ``run_calls`` of one run be in hand, and ``waiting_calls`` of all runs
        wait for that. ``on_tunnel`` gets (host, reason) of each blind tunnel, ``on_listening`` each
        port before its first call is read, ``on_turned_away`` which of the two limits (connections
        | run_calls) a caller met.

        Raises BadTarget for a gateway's address, ValueError for ``intercept``.
        """
        if intercept not in ("all", "rules", "none"):
            raise ValueError("intercept is all, rules or none")
        self._engine = engine_handle
        self._engine_at_once = engine_at_once
        self._repeats = Repeats()
        self._reception = Reception(pseudonym=pseudonym)
        self._tunnels = Tunnels(
            authority=ca,
            intercept=intercept,
            knows_host=knows_host,
            tunnel_hosts=tunnel_hosts,
            dial=dial,
            inner=lambda site: self._server.make(site),
            on_tunnel=on_tunnel,
        )
        self._on_listening = on_listening
        self._own_names = tuple(name.lower() for name in own_names)
        self._gateways = [
            (host, port, FixedSite(to, self._names(host))) for host, port, to in gateways
        ]
        self._server = Server(
            self._handle,
            self._at_once,
            self._again,
            waits=waits,
            limits=head_limits,
            spool_dir=spool_dir,
        )
        self._on_turned_away = on_turned_away
        self._shares = Shares(run_calls, waiting_calls)
        self.room = Room(
            connections,
            make_room=self._server.make_room,
            on_refused=lambda: on_turned_away("connections"),
        )
        self._listeners: list[Listener] = []
        self._stopping = False
        self.port = 0  # of the main listener, once it is started
        self.gateway_ports: list[int] = []

    async def start(self, host: str, port: int) -> None:
        """Opens all listeners; port 0 takes a free one. Raises OSError, ParserMissing."""
        parsing.check()
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
        self._stopping = True
        self._server.dismiss()
        try:
            async with asyncio.timeout(drain):
                await self._server.drained()
        except TimeoutError:
            log.warning("%d calls were cut off by the stop", len(self._server.calls()))
        await self._server.close()
        self._listeners.clear()

    def _names(self, host: str) -> set[str]:
        """Names under which a listener may be called. Not "all addresses": browsers take 0.0.0.0
        for this machine."""
        return {*self._own_names, host.lower()} - {"0.0.0.0", "::", ""}

    async def _listen(self, host: str, port: int, site: Site) -> int:
        opened = [
            Listener(sock, lambda: self._server.make(site), self.room, NO_ROOM)
            for sock in await bind(host, port)
        ]
        self._listeners += opened
        for listener in opened:
            self._on_listening(listener.port)
        return opened[0].port

    def _at_once(self, incoming: Incoming) -> bool:
        """Answers a request that came before in the same bytes, if its reply needs no waiting."""
        if incoming.message.should_close:
            return False
        spelling = incoming.spelling = self._repeats.spelling(incoming)
        known = self._repeats.find(spelling) if spelling is not None else None
        if known is None or spelling is None or not self._answered(incoming.connection, known):
            return False
        if incoming.piece is not None and known.piece is None:
            self._repeats.keep_piece(spelling, known, incoming.piece)
        return True

    def _again(self, connection: Connection, piece: bytes) -> bool:
        """The same for a request whose bytes came by themselves, before anything reads them."""
        known = self._repeats.find_piece(connection.site, piece)
        return known is not None and self._answered(connection, known)

    def _answered(self, connection: Connection, known: Known) -> bool:
        if self._stopping or connection.writing_paused or connection.gone:
            return False
        reply = self._engine_at_once(known.arrival)
        if reply is None:
            return False
        connection.transport.write(known.written(reply))
        reply.delivered(not connection.gone)
        return True

    async def _handle(self, incoming: Incoming) -> bool:
        """Answers one request; True if its connection goes on."""
        run: list[str] = []
        try:
            return await self._answer(incoming, run)
        finally:
            for taken in run:
                self._shares.leave(taken)

    async def _answer(self, incoming: Incoming, run: list[str]) -> bool:
        """``run`` gets the run whose place is taken."""
        upgrade = ""
        message = incoming.message
        try:
            if message.method == "CONNECT":
                return await self._connect(incoming)
            arrival = self._reception.arrival(incoming)
            upgrade = arrival.upgrade
            who = arrival.identity.run if arrival.identity is not None else None
            if who is not None:
                if not self._shares.take(who):
                    await self._wait_for_place(incoming, who)
                run.append(who)
            reply = await self._engine(arrival)
            if arrival.meaning is not None and incoming.spelling is not None:
                self._repeats.keep(incoming.spelling, arrival, incoming.piece)
        except Refused as refused:
            return await write(incoming, problem.reply(refused.refusal), close=True)
        except Exception:
            log.exception("the engine failed")
            refusal = Refusal("outcome-unresolved", "an internal error: see the proxy's log")
            reply = problem.reply(refusal)
        if reply.status == 101 and not isinstance(reply.body, Body):
            return await _switch(incoming, reply, upgrade)
        close = message.should_close or incoming.body_pending or self._stopping
        return await write(incoming, reply, close=close)

    async def _wait_for_place(self, incoming: Incoming, run: str) -> None:
        """Raises Refused."""
        if not await self._shares.wait(run):
            self._on_turned_away("run_calls")
            raise Refused("too many calls wait for a place (limits.run_calls)", 503, "too-busy")
        if incoming.gone:
            self._shares.leave(run)
            raise Refused("the caller left before its call was begun")

    async def _connect(self, incoming: Incoming) -> bool:
        """Raises Refused."""
        if isinstance(incoming.connection.site, FixedSite | TunnelSite):
            raise Refused("tunnels are opened at the proxy's own port")
        await self._tunnels.connect(incoming, self._reception.credential(incoming))
        return False


async def _switch(incoming: Incoming, reply: Reply, protocol: str) -> bool:
    """After a 101: joins both connections until they end."""
    upstream = cast(Pipe, reply.body)
    lines = ["HTTP/1.1 101 Switching Protocols"]
    lines += [f"{name}: {value}" for name, value in reply.headers]
    lines += ["Connection: Upgrade", f"Upgrade: {protocol}", "\r\n"]
    # One write: some clients take a head in many small pieces for an attack.
    pipe = await incoming.connection.give(incoming, wire("\r\n".join(lines)))
    reply.delivered(pipe is not None)
    if pipe is None:
        upstream.close()
    else:
        await relay(pipe, upstream)
    return False
