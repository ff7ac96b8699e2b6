"""aiohttp's C parser: how it is set up, and what its refusals become.

Only the C one may run: the other accepts shapes that this proxy must refuse. Everything that relies
on how it works is here and in ``connection``.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol, cast

import aiohttp.http_parser
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import BadHttpMethod, HttpProcessingError, LineTooLong
from aiohttp.streams import StreamReader

from proxy.net.incoming import Refused

BODY_BUFFER = 1 << 17
"""Bytes of a body held for a reader that is not there yet; at twice as many the caller has to
wait."""


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """Of a request's line and fields together, in bytes, and of the fields, in number."""

    head: int = 1 << 16  # presigned addresses and cookies are long
    fields: int = 100

    @property
    def field(self) -> int:
        """Bytes of one field. Not those of the line, because the parser's error names only the
        limit."""
        return self.head - 1


class ParserMissing(RuntimeError):
    """aiohttp's C parser is not there."""


class Parser(Protocol):
    """What is used of it."""

    def feed_data(
        self, data: bytes
    ) -> tuple[list[tuple[RawRequestMessage, StreamReader]], bool, bytes]:
        """(requests whose head is complete, whether they ended HTTP, what follows then). Raises
        HttpProcessingError."""
        ...

    def pause_reading(self) -> None: ...

    def set_upgraded(self, val: bool) -> None: ...


def check() -> None:
    """Raises ParserMissing."""
    if not aiohttp.http_parser.HttpRequestParser.__module__.endswith("_http_parser"):
        raise ParserMissing(
            "aiohttp runs without its C parser, which accepts requests that must be refused: "
            "unset AIOHTTP_NO_EXTENSIONS, or install a wheel of aiohttp for this platform"
        )


def parser(protocol: object, loop: asyncio.AbstractEventLoop, limits: HeadLimits) -> Parser:
    """One that stops after each request until it is fed again. ``protocol`` is what the bodies'
    readers tell when they have enough (``pause_reading``, ``resume_reading``, ``connected``)."""
    make = cast(Any, aiohttp.http_parser.HttpRequestParser)
    return cast(
        Parser,
        make(
            protocol,
            loop,
            BODY_BUFFER,
            max_line_size=limits.head,
            max_field_size=limits.field,
            max_headers=limits.fields,
            auto_decompress=False,
            max_msg_queue_size=1,
        ),
    )


def alone(piece: bytes, message: RawRequestMessage, payload: StreamReader) -> bool:
    """Whether a piece, of which this was the request, had nothing behind it, and the next one will
    be read as if it were the first. False for a chunked body, whose end is not looked for."""
    if message.upgrade or not payload.is_eof():
        return False
    return piece.find(b"\r\n\r\n") + 4 + payload.total_bytes == len(piece)


def head_size(message: RawRequestMessage) -> int:
    fields = sum(len(name) + len(value) + 4 for name, value in message.raw_headers)
    return len(message.method) + len(message.path) + 12 + fields


def too_long(limits: HeadLimits) -> Refused:
    return Refused(f"line and header fields are longer than {limits.head} bytes (limits.head)", 431)


def refused(error: HttpProcessingError, limits: HeadLimits) -> Refused:
    """The answer to what could not be read; never with a word of what was sent."""
    if isinstance(error, LineTooLong):
        if str(limits.field) in str(error):
            return Refused(f"a header field is longer than {limits.field} bytes (limits.head)", 431)
        return Refused(f"the request line is longer than {limits.head} bytes (limits.head)", 414)
    if isinstance(error, BadHttpMethod):
        return Refused("this is no HTTP request, or its method is not known")
    if "Too many headers" in str(error):
        detail = f"the request has more than {limits.fields} header fields (limits.head_fields)"
        return Refused(detail, 431)
    return Refused("the request is malformed")
