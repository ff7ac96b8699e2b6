"""The lines of ``egress.allow`` and ``egress.deny``: what one fits, and how exactly."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

EVERYWHERE: Final = "*"
ALL_RUNS: Final = "*"

_HOST: Final = re.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")


@dataclass(frozen=True, slots=True)
class Line:
    """One host or network, for the runs whose name fits ``run``."""

    text: str  # as it was written
    run: str = ALL_RUNS
    network: Network | None = None
    name: str = ""
    port: int | None = None

    @classmethod
    def parse(cls, text: str, run: str = ALL_RUNS) -> Line:
        """``name``, ``*.name``, an address or a network, each host and address also with ``:port``;
        ``*`` is everything. Raises ValueError with a sentence for the config's reader."""
        plain = text.strip().lower()
        if plain == EVERYWHERE:
            return cls(text, run, None, EVERYWHERE)
        network = _network(plain.strip("[]"))
        if network is not None:
            return cls(text, run, network)
        host, port = plain, None
        if ":" in plain:
            host, _, digits = plain.rpartition(":")
            if not (digits.isascii() and digits.isdigit() and 1 <= int(digits) <= 65_535):
                raise ValueError(_NEITHER.format(text))
            port = int(digits)
        host = host.strip("[]").rstrip(".")
        network = None if "/" in host else _network(host)
        if network is not None:
            return cls(text, run, network, "", port)
        if not _HOST.fullmatch(host):
            raise ValueError(_NEITHER.format(text))
        return cls(text, run, None, host, port)

    def weight(self, host: str, address: Address | None, port: int) -> int:
        """How exactly this line fits, 0 where it does not. A name is worth more than a network.
        ``address`` None: the name is resolved elsewhere, so that only names can fit."""
        if self.port is not None and self.port != port:
            return 0
        exact = 1 if self.port is not None else 0
        if self.network is not None:
            if address is None or address.version != self.network.version:
                return 0
            return 2 * self.network.prefixlen + 2 + exact if address in self.network else 0
        if self.name == EVERYWHERE:
            return 1
        if self.name.startswith("*."):
            return 1000 + 2 * len(self.name) + exact if host.endswith(self.name[1:]) else 0
        return 10_000 + exact if host == self.name else 0

    def plain(self) -> str | dict[str, str]:
        """As the configuration writes it."""
        return self.text if self.run == ALL_RUNS else {"run": self.run, "to": self.text}


def lines(value: object) -> tuple[Line, ...]:
    """From a list of texts and of ``{run: GLOB, to: HOST or [HOST, ...]}``. Raises ValueError."""
    found: list[Line] = []
    for item in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(item, Line):
            found.append(item)
        elif isinstance(item, str):
            found.append(Line.parse(item))
        elif isinstance(item, Mapping) and set(item) == {"run", "to"}:
            run, to = item["run"], item["to"]
            hosts = to if isinstance(to, (list, tuple)) else [to]
            if not (isinstance(run, str) and run and hosts):
                raise ValueError(_SHAPE)
            if not all(isinstance(host, str) for host in hosts):
                raise ValueError(_SHAPE)
            found += [Line.parse(host, run) for host in hosts]
        else:
            raise ValueError(_SHAPE)
    return tuple(found)


def allowed_lines(value: object) -> tuple[Line, ...]:
    """The same for ``allow``, where "everything" would undo what the list is for. Raises
    ValueError."""
    found = lines(value)
    if any(line.name == EVERYWHERE for line in found):
        raise ValueError('"*" would open every inner address: name hosts or networks')
    return found


_NEITHER: Final = '"{}" is neither a host, host:port, *.host, address nor network'
_SHAPE: Final = 'write a host, or {run: "GLOB", to: HOST} for the runs that fit the glob'


def _network(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None
