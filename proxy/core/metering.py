"""What a model call costs: the tokens to reserve before it is sent, and those its answer reports.

``reserved`` reads the request, ``UsageReader`` the answer while it flows. The reader keeps a few
numbers and never the answer; it says None wherever it cannot know (the answer broke off, is coded
in a way that is not read here, reports nothing), and then what was reserved stays charged.

Counts in a stream are running totals, so of each count the largest counts, wherever it stood.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator
from typing import Any, Final

from proxy.core.bodies import ANY_RATIO, RATIO, BodyMissing
from proxy.core.classify import classify
from proxy.core.jsonscan import Scanner, Seen
from proxy.core.model import Answer, Answered, Headers, header
from proxy.core.paths import MISSING, Path, answer_path
from proxy.core.rules import Endpoint, Meter
from proxy.core.templates import ValueMissing
from proxy.core.values import number_of
from proxy.core.views import RequestView

MOST: Final = 10**12  # tokens; no call has more, and sums of it stay far inside 64 bits
PIECE: Final = 64 * 1024  # bytes that a compressed piece is unpacked into at once
IDENTITY: Final = "identity"
CODINGS: Final = ("gzip", "x-gzip", "deflate", IDENTITY)  # of an answer, that are read here
BOM: Final = b"\xef\xbb\xbf"
GZIP: Final = b"\x1f\x8b"

_BLANK: Final = b" \t\r\n"
_DATA: Final = b"data:"
_LINE_END: Final = re.compile(rb"\r\n?|\n")


def reserved(meter: Meter, view: RequestView) -> int:
    """The tokens to reserve for a call: the largest output limit that it names, times the largest
    number of choices; the rule's default where it names none or its body cannot be read."""
    limit = _largest(meter.max_tokens, view)
    if limit is None:
        limit = meter.default
    return min(limit * max(_largest(meter.choices, view) or 1, 1), MOST)


def _largest(paths: tuple[Path, ...], view: RequestView) -> int | None:
    try:
        counts = [_count(view.get(path)) for path in paths]
    except BodyMissing:
        return None
    return max((count for count in counts if count is not None), default=None)


def _count(value: Any) -> int | None:
    """A count of 0 or more, rounded up; None for anything else."""
    number = number_of(value)
    if number is None or number < 0:
        return None
    return MOST if number > MOST else math.ceil(number)


class UsageReader:
    """The tokens that an answer reports. ``endpoint`` is metered; of ``answer`` status and header
    are needed. ``feed`` takes its body as it travels, in pieces cut anywhere."""

    def __init__(self, endpoint: Endpoint, answer: Answer) -> None:
        assert endpoint.meter is not None
        means = classify(endpoint, Answered(answer), keyed=False).means
        self.set_aside = means == "not_applied"
        """The API has not looked at the call (it is throttled, or its credential expired)."""
        self.refused = self.set_aside or means == "rejected"
        """The API turned the call away: no tokens were used."""
        self._meter = endpoint.meter
        self._headers = answer.headers
        self._counts: dict[int, int] = {}  # by place in ``usage``
        self._completed = self._meter.complete is None
        self._known = 200 <= answer.status < 300
        self._decoder: _Decoder | None = None
        self._text: _Text | None = None
        if self._known and not self.refused:
            self._begin()

    def _begin(self) -> None:
        for place, path in enumerate(self._meter.usage):
            if path.root == "header":
                self._saw(place, header(self._headers, str(path.steps[0])))
        if self._meter.watched.children:
            self._decoder = _decoder_of(self._headers)
            self._text = _Text(Scanner(self._meter.watched, self._document))
            self._known = self._decoder is not None

    def feed(self, data: bytes) -> None:
        if self._decoder is None or self._text is None:
            return
        for piece in self._decoder.decode(data):
            self._text.feed(piece)

    @property
    def ending(self) -> bool:
        """What has come may be all that a caller waits for: it shows its end, or else its use."""
        return self._completed if self._meter.complete is not None else bool(self._counts)

    def end(self, whole: bool) -> int | None:
        """The tokens used, None where that is not known. ``whole``: the body came to its end."""
        if self.refused:
            return 0
        if not (self._known and whole and self._counts and self._completed):
            return None
        if self._decoder is not None and not self._decoder.at_end:
            return None
        if self._text is not None and not self._text.at_rest:
            return None
        return min(sum(self._counts.values()), MOST)

    def _document(self, seen: Seen) -> None:
        for steps, value in seen.items():
            place = self._meter.counted.get(steps)
            if place is not None:
                self._saw(place, value)
        if not self._completed and self._meter.complete is not None:
            try:
                self._completed = self._meter.complete.holds(_SeenView(seen, self._headers))
            except ValueMissing:
                pass  # it asks for a number where there is none: not shown

    def _saw(self, place: int, value: Any) -> None:
        count = _count(value)
        if count is not None:
            self._counts[place] = max(count, self._counts.get(place, 0))


