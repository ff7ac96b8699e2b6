"""Where an upstream key or a marker stands in a request: reading it, and putting it there.

What is put is exactly one value; every other byte stays. Where there is no such place, or the
caller's own value has it and the rule says to keep that, CannotPlace is raised and nothing has
changed: the caller then knows that no lookup will find this marker.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from proxy.core.bodies import BodyMissing, content, is_json, media_type, text_of
from proxy.core.matching import Match, readings
from proxy.core.model import Body, Headers, Request, header, without
from proxy.core.paths import parse_steps
from proxy.core.rules import KeySpec, Marker
from proxy.core.splice import (
    CannotSplice,
    read_member,
    read_pair,
    write_element,
    write_member,
    write_pair,
)
from proxy.core.templates import Template, ValueMissing, render_structure

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


class CannotPlace(Exception):
    """The key or marker has no place in this request; str() says why. Nothing was changed."""


def key_of_caller(request: Request, spec: KeySpec, match: Match | None = None) -> str | None:
    """The key that the caller put in the place of the rule, or None. Empty text is none."""
    try:
        value = _read(request, spec.place, spec.name, match)
    except CannotPlace:
        return None
    return str(value) if value not in (None, "") and not isinstance(value, dict | list) else None


def put_key(request: Request, spec: KeySpec, key: str, match: Match | None = None) -> Request:
    """The request with the key in its place, instead of whatever was there, and with ``also``
    where the caller left it out. ``match`` (the endpoint's) is needed for keys in the path. Raises
    CannotPlace."""
    return _with_also(_write(request, spec.place, spec.name, key, match), spec, match)


def put_marker(
    request: Request,
    marker: Marker,
    text: str,
    names: Mapping[str, Any],
    match: Match | None = None,
) -> Request:
    """The request with the marker's text, and with ``also`` where the caller left it out. Raises
    CannotPlace, also where a value of the caller's own is kept."""
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
        if _read(request, of.place, name, match) in (None, ""):
            request = _write(request, of.place, name, value, match)
    return request


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
        steps = _steps(marker.place, marker.name)
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
    end = b"\r\n" if b"\r\n" in data else b"\n"
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
    text = _body_text(request)
    if _as_form(request, place):
        return _read_form(text, place, name)
    return _member(text, _steps(place, name)) if text.strip() else None


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
    text = _body_text(request)
    if _as_form(request, place):
        return _with_body(request, _write_form(text, place, name, plain), FORM)
    try:
        written = write_member(text if text.strip() else "{}", _steps(place, name), value)
    except CannotSplice as error:
        raise CannotPlace(str(error)) from None
    return _with_body(request, written, JSON)


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
    if (request.header("content-encoding") or "identity").lower() != "identity":
        raise CannotPlace("the body is compressed")
    try:
        return text_of(content(request.body, request.headers))
    except BodyMissing as error:
        raise CannotPlace(str(error)) from None


def _as_form(request: Request, place: str) -> bool:
    """Whether to write a form. An empty body becomes what the rule's place asks for. Raises
    CannotPlace where the body is of another kind."""
    if not request.body.size:
        return place == "form" or (place == "body" and media_type(request.headers) == FORM)
    kind = media_type(request.headers)
    looks_json = (request.body.data or b"").lstrip()[:1] == b"{"
    if is_json(kind) or looks_json:
        if place == "form":
            raise CannotPlace("the body is JSON, not a form")
        return False
    if kind == FORM:
        if place in ("json", "graphql"):
            raise CannotPlace("the body is a form, not JSON")
        return True
    raise CannotPlace(f"the body is {kind or 'of no stated kind'}, neither JSON nor a form")


def _steps(place: str, name: str) -> list[str | int]:
    path = f"variables.{name}" if place == "graphql" else name
    return [step for step in parse_steps(path) if isinstance(step, str | int)]


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
    field, *inside = _steps(place, name)
    return str(field), inside


def _with_body(request: Request, text: str, kind: str) -> Request:
    headers = request.headers
    if not request.body.size or not media_type(headers):
        headers = _with_header(headers, "Content-Type", kind)
    body = Body.of(text.encode("utf-8", "surrogatepass"))
    return request.with_(headers=headers, body=body)
