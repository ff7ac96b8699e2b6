"""What leaves for a service: the one line that sends, the credentials it takes along, and the
collecting of what comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import structlog

from proxy.core import jsonrpc
from proxy.core.credentials import MASK, NONE, Credentials, MissingCredential, join
from proxy.core.jsonrpc import Answering
from proxy.core.model import (
    Answer,
    Answered,
    Body,
    Headers,
    Lost,
    NotSent,
    Request,
    SendResult,
)
from proxy.core.rules import Auth, Endpoint
from proxy.core.sigv4 import AccessKey, CannotSign, read_key, sign
from proxy.failpoints import Failpoints
from proxy.net.exchange import BrokenOff, Pipe
from proxy.relay import Relay

log = structlog.get_logger("onceproxy")

STREAM_FROM = 256 * 1024  # bytes of an answer that are awaited before it begins to flow
STREAM_END = 0.5  # seconds for a stream that has answered to end; then its connection is given up
RESUMES = 5  # of one stream; a server that lets go of it this often has nothing to say
RETRY_MOST = 5.0  # seconds; a server's `retry` may be any number


class Opened(Protocol):
    """An answer whose head has come; its body is read once."""

    status: int
    reason: str
    headers: Headers
    length: int | None
    pipe: Pipe | None

    async def read(self, limit: int) -> tuple[Body | None, bool]: ...
    def chunks(self) -> AsyncIterator[bytes]: ...
    def close(self) -> None: ...


class Upstream(Protocol):
    """The way out. ``on_sent`` is called when the first byte was handed to the transport; ``gate``
    directly before, and what it returns is why the byte must not leave."""

    async def open(
        self,
        request: Request,
        *,
        stream: AsyncIterator[bytes] | None = None,
        length: int | None = None,
        fresh: bool = False,
        timeout: float | None = None,
        upgrade: str = "",
        on_sent: Callable[[], Any] | None = None,
        gate: Callable[[], str | None] | None = None,
        run: str = "",
    ) -> NotSent | Lost | Opened: ...


class Outbound:
    def __init__(
        self,
        upstream: Upstream,
        *,
        failpoints: Failpoints,
        send_timeout: float,
        kept_body: int,
        secret_of: Callable[[Auth], str | None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Seconds and bytes; ``secret_of`` reads the secret of a rule's ``auth``, None without."""
        self._sleep = sleep
        self._upstream = upstream
        self._failpoints = failpoints
        self._send_timeout = send_timeout
        self._kept_body = kept_body
        self._secret_of = secret_of

    async def send(
        self,
        request: Request,
        *,
        stream: AsyncIterator[bytes] | None = None,
        length: int | None = None,
        fresh: bool = False,
        upgrade: str = "",
        operation_key: str = "",
        gate: Callable[[], str | None] | None = None,
        run: str = "",
    ) -> NotSent | Lost | Opened:
        """One request on the wire, on behalf of ``run``. ``operation_key`` names the operation for
        failpoints."""
        left = asyncio.Event() if operation_key and self._failpoints.enabled else None
        # The one line that sends: everything that leaves for a service leaves here.
        opening = self._upstream.open(
            request,
            stream=stream,
            length=length,
            fresh=fresh,
            timeout=self._send_timeout,
            upgrade=upgrade,
            on_sent=left.set if left is not None else None,
            gate=gate,
            run=run,
        )
        if left is None:
            return await opening
        return await self._failpoints.during(opening, left, operation_key)

    async def attempt(
        self,
        request: Request,
        *,
        run: str,
        fresh: bool,
        operation_key: str,
        gate: Callable[[], str | None] | None = None,
        relay: Relay | None,
        answering: Answering | None = None,
    ) -> SendResult:
        """Send and collect the whole answer; a caller behind ``relay`` may have a long one flow.
        ``answering``: what tells where the answer is in an event stream of JSON-RPC."""
        opened = await self.send(
            request, fresh=fresh, operation_key=operation_key, gate=gate, run=run
        )
        if isinstance(opened, (NotSent, Lost)):
            return opened
        streams = _is_event_stream(opened.headers)
        if answering is None or not streams:
            body, complete = await self._collect(opened, relay, streams=streams)
        else:
            parts = _Parts(self._kept_body, relay if _flows(opened, relay) else None)
            parts.open(opened, None, owed=True)
            complete = await self._await_answer(opened, parts, answering)
            for _ in range(RESUMES):
                if (
                    complete
                    or (resumed := await self._resume(request, answering, run, gate)) is None
                ):
                    break
                complete = await self._await_answer(resumed, parts, answering)
            body = parts.body
        answer = Answer(opened.status, opened.reason, opened.headers, body)
        return Answered(answer, complete)

    async def _collect(
        self, opened: Opened, relay: Relay | None, *, streams: bool
    ) -> tuple[Body | None, bool]:
        """The body, or None where it is larger than what is kept; and whether it has its end."""
        flows = _flows(opened, relay)
        if not (flows and streams):
            body, complete = await opened.read(STREAM_FROM if flows else self._kept_body)
            if body is not None:
                return body, complete
        parts = _Parts(self._kept_body, relay if flows else None)
        parts.open(opened, opened.length)
        complete = True
        try:
            async for chunk in opened.chunks():
                await parts.feed(chunk)
        except BrokenOff as error:
            log.info("answer broke off", detail=error.reason)
            complete = False
        finally:
            opened.close()
        return parts.body, complete

    async def _await_answer(self, opened: Opened, parts: _Parts, answering: Answering) -> bool:
        """Take in a stream until it has answered; whether it has."""
        chunks, broken = opened.chunks(), False
        try:
            async for chunk in chunks:
                for event, may_be_last in answering.feed(chunk):
                    await parts.feed(event, may_be_last=may_be_last)
                if answering.ended:
                    break
            else:
                await parts.feed(answering.rest())
            if answering.ended:
                with contextlib.suppress(StopAsyncIteration, TimeoutError):
                    async with asyncio.timeout(STREAM_END):
                        while True:
                            await anext(chunks)
        except BrokenOff as error:
            log.info("answer broke off", detail=error.reason)
            answering.rest()
            broken = True
        finally:
            opened.close()
        return answering.ended if answering.waits else not broken

    async def _resume(
        self,
        request: Request,
        answering: Answering,
        run: str,
        gate: Callable[[], str | None] | None,
    ) -> Opened | None:
        """The rest of a stream that ended before it had answered, where its server keeps it for
        this session (MCP up to 2025-11-25). A read: nothing is called again."""
        again = jsonrpc.resumption(request, answering.last_id)
        if again is None:
            return None
        await self._sleep(min(answering.retry, RETRY_MOST))
        opened = await self.send(again, gate=gate, run=run)
        if isinstance(opened, (NotSent, Lost)):
            log.info("stream not resumed", detail=opened.reason)
            return None
        if opened.status != 200 or not _is_event_stream(opened.headers):
            log.info("stream not resumed", detail=f"status {opened.status}")
            opened.close()
            return None
        return opened

    def has_secret(self, endpoint: Endpoint) -> bool:
        auth = endpoint.auth
        return auth is not None and auth.sigv4 is None and self._secret_of(auth) is not None

    def access_key(self, endpoint: Endpoint) -> AccessKey | None:
        """The proxy's own for an API whose requests are signed."""
        auth = endpoint.auth
        if auth is None or auth.sigv4 is None:
            return None
        secret = self._secret_of(auth)
        return read_key(secret) if secret is not None else None

    def signed(self, request: Request, endpoint: Endpoint, at: float) -> Request:
        """The request with a signature of the proxy's own. Raises MissingCredential."""
        key, auth = self.access_key(endpoint), endpoint.auth
        if key is None or auth is None or auth.sigv4 is None or MASK in request.target:
            raise MissingCredential("nothing to sign it with")
        try:
            return sign(request, key, auth.sigv4, at)
        except CannotSign as error:
            raise MissingCredential(str(error)) from None

    def authorised(
        self, request: Request, endpoint: Endpoint, credentials: Credentials | None
    ) -> Request:
        """The request with the caller's credentials, or else with those of the rule's ``auth``.
        Raises MissingCredential where the mask of one would go out."""
        if credentials or MASK in request.target:
            request = join(request, credentials or NONE)
        auth = endpoint.auth
        if auth is None or auth.sigv4 is not None or request.header(auth.header) is not None:
            return request
        secret = self._secret_of(auth)
        if secret is None:
            return request
        value = auth.value.replace("{secret}", secret)
        return request.with_(headers=(*request.headers, (auth.header, value)))


