"""CONNECT: opened where that is possible, passed on blindly and counted where it is not.

What comes in a tunnel is told by its first bytes, not by its port: TLS is terminated with a
certificate of the local authority, plain HTTP is served as it is, and all else (HTTP/2 only, other
protocols, hosts that are to be left alone) goes through unread.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from proxy.core.identity import BadIdentity, Sources, identify, run_of
from proxy.core.model import Barred, Denied, NotSent
from proxy.core.refusal import CODES
from proxy.net import handoff
from proxy.net.clienthello import HELLO_LIMIT, BadHello, First, Hello, first, hello
from proxy.net.egress import MAIL_PORTS
from proxy.net.exchange import Pipe
from proxy.net.incoming import Incoming, Refused
from proxy.net.pipe import StreamPipe, relay
from proxy.net.sites import TunnelSite
from proxy.net.target import BadTarget, authority
from proxy.net.tls import Certificates

if TYPE_CHECKING:
    from proxy.net.connection import Connection

log = logging.getLogger(__name__)

Dial = Callable[[str, int, str, str | None], Awaitable[NotSent | Pipe]]
"""Connects a blind tunnel: host, port, run as in an operation key, run token."""

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"

SNIFF_TIMEOUT = 3.0
"""Seconds of silence after which a tunnel is taken for one where the server speaks first."""

DISTRUST_LIMIT = 1024  # hosts remembered whose clients reject the CA

_REJECTIONS = frozenset(
    {
        "TLSV1_ALERT_UNKNOWN_CA",
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
        "TLSV1_ALERT_ACCESS_DENIED",
        "TLSV1_ALERT_DECRYPT_ERROR",
    }
)
"""How clients say that they do not trust a certificate; Node just resets the connection."""


class Tunnels:
    """What happens to CONNECT requests."""

    def __init__(
        self,
        *,
        authority: Certificates | None,
        intercept: str,
        knows_host: Callable[[str, int], bool],
        tunnel_hosts: Sequence[str],
        dial: Dial | None,
        inner: Callable[[TunnelSite], Connection],
        on_tunnel: Callable[[str, str], None],
    ) -> None:
        self._authority = authority
        self._intercept = intercept if authority is not None else "none"
        self._knows_host = knows_host
        self._left_alone = tuple(name.lower().rstrip(".") for name in tunnel_hosts)
        self._dial = dial
        self._inner = inner
        self._on_tunnel = on_tunnel
        self._distrusted: dict[tuple[str, int], None] = {}
        self._warned: set[str] = set()

    async def connect(self, incoming: Incoming, credential: tuple[str, str] | None) -> None:
        """Serves one CONNECT to its end. Raises Refused before anything was answered."""
        host, port = _destination(incoming)
        upstream: Pipe | None = None
        why = self._blind_from_the_start(host, port)
        if why is not None:
            upstream = await self._dialled(host, port, credential)
        pipe = await incoming.connection.give(incoming, ESTABLISHED)
        if pipe is None:
            if upstream is not None:
                upstream.close()
            return
        try:
            if upstream is not None and why is not None:
                self._on_tunnel(host, why)
                await relay(pipe, upstream)
            else:
                await self._open(pipe, host, port, credential)
        except (OSError, Refused) as error:
            log.debug("a tunnel ended early: %s", error)
        finally:
            pipe.close()

    def _blind_from_the_start(self, host: str, port: int) -> str | None:
        for name in self._left_alone:
            if host == name or (name.startswith("*.") and host.endswith(name[1:])):
                return "configured"
        if port in MAIL_PORTS:
            return "not-http"  # no call will come in it, so a refusal has to be said before it
        if (host, port) in self._distrusted and not self._knows_host(host, port):
            return "ca-not-trusted"
        return None

    async def _dialled(self, host: str, port: int, credential: tuple[str, str] | None) -> Pipe:
        """Raises Refused."""
        if self._dial is None:
            raise Refused("tunnels are not open here", 502, "upstream-not-reached")
        result = await self._dial(host, port, *_who(credential))
        if isinstance(result, Barred):
            raise Refused(result.reason, CODES[result.code].status, result.code)
        if isinstance(result, Denied):
            raise Refused(result.reason, 403, "egress-denied")
        if isinstance(result, NotSent):
            raise Refused(result.reason, 502, "upstream-not-reached")
        return result

    async def _open(
        self, pipe: StreamPipe, host: str, port: int, credential: tuple[str, str] | None
    ) -> None:
        """After the 200: look at the first bytes and decide."""
        kind, said = await _sniff(pipe)
        if kind is First.HTTP:
            await handoff.serve(pipe, self._inner(TunnelSite("http", host, port, credential)))
            return
        why = "h2" if kind is First.HTTP2 else "not-http"
        if kind is First.TLS and said is not None:
            why = "not-intercepted"
            if self._opens(host, port):
                if said.speaks_http1:
                    await self._terminate(pipe, host, port, credential, said)
                    return
                why = "h2"
        self._on_tunnel(host, why)
        await relay(pipe, await self._dialled(host, port, credential))

    def _opens(self, host: str, port: int) -> bool:
        if self._intercept == "all":
            return True
        return self._intercept == "rules" and self._knows_host(host, port)

    async def _terminate(
        self,
        pipe: StreamPipe,
        host: str,
        port: int,
        credential: tuple[str, str] | None,
        said: Hello,
    ) -> None:
        assert self._authority is not None
        if said.name and said.name != host:
            # A certificate for a name other than the one that was judged hides where this goes.
            log.warning("a client asked for another TLS server name than its tunnel: closed")
            return
        inner = self._inner(TunnelSite("https", host, port, credential))
        try:
            await handoff.serve_tls(pipe, self._authority.context(host), inner)
        except ssl.SSLError as error:
            if error.reason in _REJECTIONS:
                self._rejected(host, port)
        except (ConnectionResetError, ConnectionAbortedError):
            self._rejected(host, port)

    def _rejected(self, host: str, port: int) -> None:
        """A client does not trust the CA: said once for a host with rules, left alone without."""
        if self._knows_host(host, port):
            if host not in self._warned:
                self._warned.add(host)
                log.warning(
                    "the client does not trust the local CA, so its calls to %s fail: point "
                    "SSL_CERT_FILE (Python), NODE_EXTRA_CA_CERTS (Node), REQUESTS_CA_BUNDLE or "
                    "CURL_CA_BUNDLE at the CA bundle, or start it with `onceproxy run`",
                    host,
                )
        elif len(self._distrusted) < DISTRUST_LIMIT:
            log.info("a client of %s does not trust the local CA: tunnelled from now on", host)
            self._distrusted[host, port] = None


def _who(credential: tuple[str, str] | None) -> tuple[str, str | None]:
    """Whose tunnel it is, as in an operation key, and the run token. Raises Refused."""
    sources = Sources(credential=credential)
    try:
        return run_of(identify(sources)), sources.token
    except BadIdentity as error:
        raise Refused(error.detail) from None


def _destination(incoming: Incoming) -> tuple[str, int]:
    """Raises Refused."""
    message = incoming.message
    names = {name.lower() for name, _ in message.raw_headers}
    if b"transfer-encoding" in names or message.headers.get("Content-Length", "0") != "0":
        raise Refused("a CONNECT request has no body")
    try:
        return authority(message.path, None)
    except BadTarget as error:
        raise Refused(error.detail, error.status) from None


async def _sniff(pipe: StreamPipe) -> tuple[First, Hello | None]:
    """What the client says first; all of it is put back. A ClientHello is None if it is not one."""
    data = b""
    kind, said = First.MORE, None
    try:
        async with asyncio.timeout(SNIFF_TIMEOUT):
            while len(data) < HELLO_LIMIT:
                piece = await pipe.read()
                data += piece
                kind = first(data)
                if kind is First.TLS:
                    said = hello(data)
                if not piece or kind not in (First.MORE, First.TLS) or said is not None:
                    break
    except (TimeoutError, BadHello):
        pass
    if data:
        pipe.unread(data)
    return kind, said
