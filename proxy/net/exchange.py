"""What the front door hands to the engine, and what it gets back.

An ``Arrival`` is one intercepted call whose body has not been read yet; a ``Reply`` is the answer
to write. Both are free of HTTP framing, so that neither side knows how the other one moves bytes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from proxy.core.call import Governed
from proxy.core.identity import Sources
from proxy.core.matching import RuleSet
from proxy.core.model import EMPTY, Body, Headers, Identity, Request
from proxy.core.refusal import Refusal


class TooLarge(Exception):
    """The request body is larger than the limit given to ``read``. Nothing of it is kept."""


class Incomplete(Exception):
    """The caller's body ended before its declared end (it left, was cut off, or was too slow)."""


class BrokenOff(Exception):
    """An answer's body ended before its end. ``reason`` says how."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Inlet(Protocol):
    """Where the body of an arrival comes from. It can be consumed once, by one of both calls."""

    @property
    def gone(self) -> bool:
        """True once the caller's connection is known to be closed."""
        ...

    async def read(self, limit: int) -> Body:
        """The whole body. Raises TooLarge over ``limit`` bytes, Incomplete if it broke off."""
        ...

    def stream(self) -> AsyncIterator[bytes]:
        """The body as it comes, unbuffered. Raises Incomplete (from the iteration)."""
        ...


class BytesInlet:
    """A body that is already here: none at all, or one made by the proxy itself or a test."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes = b"") -> None:
        self._data = data

    @property
    def gone(self) -> bool:
        return False

    async def read(self, limit: int) -> Body:
        if len(self._data) > limit:
            raise TooLarge
        return Body.of(self._data) if self._data else EMPTY

    async def stream(self) -> AsyncIterator[bytes]:
        if self._data:
            yield self._data


NO_BODY = BytesInlet()


class Meaning(NamedTuple):
    """What an arrival was found to be, under the rules of then."""

    call: Governed
    rules: RuleSet


@dataclass(slots=True)
class Arrival:
    """One intercepted call.

    ``request`` has an EMPTY body: the body is behind ``read`` or ``stream``. ``bad`` is set where
    the front door itself found a reason to refuse (its answer must be written without reading on).
    ``content_length`` is the declared size, 0 without a body, None for a chunked one. ``upgrade``
    is the protocol the caller wants to switch to (``websocket``), "" for an ordinary call.
    """

    request: Request
    identity: Identity | None = None
    sources: Sources | None = None  # of the identity, to which a body may add
    bad: Refusal | None = None
    content_length: int | None = 0
    upgrade: str = ""
    inlet: Inlet = NO_BODY
    token: str | None = None  # run token in the proxy credential, where run tokens are used
    meaning: Meaning | None = None  # set by the engine, for the next call of the same bytes

    @property
    def gone(self) -> bool:
        """True once the caller is known to have left; its call goes on, no new one is begun."""
        return self.inlet.gone

    async def read(self, limit: int) -> Body:
        """The whole body. Raises TooLarge over ``limit`` bytes, Incomplete if it broke off."""
        if self.content_length is not None and self.content_length > limit:
            raise TooLarge
        return await self.inlet.read(limit)

    def stream(self) -> AsyncIterator[bytes]:
        """The body as it comes, unbuffered. Raises Incomplete (from the iteration)."""
        return self.inlet.stream()


class Pipe(Protocol):
    """One side of a connection that speaks another protocol now (after a 101 or a CONNECT)."""

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None:
        """Returns when more may be written. Raises ConnectionError once it is closed."""
        ...

    async def read(self) -> bytes:
        """The next bytes, ``b""`` at the end."""
        ...

    def write_eof(self) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None:
        """Close, and throw away what was written and has not left."""
        ...


def _nobody(delivered: bool) -> None:
    """The default of ``Reply.delivered``."""


@dataclass(slots=True)
class Reply:
    """The answer to write.

    ``headers`` are end-to-end fields with the ``Onceproxy-*`` ones and without framing (no
    Content-Length, no Transfer-Encoding, no Connection). ``body`` is a whole body, an iterator that
    is written chunk by chunk as it comes (one that raises aborts the caller's connection, so that a
    cut answer never looks whole), or, with status 101, the upstream's side of the switched
    connection. An iterator is cancelled and closed when the caller leaves: what has to go on then
    must not hang on it. ``length`` is the size of an iterator's body if it is known, and for an
    answer to HEAD the size a GET would have had. ``delivered`` is called once: True when the whole
    answer was handed to the caller's connection, False if the caller left before.
    """

    status: int
    reason: str = ""
    headers: Headers = ()
    body: Body | AsyncIterator[bytes] | Pipe = EMPTY
    length: int | None = None
    delivered: Callable[[bool], None] = field(default=_nobody)


Handle = Callable[[Arrival], Awaitable[Reply]]
"""The engine, as the front door sees it. It never raises."""

AtOnce = Callable[[Arrival], Reply | None]
"""The engine's reply to a call that came before in the same bytes, where it needs to wait for
nothing; None where it does. Its body is in memory. It never raises."""
