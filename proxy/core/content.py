"""A request's body taken apart, in canonical form: its kind, its values, their text.

The order of JSON members, the white space between them, the boundary of a multipart body and how
well it is compressed do not count; every value does, to the last digit. A body that cannot be taken
apart counts byte by byte. A JSON object that names a member twice has no one meaning and is
refused.

This runs for every governed call, so JSON is parsed once, by the C scanner, and numbers are kept
as the text they came as (``orjson.Fragment``): nothing is rounded and nothing is converted twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal, DecimalException
from typing import Any, Final
from urllib.parse import parse_qsl

import orjson

from proxy.core.bodies import BodyMissing
from proxy.core.bodies import content as plain
from proxy.core.fieldpath import Steps, form_steps, path_text, shown, starts_with
from proxy.core.model import Body, Headers, Request, frozen, header
from proxy.core.multipart import read_parts

Pairs = tuple[tuple[str, str], ...]

DEPTH_LIMIT: Final = 250  # orjson writes 254 levels; deeper bodies count byte by byte
PART_DEPTH: Final = 4  # multipart within multipart: a mail has two or three levels


class DuplicateMember(Exception):
    """A JSON object names a member twice. ``path`` is where, like ``body.metadata.case``."""

    def __init__(self, path: str) -> None:
        super().__init__(f"the JSON body has {path} twice: send each member once")
        self.path = path


@frozen
class Content:
    """A body taken apart. ``value`` by ``kind``: ``none``; ``json``: the parsed value; ``form``:
    name and value pairs; ``multipart``: parts; ``raw``: the SHA-256 in hex; ``any``: left out.
    ``text`` is the canonical form, as JSON."""

    kind: str
    value: Any
    text: bytes


@frozen
class Part:
    """One part of a multipart body; ``steps`` are its name's in a form, else its index."""

    steps: Steps
    headers: Pairs
    content: Content

    @property
    def text(self) -> bytes:
        return dump([self.headers, self.content.kind, orjson.Fragment(self.content.text)])


def read_content(request: Request) -> Content:
    """Raises DuplicateMember."""
    fields = request.fields
    body, coding = request.body, fields.get("content-encoding")
    if coding is not None and body.data:
        try:
            body, coding = Body.of(plain(body, request.headers)), None
        except BodyMissing:
            pass  # a coding that is not read here, or a bomb: it counts byte by byte
    return _read(fields.get("content-type"), coding, body, 0)


def content_fields(content: Content) -> dict[str, str]:
    """Path (``body.a.b[0]``) to canonical text. ``body`` itself has the kind."""
    found = {"body": content.kind}
    match content.kind:
        case "json":
            _json_fields(content.value, (), found)
        case "form":
            found |= pair_fields("body", content.value)
        case "multipart":
            for part in content.value:
                path = path_text("body", part.steps)
                found[path] = found.get(path, "") + part.text.decode()
        case "raw":
            found["body"] = f"raw {content.value}"
    return found


def content_without(content: Content, steps: Steps) -> Content:
    """The same without the field at ``steps`` below ``body`` and all below it."""
    if not steps:
        return Content("any", None, b"null")
    match content.kind:
        case "json":
            left = _value_without(content.value, steps)
            return content if left is content.value else _of_json(left)
        case "form":
            return _of_pairs(pairs_without(content.value, steps))
        case "multipart":
            return _of_parts([p for p in content.value if not starts_with(p.steps, steps)])
    return content


def pair_fields(root: str, pairs: Pairs) -> dict[str, str]:
    """Names that a path writes alike share a field: a list of all their values."""
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(path_text(root, form_steps(name)), []).append(value)
    return {path: dump(v[0] if len(v) == 1 else v).decode() for path, v in found.items()}


def pairs_without(pairs: Pairs, steps: Steps) -> Pairs:
    return tuple(pair for pair in pairs if not (steps and starts_with(form_steps(pair[0]), steps)))


def sorted_pairs(pairs: Iterable[tuple[str, str]]) -> Pairs:
    """By name; those of one name stay in order."""
    return tuple(sorted(pairs, key=lambda pair: pair[0]))


