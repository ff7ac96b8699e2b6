"""Who makes a call: run, step and operation id, found in the places DESIGN allows, and their text
in an operation key.

Two identities never share a key: nothing is normalised, what a key cannot hold is percent-encoded,
and what is too long ends in a digest. A call that names two runs, or a name that is not readable
text, is refused; there is no silent default for any of them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from proxy.core.model import Headers, Identity
from proxy.core.values import utf8

RUN_HEADER: Final = "x-run-id"
STEP_HEADER: Final = "x-step-id"
OPERATION_HEADER: Final = "x-operation-id"
TOKEN_HEADER: Final = "x-run-token"

IDENTITY_HEADERS: Final = frozenset({RUN_HEADER, STEP_HEADER, OPERATION_HEADER, TOKEN_HEADER})
"""Lower-case names of the fields that are not sent upstream (baggage: see ``strip_baggage``)."""

RUN_MEMBER: Final = "run.id"
STEP_MEMBER: Final = "step.id"

NOT_NAMED: Final = frozenset({"", "-"})  # `http://RUN:-@...`: the place is there, the name is not
# What axios before 1.0 sends for `http://RUN@...`; as a step it would join all calls into one.
NO_PASSWORD: Final = "undefined"
TOKEN_PREFIX: Final = "once_"
"""Of every run token. It tells a token from a step, so that one is understood wherever it comes."""
_TOKEN: Final = re.compile(rf"(?s:(.*)(?::|%3[Aa]))?({TOKEN_PREFIX}[A-Za-z0-9_-]{{20,200}})")
DERIVED_STEP: Final = "~"  # `--step auto`: the step is derived from the canonical body

PART_LIMIT: Final = (
    200  # characters of one key part: three of them fit a header line of 8 kB easily
)
PART_HEAD: Final = 40  # enough of a long name for a person to recognise it in a list

# All of printable ASCII except space, `/` (separates parts) and `%` (encodes).
_SAFE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in "/%")
# A short name that looks like a shortened one is shortened too, or the two could be one text.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:@-]+")  # holds no "~", so it is no shortened part
_SHORTENED: Final = re.compile(rf".{{{PART_HEAD - 2},{PART_HEAD}}}~[0-9a-f]{{64}}", re.DOTALL)
_BROKEN_ESCAPE: Final = re.compile(r"%.?\Z")


class BadIdentity(Exception):
    """A call names itself in a way that cannot be used. ``detail`` says what and where, and what to
    do; it never repeats the names."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Sources:
    """What the front door saw, undecoded: text is UTF-8 with ``surrogateescape``, as in Headers.

    ``credential``: user and password of the proxy's Basic credential, split at the first colon.
    ``path``: RUN and STEP of a gateway path ``/as/RUN/STEP/via/...``. ``baggage``: all its fields,
    joined with commas. A run token comes in its own field, or behind a step and a colon: in the
    password, or in the path.
    """

    credential: tuple[str, str] | None = None
    run: str | None = None
    step: str | None = None
    operation_id: str | None = None
    baggage: str | None = None
    path: tuple[str, str] | None = None
    token_field: str | None = None

    @classmethod
    def of(
        cls,
        headers: Headers,
        *,
        credential: tuple[str, str] | None = None,
        path: tuple[str, str] | None = None,
    ) -> Sources:
        """The sources in these header fields. Raises BadIdentity if a field comes twice with
        different values."""
        return cls(
            credential=credential,
            run=_single(headers, RUN_HEADER),
            step=_single(headers, STEP_HEADER),
            operation_id=_single(headers, OPERATION_HEADER),
            baggage=",".join(v for k, v in headers if k.lower() == "baggage") or None,
            path=path,
            token_field=_single(headers, TOKEN_HEADER),
        )

    @property
    def password_step(self) -> str | None:
        """The step in the credential's password."""
        if self.credential is None or self.credential[1] == NO_PASSWORD:
            return None
        return _apart(self.credential[1])[0]

    @property
    def path_step(self) -> str | None:
        return _apart(self.path[1])[0] if self.path is not None else None

    @property
    def token(self) -> str | None:
        """The run token; None if there is none. Raises BadIdentity where there are two."""
        found = {
            token
            for token in (
                self.token_field,
                _apart(self.credential[1])[1] if self.credential is not None else None,
                _apart(self.path[1])[1] if self.path is not None else None,
            )
            if token
        }
        if len(found) > 1:
            raise BadIdentity("this call has two run tokens: send one")
        return found.pop() if found else None


def _apart(text: str) -> tuple[str | None, str | None]:
    """Step and token of ``STEP:TOKEN``; either may be missing."""
    if TOKEN_PREFIX not in text:
        return text, None
    found = _TOKEN.fullmatch(text)
    return (found[1], found[2]) if found else (text, None)


