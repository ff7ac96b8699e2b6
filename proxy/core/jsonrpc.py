"""JSON-RPC's own bookkeeping: what a client says about one exchange and about itself.

It is no part of what a request means, and a client takes only the answer that has the id of its own
request: an answer from the ledger gets that one. Every other byte stays as it was recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from proxy.core.bodies import BodyMissing, is_json, media_type, parse_json
from proxy.core.model import Answer, Body, Request
from proxy.core.refusal import Refusal
from proxy.core.rules import Endpoint
from proxy.core.splice import CannotSplice, read_member, write_member

_MCP: Final = "io.modelcontextprotocol"
NOISE: Final = (
    "body.id",
    "body.params._meta.progressToken",
    # W3C trace context, in MCP's place for it.
    *(f"body.params._meta.{name}" for name in ("traceparent", "tracestate", "baggage")),
    # Since 2026-07-28 each MCP request says who makes it; a resumed agent may be a newer one.
    *(
        f'body.params._meta."{_MCP}/{name}"'
        for name in ("protocolVersion", "clientInfo", "clientCapabilities", "logLevel")
    ),
)

REFUSED: Final = -32000  # the first of the codes that are left to servers
ID_LENGTH: Final = 100  # a longer id is not said again: a refusal stays small


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


def shape(refusal: Refusal, request: Request | None) -> Mapping[str, Any]:
    """The shape of this refusal: clients of JSON-RPC read no other error, whatever the status."""
    own = id_of(request.body) if request is not None else None
    short = isinstance(own, int) or (isinstance(own, str) and len(own) <= ID_LENGTH)
    data: dict[str, Any] = {"type": "urn:onceproxy:{code}"}
    data |= {name: f"{{{name}}}" for name in ("detail", "operation", "state", "external_id")}
    data["retryable"] = refusal.meaning.retryable
    error = {"code": REFUSED, "message": "{next}", "data": data}
    return {"body": {"jsonrpc": "2.0", "id": own if short else None, "error": error}}


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
