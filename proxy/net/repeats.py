"""Calls that come again in the same bytes: what was found out about them is kept for a while.

A client that repeats a call sends the same bytes, and most of the work on a call is to find out
what it is. Kept is what the bytes mean, never what became of the call: that is asked of the ledger
each time.
"""

from __future__ import annotations

from typing import TypeAlias

from aiohttp import HttpVersion

from proxy.net.exchange import NO_BODY, Arrival
from proxy.net.incoming import Incoming, Site

REMEMBERED = 1024  # calls; with small bodies about 9 MB
REMEMBERED_BYTES = 4 * 1024 * 1024  # of their bodies; what is known of a call takes as much again
BODY_LIMIT = 64 * 1024  # a longer body is read anew; it takes long anyway

Spelling: TypeAlias = tuple[Site, HttpVersion, str, str, tuple[tuple[bytes, bytes], ...], bytes]


class Repeats:
    """Arrivals by how they were spelled. The oldest ones go first."""

    def __init__(self) -> None:
        self._known: dict[Spelling, Arrival] = {}
        self._bytes = 0

    def spelling(self, incoming: Incoming) -> Spelling | None:
        """None for a call that is not worth remembering: too large, or not here yet."""
        data, message = incoming.data, incoming.message
        if data is None or len(data) > BODY_LIMIT or message.upgrade:
            return None
        site = incoming.connection.site
        return site, message.version, message.method, message.path, message.raw_headers, data

    def find(self, spelling: Spelling) -> Arrival | None:
        return self._known.get(spelling)

    def keep(self, spelling: Spelling, arrival: Arrival) -> None:
        arrival.inlet = NO_BODY  # its body is in ``meaning``, and its connection is not wanted here
        known = self._known
        if spelling not in known:
            self._bytes += len(spelling[-1])
        known[spelling] = arrival
        while len(known) > REMEMBERED or self._bytes > REMEMBERED_BYTES:
            oldest = next(iter(known))
            del known[oldest]
            self._bytes -= len(oldest[-1])
