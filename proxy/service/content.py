"""What was sent and what came back, as people may see it: masked, laid out, and never too much.

``redact`` of the rule and known credentials are masked; what cannot be masked for certain is not
shown. Sizes and digests are always those of the whole body as it went over the wire.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final
from urllib.parse import parse_qsl

from proxy.core.bodies import (
    BodyMissing,
    content,
    dump_json,
    is_json,
    media_type,
    parse_json,
    parse_xml,
)
from proxy.core.credentials import MASK
from proxy.core.fieldpath import Steps
from proxy.core.masking import (
    Redaction,
    is_masked,
    masked_headers,
    masked_pairs,
    masked_url,
    masked_value,
)
from proxy.core.model import Answer, Body, Headers, Request, header
from proxy.core.multipart import read_parts
from proxy.log import without_secrets

LOOK_MAX: Final = 1_000_000  # bytes; a larger body is told by its size and digest alone
SHOWN_MAX: Final = 64_000  # characters of a text or of all fields: some thirty screens
FIELDS_MAX: Final = 500
DEPTH_MAX: Final = 100  # of a JSON value that is laid out; deeper is shown as it came

NO_RULE: Final = "The rule file that says what to mask is not loaded, so it is not shown."
NOT_APART: Final = "The rule masks fields of it, and it cannot be taken apart: it is not shown."
TOO_LARGE: Final = "It is too large to be shown here."
NOT_KEPT: Final = "It is not stored: the rule says so, it was too large, or its time has passed."


def request_view(request: Request, redaction: Redaction) -> dict[str, Any]:
    """A request as it is stored: credentials are not in it to begin with."""
    return {
        "method": request.method,
        "url": without_secrets(masked_url(request.url, redaction)),
        "headers": _headers(request.headers, redaction.headers),
        "body": body_view(request.body, request.headers, redaction.body, known=redaction.known),
    }


def answer_view(answer: Answer, redaction: Redaction) -> dict[str, Any]:
    endpoint = redaction.endpoint
    return {
        "status": answer.status,
        "headers": _headers(answer.headers, redaction.answer_headers),
        "body": body_view(
            answer.body,
            answer.headers,
            redaction.answer,
            known=redaction.known,
            answer_format=endpoint.answer_format if endpoint else "",
        ),
    }


def body_view(
    body: Body | None,
    headers: Headers,
    wanted: Sequence[Steps] = (),
    *,
    known: bool = True,
    answer_format: str = "",
) -> dict[str, Any]:
    """``kind``: none | json | form | multipart | xml | text | binary | withheld; ``text`` or
    ``fields`` hold what can be shown, ``note`` says why something is missing."""
    shown: dict[str, Any] = {
        "kind": "withheld",
        "size": body.size if body else 0,
        "sha256": body.sha256 if body else None,
        "type": (header(headers, "content-type") or "")[:200],
        "text": None,
        "fields": None,
        "note": None,
    }
    if body is None:
        return shown | {"note": NOT_KEPT}
    if not body.size:
        return shown | {"kind": "none"}
    if not known:
        return shown | {"note": NO_RULE}
    if body.size > LOOK_MAX:
        return shown | {"note": TOO_LARGE}
    try:
        data = content(body, headers)
    except BodyMissing as why:
        return shown | {"note": f"Not shown: {why}."}
    return shown | _laid_out(data, headers, wanted, answer_format)


def _laid_out(
    data: bytes, headers: Headers, wanted: Sequence[Steps], answer_format: str
) -> dict[str, Any]:
    if any(not steps for steps in wanted):
        return {"kind": "text", "text": MASK}
    kind = media_type(headers)
    if kind == "multipart/form-data":
        return _multipart(data, headers, wanted)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return {"note": NOT_APART} if wanted else {"kind": "binary", "note": "It is not text."}
    if kind == "application/x-www-form-urlencoded" or answer_format == "form":
        pairs = parse_qsl(text, keep_blank_values=True, errors="replace")
        return _fields("form", masked_pairs(pairs, wanted))
    if is_json(kind) or text.lstrip()[:1] in ("{", "["):
        found = _json(text, wanted)
        if found is not None:
            return found
    if answer_format == "xml" and wanted:
        return _xml(data, wanted)
    if wanted:
        return {"note": NOT_APART}
    return _text("xml" if kind.endswith("xml") else "text", text)


def _json(text: str, wanted: Sequence[Steps]) -> dict[str, Any] | None:
    """None if it is not JSON that has one meaning only."""
    try:
        value = parse_json(text, strict=True)
        return _text("json", pretty(masked_value(value, wanted)))
    except (BodyMissing, RecursionError):
        return None


def _xml(data: bytes, wanted: Sequence[Steps]) -> dict[str, Any]:
    """Its fields: the text itself cannot be masked for certain."""
    try:
        return _text("xml", pretty(masked_value(parse_xml(data), wanted)))
    except (BodyMissing, RecursionError):
        return {"note": NOT_APART}


def _multipart(data: bytes, headers: Headers, wanted: Sequence[Steps]) -> dict[str, Any]:
    parts = read_parts(header(headers, "content-type") or "", data)
    if parts is None:
        return {"note": NOT_APART if wanted else "Its parts cannot be told apart."}
    fields = []
    for part in parts:
        name = part.name or ""
        if is_masked(name, wanted):
            fields.append((name, MASK))
            continue
        disposition = header(part.headers, "content-disposition") or ""
        try:
            if "filename" in disposition:
                raise UnicodeError
            fields.append((name, part.data.decode()))
        except UnicodeError:
            fields.append((name, f"({len(part.data)} bytes)"))
    return _fields("multipart", fields)


def _fields(kind: str, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    left, shown = SHOWN_MAX, []
    for name, value in pairs[:FIELDS_MAX]:
        shown.append([_whole(name[:left]), _whole(without_secrets(value[:left]))])
        left -= len(name) + len(value)
        if left <= 0:
            break
    cut = len(shown) < len(pairs) or left < 0
    return {"kind": kind, "fields": shown, "note": _CUT if cut else None}


_CUT: Final = "Only its beginning is shown."


def _text(kind: str, text: str) -> dict[str, Any]:
    text = _whole(without_secrets(text))
    return {
        "kind": kind,
        "text": text[:SHOWN_MAX],
        "note": _CUT if len(text) > SHOWN_MAX else None,
    }


def _headers(headers: Headers, names: frozenset[str]) -> list[list[str]]:
    return [
        [_whole(name), _whole(without_secrets(value))]
        for name, value in masked_headers(headers, names)
    ]


def _whole(text: str) -> str:
    """Bytes that are no UTF-8, and half characters, as escapes: JSON and pages have no such."""
    return text.encode("utf-8", "backslashreplace").decode()


def pretty(value: Any, indent: str = "", depth: int = 0) -> str:
    """JSON over several lines; numbers keep every digit, as ``json.dumps`` would not."""
    if depth > DEPTH_MAX:
        raise RecursionError
    inner = indent + "  "
    if isinstance(value, dict) and value:
        rows = (
            f"{inner}{json.dumps(str(k), ensure_ascii=False)}: {pretty(v, inner, depth + 1)}"
            for k, v in value.items()
        )
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list) and value:
        rows = (f"{inner}{pretty(v, inner, depth + 1)}" for v in value)
        return "[\n" + ",\n".join(rows) + f"\n{indent}]"
    if isinstance(value, Decimal):
        return str(value)
    return dump_json(value)
