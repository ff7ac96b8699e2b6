"""From a parsed request to an ``Arrival``: what is checked, what is taken out, who is calling.

Everything that two parties could read in two ways is refused here, before anything is sent or
written down: framing, versions, targets, fields that ``Connection`` must not name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from aiohttp.http import HttpVersion10, HttpVersion11, RawRequestMessage

from proxy.core.identity import (
    IDENTITY_HEADERS,
    OPERATION_HEADER,
    RUN_HEADER,
    STEP_HEADER,
    TOKEN_HEADER,
    BadIdentity,
    Sources,
    identify,
    strip_baggage,
)
from proxy.core.model import Request, header
from proxy.core.refusal import Refusal
from proxy.net.exchange import Arrival
from proxy.net.headers import (
    HOP_BY_HOP,
    NOT_FORWARDED,
    BadCredential,
    Names,
    basic_credential,
    is_protected,
    signed_names,
    text,
    tokens,
)
from proxy.net.incoming import Incoming, Refused, Site
from proxy.net.target import BadTarget, Place

_OURS = IDENTITY_HEADERS | {"baggage"}
_CONNECTION_WORDS = HOP_BY_HOP | {"close"}
# What a caller may have signed although it cannot go on as it is.
_SIGNABLE = (HOP_BY_HOP | {"expect"}) - {"proxy-authorization", "proxy-connection"}
_names = Names(NOT_FORWARDED | _OURS)


class Reception:
    """Turns requests into arrivals; the options that are the same for all of them."""

    def __init__(self, *, pseudonym: str | None) -> None:
        self._loop_mark = f" {pseudonym}" if pseudonym else None

    def arrival(self, incoming: Incoming) -> Arrival:
        """Raises Refused."""
        message, site = incoming.message, incoming.connection.site
        fields = _Fields(message.raw_headers)
        found, passing = fields.found, fields.passing
        length = _length(message, found)
        if "expect" in found:
            if found["expect"].lower() != "100-continue":
                raise Refused("only the expectation 100-continue is understood", 417)
            incoming.expects = True
        taken_out = _SIGNABLE & found.keys()
        if taken_out:
            passing = _without_nominated(passing, found.get("connection", ""), taken_out)
        if self._loop_mark is not None:
            self._check_loop(passing)
        try:
            place = site.place(message.path, found.get("host", ""), passing)
        except BadTarget as error:
            raise Refused(error.detail, error.status) from None
        if fields.ours:
            passing += _signed_or_foreign(fields)
        request = Request(
            message.method, place.scheme, place.host, place.port, place.target, tuple(passing)
        )
        upgrade = ""
        if message.upgrade and message.method == "GET" and length == 0:
            wanted = found.get("upgrade", "")
            upgrade = wanted if wanted.lower() == "websocket" else ""
        arrival = Arrival(request, content_length=length, upgrade=upgrade, inlet=incoming)
        self._name(arrival, fields, site, place)
        return arrival

    def credential(self, incoming: Incoming) -> tuple[str, str] | None:
        """The proxy credential of a CONNECT. Raises Refused."""
        value = header(
            ((text(name), text(raw)) for name, raw in incoming.message.raw_headers),
            "proxy-authorization",
        )
        return _credential(value)

    def _name(self, arrival: Arrival, fields: _Fields, site: Site, place: Place) -> None:
        found = fields.found
        credential = _credential(found.get("proxy-authorization"))
        if credential is None:
            credential = site.credential
        elif site.credential is not None and credential != site.credential:
            detail = "the proxy credential of this call is not that of its tunnel: send it once"
            arrival.bad = Refusal("bad-request", detail)
            return
        try:
            if fields.repeated:
                # Sources.of knows what two fields of one name mean; they hardly ever come.
                sources = Sources.of(
                    tuple(fields.ours),
                    credential=credential,
                    path=place.path,
                )
            else:
                sources = Sources(
                    credential,
                    found.get(RUN_HEADER),
                    found.get(STEP_HEADER),
                    found.get(OPERATION_HEADER),
                    found.get("baggage"),
                    place.path,
                    found.get(TOKEN_HEADER),
                )
            arrival.identity, arrival.sources = identify(sources), sources
            arrival.token = sources.token
        except BadIdentity as error:
            arrival.bad = Refusal("bad-request", error.detail)

    def _check_loop(self, fields: list[tuple[str, str]]) -> None:
        for name, value in fields:
            if len(name) == 3 and name.lower() == "via":
                for hop in value.split(","):
                    if hop.rstrip().endswith(self._loop_mark or ""):
                        raise Refused("this call has come through this proxy before: a loop", 508)


class _Fields:
    """The fields of a request, sorted by what becomes of them."""

    __slots__ = ("found", "ours", "passing", "repeated")

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self.passing: list[tuple[str, str]] = []
        self.ours: list[tuple[str, str]] = []  # that name the caller
        self.found: dict[str, str] = {}  # all that do not go on, by lower-case name, joined
        self.repeated = False  # one of ours comes twice
        for raw_name, raw_value in raw:
            name, lower, taken_out = _names[raw_name]
            value = raw_value.decode("utf-8", "surrogateescape")
            if not taken_out:
                self.passing.append((name, value))
                continue
            before = self.found.get(lower)
            self.found[lower] = value if before is None else f"{before}, {value}"
            if lower in _OURS:
                self.ours.append((name, value))
                self.repeated = self.repeated or before is not None


def _length(message: RawRequestMessage, found: dict[str, str]) -> int | None:
    """Bytes of the body, None where it is chunked. Raises Refused for a framing that could be read
    in two ways."""
    version = message.version
    if version not in (HttpVersion11, HttpVersion10):
        raise Refused("only HTTP/1.1 and HTTP/1.0 are spoken here", 505)
    length = found.get("content-length")
    encoding = found.get("transfer-encoding")
    if encoding is not None:
        if version == HttpVersion10:
            raise Refused("Transfer-Encoding does not exist in HTTP/1.0")
        if encoding.strip().lower() != "chunked":
            raise Refused("the only transfer coding understood is chunked", 501)
        if length is not None:
            raise Refused("a request has either Content-Length or Transfer-Encoding")
        return None
    if length is None:
        return 0
    if not (length.isascii() and length.isdigit()):
        raise Refused("Content-Length is not a number")
    return int(length)


def _without_nominated(
    fields: list[tuple[str, str]], connection: str, taken_out: AbstractSet[str]
) -> list[tuple[str, str]]:
    """The fields that ``Connection`` does not make hop-by-hop. Raises Refused, also where the
    caller has signed what does not go on: the service would not accept the rest."""
    signed = signed_names(header(fields, "authorization"))
    for name in sorted(signed & taken_out):
        raise Refused(
            f"the signature covers {name}, which belongs to one connection and is not passed on: "
            "have it left out of the signed headers"
        )
    nominated = frozenset(tokens(connection)) - _CONNECTION_WORDS
    if not nominated:
        return fields
    if any(is_protected(name) or name in signed for name in nominated):
        raise Refused("Connection names a field that belongs to the whole way of a request")
    return [pair for pair in fields if pair[0].lower() not in nominated]


def _signed_or_foreign(fields: _Fields) -> Iterator[tuple[str, str]]:
    """Identity fields do not go on, unless a signature covers them; foreign baggage goes on."""
    signed = signed_names(header(fields.passing, "authorization"))
    for name, value in fields.ours:
        lower = name.lower()
        if lower in signed:
            yield name, value
        elif lower == "baggage":
            rest = strip_baggage(value)
            if rest is not None:
                yield name, rest


def _credential(value: str | None) -> tuple[str, str] | None:
    """Raises Refused."""
    if value is None:
        return None
    try:
        return basic_credential(value)
    except BadCredential as error:
        raise Refused(f"{error}: write http://RUN:STEP@host:port") from None
