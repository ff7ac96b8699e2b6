"""Connections whose bytes are passed on unread: blind tunnels, and protocols that a call has
switched to.

What goes through one cannot be looked at, so it may be any call. It needs authority for all of them
before it is opened, and it ends when that is taken away: what its caller goes on sending would be
sends after an acknowledged revoke. Budgets do not count in it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from proxy.authority import token_digest
from proxy.core.authority import Access
from proxy.core.call import UNRULED
from proxy.core.model import Barred, NotSent
from proxy.engine import Engine
from proxy.net.exchange import Pipe

Dial = Callable[[str, int, str], Awaitable[NotSent | Pipe]]
"""Host, port, run as in an operation key."""

log = structlog.get_logger("onceproxy")


class Tunnels:
    def __init__(self, engine: Engine, dial: Dial) -> None:
        self._engine = engine
        self._dial = dial

    async def open(self, host: str, port: int, run: str, token: str | None) -> NotSent | Pipe:
        """A raw connection for a run; ``token``: its text, as the caller gave it."""
        authority = self._engine.authority
        digest = token_digest(token) if token is not None else None
        access = Access(run, UNRULED, "content", "CONNECT", digest)
        places = self._engine.rules.places(host, port)
        bar = authority.unread(access, places)
        if bar is not None:
            return Barred(bar.detail, bar.code)
        result = await self._dial(host, port, run)
        if isinstance(result, NotSent):
            return result
        bar = authority.unread(access, places)  # it may have been taken away meanwhile
        if bar is not None:
            result.abort()
            return Barred(bar.detail, bar.code)
        return held(self._engine, access, result)


def held(engine: Engine, access: Access, pipe: Pipe) -> Pipe:
    """The same connection, cut when the authority of ``access`` is taken away."""
    return _Held(engine, access, pipe)


class _Held:
    def __init__(self, engine: Engine, access: Access, inner: Pipe) -> None:
        self._inner = inner
        self._run = access.run
        self._cut = False
        self._leave = engine.authority.watch(access, self._end)

    def _end(self, why: str) -> None:
        self._cut = True
        self._inner.abort()
        log.warning("connection cut", run=self._run, why=why)

    def write(self, data: bytes) -> None:
        if not self._cut:
            self._inner.write(data)

    async def drain(self) -> None:
        await self._inner.drain()

    async def read(self) -> bytes:
        data = await self._inner.read()
        if self._cut:
            # Not an end, after which the caller could still be held: both sides are closed.
            raise ConnectionResetError("the authority of this connection was taken away")
        return data

    def write_eof(self) -> None:
        if not self._cut:
            self._inner.write_eof()

    def close(self) -> None:
        self._leave()
        self._inner.close()

    def abort(self) -> None:
        self._leave()
        self._inner.abort()
