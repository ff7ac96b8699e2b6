"""JSON-RPC's own bookkeeping: ids that a client makes up for one exchange.

They are no part of what a request means, and a client takes only the answer that has the id of its
own request: an answer from the ledger gets that one. Every other byte stays as it was recorded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from proxy.core.bodies import BodyMissing, is_json, media_type, parse_json
from proxy.core.model import Answer, Body, Request
from proxy.core.rules import Endpoint
from proxy.core.splice import CannotSplice, read_member, write_member

NOISE: Final = ("body.id", "body.params._meta.progressToken")


def speaks(endpoint: Endpoint) -> bool:
    """Whether the rule knows calls of this endpoint by their JSON-RPC method."""
    return endpoint.match is not None and endpoint.match.jsonrpc is not None


def addressed(answer: Answer, request: Request) -> Answer:
    """The answer with the id of this request."""
    wanted = id_of(request.body)
    if answer.body is None or answer.body.data is None or wanted is None:
        return answer
    kind = media_type(answer.headers)
    try:
        text = answer.body.data.decode()
        if kind == "text/event-stream":
            changed = "".join(_line(line, wanted) for line in text.splitlines(keepends=True))
        elif is_json(kind):
            changed = _message(text, wanted)
        else:
            return answer
    except UnicodeDecodeError:
        return answer
    return answer if changed == text else replace(answer, body=Body.of(changed.encode()))


def id_of(body: Body) -> Any:
    try:
        return read_member(body.data.decode(), ["id"]) if body.data is not None else None
    except (UnicodeDecodeError, CannotSplice):
        return None


def _line(line: str, wanted: Any) -> str:
    """One line of an event stream; messages are single lines of data."""
    field, colon, value = line.partition(":")
    if field != "data" or not colon:
        return line
    ending = value[len(value.rstrip("\r\n")) :]
    return f"data:{_message(value.removesuffix(ending), wanted)}{ending}"


def _message(text: str, wanted: Any) -> str:
    """One message, which is an answer if it has a result or an error."""
    try:
        message = parse_json(text, strict=False)
        is_answer = isinstance(message, dict) and ("result" in message or "error" in message)
        if is_answer and message.get("id") not in (None, wanted):
            return write_member(text, ["id"], wanted)
    except (BodyMissing, CannotSplice):
        pass
    return text
