"""What a client says before its tunnel is opened: the first bytes of a connection, and a
ClientHello.

Nothing is decrypted here; server name and protocols stand in clear text in a ClientHello.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

HELLO_LIMIT = 1 << 16  # a ClientHello with post-quantum key shares is about 2 kB

_METHOD = re.compile(rb"[A-Z][A-Z-]{1,31}\Z")


class First(enum.Enum):
    """What the first bytes are."""

    MORE = "more"  # too few to tell
    TLS = "tls"
    HTTP = "http"
    HTTP2 = "http2"  # prior knowledge, in clear text
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Hello:
    """``name``: the server name, lower case, "" without one. ``protocols``: as offered by ALPN."""

    name: str = ""
    protocols: tuple[str, ...] = ()

    @property
    def speaks_http1(self) -> bool:
        return not self.protocols or "http/1.1" in self.protocols or "http/1.0" in self.protocols


class BadHello(ValueError):
    """Not a ClientHello."""


def first(data: bytes) -> First:
    if not data:
        return First.MORE
    if data[0] == 0x16:
        return First.TLS
    if data.startswith(b"PRI * HTTP/2"):
        return First.HTTP2
    method, space, _ = data.partition(b" ")
    if space:
        return First.HTTP if _METHOD.match(method) else First.OTHER
    if len(data) <= 32 and re.match(rb"[A-Z-]*\Z", data):
        return First.MORE
    return First.OTHER


def hello(data: bytes) -> Hello | None:
    """The ClientHello at the start of ``data``; None while it is not complete. Raises BadHello."""
    message = bytearray()
    rest = memoryview(data)
    wanted = 4
    while len(message) < wanted:
        if len(rest) < 5:
            return None
        if rest[0] != 0x16:
            raise BadHello("a record of another kind")
        size = int.from_bytes(rest[3:5], "big")
        fragment = rest[5 : 5 + size]
        message += fragment
        if len(fragment) < size:
            if len(data) > HELLO_LIMIT:
                raise BadHello("too long")
            return None
        rest = rest[5 + size :]
        if len(message) >= 4:
            if message[0] != 1:
                raise BadHello("another handshake message")
            wanted = 4 + int.from_bytes(message[1:4], "big")
            if wanted > HELLO_LIMIT:
                raise BadHello("too long")
    try:
        return _parse(memoryview(bytes(message[4:wanted])))
    except (IndexError, UnicodeError) as error:
        raise BadHello("malformed") from error


def _parse(body: memoryview) -> Hello:
    offset = 2 + 32  # version and random
    offset += 1 + body[offset]  # session id
    offset += 2 + _number(body, offset)  # cipher suites
    offset += 1 + body[offset]  # compression methods
    name = ""
    protocols: tuple[str, ...] = ()
    if offset == len(body):
        return Hello()
    end = offset + 2 + _number(body, offset)
    offset += 2
    while offset < end:
        kind, size = _number(body, offset), _number(body, offset + 2)
        value = body[offset + 4 : offset + 4 + size]
        if kind == 0 and size > 5 and value[2] == 0:
            name = bytes(value[5 : 5 + _number(value, 3)]).decode("ascii").lower()
        elif kind == 16:
            protocols = _protocols(value[2:])
        offset += 4 + size
    return Hello(name.removesuffix("."), protocols)


def _protocols(names: memoryview) -> tuple[str, ...]:
    found = []
    offset = 0
    while offset < len(names):
        size = names[offset]
        found.append(bytes(names[offset + 1 : offset + 1 + size]).decode("latin-1"))
        offset += 1 + size
    return tuple(found)


def _number(data: memoryview, offset: int) -> int:
    return data[offset] << 8 | data[offset + 1]
