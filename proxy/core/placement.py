"""Where an upstream key or a marker stands in a request: reading it, and putting it there.

What is put is exactly one value; every other byte stays. Where there is no such place, or the
caller's own value has it and the rule says to keep that, CannotPlace is raised and nothing has
changed: the caller then knows that no lookup will find this marker.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from proxy.core import graphql, keys
from proxy.core.bodies import BodyMissing, content, is_json, media_type, text_of
from proxy.core.fieldpath import path_text
from proxy.core.matching import Match, readings
from proxy.core.model import Body, Headers, Request, header, without
from proxy.core.multipart import read_parts, with_field
from proxy.core.paths import ALL, parse_steps
from proxy.core.rules import KeySpec, Marker
from proxy.core.splice import (
    CannotSplice,
    read_each,
    read_member,
    read_pair,
    write_each,
    write_element,
    write_member,
    write_pair,
)
from proxy.core.templates import Template, ValueMissing, render_structure
from proxy.core.views import RequestView

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"


class CannotPlace(Exception):
    """The key or marker has no place in this request; str() says why. Nothing was changed."""


def key_of_caller(request: Request, spec: KeySpec, match: Match | None = None) -> str | None:
    """The key that the caller put in the place of the rule, or None. Empty text is none, and a
    batch whose items have keys has none of its own."""
    if each(spec.name):
        return None
    try:
        value = _read(request, spec.place, spec.name, match)
    except CannotPlace:
        return None
    return str(value) if value not in (None, "") and not isinstance(value, dict | list) else None


def put_key(request: Request, spec: KeySpec, key: str, match: Match | None = None) -> Request:
    """The request with the key in its place, instead of whatever was there, and with ``also``
    where the caller left it out. ``match`` (the endpoint's) is needed for keys in the path. In a
    batch every item gets its own, made from this one, unless the caller has given it one that
    stays. Raises CannotPlace."""
    if each(spec.name):
        texts = [
            None if stays(own, spec) else item_key(spec, key, index)
            for index, own in enumerate(_own_of_items(request, spec.place, spec.name))
        ]
        request = _write_items(request, spec.place, spec.name, texts)
    else:
        request = _write(request, spec.place, spec.name, key, match)
    return _with_also(request, spec, match)


def put_marker(
    request: Request,
    marker: Marker,
    text: str,
    names: Mapping[str, Any],
    match: Match | None = None,
) -> Request:
    """The request with the marker's text, and with ``also`` where the caller left it out. Raises
    CannotPlace, also where a value of the caller's own is kept."""
    if each(marker.name):
        return _marked_items(request, marker, text, names)
    if marker.element is not None:
        return _with_element(request, marker, {**names, "key": text})
    if marker.message is not None:
        return _with_field(request, marker, marker.message, text)
    existing = _read(request, marker.place, marker.name, match)
    if marker.append is not None:
        text = _appended(existing, marker.append, text, names)
    elif existing not in (None, "", text) and marker.existing == "keep":
        raise CannotPlace(f"the caller's own value in {marker.name} is kept")
    return _with_also(_write(request, marker.place, marker.name, text, match), marker, match)


def _with_also(request: Request, of: KeySpec | Marker, match: Match | None) -> Request:
    for name, value in of.also.items():
        if each(name):
            own = _own_of_items(request, of.place, name)
            values = [value if given in (None, "") else None for given in own]
            request = _write_items(request, of.place, name, values)
        elif _read(request, of.place, name, match) in (None, ""):
            request = _write(request, of.place, name, value, match)
    return request


# items of a batch


def each(name: str) -> bool:
    """Whether the name leads into every item of a list: ``Entries[].MessageDeduplicationId``."""
    return "[]" in name


def stays(own: Any, spec: KeySpec) -> bool:
    """Whether a key of the caller's own is kept: it is no made-up one, or the rule keeps those."""
    if own in (None, ""):
        return False
    return spec.existing == "keep" or not keys.is_minted(str(own), spec.minted)


def items_mean(request: Request, spec: KeySpec) -> bool:
    """Whether an item of the batch has a key of the caller's own that no SDK made up."""
    try:
        found = _own_of_items(request, spec.place, spec.name)
    except CannotPlace:
        return False
    return any(own not in (None, "") and not keys.is_minted(str(own), spec.minted) for own in found)


def keys_of_items(request: Request, spec: KeySpec) -> list[Any]:
    """What the items of a stored batch carry: a caller's own key may have stayed. Raises
    CannotPlace."""
    return _own_of_items(request, spec.place, spec.name)


def item_key(spec: KeySpec, key: str, index: int) -> str:
    return keys.of_item(
        key,
        index,
        spec.rendering,
        max_length=spec.max_length,
        min_length=spec.min_length,
        alphabet=spec.alphabet,
        prefix=spec.prefix,
    )


def item_marker(marker: Marker, text: str, index: int) -> str:
    return keys.of_item(text, index, marker.rendering, max_length=marker.max_length)


def _marked_items(request: Request, marker: Marker, text: str, names: Mapping[str, Any]) -> Request:
    texts = []
    for index, own in enumerate(_own_of_items(request, marker.place, marker.name)):
        mark = item_marker(marker, text, index)
        if marker.append is not None:
            mark = _appended(own, marker.append, mark, names)
        elif own not in (None, "", mark) and marker.existing == "keep":
            raise CannotPlace(f"the caller's own value in {marker.name} is kept")
        texts.append(mark)
    return _with_also(_write_items(request, marker.place, marker.name, texts), marker, None)


def _own_of_items(request: Request, place: str, name: str) -> list[Any]:
    """What the caller has put there, for each item. Raises CannotPlace, also where there is no
    item."""
    found: list[Any] = _in_items(request, place, name, read_each)
    if not found:
        raise CannotPlace("the batch is empty")
    return found


def _write_items(request: Request, place: str, name: str, values: Sequence[Any]) -> Request:
    written: str = _in_items(
        request,
        place,
        name,
        lambda text, steps, inside: write_each(text, steps, inside, values),
    )
    return _with_body(request, written, JSON)


def _in_items(
    request: Request,
    place: str,
    name: str,
    act: Callable[[str, Sequence[Any], Sequence[Any]], Any],
) -> Any:
    text = _body_text(request)
    if _as_form(request, place):
        raise CannotPlace("the body is a form, in which no item has a place of its own")
    steps = parse_steps(name)
    if place == "graphql":
        spot = _spot(request, name)
        if not isinstance(spot, graphql.InVariables):
            raise CannotPlace("the document writes the list out")
        steps = ("variables", *spot.steps)
    if ALL not in steps:
        raise CannotPlace(f"{name} leads into no list")
    at = steps.index(ALL)
    try:
        return act(text, steps[:at], steps[at + 1 :])
    except CannotSplice as error:
        raise CannotPlace(str(error)) from None


def _appended(existing: Any, append: Template, text: str, names: Mapping[str, Any]) -> str:
    """Never alone: an API refuses an empty text, and a marker would make it a valid one."""
    if not isinstance(existing, str) or not existing:
        raise CannotPlace("there is no text to append the marker to")
    tail = append.render(None, {**names, "key": text})
    if not isinstance(tail, str):
        raise CannotPlace("the text to append lacks a value")
    return existing if existing.endswith(tail) else existing + tail


def _with_element(request: Request, marker: Marker, names: Mapping[str, Any]) -> Request:
    text = _body_text(request)
    if _as_form(request, marker.place):
        raise CannotPlace("the body is a form, which has no lists")
    try:
        element = render_structure(marker.element, None, names)
        steps = _steps(request, marker.place, marker.name)
        written = write_element(text if text.strip() else "{}", steps, element)
    except (CannotSplice, ValueMissing) as error:
        raise CannotPlace(str(error)) from None
    return _with_body(request, written, JSON)


def _with_field(request: Request, marker: Marker, member: str, value: str) -> Request:
    """The request with a header field in front of those of a message (RFC 5322) that the body
    holds in base64, as the mail APIs take them."""
    encoded = _read(request, "json", member, None)
    if not isinstance(encoded, str):
        raise CannotPlace(f"there is no message in {member}")
    url_safe = not set("+/").intersection(encoded)
    try:
        data = b64decode(encoded.translate(_STANDARD) + "=" * (-len(encoded) % 4), validate=True)
    except ValueError:
        raise CannotPlace(f"what {member} holds is no base64") from None
    head, blank, _ = data.replace(b"\r\n", b"\n").partition(b"\n\n")
    if not blank or not _FIELD.match(head):
        raise CannotPlace(f"what {member} holds is no message")
    for line in head.split(b"\n"):
        if line.lower().startswith(marker.name.lower().encode() + b":"):
            if line.partition(b":")[2].strip() == value.encode():
                return request
            raise CannotPlace(f"the caller's own value in {marker.name} is kept")
    end = b"\r\n" if data.partition(b"\n")[0].endswith(b"\r") else b"\n"
    marked = b64encode(f"{marker.name}: {value}".encode() + end + data).decode()
    if url_safe:
        marked = marked.translate(_URL_SAFE)
    return _write(request, "json", member, marked, None)


_STANDARD = str.maketrans("-_", "+/")
_URL_SAFE = str.maketrans("+/", "-_")
_FIELD = re.compile(rb"[!-9;-~]+[ \t]*:")  # how a message begins


def _read(request: Request, place: str, name: str, match: Match | None) -> Any:
    match place:
        case "header":
            return request.header(name)
        case "query":
            return read_pair(request.query, name)
        case "path":
            return _path_value(request, name, match)
    if _is_multipart(request, place):
        return _part(request, name)
    text = _body_text(request)
    if _as_form(request, place):
        return _read_form(text, place, name)
    if place == "graphql":
        spot = _spot(request, name)
        if isinstance(spot, graphql.InDocument):
            return spot.value
    return _member(text, _steps(request, place, name)) if text.strip() else None


def _write(
    request: Request, place: str, name: str, value: str | bool, match: Match | None
) -> Request:
    plain = value if isinstance(value, str) else "true" if value else "false"
    match place:
        case "header":
            return request.with_(headers=_with_header(request.headers, name, plain))
        case "query":
            query = write_pair(request.query, name, plain)
            return request.with_(target=f"{request.path}?{query}")
        case "path":
            return _with_path(request, name, plain, match)
    if _is_multipart(request, place):
        return _with_part(request, name, plain)
    text = _body_text(request)
    if _as_form(request, place):
        return _with_body(request, _write_form(text, place, name, plain), FORM)
    try:
        if place == "graphql" and isinstance(spot := _spot(request, name), graphql.InDocument):
            document = spot.written(read_member(text, ["query"]), value)
            written = write_member(text, ["query"], document)
        else:
            steps = _steps(request, place, name)
            written = write_member(text if text.strip() else "{}", steps, value)
    except CannotSplice as error:
        raise CannotPlace(str(error)) from None
    return _with_body(request, written, JSON)


# multipart forms


def _is_multipart(request: Request, place: str) -> bool:
    return place == "form" and media_type(request.headers) == MULTIPART


def _part(request: Request, name: str) -> str | None:
    """The text of the part of that name. Raises CannotPlace where there are several."""
    parts = read_parts(request.header("content-type") or "", _body_bytes(request))
    if parts is None:
        raise CannotPlace("the multipart body is not well-formed")
    found = [part.data.decode("utf-8", "replace") for part in parts if part.name == name]
    if len(found) > 1:
        raise CannotPlace(f"the form has {name} more than once")
    return found[0] if found else None


def _with_part(request: Request, name: str, value: str) -> Request:
    there = _part(request, name)
    if there == value:
        return request
    if there is not None or not _PLAIN.fullmatch(name + value):
        raise CannotPlace(f"{name} cannot be written into this multipart body")
    kind = request.header("content-type") or ""
    data = with_field(kind, _body_bytes(request), name, value)
    if data is None:
        raise CannotPlace("the multipart body has no part")
    return request.with_(body=Body.of(data))


_PLAIN = re.compile(r'[^"\\\x00-\x1f\x7f]*')


# headers and path


def _with_header(headers: Headers, name: str, value: str) -> Headers:
    if header(headers, name) is None:
        return (*headers, (name, value))
    first = next(i for i, pair in enumerate(headers) if pair[0].lower() == name.lower())
    before, after = headers[:first], without(headers[first:], [name])
    return (*before, (headers[first][0], value), *after)


def _path_value(request: Request, name: str, match: Match | None) -> str:
    params = match.read(request) if match else None
    if params is None or name not in params:
        raise CannotPlace(f"the path has no {{{name}}}")
    return params[name]


def _with_path(request: Request, name: str, value: str, match: Match | None) -> Request:
    _path_value(request, name, match)
    raw = request.path.removeprefix("/").split("/")
    plain = next(readings(request.path))
    assert match is not None  # or there would have been no value
    if match.params(plain) is None:
        raise CannotPlace("the path is spelled in two ways; write it with single plain slashes")
    if match.rest == name:
        raw = [*raw[: len(match.segments)], quote(value, "/-._~")]
    else:
        place = next(i for i, s in enumerate(match.segments) if s.name == name)
        segment = match.segments[place]
        raw[place] = segment.prefix + quote(value, "-._~") + segment.suffix
    path = "/" + "/".join(raw)
    return request.with_(target=f"{path}?{request.query}" if "?" in request.target else path)


# bodies


def _body_text(request: Request) -> str:
    try:
        return text_of(_body_bytes(request))
    except BodyMissing as error:
        raise CannotPlace(str(error)) from None


def _body_bytes(request: Request) -> bytes:
    if (request.header("content-encoding") or "identity").lower() != "identity":
        raise CannotPlace("the body is compressed")
    try:
        return content(request.body, request.headers)
    except BodyMissing as error:
        raise CannotPlace(str(error)) from None


def _as_form(request: Request, place: str) -> bool:
    """Whether to write a form. An empty body becomes what the rule's place asks for. Raises
    CannotPlace where the body is of another kind."""
    if not request.body.size:
        return place == "form" or (place == "body" and media_type(request.headers) == FORM)
    kind = media_type(request.headers)
    looks_json = (request.body.data or b"").lstrip()[:1] in (b"{", b"[")
    if is_json(kind) or looks_json:
        if place == "form":
            raise CannotPlace("the body is JSON, not a form")
        return False
    if kind == FORM:
        if place in ("json", "graphql"):
            raise CannotPlace("the body is a form, not JSON")
        return True
    raise CannotPlace(f"the body is {kind or 'of no stated kind'}, neither JSON nor a form")


def _steps(request: Request, place: str, name: str) -> list[str | int]:
    if place != "graphql":
        return _plain(name)
    spot = _spot(request, name)
    if not isinstance(spot, graphql.InVariables):
        raise CannotPlace("the document writes the value out")
    return ["variables", *spot.steps]


def _plain(name: str) -> list[str | int]:
    return [step for step in parse_steps(name) if isinstance(step, str | int)]


def _spot(request: Request, name: str) -> graphql.Place:
    """Where the argument of a GraphQL field stands. Raises CannotPlace."""
    try:
        body = RequestView(request).get("body")
    except BodyMissing as error:
        raise CannotPlace(str(error)) from None
    if not isinstance(body, dict) or "query" not in body:
        raise CannotPlace("the body is no GraphQL request in JSON")
    try:
        return graphql.place_of(graphql.executed(body), parse_steps(name))
    except graphql.NoPlace as error:
        raise CannotPlace(str(error)) from None


def argument_path(request: Request, name: str) -> str | None:
    """The path of the fingerprint at which an argument stands, where it is one of its own."""
    try:
        spot = _spot(request, name)
    except CannotPlace:
        return None
    if not isinstance(spot, graphql.InVariables):
        return None
    return path_text("body", ("variables", *(None if s is ALL else s for s in spot.steps)))


def _member(text: str, steps: list[str | int]) -> Any:
    try:
        return read_member(text, steps)
    except CannotSplice as error:
        raise CannotPlace(str(error)) from None


def _read_form(text: str, place: str, name: str) -> Any:
    field, inside = _form_field(place, name)
    value = read_pair(text, field)
    return _member(value, inside) if inside and value else value


def _write_form(text: str, place: str, name: str, value: str) -> str:
    field, inside = _form_field(place, name)
    if inside:
        try:
            value = write_member(read_pair(text, field) or "{}", inside, value)
        except CannotSplice as error:
            raise CannotPlace(f"{field} in the form: {error}") from None
    return write_pair(text, field, value)


def _form_field(place: str, name: str) -> tuple[str, list[str | int]]:
    """Of ``in: body``, ``metadata.event.key`` is JSON inside the form's field ``metadata``."""
    if place == "form" or "[" in name:
        return name, []
    field, *inside = _plain(name)
    return str(field), inside


def _with_body(request: Request, text: str, kind: str) -> Request:
    headers = request.headers
    if not request.body.size or not media_type(headers):
        headers = _with_header(headers, "Content-Type", kind)
    body = Body.of(text.encode("utf-8", "surrogatepass"))
    return request.with_(headers=headers, body=body)
