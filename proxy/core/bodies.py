"""Bodies as values: JSON with exact numbers, forms and multipart with ``a[b]`` names nested, XML.

Reading one never changes the message: what is sent or answered stays the received bytes. A body
that two readers could understand differently (a member given twice, bad UTF-8, a document type in
XML) is not read at all.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from typing import Any, Final
from urllib.parse import parse_qsl
from xml.etree import ElementTree

from proxy.core.events import events
from proxy.core.model import Body, Headers, header

LOOK_INSIDE = 10 * 1024 * 1024  # bytes; a larger body is forwarded but no rule can look into it
RATIO = 100  # times that a compressed body may grow; JSON grows 5 to 20 times
ANY_RATIO = 1 << 20  # bytes for which the ratio does not matter
NESTING = 32  # of names like a[b][c] in a form; more is an attack on whoever reads it


class BodyMissing(Exception):
    """A path needs a body that is not kept, broke off, or cannot be read; str() says which."""


def content(body: Body | None, headers: Headers) -> bytes:
    """The bytes of a body with its content coding undone. Raises BodyMissing."""
    if body is None:
        raise BodyMissing("the body is not there")
    if body.size > LOOK_INSIDE:
        raise BodyMissing("the body is too large to look into")
    data = body.data
    if data is None:
        if body.spool is None:
            raise BodyMissing("the body is not there")
        data = b"".join(body.spool.chunks())
    coding = (header(headers, "content-encoding") or "").strip().lower()
    return data if coding in ("", "identity") or not data else _decoded(data, coding)


def _decoded(data: bytes, coding: str) -> bytes:
    # 47: gzip or zlib, told by the first bytes
    windows = {"gzip": (47,), "x-gzip": (47,), "deflate": (47, -15)}.get(coding)
    if windows is None:
        raise BodyMissing(
            f"the body has the content coding {coding[:20]!r}, which is not read here"
        )
    most = min(LOOK_INSIDE, max(ANY_RATIO, RATIO * len(data)))
    for window in windows:
        reader = zlib.decompressobj(window)
        try:
            plain = reader.decompress(data, most)
        except zlib.error:
            continue
        if reader.unconsumed_tail:
            raise BodyMissing("the body is too large to look into")
        if reader.eof:
            return plain
    raise BodyMissing(f"the body is not whole {coding}")


def media_type(headers: Headers) -> str:
    return (header(headers, "content-type") or "").partition(";")[0].strip().lower()


def read_request(data: bytes, headers: Headers) -> Any:
    """The body of a request; its media type decides, and without one its first character."""
    if not data.strip():
        return {}
    kind = media_type(headers)
    looks_json = data.lstrip()[:1] in (b"{", b"[")
    if kind == "multipart/form-data":
        return multipart(data, header(headers, "content-type") or "")
    if is_json(kind) or looks_json:
        return parse_json(text_of(data), strict=True)
    if kind == "application/x-www-form-urlencoded":
        return form(text_of(data))
    return text_of(data)


def read_answer(data: bytes, headers: Headers, answer_format: str) -> Any:
    """The body of an answer in the format that the rule states. Empty bytes are an empty object."""
    if not data.strip():
        return {}
    if answer_format == "form":
        return form(text_of(data))
    if answer_format == "xml":
        return parse_xml(data)
    if answer_format == "jsonrpc" and media_type(headers) == "text/event-stream":
        return _rpc_answer(text_of(data))
    return parse_json(text_of(data), strict=False)


def is_json(kind: str) -> bool:
    return kind == "application/json" or kind.endswith("+json")


def text_of(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BodyMissing("the body is not UTF-8") from None


# JSON


def parse_json(text: str, *, strict: bool) -> Any:
    """Numbers stay exact: integers of any length, all others Decimal. ``strict`` refuses a member
    given twice, which two servers read differently."""
    try:
        return (_STRICT if strict else _LENIENT).decode(text)
    except (ValueError, InvalidOperation, RecursionError):
        raise BodyMissing("the body is not JSON, or a member in it is given twice") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member is given twice")
    return members


_LENIENT: Final = json.JSONDecoder(parse_float=Decimal, parse_constant=_no_constant)
_STRICT: Final = json.JSONDecoder(
    parse_float=Decimal, parse_constant=_no_constant, object_pairs_hook=_members
)


def dump_json(value: Any) -> str:
    """Compact JSON; the Decimals that ``parse_json`` made keep every digit."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json_text(str(k))}:{dump_json(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(dump_json, value)) + "]"
    if isinstance(value, Decimal):
        return str(value)
    return json_text(value)


