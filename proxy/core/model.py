"""The frozen nouns of the domain: requests, answers, identities, and how one send ended."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, dataclass_transform

T = TypeVar("T")

Headers = tuple[tuple[str, str], ...]
"""Header fields in wire order; spelling, order and duplicates kept. Values are text decoded as
UTF-8 with ``surrogateescape``, so that encoding them the same way gives the received bytes back."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """A frozen dataclass with slots, for what is made on every call. The type checker is what holds
    it frozen: a class that also refuses at run time takes four times as long to make."""
    return dataclass(slots=True, unsafe_hash=True)(cls)


class Spool(Protocol):
    """A body too large for memory, kept in an unnamed file that vanishes with its last
    reference."""

    def chunks(self) -> Iterator[bytes]: ...


@frozen
class Body:
    """The bytes of a message: in ``data``, or, when larger than memory should hold, in
    ``spool``."""

    size: int
    sha256: str
    data: bytes | None
    spool: Spool | None = field(default=None, compare=False)

    @classmethod
    def of(cls, data: bytes) -> Body:
        return cls(len(data), hashlib.sha256(data).hexdigest(), data)


EMPTY = Body.of(b"")


@frozen
class Request:
    """An HTTP request by its meaning; where and how it arrived is already gone.

    ``host`` is lower case without brackets or trailing dot; ``target`` is the raw path and query,
    byte-exact; ``headers`` are end-to-end fields only, without identity fields and ``Host``.
    """

    method: str
    scheme: str
    host: str
    port: int
    target: str
    headers: Headers
    body: Body = EMPTY
    _first: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = {"http": 80, "https": 443}.get(self.scheme)
        return host if self.port == default else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]

    def header(self, name: str) -> str | None:
        """The first field of that name, or None."""
        return self.fields.get(name.lower())

    @property
    def fields(self) -> Mapping[str, str]:
        """The first value of each field, by its name in lower case."""
        first = self._first
        if not first:
            first.update({name.lower(): value for name, value in reversed(self.headers)})
        return first

    def with_(
        self,
        *,
        target: str | None = None,
        headers: Headers | None = None,
        body: Body | None = None,
    ) -> Request:
        return Request(  # not ``replace``, which takes three times as long
            self.method,
            self.scheme,
            self.host,
            self.port,
            self.target if target is None else target,
            self.headers if headers is None else headers,
            self.body if body is None else body,
            self._first if headers is None else {},
        )


@frozen
class Answer:
    """An HTTP answer as it goes to a caller. ``body`` is None where it is no longer kept."""

    status: int
    reason: str
    headers: Headers
    body: Body | None

    def header(self, name: str) -> str | None:
        return header(self.headers, name)


@frozen
class Identity:
    """Who makes a call. None means "not named"; step ``~`` means "derive it from the body"."""

    run: str | None = None
    step: str | None = None
    operation_id: str | None = None


# How one send ended. "Provably not sent" and "maybe sent" are different types on purpose: the whole
# product hangs on that difference.


@frozen
class NotSent:
    """No byte of the request was handed to the transport."""

    reason: str


@frozen
class Denied(NotSent):
    """Nothing was sent because the address may not be called; ``reason`` says what to change."""


@frozen
class Barred(NotSent):
    """Nothing was sent because whoever asks may not send; ``code`` is a refusal's."""

    code: str


@frozen
class Lost:
    """Bytes may have left, and no whole answer came back."""

    reason: str


@frozen
class Answered:
    """An answer came. ``complete`` is False when its body broke off before its declared end."""

    answer: Answer
    complete: bool = True


SendResult = NotSent | Lost | Answered


def header(headers: Iterable[tuple[str, str]], name: str) -> str | None:
    """The first field of that name, or None."""
    wanted = name.lower()
    for key, value in headers:
        if key.lower() == wanted:
            return value
    return None


def without(headers: Headers, names: Iterable[str]) -> Headers:
    gone = {name.lower() for name in names}
    return tuple(pair for pair in headers if pair[0].lower() not in gone)
