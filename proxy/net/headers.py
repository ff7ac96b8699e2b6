"""Header fields on their way through: what is hop-by-hop, what is ours, what must not be touched.

Names keep their case, order and duplicates; values are bytes decoded as UTF-8 with
``surrogateescape``, so that writing them again gives the same bytes. Nothing is added, except one
``Via`` on the way out.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence

from proxy.core.model import Headers

RawHeaders = Sequence[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "http2-settings",
        "proxy-authorization",
        "proxy-authenticate",
        "proxy-authentication-info",
    }
)
"""RFC 9110 7.6.1, and what only ever concerns one connection."""

NOT_FORWARDED = HOP_BY_HOP | {
    "host",  # rebuilt from the target
    "content-length",  # framing is made anew on each side
    "expect",  # answered here
    "proxy",  # would become HTTP_PROXY in a CGI program (CVE-2016-5385)
}

NOT_RETURNED = HOP_BY_HOP | {"content-length"}

OURS = "onceproxy-"

PROTECTED = frozenset(
    {
        "host",
        "content-length",
        "content-type",
        "content-encoding",
        "transfer-encoding",
        "authorization",
        "cookie",
        "expect",
        "baggage",
        "x-run-id",
        "x-step-id",
        "x-operation-id",
        "if-match",
        "if-none-match",
    }
)
"""Fields that a ``Connection`` header may not name: dropping them would change what a call
means."""

_KEY_FIELDS = ("idempotency-key", "idempotence-key", "request-id", "requestid")
"""Endings of the fields that services use for their idempotency keys."""


def text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def wire(decoded: str) -> bytes:
    return decoded.encode("utf-8", "surrogateescape")


def is_protected(name: str) -> bool:
    """True for a lower-case field name that ``Connection`` must not make hop-by-hop."""
    return name in PROTECTED or name.endswith(_KEY_FIELDS)


def tokens(value: str) -> list[str]:
    """The members of a comma-separated list, lower case, without empty ones."""
    return [token for part in value.split(",") if (token := part.strip().lower())]


class Names(dict[bytes, tuple[str, str, bool]]):
    """Spellings of field names met so far, decoded and classified once: (as spelled, lower case,
    whether it is dropped).

    Names of our own fields are dropped in both directions: nobody else may say what they say. The
    same few dozen spellings come again with every call; the table is bounded because a caller
    chooses them.
    """

    LIMIT = 4096

    def __init__(self, dropped: Iterable[str]) -> None:
        self._dropped = frozenset(dropped)

    def __missing__(self, raw: bytes) -> tuple[str, str, bool]:
        if len(self) >= self.LIMIT:
            self.clear()
        name = text(raw).rstrip(" \t")  # RFC 9112 5.1: answers only, requests are refused
        lower = name.lower()
        known = self[raw] = (name, lower, lower in self._dropped or lower.startswith(OURS))
        return known


_returned = Names(NOT_RETURNED)


def from_upstream(raw: RawHeaders) -> tuple[Headers, str | None]:
    """End-to-end fields of an answer, and its Content-Length as written (None if it had none)."""
    kept: list[tuple[str, str]] = []
    length: str | None = None
    nominated: list[str] = []
    for raw_name, raw_value in raw:
        name, lower, dropped = _returned[raw_name]
        if not dropped:
            kept.append((name, raw_value.decode("utf-8", "surrogateescape")))
        elif lower == "content-length":
            length = text(raw_value)
        elif lower == "connection":
            nominated += tokens(text(raw_value))
    if nominated:
        gone = {name for name in nominated if not is_protected(name)}
        kept = [pair for pair in kept if pair[0].lower() not in gone]
    return tuple(kept), length


def signed_names(authorization: str | None) -> frozenset[str]:
    """Lower-case field names that a signature of the ``SignedHeaders=`` kind covers."""
    if authorization is None or "SignedHeaders=" not in authorization:
        return frozenset()
    names = authorization.partition("SignedHeaders=")[2].partition(",")[0]
    return frozenset(name.strip().lower() for name in names.split(";"))


class BadCredential(ValueError):
    """A proxy credential that says it is Basic and is not."""


def basic_credential(value: str) -> tuple[str, str] | None:
    """(user, password) of a ``Proxy-Authorization: Basic`` value, as sent, still percent-encoded.

    None for another scheme. Raises BadCredential if it is not base64 of ``user:password``.
    """
    scheme, _, rest = value.strip().partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        pair = text(base64.b64decode(rest.strip(), validate=True))
    except (binascii.Error, ValueError):
        raise BadCredential("the proxy credential is not valid base64") from None
    user, _, password = pair.partition(":")
    return user, password
