"""Which addresses may be called, decided on the very address that is dialled.

A name is resolved once; each of its addresses is judged, and only those that passed are dialled, so
that a name which resolves differently a moment later gains nothing. Public addresses are open.
Loopback, private and link-local ones are open only to hosts that a rule or ``egress.allow`` names.
Metadata services of clouds and the proxy's own ports are open to nobody, in no spelling.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aiohttp import ThreadedResolver
from aiohttp.abc import AbstractResolver, ResolveResult

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

METADATA = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "169.254.169.254",  # AWS, Google Cloud, Azure, DigitalOcean, OpenStack, Oracle
        "169.254.170.2",  # AWS ECS task credentials
        "169.254.170.23",  # AWS EKS pod identity
        "fd00:ec2::254",  # AWS over IPv6
        "fd00:ec2::23",  # AWS EKS over IPv6
        "100.100.100.200",  # Alibaba Cloud
        "192.0.0.192",  # Oracle Cloud classic
        "168.63.129.16",  # Azure wire server
    )
)
"""Addresses that hand out a machine's credentials to whoever asks."""

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_SHARED = ipaddress.IPv4Network("100.64.0.0/10")  # carrier-grade NAT: inner networks use it


class EgressDenied(OSError):
    """Raised by the resolver. An OSError, because that is what the connector expects of one."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One line of ``allow`` or ``deny``: a network, or a name with its port."""

    network: Network | None
    name: str
    port: int | None

    @classmethod
    def parse(cls, text: str) -> _Entry:
        """Raises ValueError with a sentence for the config's reader."""
        text = text.strip().lower()
        try:
            return cls(ipaddress.ip_network(text.strip("[]")), "", None)
        except ValueError:
            pass
        host, port = text, None
        if ":" in text:
            host, _, digits = text.rpartition(":")
            if not digits.isdigit():
                raise ValueError(f"{text!r} is neither a host, host:port, address nor network")
            port = int(digits)
        host = host.strip("[]").rstrip(".")
        if not host or "/" in host or host == "*":
            raise ValueError(f"{text!r} is neither a host, host:port, address nor network")
        try:
            return cls(ipaddress.ip_network(host), "", port)
        except ValueError:
            return cls(None, host, port)

    def weight(self, host: str, address: Address, port: int) -> int:
        """How exactly this entry fits, 0 where it does not. A name is worth more than a network."""
        if self.port is not None and self.port != port:
            return 0
        exact = 1 if self.port is not None else 0
        if self.network is not None:
            inside = address.version == self.network.version and address in self.network
            return 2 * self.network.prefixlen + 2 + exact if inside else 0
        if self.name.startswith("*."):
            return 1000 + 2 * len(self.name) + exact if host.endswith(self.name[1:]) else 0
        return 10_000 + exact if host == self.name else 0


class Egress:
    """The judge of addresses."""

    def __init__(
        self,
        *,
        allow: Sequence[str] = (),
        deny: Sequence[str] = (),
        named: Callable[[str, int], bool] = lambda host, port: False,
        own_ports: Sequence[int] = (),
    ) -> None:
        """``allow`` and ``deny`` hold hosts (``name``, ``*.name``), addresses or networks, each
        host and address also with ``:port``; the more exact entry wins, ``deny`` on a tie.
        ``named`` tells whether a rule names a host. Raises ValueError for an entry that is none of
        these."""
        self._allow = tuple(_Entry.parse(text) for text in allow)
        self._deny = tuple(_Entry.parse(text) for text in deny)
        self._named = named
        self._own_ports = set(own_ports)

    def protect(self, port: int) -> None:
        """Make a port of this machine unreachable: one that the proxy itself listens on."""
        self._own_ports.add(port)

    def objection(self, host: str, address: str, port: int) -> str | None:
        """Why this address may not be called on behalf of ``host``; None if it may."""
        ip = _plain(ipaddress.ip_address(address.partition("%")[0]))
        if ip in METADATA:
            return "the metadata service of a cloud may not be called"
        if port in self._own_ports and _is_own(ip):
            return "this is a port of the proxy itself"
        allowed = max((entry.weight(host, ip, port) for entry in self._allow), default=0)
        denied = max((entry.weight(host, ip, port) for entry in self._deny), default=0)
        if denied and denied >= allowed:
            return "the configuration denies it (egress.deny)"
        kind = _kind(ip)
        if kind is None or allowed or (kind in _OPENABLE and self._named(host, port)):
            return None
        if kind not in _OPENABLE:
            return f"{kind} addresses may not be called"
        shown = f"[{host}]" if ":" in host else host
        return (
            f"{kind} addresses are closed to hosts that no rule names. To open this one add to the "
            f'configuration: egress: {{allow: ["{shown}:{port}"]}}'
        )

    def literal(self, host: str, port: int) -> str | None:
        """The objection to a host that is itself an address; None for names and open addresses."""
        if not (host[-1:].isdigit() or ":" in host or host.startswith("0x")):
            return None  # the usual case, without an exception for each call
        try:
            return self.objection(host, host, port)
        except ValueError:
            if host.replace(".", "").isdigit() or host.startswith("0x"):
                return "this spelling of an address is not accepted: write it as a.b.c.d"
            return None


_OPENABLE = ("loopback", "private", "link-local")


class GuardedResolver(AbstractResolver):
    """Resolves a name and passes on only the addresses that may be dialled."""

    def __init__(self, egress: Egress, inner: AbstractResolver | None = None) -> None:
        self._egress = egress
        self._inner = inner or ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Raises EgressDenied if no address of the name may be called, OSError if it has none."""
        name = host.rstrip(".").lower()
        found = await self._inner.resolve(host, port, family)
        passed: list[ResolveResult] = []
        objection = None
        for result in found:
            why = self._egress.objection(name, result["host"], port)
            if why is None:
                passed.append(result)
            else:
                objection = why
        if found and not passed:
            raise EgressDenied(errno.EACCES, objection)
        return passed

    async def close(self) -> None:
        await self._inner.close()


def _plain(ip: Address) -> Address:
    """The IPv4 address inside an IPv6 one, where a gateway or the kernel would take it out."""
    if isinstance(ip, ipaddress.IPv4Address):
        return ip
    if ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    if ip.sixtofour is not None:
        return ip.sixtofour
    if ip.teredo is not None:
        return ip.teredo[1]
    if ip in _NAT64 or (int(ip) >> 32 == 0 and int(ip) > 1):
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip


def _kind(ip: Address) -> str | None:
    """The word for an address that is not public; None for a public one."""
    if ip.is_loopback or ip.is_unspecified or (ip.version == 4 and int(ip) >> 24 == 0):
        return "loopback"  # 0.0.0.0/8 reaches this machine as well
    if ip.is_multicast:
        return "multicast"
    if ip.is_link_local:
        return "link-local"
    if ip.is_reserved or int(ip) == 0xFFFFFFFF:
        return "reserved"
    if ip.is_private or ip in _SHARED or (ip.version == 6 and ip.is_site_local):
        return "private"
    return None


def _is_own(ip: Address) -> bool:
    """True for an address of this machine: only such a one can be bound."""
    if _kind(ip) == "loopback":
        return True
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(ip), 0))
    except OSError:
        return False
    return True