class _Parts:
    """The body of an answer as it comes: kept up to a size, and given on to whoever waits."""

    def __init__(self, most: int, relay: Relay | None) -> None:
        self._most = most
        self._relay = relay
        self._pieces: list[bytes] | None = []
        self._size = 0

    @property
    def body(self) -> Body | None:
        return Body.of(b"".join(self._pieces)) if self._pieces is not None else None

    def open(self, opened: Opened, length: int | None, *, owed: bool = False) -> None:
        """``owed``: its caller is told how it ended, if not by its own end."""
        if self._relay is not None:
            self._relay.owed = owed
            head = Answer(opened.status, opened.reason, opened.headers, None)
            self._relay.open(head, length)

    async def feed(self, piece: bytes, *, may_be_last: bool = True) -> None:
        if not piece:
            return
        self._size += len(piece)
        if self._pieces is not None:
            self._pieces.append(piece)
            self._pieces = self._pieces if self._size <= self._most else None
        if self._relay is not None:
            await self._relay.feed(piece, may_be_last=may_be_last)


def _flows(opened: Opened, relay: Relay | None) -> bool:
    return relay is not None and relay.wanted and 200 <= opened.status < 300


def _is_event_stream(headers: Headers) -> bool:
    for name, value in headers:
        if name.lower() == "content-type":
            return value.lower().startswith("text/event-stream")
    return False
