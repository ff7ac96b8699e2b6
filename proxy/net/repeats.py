"""Calls that come again in the same bytes: what was found out about them is kept for a while.

A client that repeats a call sends the same bytes, and most of the work on a call is to find out
what it is. Kept is what the bytes mean, never what became of the call: that is asked of the ledger
each time.

A call is known by how it was spelled, however its bytes came, and by its piece: all of its bytes,
where they came in one piece with nothing before or behind. A piece that is known is not even read.
What else a call's meaning hangs on, the listener or tunnel that it came by, belongs to both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from aiohttp import HttpVersion

from proxy.core.model import Body, Headers
from proxy.net.exchange import NO_BODY, Arrival, Reply
from proxy.net.incoming import Incoming, Site
from proxy.net.outgoing import packed

REMEMBERED = 1024  # calls; with small bodies about 10 MB
REMEMBERED_BYTES = 4 * 1024 * 1024  # of their bodies and pieces; what is known takes as much again
BODY_LIMIT = 64 * 1024  # a longer body is read anew; it takes long anyway

Spelling: TypeAlias = tuple[Site, HttpVersion, str, str, tuple[tuple[bytes, bytes], ...], bytes]


@dataclass(slots=True)
class Known:
    """What is known of one spelling."""

    arrival: Arrival
    method: str
    version: HttpVersion
    piece: bytes | None = None
    # The head of its last answer, and what it was made of.
    head: bytes = b""
    headers: Headers | None = None
    line: tuple[int, str, int | None, int] | None = None

    def written(self, reply: Reply) -> bytes:
        """The bytes of an answer whose body is in memory. ``Replies`` makes the headers of a
        recorded end once, so that the very same ones show that the head is the same too."""
        body = reply.body
        assert isinstance(body, Body)
        line = (reply.status, reply.reason, reply.length, body.size)
        if reply.headers is self.headers and line == self.line:
            return self.head + (body.data or b"")
        head, data = packed(self.method, self.version, reply)
        if len(data) == body.size:  # not where the body is left out, as for HEAD
            self.head, self.headers, self.line = head, reply.headers, line
        return head + data


class Repeats:
    """Arrivals by how they were spelled. The oldest ones go first."""

    def __init__(self) -> None:
        self._known: dict[Spelling, Known] = {}
        self._pieces: dict[tuple[Site, bytes], Known] = {}
        self._bytes = 0

    def spelling(self, incoming: Incoming) -> Spelling | None:
        """None for a call that is not worth remembering: too large, or not here yet."""
        data, message = incoming.data, incoming.message
        if data is None or len(data) > BODY_LIMIT or message.upgrade:
            return None
        site = incoming.connection.site
        return site, message.version, message.method, message.path, message.raw_headers, data

    def find(self, spelling: Spelling) -> Known | None:
        return self._known.get(spelling)

    def find_piece(self, site: Site, piece: bytes) -> Known | None:
        return self._pieces.get((site, piece))

    def keep(self, spelling: Spelling, arrival: Arrival, piece: bytes | None) -> None:
        arrival.inlet = NO_BODY  # its body is in ``meaning``, and its connection is not wanted here
        known = self._known.get(spelling)
        if known is None:
            known = self._known[spelling] = Known(arrival, spelling[2], spelling[1])
            self._bytes += len(spelling[-1])
        known.arrival = arrival
        if piece is not None:
            self.keep_piece(spelling, known, piece)
        self._make_room()

    def keep_piece(self, spelling: Spelling, known: Known, piece: bytes) -> None:
        """``piece``: the bytes that were read as ``spelling``. The newest of several is kept."""
        if len(piece) <= BODY_LIMIT:
            self._forget_piece(spelling[0], known)
            known.piece = piece
            self._pieces[spelling[0], piece] = known
            self._bytes += len(piece)
            self._make_room()

    def _make_room(self) -> None:
        while len(self._known) > REMEMBERED or self._bytes > REMEMBERED_BYTES:
            self._forget(next(iter(self._known)))

    def _forget(self, spelling: Spelling) -> None:
        known = self._known.pop(spelling)
        self._bytes -= len(spelling[-1])
        self._forget_piece(spelling[0], known)

    def _forget_piece(self, site: Site, known: Known) -> None:
        if known.piece is not None:
            del self._pieces[site, known.piece]
            self._bytes -= len(known.piece)
            known.piece = None
