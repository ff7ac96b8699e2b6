"""How each way in reads a request target: the proxy port, the inside of a tunnel, fixed gateways.

Gateway requests are ordinary requests to this machine, which any web page in a browser could send
as well: those that come from one (Origin, Sec-Fetch-Site) or name another host (DNS rebinding) are
refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from proxy.core.model import header
from proxy.net.incoming import Fields, Refused
from proxy.net.target import DEFAULT_PORTS, BadTarget, Place, absolute, authority, origin, via

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})


class ProxySite:
    """The main listener: absolute-form requests, and gateway paths under ``/via`` and ``/as``."""

    credential: tuple[str, str] | None = None

    def __init__(self, own_names: Iterable[str] = ()) -> None:
        """``own_names``: host names, besides loopback's, under which callers reach this
        listener."""
        self._own = LOOPBACK_NAMES | frozenset(own_names)
        self.port = 0  # of the listener, once it is known

    def place(self, target: str, host: str, headers: Fields) -> Place:
        if not target.startswith("/"):
            named = absolute(target)
            if not self._is_gateway(named):
                return named
            target, host = named.target, named.host
        place = via(target)
        if place is None:
            raise BadTarget(
                "this is a proxy: set HTTP_PROXY and HTTPS_PROXY to this address, or call "
                "/via/https/HOST/path on it"
            )
        check_caller(host, headers, self._own)
        return place

    def _is_gateway(self, named: Place) -> bool:
        """A client with both the proxy variables and a gateway address asks this proxy for its own
        gateway."""
        here = named.scheme == "http" and named.port == self.port and named.host in self._own
        return here and named.target.startswith(("/via/", "/as/"))


@dataclass(frozen=True, slots=True)
class TunnelSite:
    """The inside of a CONNECT tunnel: every request goes to the host that CONNECT named."""

    scheme: str
    host: str
    port: int
    credential: tuple[str, str] | None

    def place(self, target: str, host: str, headers: Fields) -> Place:
        if target.startswith("/"):
            named = authority(host, DEFAULT_PORTS[self.scheme])
            path = origin(target)
        else:
            inner = absolute(target)
            if inner.scheme != self.scheme:
                raise BadTarget("the request names another scheme than its tunnel", 421)
            named, path = (inner.host, inner.port), inner.target
        if named != (self.host, self.port) and named != (
            self.host,
            DEFAULT_PORTS[self.scheme],
        ):
            raise BadTarget("the request names another host than its tunnel", 421)
        return Place(self.scheme, self.host, self.port, path)


class FixedSite:
    """A gateway listener whose requests all go to one base address."""

    credential: tuple[str, str] | None = None

    def __init__(self, to: str, own_names: Iterable[str] = ()) -> None:
        """``to``: ``https://host[:port][/prefix]``. Raises BadTarget."""
        self._base = absolute(to)
        if "?" in self._base.target:
            raise BadTarget("a gateway's address has a query: leave it out")
        self._prefix = self._base.target.rstrip("/")
        self._own = LOOPBACK_NAMES | frozenset(own_names)

    def place(self, target: str, host: str, headers: Fields) -> Place:
        if not target.startswith("/"):
            raise BadTarget("this listener is a gateway and no proxy: send a path")
        check_caller(host, headers, self._own)
        base = self._base
        return Place(base.scheme, base.host, base.port, self._prefix + origin(target))


def check_caller(host: str, headers: Fields, own: frozenset[str]) -> None:
    """Raises Refused for a gateway request that a web page could have caused."""
    if header(headers, "origin") is not None or header(headers, "sec-fetch-site") is not None:
        raise Refused("gateway paths are not for browsers", 403)
    try:
        name, _ = authority(host, 80)
    except BadTarget:
        name = ""
    if name not in own:
        raise Refused(
            "the Host of this gateway request is not this machine: call 127.0.0.1, or have the "
            "name added to the gateway's names",
            403,
        )
