"""Event streams (``text/event-stream``) as whole events: read at once, or as they come in pieces.

An event ends with an empty line; lines end with CR LF, LF or CR. What is read never changes a byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from proxy.core.model import frozen

_END: Final = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE: Final = re.compile(r"\r\n|\n|\r")
_LONGEST_END: Final = 4  # CR LF CR LF


@frozen
class Event:
    """What has no line in the event is None."""

    kind: str = "message"
    data: str | None = None
    id: str | None = None
    retry: float | None = None  # seconds


def events(text: str) -> Iterator[Event]:
    """The events of a whole stream. The empty line behind the last one may be missing."""
    lines: list[str] = []
    for line in (*_LINE.split(text.removeprefix("\ufeff")), ""):
        if line:
            lines.append(line)
        elif lines:
            yield _event(lines)
            lines = []


def event(data: str) -> str:
    """One message as an event."""
    lines = "".join(f"data: {line}\n" for line in _LINE.split(data))
    return f"event: message\n{lines}\n"


def _event(lines: list[str]) -> Event:
    kind, own, retry = "message", None, None
    data: list[str] = []
    for line in lines:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
        elif field == "event":
            kind = value
        elif field == "id":
            own = value
        elif field == "retry" and value.isascii() and value.isdigit():
            retry = int(value[:9]) / 1000
    return Event(kind, "\n".join(data) if data else None, own, retry)


class Cutter:
    """Cuts a stream into whole events as it comes. What is given out, joined, is what came in."""

    def __init__(self, limit: int) -> None:
        """``limit``: bytes of one event; of a longer one the pieces are given out as they come."""
        self._limit = limit
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        looked = max(0, len(self._rest) - _LONGEST_END)
        self._rest += chunk
        while (end := _END.search(self._rest, looked)) is not None:
            whole, self._rest = self._rest[: end.end()], self._rest[end.end() :]
            looked = 0
            yield whole
        if len(self._rest) > self._limit:
            whole, self._rest = self._rest, b""
            yield whole

    def rest(self) -> bytes:
        """What came behind the last whole event."""
        rest, self._rest = self._rest, b""
        return rest
