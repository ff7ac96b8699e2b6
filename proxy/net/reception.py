"""From a parsed request to an ``Arrival``: what is checked, what is taken out, who is calling.

Everything that two parties could read in two ways is refused here, before anything is sent or
written down: framing, versions, targets, fields that ``Connection`` must not name.
"""

from __future__ import annotations

from pathlib import Path

from aiohttp.http import HttpVersion10, HttpVersion11, RawRequestMessage

from proxy.core.identity import (
    IDENTITY_HEADERS,
    OPERATION_HEADER,
    RUN_HEADER,
    STEP_HEADER,
    BadIdentity,
    Sources,
    identify,
    strip_baggage,
)
from proxy.core.model import Headers, Request, header
from proxy.core.refusal import Refusal
from proxy.net.exchange import Arrival, Inlet
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
from proxy.net.incoming import BodilessInlet, HttpInlet, Incoming, Refused, Site
from proxy.net.target import BadTarget, Place

_TAKEN_OUT = NOT_FORWARDED | IDENTITY_HEADERS | {"baggage"}
_names = Names(_TAKEN_OUT)


class Reception:
    """Turns requests into arrivals; the options that are the same for all of them."""

    def __init__(
        self,
        *,
        pseudonym: str | None,
        run_tokens: bool,
        body_timeout: float,
        spool_dir: Path | None,
    ) -> None:
        self._loop_mark = f" {pseudonym}" if pseudonym else None
        self._run_tokens = run_tokens
        self._body_timeout = body_timeout
        self._spool_dir = spool_dir

    def arrival(self, incoming: Incoming, site: Site) -> Arrival:
        """Raises Refused."""
        message = incoming.message
        fields, special = _sort(message)
        found = _Special(special)
        _check_framing(message, found)
        if found.expect is not None:
            if found.expect.lower() != "100-continue":
                raise Refused("only the expectation 100-continue is understood", 417)
            incoming.expects = True
        if found.nominated:
            fields = _without_nominated(fields, found.nominated)
        if self._loop_mark is not None:
            self._check_loop(fields)
        try:
            place = site.place(message.path, found.host, tuple(fields))
        except BadTarget as error:
            raise Refused(error.detail, error.status) from None
        if found.ours:
            _keep_signed(fields, found)
        request = Request(
            message.method, place.scheme, place.host, place.port, place.target, tuple(fields)
        )
        length = _length(message, found)
        inlet: Inlet = (
            BodilessInlet(incoming)
            if length == 0
            else HttpInlet(incoming, self._body_timeout, self._spool_dir)
        )
        upgrade = ""
        if message.upgrade and message.method == "GET" and length == 0:
            upgrade = found.upgrade if found.upgrade.lower() == "websocket" else ""
        arrival = Arrival(request, None, None, length, upgrade, inlet)
        self._name(arrival, found, site, place)
        return arrival

    def credential(self, incoming: Incoming) -> tuple[str, str] | None:
        """The proxy credential of a CONNECT. Raises Refused."""
        value = header(
            ((text(name), text(raw)) for name, raw in incoming.message.raw_headers),
            "proxy-authorization",
        )
        return _credential(value)

    def _name(self, arrival: Arrival, found: _Special, site: Site, place: Place) -> None:
        credential = _credential(found.credential)
        if credential is None:
            credential = site.credential
        elif site.credential is not None and credential != site.credential:
            detail = "the proxy credential of this call is not that of its tunnel: send it once"
            arrival.bad = Refusal("bad-request", detail)
            return
        try:
            if found.repeated:
                # Sources.of knows what two fields of one name mean; they hardly ever come.
                sources = Sources.of(
                    found.identity_fields(),
                    credential=credential,
                    path=place.path,
                    tokens=self._run_tokens,
                )
            else:
                sources = Sources(
                    credential,
                    found.ours.get(RUN_HEADER),
                    found.ours.get(STEP_HEADER),
                    found.ours.get(OPERATION_HEADER),
                    found.ours.get("baggage"),
                    place.path,
                    self._run_tokens,
                )
            arrival.identity = identify(sources)
            if self._run_tokens:
                arrival.token = sources.token
        except BadIdentity as error:
            arrival.bad = Refusal("bad-request", error.detail)

    def _check_loop(self, fields: list[tuple[str, str]]) -> None:
        for name, value in fields:
            if len(name) == 3 and name.lower() == "via":
                for hop in value.split(","):
                    if hop.rstrip().endswith(self._loop_mark or ""):
                        raise Refused("this call has come through this proxy before: a loop", 508)


