"""What leaves for a service: the one line that sends, the credentials it takes along, and the
collecting of what comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import structlog

from proxy.core.credentials import MASK, NONE, Credentials, MissingCredential, join
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
    ) -> None:
        """Seconds and bytes; ``secret_of`` reads the secret of a rule's ``auth``, None without."""
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
    ) -> SendResult:
        """Send and collect the whole answer; a caller behind ``relay`` may have a long one flow."""
        opened = await self.send(
            request, fresh=fresh, operation_key=operation_key, gate=gate, run=run
        )
        if isinstance(opened, (NotSent, Lost)):
            return opened
        body, complete = await self._collect(opened, relay)
        answer = Answer(opened.status, opened.reason, opened.headers, body)
        return Answered(answer, complete)

    async def _collect(self, opened: Opened, relay: Relay | None) -> tuple[Body | None, bool]:
        """The body, or None where it is larger than what is kept; and whether it has its end."""
        flows = relay is not None and relay.wanted and 200 <= opened.status < 300
        if not (flows and _is_event_stream(opened.headers)):
            body, complete = await opened.read(STREAM_FROM if flows else self._kept_body)
            if body is not None:
                return body, complete
        if flows:
            assert relay is not None
            head = Answer(opened.status, opened.reason, opened.headers, None)
            relay.open(head, opened.length)
        parts: list[bytes] | None = []
        size = 0
        complete = True
        try:
            async for chunk in opened.chunks():
                size += len(chunk)
                if parts is not None:
                    parts.append(chunk)
                    parts = parts if size <= self._kept_body else None
                if flows:
                    assert relay is not None
                    await relay.feed(chunk)
        except BrokenOff as error:
            log.info("answer broke off", detail=error.reason)
            complete = False
        finally:
            opened.close()
        return (Body.of(b"".join(parts)) if parts is not None else None), complete

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


def _is_event_stream(headers: Headers) -> bool:
    for name, value in headers:
        if name.lower() == "content-type":
            return value.lower().startswith("text/event-stream")
    return False
