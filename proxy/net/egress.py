"""Which addresses may be called, decided on the very address that is dialled.

A name is resolved once; each of its addresses is judged, and only those that passed are dialled, so
that a name which resolves differently a moment later gains nothing. Public addresses are open.
Loopback, private and link-local ones are open only to hosts that a rule or ``egress.allow`` names.
Metadata services of clouds and the proxy's own ports are open to nobody, in no spelling.
"""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

from aiohttp import ThreadedResolver
from aiohttp.abc import AbstractResolver, ResolveResult

from proxy.core.egress import ALL_RUNS, Address, Line, allowed_lines, lines

RUNS_REMEMBERED = 1024

METADATA = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "169.254.169.254",  # AWS, Google Cloud, Azure, DigitalOcean, OpenStack, Oracle
        "169.254.170.2",  # AWS ECS task credentials
        "169.254.170.23",  # AWS EKS pod identity
        "fd00:ec2::254",  # AWS over IPv6
        "fd00:ec2::23",  # AWS EKS over IPv6
        "fd20:ce::254",  # Google Cloud over IPv6
        "fe80::a9fe:a9fe",  # OpenStack over IPv6
        "fd00:c1::a9fe:a9fe",  # Oracle Cloud over IPv6
        "169.254.42.42",  # Scaleway
        "fd00:42::42",  # Scaleway over IPv6
        "169.254.0.23",  # Tencent Cloud
        "100.100.100.200",  # Alibaba Cloud
        "192.0.0.192",  # Oracle Cloud classic
        "168.63.129.16",  # Azure wire server
    )
)
"""Addresses that hand out a machine's credentials to whoever asks."""

_EMBEDDING = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "64:ff9b::/96",  # NAT64, RFC 6052
        "64:ff9b:1::/48",  # NAT64 within a site, RFC 8215
        "::ffff:0:0:0/96",  # translated, RFC 2765
    )
)
"""Networks whose addresses end in the IPv4 address that a gateway then calls."""
_INNER = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "100.64.0.0/10",  # carrier-grade NAT: inner networks use it
        "192.0.0.0/24",  # protocol assignments; Pythons differ on how much of it is private
    )
)


MAIL_PORTS = frozenset({25, 465, 587, 2525})
"""An open way to mail servers is what every spammer looks for, and mail is no API."""


class EgressDenied(OSError):
    """Raised by the resolver. An OSError, because that is what the connector expects of one."""