class _Special:
    """The fields that do not go on, by what they are for."""

    __slots__ = (
        "_ours",
        "content_length",
        "credential",
        "encoding",
        "expect",
        "host",
        "nominated",
        "ours",
        "repeated",
        "upgrade",
    )

    def __init__(self, special: list[tuple[str, str, str]]) -> None:
        self.host = ""
        self.content_length: str | None = None
        self.encoding: str | None = None
        self.expect: str | None = None
        self.upgrade = ""
        self.credential: str | None = None
        self.nominated: list[str] = []
        self.ours: dict[str, str] = {}
        self.repeated = False
        self._ours: list[tuple[str, str]] = []
        for lower, name, value in special:
            if lower == "host":
                self.host = value
            elif lower == "content-length":
                self.content_length = value
            elif lower == "proxy-authorization":
                self.credential = value
            elif lower in IDENTITY_HEADERS or lower == "baggage":
                self.repeated = self.repeated or lower in self.ours
                self.ours[lower] = value
                self._ours.append((name, value))
            elif lower == "connection":
                self.nominated += [t for t in tokens(value) if t not in _CONNECTION_WORDS]
            elif lower == "transfer-encoding":
                self.encoding = value if self.encoding is None else f"{self.encoding}, {value}"
            elif lower == "expect":
                self.expect = value if self.expect is None else f"{self.expect}, {value}"
            elif lower == "upgrade":
                self.upgrade = value

    def identity_fields(self) -> Headers:
        return tuple(self._ours)


_CONNECTION_WORDS = HOP_BY_HOP | {"close"}


def _sort(
    message: RawRequestMessage,
) -> tuple[list[tuple[str, str]], list[tuple[str, str, str]]]:
    """(fields that go on, (lower-case name, name, value) of those that do not)."""
    fields: list[tuple[str, str]] = []
    special: list[tuple[str, str, str]] = []
    for raw_name, raw_value in message.raw_headers:
        name, lower, taken_out = _names[raw_name]
        value = raw_value.decode("utf-8", "surrogateescape")
        if taken_out:
            special.append((lower, name, value))
        else:
            fields.append((name, value))
    return fields, special


def _check_framing(message: RawRequestMessage, found: _Special) -> None:
    version = message.version
    if version not in (HttpVersion11, HttpVersion10):
        raise Refused("only HTTP/1.1 and HTTP/1.0 are spoken here", 505)
    encoding = found.encoding
    if encoding is not None:
        if version == HttpVersion10:
            raise Refused("Transfer-Encoding does not exist in HTTP/1.0")
        if encoding.strip().lower() != "chunked":
            raise Refused("the only transfer coding understood is chunked", 501)
        if found.content_length is not None:
            raise Refused("a request has either Content-Length or Transfer-Encoding")


def _length(message: RawRequestMessage, found: _Special) -> int | None:
    if found.encoding is not None or message.chunked:
        return None
    length = found.content_length
    if length is None:
        return 0
    if not (length.isascii() and length.isdigit()):
        raise Refused("Content-Length is not a number")
    return int(length)


def _without_nominated(
    fields: list[tuple[str, str]], nominated: list[str]
) -> list[tuple[str, str]]:
    if any(is_protected(name) for name in nominated):
        raise Refused("Connection names a field that belongs to the whole way of a request")
    gone = frozenset(nominated)
    return [pair for pair in fields if pair[0].lower() not in gone]


def _keep_signed(fields: list[tuple[str, str]], found: _Special) -> None:
    """Identity fields do not go on, unless a signature covers them; foreign baggage goes on."""
    signed = signed_names(header(fields, "authorization"))
    for name, value in found.identity_fields():
        lower = name.lower()
        if lower in signed:
            fields.append((name, value))
        elif lower == "baggage":
            rest = strip_baggage(value)
            if rest is not None:
                fields.append((name, rest))


def _credential(value: str | None) -> tuple[str, str] | None:
    """Raises Refused."""
    if value is None:
        return None
    try:
        return basic_credential(value)
    except BadCredential as error:
        raise Refused(f"{error}: write http://RUN:STEP@host:port") from None