class _SeenView:
    """What a condition sees of one document: the paths that it names."""

    __slots__ = ("_headers", "_seen")

    def __init__(self, seen: Seen, headers: Headers) -> None:
        self._seen = seen
        self._headers = headers

    def get(self, path: str | Path) -> Any:
        if isinstance(path, str):
            path = answer_path(path)
        if path.root != "header":
            return self._seen.get(path.steps, MISSING)
        value = header(self._headers, str(path.steps[0]))
        return MISSING if value is None else value


# Content codings


class _Decoder:
    """Undoes one of zlib's codings, or none."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._inflate: Any = None  # zlib gives its type no public name
        self._head = b""  # the first byte of a member, until the second says what it is
        self._taken = self._given = 0
        self._failed = False

    @property
    def at_end(self) -> bool:
        """Everything that was compressed has come."""
        if self._coding == IDENTITY:
            return True
        if self._inflate is None:
            return not self._taken
        return self._inflate.eof and not self._failed

    def decode(self, data: bytes) -> Iterator[bytes]:
        if self._coding == IDENTITY:
            yield data
            return
        self._taken += len(data)
        data = self._head + data
        self._head = b""
        while data and not self._failed:
            if self._inflate is None or self._inflate.eof:
                if len(data) < 2:
                    self._head = data
                    return
                if self._inflate is not None and not data.startswith(GZIP):
                    return  # padding, which clients pass over
                self._inflate = zlib.decompressobj(_window(data))
            yield from self._inflated(data)
            data = self._inflate.unused_data

    def _inflated(self, data: bytes) -> Iterator[bytes]:
        piece = b""
        while (data or len(piece) == PIECE) and not self._failed:
            try:
                piece = self._inflate.decompress(data, PIECE)
            except zlib.error:
                self._failed = True
                return
            data = self._inflate.unconsumed_tail
            self._given += len(piece)
            self._failed = self._given > max(ANY_RATIO, RATIO * self._taken)
            yield piece


def _window(head: bytes) -> int:
    """gzip and zlib tell themselves by their first two bytes; what else is sent as deflate is the
    bare stream."""
    zlib_head = head[0] & 0x0F == 8 and (head[0] << 8 | head[1]) % 31 == 0
    return 47 if zlib_head or head.startswith(GZIP) else -15


def _decoder_of(headers: Headers) -> _Decoder | None:
    """None for a coding that is not read here."""
    codings = [value for name, value in headers if name.lower() == "content-encoding"]
    coding = ",".join(codings).strip().lower()
    return _Decoder(coding or IDENTITY) if not coding or coding in CODINGS else None


# JSON, or events that carry it


class _Text:
    """JSON by its first character, or else server-sent events: gateways mislabel both."""

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._events: _Events | None = None
        self._started = False
        self._head = b""

    @property
    def at_rest(self) -> bool:
        return self._scanner.at_rest

    def feed(self, data: bytes) -> None:
        if not self._started:
            data = (self._head + data).lstrip(_BLANK)
            if len(data) < len(BOM) and BOM.startswith(data):
                self._head = data
                return
            data = data.removeprefix(BOM).lstrip(_BLANK)
            if not data:
                self._head = b""
                return
            self._started = True
            if data[:1] not in (b"{", b"["):
                self._events = _Events(self._scanner)
        if self._events is not None:
            self._events.feed(data)
        else:
            self._scanner.feed(data)


class _Events:
    """The data of server-sent events, each event by itself. Lines end in CR, LF or both."""

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._start = b""  # of the line, as far as it may still be the field ``data``
        self._in_data: bool | None = None  # None: the line has not said yet what it is
        self._after_cr = False

    def feed(self, data: bytes) -> None:
        at = 0
        if self._after_cr and data[:1] == b"\n":
            at = 1
        self._after_cr = data[-1:] == b"\r" if data else self._after_cr
        while at < len(data):
            stop = _LINE_END.search(data, at)
            if stop is None:
                self._piece(data[at:])
                return
            if self._in_data is None and not self._start and data.startswith(_DATA, at):
                self._scanner.line(data[at + len(_DATA) : stop.end()])
            else:
                self._piece(data[at : stop.start()])
                self._line_ended()
            at = stop.end()

    def _piece(self, piece: bytes) -> None:
        if self._in_data is None:
            piece = self._start + piece
            self._start = b""
            if len(piece) < len(_DATA) and _DATA.startswith(piece):
                self._start = piece
                return
            self._in_data = piece.startswith(_DATA)
            piece = piece.removeprefix(_DATA)
        if self._in_data:
            self._scanner.feed(piece)

    def _line_ended(self) -> None:
        if self._in_data:
            self._scanner.feed(b"\n")
        elif self._in_data is None and not self._start:
            self._scanner.reset()  # an empty line: the event is over
        self._start = b""
        self._in_data = None