def json_text(value: Any) -> str:
    """Half a surrogate pair, which JSON may hold and UTF-8 may not, stays an escape."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() or not _HALVES.search(text) else json.dumps(value)


_HALVES: Final = re.compile("[\ud800-\udfff]")


def _rpc_answer(text: str) -> Any:
    """The message of an event stream that is an answer, a list for a batch of calls; requests and
    notifications pass."""
    answers: list[Any] = []
    for event in events(text):
        if event.data:
            message = parse_json(event.data, strict=False)
            said = message if isinstance(message, list) else [message]
            answers += [m for m in said if isinstance(m, dict) and ("result" in m or "error" in m)]
    if not answers:
        raise BodyMissing("the stream holds no answer")
    return answers if len({dump_json(each.get("id")) for each in answers}) > 1 else answers[-1]


# Forms


def form(text: str) -> dict[str, Any]:
    try:
        return nested(parse_qsl(text, keep_blank_values=True, errors="strict"))
    except (UnicodeDecodeError, ValueError):
        raise BodyMissing("the form is not UTF-8, or has too many fields") from None


def nested(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """``a[b]=1`` as ``{"a": {"b": "1"}}``; ``a[]`` and a name given twice make a list."""
    tree: dict[str, Any] = {}
    for name, value in pairs:
        names = _names(name)
        if names is None or not _insert(tree, names, value):
            _put(tree, name, value)
    return tree


def _names(name: str) -> list[str] | None:
    head, bracket, rest = name.partition("[")
    if not bracket or not head or not rest.endswith("]"):
        return [name]
    parts = rest[:-1].split("][")
    if len(parts) >= NESTING or any("[" in part or "]" in part for part in parts):
        return None
    return [head, *parts]


def _insert(tree: dict[str, Any], names: list[str], value: Any) -> bool:
    """False where the names contradict what is there (a=1 and a[b]=2)."""
    node: Any = tree
    for name, following in pairwise(names):
        fresh: Any = [] if following == "" else {}
        if isinstance(node, list):
            last = node[-1] if node else None
            if not isinstance(last, dict) or following in last:
                last = fresh
                node.append(last)
            node = last
        else:
            node = node.setdefault(name, fresh)
        if not isinstance(node, type(fresh)):
            return False
    if isinstance(node, list):
        node.append(value)
    else:
        _put(node, names[-1], value)
    return True


def _put(node: dict[str, Any], name: str, value: Any) -> None:
    if name not in node:
        node[name] = value
    elif isinstance(node[name], list):
        node[name].append(value)
    else:
        node[name] = [node[name], value]


def multipart(data: bytes, content_type: str) -> dict[str, Any]:
    """Fields by name; a file is an object of its filename, size and sha256."""
    boundary = _parameter(content_type, "boundary")
    if not boundary:
        raise BodyMissing("the multipart body has no boundary")
    mark = b"--" + boundary.encode("utf-8", "surrogateescape")
    pieces = (b"\r\n" + data).split(b"\r\n" + mark)
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise BodyMissing("the multipart body is not whole")
    return nested(_part(piece) for piece in pieces[1:-1])


def _part(piece: bytes) -> tuple[str, Any]:
    head, blank, data = piece.partition(b"\r\n\r\n")
    if not blank:
        raise BodyMissing("a part of the multipart body has no header")
    fields = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in text_of(head).split("\r\n"))
    }
    disposition = fields.get("content-disposition", "")
    name = _parameter(disposition, "name")
    filename = _parameter(disposition, "filename")
    if filename is None and "filename*" not in disposition:
        return name or "", text_of(data)
    digest = hashlib.sha256(data).hexdigest()
    return name or "", {"filename": filename or "", "size": len(data), "sha256": digest}


def _parameter(field: str, name: str) -> str | None:
    """``name="a b"`` or ``name=a`` in a header field; a ``;`` inside quotes is text."""
    at = 0
    while (at := field.find(";", at)) >= 0:
        key, equals, rest = field[at + 1 :].partition("=")
        at += 1
        if not equals or ";" in key:
            continue
        rest = rest.lstrip()
        if rest.startswith('"'):
            end = rest.find('"', 1)
            value = rest[1 : end if end > 0 else None]
            at += len(key) + 1 + len(value) + 2  # behind the closing quote
        else:
            value = rest.partition(";")[0].strip()
        if key.strip().lower() == name:
            return value
    return None


# XML


def parse_xml(data: bytes) -> dict[str, Any]:
    """``<Error><Code>x</Code></Error>`` as ``{"Error": {"Code": "x"}}``, without namespaces."""
    # A NUL is in every XML of UTF-16, where these words would look otherwise.
    if b"\0" in data or b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise BodyMissing("the XML has a document type, which is not read here")
    try:
        root = ElementTree.fromstring(data)  # nosec B314: no document type gets here
        return {_local(root): _element(root)}
    except (ElementTree.ParseError, ValueError, RecursionError):
        raise BodyMissing("the body is not XML") from None


def _local(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _element(element: ElementTree.Element) -> Any:
    if not len(element):
        return element.text or ""
    members: dict[str, Any] = {}
    for child in element:
        _put(members, _local(child), _element(child))
    return members