class Egress:
    """The judge of addresses, for all runs or, as ``for_run`` gives it, for some."""

    def __init__(
        self,
        *,
        allow: Sequence[str | Line] = (),
        deny: Sequence[str | Line] = (),
        named: Callable[[str, int], bool] = lambda host, port: False,
        own_ports: Iterable[int] = (),
    ) -> None:
        """The more exact line wins, ``deny`` on a tie. ``named`` tells whether a rule names a host.
        Raises ValueError for a text that is no line."""
        self._lines = (allowed_lines(allow), lines(deny))
        scoped = [line for side in self._lines for line in side if line.run != ALL_RUNS]
        self._globs = sorted({line.run for line in scoped})
        self._named = named
        self._own_ports = own_ports if isinstance(own_ports, set) else set(own_ports)
        self._allow, self._deny = self._lines
        self._views: dict[frozenset[str], Egress] = {}
        self._view_of: dict[str, Egress] = {}
        if self._globs:
            self._allow, self._deny = (
                tuple(line for line in side if line.run == ALL_RUNS) for side in self._lines
            )

    def for_run(self, run: str) -> Egress:
        """The judge for a run, as its name stands in an operation key; "" for calls without one.
        Runs that fit the same globs share one."""
        if not self._globs:
            return self
        known = self._view_of.get(run)
        if known is None:
            fitting = frozenset(glob for glob in self._globs if fnmatchcase(run, glob))
            known = self._views.get(fitting)
            if known is None:
                known = self._views[fitting] = self._view(fitting)
            if len(self._view_of) >= RUNS_REMEMBERED:
                self._view_of.clear()
            self._view_of[run] = known
        return known

    def _view(self, globs: frozenset[str]) -> Egress:
        if not globs:
            return self
        view = Egress(named=self._named, own_ports=self._own_ports)
        view._allow, view._deny = (
            tuple(line for line in side if line.run == ALL_RUNS or line.run in globs)
            for side in self._lines
        )
        return view

    def protect(self, port: int) -> None:
        """Make a port of this machine unreachable: one that the proxy itself listens on."""
        self._own_ports.add(port)

    def objection(self, host: str, address: str, port: int) -> str | None:
        """Why this address may not be called on behalf of ``host``; None if it may."""
        bare = ipaddress.ip_address(address.partition("%")[0])
        ip = _plain(bare)
        if ip in METADATA or bare in METADATA:
            return _METADATA
        if port in self._own_ports and _is_own(ip, address):
            return _OWN
        allowed, denied = self._weights(host, ip, port)
        if denied is not None:
            return self._denied(denied, host, port)
        if port in MAIL_PORTS and not self._opens_port(host, ip, port):
            return self._closed("mail servers'", host, port)
        kind = _kind(ip)
        if kind is None or allowed or (kind in _OPENABLE and self._named(host, port)):
            return None
        if kind not in _OPENABLE:
            return f"{kind} addresses may not be called"
        return self._closed(kind, host, port)

    def literal(self, host: str, port: int) -> str | None:
        """The objection to a host that is itself an address; None for names and open addresses."""
        if not (host[-1:].isdigit() or ":" in host or host.startswith("0x")):
            return None  # the usual case, without an exception for each call
        try:
            return self.objection(host, host, port)
        except ValueError:
            if _NUMBERS.fullmatch(host):
                return "this spelling of an address is not accepted: write it as a.b.c.d"
            return None

    def name(self, host: str, port: int) -> str | None:
        """The objection to a host whose name is resolved by somebody else (a parent proxy), so that
        no address can be judged."""
        if host in _METADATA_NAMES:
            return _METADATA
        local = host == "localhost" or host.endswith((".localhost", ".localdomain"))
        if local and port in self._own_ports:
            return _OWN
        allowed, denied = self._weights(host, None, port)
        if denied is not None:
            return self._denied(denied, host, port)
        if local and not allowed and not self._named(host, port):
            return self._closed("loopback", host, port)
        if port in MAIL_PORTS and not self._opens_port(host, None, port):
            return self._closed("mail servers'", host, port)
        return None

    def _opens_port(self, host: str, ip: Address | None, port: int) -> bool:
        exact = any(line.port == port and line.weight(host, ip, port) for line in self._allow)
        return exact or self._named(host, port)

    def _weights(self, host: str, ip: Address | None, port: int) -> tuple[int, Line | None]:
        """How exactly a line allows it, and the line that denies it."""
        allowed = max((line.weight(host, ip, port) for line in self._allow), default=0)
        denied, most = None, max(allowed - 1, 0)
        for line in self._deny:
            weight = line.weight(host, ip, port)
            if weight > most:
                denied, most = line, weight
        return allowed, denied

    @staticmethod
    def _denied(line: Line, host: str, port: int) -> str:
        if line.run == ALL_RUNS:
            return f"the configuration denies it (egress.deny: {line.text})"
        return f"the configuration denies it to this run (egress.deny: {line.text})"

    @staticmethod
    def _closed(kind: str, host: str, port: int) -> str:
        shown = f"[{host}]" if ":" in host else host
        return (
            f"{kind} addresses are closed to hosts that no rule names. To open this one add to the "
            f'configuration: egress: {{allow: ["{shown}:{port}"]}}'
        )


_OPENABLE = ("loopback", "private", "link-local")
_METADATA = "the metadata service of a cloud may not be called"
_OWN = "this is a port of the proxy itself"
_NUMBERS = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]+)){0,3}")
"""What the C library also reads as an IPv4 address: fewer parts, octal, hexadecimal."""

_METADATA_NAMES = frozenset(
    {
        "instance-data",
        "instance-data.ec2.internal",
        "metadata",
        "metadata.goog",
        "metadata.google.internal",
        "metadata.tencentyun.com",
    }
)


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
    if any(ip in network for network in _EMBEDDING) or (int(ip) >> 32 == 0 and int(ip) > 1):
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
    if (
        ip.is_private
        or any(ip in inner for inner in _INNER)
        or (ip.version == 6 and ip.is_site_local)
    ):
        return "private"
    return None


def _is_own(ip: Address, address: str) -> bool:
    """True for an address of this machine: only such a one can be bound."""
    if _kind(ip) == "loopback":
        return True
    where = address if ip.version == 6 and "%" in address else str(ip)  # a link-local's interface
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(socket.getaddrinfo(where, 0, family, socket.SOCK_DGRAM)[0][4])
    except OSError:
        return False
    return True
