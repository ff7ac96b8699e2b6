"""Where a request wants to go, read from the raw request target; one canonical form for each host.

A host is lower case, without brackets or trailing dot, so that rules, ledger, certificates and the
egress check all see the same name. Path and query are passed on byte for byte.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

DEFAULT_PORTS = {"http": 80, "https": 443}

_HOST = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\Z")
_PATH = re.compile(r"[/?]")
HOST_LIMIT = 253  # characters of a DNS name


class BadTarget(Exception):
    """The target cannot be used. ``detail`` says why and what to do; it never repeats the
    target."""

    def __init__(self, detail: str, status: int = 400) -> None:
        super().__init__(detail)
        self.detail = detail
        self.status = status


class Place(NamedTuple):
    """The destination of one request. ``path`` is RUN and STEP of a gateway path, undecoded."""

    scheme: str
    host: str
    port: int
    target: str
    path: tuple[str, str] | None = None


@lru_cache(maxsize=4096)
def authority(text: str, default: int | None) -> tuple[str, int]:
    """(host, port) of ``host``, ``host:port`` or ``[address]:port``.

    ``default`` is the port where none is given; None: a port is required. Raises BadTarget.
    """
    if "@" in text:
        raise BadTarget("the target has user information: send credentials in a header")
    if text.startswith("["):
        inner, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise BadTarget("the target's host is not valid")
        host, port = _ipv6(inner), rest[1:]
    else:
        host, _, port = text.partition(":")
        host = _name(host)
    if not port:
        if default is None or text.endswith(":"):
            raise BadTarget("the target has no port: write host:port")
        return host, default
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise BadTarget("the target's port is not a number from 1 to 65535")
    return host, int(port)


def absolute(target: str) -> Place:
    """An absolute-form target, ``http://host/path`` or ``https://host/path``. Raises BadTarget."""
    scheme, separator, rest = target.partition("://")
    scheme = scheme.lower()
    default = DEFAULT_PORTS.get(scheme)
    if not separator or default is None:
        raise BadTarget("the target's scheme is neither http nor https")
    if "#" in rest:
        raise BadTarget("the target has a fragment: leave it out")
    named, path = _split(rest)
    host, port = authority(named, default)
    return Place(scheme, host, port, path)


def via(target: str) -> Place | None:
    """A gateway path: ``/via/SCHEME/HOST/path`` or ``/as/RUN/STEP/via/SCHEME/HOST/path``.

    None if the target is no such path. Raises BadTarget.
    """
    identity: tuple[str, str] | None = None
    if target.startswith("/as/"):
        parts = target.split("/", 5)
        if len(parts) < 6 or parts[4] != "via" or not parts[2] or not parts[3]:
            raise BadTarget("the gateway path is not /as/RUN/STEP/via/https/HOST/...")
        identity = (parts[2], parts[3])
        target = "/via/" + parts[5]
    if not target.startswith("/via/"):
        return None
    if "#" in target:
        raise BadTarget("the target has a fragment: leave it out")
    scheme, _, rest = target[5:].partition("/")
    default = DEFAULT_PORTS.get(scheme.lower())
    if default is None:
        raise BadTarget("the gateway path names neither http nor https: write /via/https/HOST/...")
    named, path = _split(rest)
    host, port = authority(unquote(named), default)
    return Place(scheme.lower(), host, port, path, identity)


def origin(target: str) -> str:
    """An origin-form target as it goes on. Raises BadTarget."""
    if not target.startswith("/"):
        raise BadTarget("the target is neither a path nor an absolute address")
    if "#" in target:
        raise BadTarget("the target has a fragment: leave it out")
    return target


def _split(rest: str) -> tuple[str, str]:
    """(authority, target with its leading slash) of what follows the scheme."""
    found = _PATH.search(rest)
    if found is None:
        return rest, "/"
    named, path = rest[: found.start()], rest[found.start() :]
    return named, path if path.startswith("/") else "/" + path


def _name(host: str) -> str:
    host = host.lower().removesuffix(".")
    if len(host) > HOST_LIMIT or not _HOST.match(host):
        raise BadTarget("the target's host is not valid: write names of other scripts as xn--...")
    return host


def _ipv6(text: str) -> str:
    if "%" in text:
        raise BadTarget("the target's host has a zone: it means nothing outside this machine")
    try:
        return str(ipaddress.IPv6Address(text))
    except ValueError:
        raise BadTarget("the target's host has brackets and is no IPv6 address") from None