def identify(sources: Sources) -> Identity:
    """The identity that these sources name. Raises BadIdentity."""
    if sources.baggage is None and sources.path is None and sources.credential is None:
        return Identity(  # three headers, or none: the usual case of a busy agent
            _decode(sources.run, "the run in X-Run-Id"),
            _decode(sources.step, "the step in X-Step-Id"),
            _decode(sources.operation_id, "the operation id in X-Operation-Id"),
        )
    members = dict(_baggage_identity(sources.baggage))
    return Identity(
        run=_run(sources, members),
        step=_first(
            ("the step in X-Step-Id", sources.step),
            ("the step in baggage", members.get(STEP_MEMBER)),
            ("the step in the path", sources.path_step),
            ("the step in the proxy credential", sources.password_step),
        ),
        operation_id=_first(("the operation id in X-Operation-Id", sources.operation_id)),
    )


def encode_part(text: str) -> str:
    """``text`` as one part of an operation key: printable ASCII without space and ``/``.

    Injective: other texts give other parts. Over 200 characters it is the first 40 (fewer where an
    escape would be cut), ``~`` and the SHA-256 of the text.
    """
    if len(text) <= PART_LIMIT and _PLAIN.fullmatch(text):
        return text  # the usual case
    part = quote(utf8(text), safe=_SAFE)
    if len(part) <= PART_LIMIT and not _SHORTENED.fullmatch(part):
        return part
    digest = hashlib.sha256(utf8(text)).hexdigest()
    return f"{_BROKEN_ESCAPE.sub('', part[:PART_HEAD])}~{digest}"


def as_shortened(text: str) -> tuple[str, ...]:
    """The parts that ``text``, read off a list and percent-decoded or not, may stand for where it
    is a part itself: that of a longer text. Nothing else is encoded so."""
    parts = (text, quote(utf8(text), safe=_SAFE))
    return tuple(part for part in parts if _SHORTENED.fullmatch(part))


def run_of(identity: Identity | None) -> str:
    """The run as it stands in an operation key; "" for a call that names none."""
    return encode_part(identity.run) if identity is not None and identity.run else ""


def strip_baggage(value: str) -> str | None:
    """``value`` without the members that name run and step, all else byte-exact; None if empty."""
    kept = [
        member
        for member in value.split(",")
        if _member_name(member) not in (RUN_MEMBER, STEP_MEMBER)
    ]
    rest = ",".join(kept)
    return rest if rest.strip(" \t,") else None


def _run(sources: Sources, members: dict[str, str]) -> str | None:
    named = [
        (where, text)
        for where, raw in (
            ("X-Run-Id", sources.run),
            ("baggage", members.get(RUN_MEMBER)),
            ("the path", sources.path[0] if sources.path else None),
            ("the proxy credential", sources.credential[0] if sources.credential else None),
        )
        if (text := _decode(raw, f"the run in {where}")) is not None
    ]
    for where, text in named[1:]:
        if text != named[0][1]:
            raise BadIdentity(
                f"{named[0][0]} and {where} name different runs: name the same run in both, "
                f"or in one of them only"
            )
    return named[0][1] if named else None


def _first(*places: tuple[str, str | None]) -> str | None:
    for what, raw in places:
        text = _decode(raw, what)
        if text is not None:
            return text
    return None


def _decode(raw: str | None, what: str) -> str | None:
    """``raw`` percent-decoded once; None if it names nothing."""
    if raw is None or raw in NOT_NAMED:
        return None
    if raw.isascii() and raw.isprintable() and "%" not in raw:
        return raw  # the usual case
    try:
        text = unquote_to_bytes(raw.encode("utf-8", "surrogateescape")).decode("utf-8")
    except UnicodeError:
        raise BadIdentity(
            f"{what} is not UTF-8 once percent-decoded: percent-encode its UTF-8 bytes"
        ) from None
    if any(char < " " or "\x7f" <= char <= "\x9f" for char in text):
        raise BadIdentity(f"{what} has control characters: use printable text")
    return None if text in NOT_NAMED else text


def _single(headers: Headers, name: str) -> str | None:
    values = {value for key, value in headers if key.lower() == name}
    if len(values) > 1:
        raise BadIdentity(f"{name} comes {len(values)} times with different values: send it once")
    return values.pop() if values else None


def _baggage_identity(baggage: str | None) -> Iterator[tuple[str, str]]:
    """The raw values of the members that name run and step."""
    seen: dict[str, str] = {}
    for member in (baggage or "").split(","):
        name = _member_name(member)
        if name not in (RUN_MEMBER, STEP_MEMBER):
            continue
        value = member.partition("=")[2].partition(";")[0].strip(" \t")
        if seen.setdefault(name, value) != value:
            raise BadIdentity(f"baggage has {name} twice with different values: send it once")
        yield name, value


def _member_name(member: str) -> str:
    return member.partition("=")[0].strip(" \t") if "=" in member else ""