def dump(value: Any) -> bytes:
    """Canonical JSON of a value with Fragments. Raises RecursionError if nested too deeply."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # half a surrogate pair, which orjson does not write; or too deep
        return _ascii(value, 0).encode()


# --- reading --------------------------------------------------------------------------------------


def _read(content_type: str | None, coding: str | None, body: Body, depth: int) -> Content:
    """``depth``: how many multipart bodies this one is within."""
    if not body.size:
        return Content("none", None, b"null")
    if body.data is None or coding not in (None, "identity"):
        return _raw(body)
    content_type = content_type or ""
    media = content_type.partition(";")[0].strip().lower()
    found: Content | None = None
    if media.endswith("json") or media.startswith("application/json"):
        found = _json(body.data)
    elif media == "application/x-www-form-urlencoded":
        text = body.data.decode("utf-8", "surrogateescape")
        found = _of_pairs(sorted_pairs(query_pairs(text)))
    elif media.startswith("multipart/") and depth < PART_DEPTH:
        found = _multipart(media, content_type, body.data, depth)
    elif not media and not depth:  # many clients of JSON APIs name no type; a part without is text
        found = _untyped(body.data)
    return found or _raw(body)


def query_pairs(text: str) -> list[tuple[str, str]]:
    return parse_qsl(text, keep_blank_values=True, errors="surrogateescape")


def _raw(body: Body) -> Content:
    return Content("raw", body.sha256, dump(body.sha256))


def _untyped(data: bytes) -> Content | None:
    try:
        return _json(data)
    except DuplicateMember:  # nobody said that it is JSON
        return None


def _json(data: bytes) -> Content | None:
    """None if this is no JSON text, or nested too deeply."""
    try:
        return _of_json(_JSON.decode(data.decode()))
    except _Duplicate:
        raise DuplicateMember(_duplicate_path(data)) from None
    except (ValueError, RecursionError):
        return None


def _multipart(media: str, content_type: str, data: bytes, depth: int) -> Content | None:
    """None if it is not well-formed. A form's parts are sorted like pairs; others have an order."""
    raw = read_parts(content_type, data)
    if raw is None:
        return None
    if media == "multipart/form-data":
        raw.sort(key=lambda part: part.name or "")
    return _of_parts(
        [
            Part(
                form_steps(part.name) if media == "multipart/form-data" and part.name else (index,),
                _part_headers(part.headers),
                _read(
                    header(part.headers, "content-type"),
                    header(part.headers, "content-encoding"),
                    Body.of(part.data),
                    depth + 1,
                ),
            )
            for index, part in enumerate(raw)
        ]
    )


def _part_headers(headers: Headers) -> Pairs:
    """Without the length, which the content says, and without a boundary of the part's own."""
    return sorted_pairs(
        (name, value.partition(";")[0] if value.lower().startswith("multipart/") else value)
        for name, value in ((name.lower(), value) for name, value in headers)
        if name != "content-length"
    )


def _of_json(value: Any) -> Content:
    return Content("json", value, dump(value))


def _of_pairs(pairs: Pairs) -> Content:
    return Content("form", pairs, dump(pairs))


def _of_parts(parts: Sequence[Part]) -> Content:
    text = b"[" + b",".join(part.text for part in parts) + b"]"
    return Content("multipart", tuple(parts), text)


# --- JSON: numbers, members, text -----------------------------------------------------------------


class _Duplicate(Exception):
    pass


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _Duplicate
    return members


def _real(text: str) -> orjson.Fragment:
    """``1e2`` and ``1E+2`` are one number in two spellings; 1 and 1.0 stay apart."""
    if "e" in text or "E" in text:
        try:
            text = str(Decimal(text))
        except DecimalException:  # an exponent beyond 10**18
            text = text.lower()
    return orjson.Fragment(text)


_JSON: Final = json.JSONDecoder(
    object_pairs_hook=_members,
    parse_int=orjson.Fragment,
    parse_float=_real,
    parse_constant=orjson.Fragment,  # NaN and Infinity, which Python writes
)


class _PairList(list[tuple[str, Any]]):
    """A JSON object as it came, to look for the member that comes twice."""


def _duplicate_path(data: bytes) -> str:
    try:
        tree = json.JSONDecoder(object_pairs_hook=_PairList, parse_int=str).decode(data.decode())
        return shown(path_text("body", next(_duplicates(tree, ()))))
    except RecursionError:  # it is there, too deep to be worth a name
        return "body"


def _duplicates(value: Any, at: Steps) -> Iterator[Steps]:
    if isinstance(value, _PairList):
        seen: set[str] = set()
        for name, member in value:
            if name in seen:
                yield (*at, name)
            seen.add(name)
            yield from _duplicates(member, (*at, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _duplicates(item, (*at, index))


def _ascii(value: Any, depth: int) -> str:
    """What orjson would write, with escapes for all that is not ASCII."""
    if depth > DEPTH_LIMIT:
        raise RecursionError
    if isinstance(value, dict):
        members = [f"{json.dumps(k)}:{_ascii(value[k], depth + 1)}" for k in sorted(value)]
        return "{" + ",".join(members) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join([_ascii(item, depth + 1) for item in value]) + "]"
    if isinstance(value, orjson.Fragment):
        return orjson.dumps(value).decode()
    return json.dumps(value)


def _json_fields(value: Any, at: Steps, found: dict[str, str]) -> None:
    """Leaves, and empty objects and lists, by path."""
    if isinstance(value, dict) and value:
        for name, member in value.items():
            _json_fields(member, (*at, name), found)
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            _json_fields(item, (*at, index), found)
    else:
        found[path_text("body", at)] = dump(value).decode()


def _value_without(value: Any, steps: Steps) -> Any:
    step, rest = steps[0], steps[1:]
    if isinstance(value, dict) and step in value:
        if rest:
            left = _value_without(value[step], rest)
            return value if left is value[step] else {**value, step: left}
        return {name: member for name, member in value.items() if name != step}
    if isinstance(value, list) and not isinstance(step, str):
        # A left-out item leaves null behind: the others keep their places.
        left = [
            (_value_without(item, rest) if rest else None) if step in (None, index) else item
            for index, item in enumerate(value)
        ]
        same = all(mine is item for mine, item in zip(left, value, strict=True))
        return value if same else left
    return value
