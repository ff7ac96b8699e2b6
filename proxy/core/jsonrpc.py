"""JSON-RPC 2.0, and MCP and A2A as far as they are its dialects: what a call is, what an answer
says, and the bookkeeping of one exchange, which is no part of what a request means.

The id of a call is new with every try, so it is no key and no part of a fingerprint, and a client
takes only the answer that has the id of its own request. A stored request that is sent again, and
an answer from the ledger, get the id of whoever asks now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from proxy.core.bodies import (
    BodyMissing,
    content,
    dump_json,
    is_json,
    media_type,
    parse_json,
    read_answer,
)
from proxy.core.events import Cutter, event, events
from proxy.core.model import EMPTY, Answer, Body, Headers, Request, frozen, header, without
from proxy.core.refusal import Refusal
from proxy.core.rules import Endpoint
from proxy.core.splice import CannotSplice, read_member, write_member, write_text

# What is no part of a call's meaning

_MCP: Final = "io.modelcontextprotocol"
_BOOKKEEPING: Final = (
    "id",
    "params._meta.progressToken",
    # W3C trace context, in MCP's place for it.
    *(f"params._meta.{name}" for name in ("traceparent", "tracestate", "baggage")),
    # Since 2026-07-28 each MCP request says who makes it; a resumed agent may be a newer one.
    *(
        f'params._meta."{_MCP}/{name}"'
        for name in ("protocolVersion", "clientInfo", "clientCapabilities", "logLevel")
    ),
)
NOISE: Final = tuple(f"body.{name}" for name in _BOOKKEEPING)
_BATCH_NOISE: Final = tuple(f"body[].{name}" for name in _BOOKKEEPING)

BAGGAGE: Final = ("params", "_meta", "baggage")
_TOKEN: Final = ("params", "_meta", "progressToken")

SESSION: Final = "mcp-session-id"
RETRY: Final = 1.0  # seconds before a stream is taken up again, where its server states none
_OF_BODIES: Final = (
    "accept",
    "content-type",
    "content-length",
    "content-encoding",
    "content-md5",
    "content-digest",
    "digest",
    "transfer-encoding",
    "expect",
    "last-event-id",
)
METHOD: Final = "Mcp-Method"
NAME: Final = "Mcp-Name"
_NAMED_BY: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}

TOOLS_CALL: Final = "tools/call"
TOOLS_LIST: Final = "tools/list"
_HINTS: Final = ("readOnly", "idempotent", "destructive")

# What an error says about the effect, where the rule is silent.
_NOT_LOOKED_AT: Final = {
    -32020: "the header fields do not fit the body",  # MCP: its client tries again, corrected
    -32021: "a capability of the client is missing",
    -32022: "this version of the protocol is not spoken",
    -32042: "a person has to visit an address first",  # MCP, URL elicitation: then again
}
_REFUSED: Final = {
    -32700: "it could not be parsed",
    -32600: "it is no valid request",
    -32601: "there is no such method",
    -32602: "its parameters are not valid",
}

REFUSED: Final = -32000  # the first of the codes that are left to servers
ID_LENGTH: Final = 100  # a longer id is not said again: a refusal stays small
EVENT_LIMIT: Final = 10 * 1024 * 1024  # bytes of one event that is looked into
ROUND_DIGITS: Final = 16  # hex digits that tell the rounds of one call apart


def speaks(endpoint: Endpoint) -> bool:
    """Whether calls of this endpoint are known as JSON-RPC: by its rule or, without one, by what
    they look like."""
    if endpoint.match is None:
        return endpoint.answer_format == "jsonrpc"
    return endpoint.match.jsonrpc is not None


# Calls


def method_of(body: Body) -> str | None:
    """Of a single call."""
    method = _read(body, ("method",)) if may_be(body) and not is_batch(body) else None
    return method if isinstance(method, str) else None


def tool_of(body: Body) -> str | None:
    """The tool that a single call calls."""
    name = _read(body, ("params", "name")) if method_of(body) == TOOLS_CALL else None
    return name if isinstance(name, str) else None


def is_call(value: Any) -> bool:
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        return False
    return isinstance(value.get("method"), str)


def are_calls(value: Any) -> bool:
    """One call, or a batch of them."""
    return is_call(value) or (isinstance(value, list) and bool(value) and all(map(is_call, value)))


def may_be(body: Body) -> bool:
    """Whether it is worth looking: most bodies are not, and parsing one takes time."""
    return body.data is not None and b'"jsonrpc"' in body.data


def is_batch(body: Body) -> bool:
    return body.data is not None and body.data[:64].lstrip()[:1] == b"["


def noise(body: Body) -> tuple[str, ...]:
    return _BATCH_NOISE if is_batch(body) else NOISE


def called(value: Any) -> str:
    """The word for a call in an operation's name: the tool, else the method. "" for a batch."""
    if not is_call(value):
        return ""
    return tool_in(value) or str(value["method"])


def tool_in(value: Any) -> str | None:
    """The tool that a call calls."""
    name = _member(value, "params", "name")
    calls = is_call(value) and value["method"] == TOOLS_CALL
    return name if calls and isinstance(name, str) else None


def round_of(value: Any) -> str | None:
    """Which round of a call it is that the server wanted more input for (MCP 2026-07-28): the same
    call again, and another operation than the one before it. Named by what the server said, never
    by what a person answered: another answer in the same round is drift. None for the first."""
    params = value.get("params") if is_call(value) else None
    if not isinstance(params, dict):
        return None
    state, answers = params.get("requestState"), params.get("inputResponses")
    if state is None and not answers:
        return None
    asked = sorted(map(str, answers)) if isinstance(answers, dict) else []
    text = dump_json([state, asked if state is None else []])
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:ROUND_DIGITS]


def baggage_of(body: Body) -> list[str]:
    """W3C baggage inside the calls of a body."""
    if body.data is None or b'"baggage"' not in body.data or not may_be(body):
        return []
    try:
        value = parse_json(body.data.decode(), strict=True)
    except (BodyMissing, UnicodeDecodeError):
        return []
    calls = value if isinstance(value, list) else [value]
    found = [_member(call, *BAGGAGE) for call in calls if is_call(call)]
    return [text for text in found if isinstance(text, str)]


def with_baggage(body: Body, text: str | None) -> Body:
    """A single call's body with other baggage, or without any; outside of ``_meta`` every byte
    stays."""
    if text is not None:
        return _written(body, BAGGAGE, text)
    try:
        assert body.data is not None
        whole = body.data.decode()
        meta = _member(parse_json(whole, strict=True), *BAGGAGE[:-1])
        left = {name: value for name, value in meta.items() if name != BAGGAGE[-1]}
        return Body.of(write_text(whole, BAGGAGE[:-1], dump_json(left)).encode())
    except (BodyMissing, UnicodeDecodeError, CannotSplice):
        return body


def asked_by(request: Request, caller: Request) -> Request | None:
    """A stored request as this caller asks it: with its id, and with its progress token where both
    have one. None where that cannot be written."""
    if is_batch(request.body):
        return request if request.body.sha256 == caller.body.sha256 else None
    own = id_of(caller.body)
    if own is None or id_of(request.body) is None:
        return None
    body = _written(request.body, ("id",), own)
    if id_of(body) != own:
        return None
    token = _read(caller.body, _TOKEN)
    if token is not None and _read(body, _TOKEN) is not None:
        body = _written(body, _TOKEN, token)
    return request if body is request.body else request.with_(body=body)


def routed(headers: Headers, body: Body) -> Headers:
    """Fields of another call of the same server, made for this body: a server refuses a call whose
    ``Mcp-Method`` and ``Mcp-Name`` are not those of its body."""
    if header(headers, METHOD) is None:
        return headers
    method = _read(body, ("method",))
    if not isinstance(method, str):
        return headers
    named = [(METHOD, method)]
    name = _read(body, ("params", _NAMED_BY[method])) if method in _NAMED_BY else None
    if isinstance(name, str) and name.isascii() and name.isprintable():
        named.append((NAME, name))
    return (*without(headers, (METHOD, NAME)), *named)


# Hints


@frozen
class Hint:
    """What a server says of one of its tools; what it does not say is as the protocol has it."""

    reads: bool = False
    idempotent: bool = False
    destructive: bool = True


def hints_in(answer: Answer) -> dict[str, Hint]:
    """Of the tools that an answer to ``tools/list`` names. Raises BodyMissing."""
    body = read_answer(content(answer.body, answer.headers), answer.headers, "jsonrpc")
    tools = _member(body, "result", "tools")
    found: dict[str, Hint] = {}
    for tool in tools if isinstance(tools, list) else []:
        name = _member(tool, "name")
        if isinstance(name, str):
            said = {word: _member(tool, "annotations", f"{word}Hint") for word in _HINTS}
            found[name] = Hint(
                said["readOnly"] is True,
                said["idempotent"] is True,
                said["destructive"] is not False,
            )
    return found


# Ids


def id_of(body: Body) -> Any:
    """The id of a single call; None for a notification, or where there is none to read."""
    return _read(body, ("id",))


def ids_of(body: Body) -> list[Any]:
    """Of all calls in a body, in order; notifications have none."""
    if not is_batch(body):
        own = id_of(body)
        return [] if own is None else [own]
    try:
        assert body.data is not None
        value = parse_json(body.data.decode(), strict=False)
    except (BodyMissing, UnicodeDecodeError):
        return []
    calls = value if isinstance(value, list) else []
    return [call["id"] for call in calls if isinstance(call, dict) and call.get("id") is not None]


def addressed(answer: Answer, request: Request, asked: Body | None = None) -> Answer:
    """A recorded answer with the ids of this request, and of a stream only the answer: what the
    server said or asked on the way was for another caller. ``asked``: the body that it answered,
    without which a batch stays as it is."""
    if answer.body is None or answer.body.data is None:
        return answer
    kind = media_type(answer.headers)
    streamed = kind == "text/event-stream"
    if not streamed and not is_json(kind):
        return answer
    try:
        text = content(answer.body, answer.headers).decode()
    except (UnicodeDecodeError, BodyMissing):
        return answer
    ids = _Ids(request.body, asked)
    if streamed:
        answers = [e.data for e in events(text) if e.data and _answers_in(e.data)]
        changed = "".join(event(ids.put(data)) for data in answers)
        if not answers:
            return answer
    else:
        changed = ids.put(text)
    if changed == text:
        return answer
    headers = without(answer.headers, ("Content-Encoding",))
    return replace(answer, headers=headers, body=Body.of(changed.encode()))


class _Ids:
    """Puts the ids of one request in place of those of another."""

    def __init__(self, mine: Body, theirs: Body | None) -> None:
        self._single = None if is_batch(mine) else id_of(mine)
        self._by_theirs: dict[str, Any] = {}
        if is_batch(mine) and theirs is not None:
            before, now = ids_of(theirs), ids_of(mine)
            if len(before) == len(now):
                self._by_theirs = {dump_json(a): b for a, b in zip(before, now, strict=True)}

    def put(self, text: str) -> str:
        try:
            message = parse_json(text, strict=False)
            if isinstance(message, list) and self._by_theirs:
                return dump_json([self._told(each) for each in message])
            if not _is_answer(message) or message.get("id") is None:
                return text
            own = self._by_theirs.get(dump_json(message["id"]), self._single)
            if own is not None and own != message["id"]:
                return write_member(text, ["id"], own)
        except (BodyMissing, CannotSplice):
            pass
        return text

    def _told(self, message: Any) -> Any:
        if not _is_answer(message):
            return message
        own = message.get("id")
        return {**message, "id": self._by_theirs.get(dump_json(own), own)}


# Answers


def verdict(body: Any) -> tuple[str, str] | None:
    """What the body of a 2xx says: (means, reason), None where it leaves it to the status. Of a
    batch, whose calls are one operation, the worst counts."""
    if isinstance(body, list):
        found = [told for each in body if _is_answer(each) and (told := verdict(each))]
        refused = [told for told in found if told[0] != "unknown"]
        if len(refused) == len(body) > 0:
            return refused[0]
        return next((told for told in found if told[0] == "unknown"), None)
    error = body.get("error") if isinstance(body, dict) else None
    if error is None:
        return None
    code = error.get("code") if isinstance(error, dict) else None
    if code in _NOT_LOOKED_AT:
        return "not_applied", f"error {code}: {_NOT_LOOKED_AT[code]}"
    if code in _REFUSED:
        return "rejected", f"error {code}: {_REFUSED[code]}"
    return "unknown", f"error {code if isinstance(code, int) else ''} does not tell"


class Answering:
    """An answer that comes as an event stream, on its way. ``ended`` once all calls of the request
    are answered: what else comes is not waited for."""

    def __init__(self, request: Request) -> None:
        self._cutter = Cutter(EVENT_LIMIT)
        self._open = [dump_json(own) for own in ids_of(request.body)]
        one_each = is_batch(request.body) or method_of(request.body) == TOOLS_CALL
        self.waits = bool(self._open) and one_each
        """Whether it is over with its answer. A notification has none, and a stream of A2A has an
        answer in each event."""
        self.ended = False
        self.last_id: str | None = None
        """By which the server knows how much of the stream has come."""
        self.retry = RETRY

    def feed(self, chunk: bytes) -> Iterator[tuple[bytes, bool]]:
        """Whole events, and whether it may be the last one, which answers."""
        for whole in self._cutter.feed(chunk):
            yield whole, self._look(whole)

    def rest(self) -> bytes:
        return self._cutter.rest()

    def _look(self, whole: bytes) -> bool:
        found = next(events(whole.decode("utf-8", "replace")), None)
        if found is None:
            return False
        if found.id:
            self.last_id = found.id
        if found.retry is not None:
            self.retry = found.retry
        answers = _answers_in(found.data) if found.data else []
        for answer in answers:
            own = dump_json(answer.get("id"))
            if own in self._open:
                self._open.remove(own)
            elif answer.get("id") is None and "error" in answer:
                self._open.clear()  # to a request that the server could not read
        self.ended = self.ended or (bool(answers) and self.waits and not self._open)
        return bool(answers)


def resumption(request: Request, last_id: str | None) -> Request | None:
    """The read that goes on with a stream of this request, where its server gave the events ids in
    a session. None where it did not."""
    if not last_id or not last_id.isprintable() or request.header(SESSION) is None:
        return None
    kept = without(request.headers, _OF_BODIES)
    headers = (*kept, ("Accept", "text/event-stream"), ("Last-Event-ID", last_id))
    return Request(
        "GET", request.scheme, request.host, request.port, request.target, headers, EMPTY
    )


def last_word(headers: Headers, body: Body | None) -> bytes:
    """The body of an answer as what a begun event stream ends with."""
    data = body.data if body is not None else None
    if not data:
        return b""
    if media_type(headers) == "text/event-stream":
        return data
    return event(data.decode("utf-8", "replace")).encode()


def _answers_in(data: str) -> list[dict[str, Any]]:
    try:
        message = parse_json(data, strict=False)
    except BodyMissing:
        return []
    return [m for m in (message if isinstance(message, list) else [message]) if _is_answer(m)]


def _is_answer(message: Any) -> bool:
    return isinstance(message, dict) and ("result" in message or "error" in message)


# Refusals


def shape(refusal: Refusal, request: Request | None) -> Mapping[str, Any]:
    """The shape of this refusal: clients of JSON-RPC read no other error, whatever the status."""
    own = id_of(request.body) if request is not None and not is_batch(request.body) else None
    short = isinstance(own, int) or (isinstance(own, str) and len(own) <= ID_LENGTH)
    data: dict[str, Any] = {"type": "urn:onceproxy:{code}"}
    data |= {name: f"{{{name}}}" for name in ("detail", "operation", "state", "external_id")}
    data["retryable"] = refusal.meaning.retryable
    error = {"code": REFUSED, "message": "{next}", "data": data}
    return {"body": {"jsonrpc": "2.0", "id": own if short else None, "error": error}}


# Members


def _member(value: Any, *steps: str) -> Any:
    for step in steps:
        if not isinstance(value, dict):
            return None
        value = value.get(step)
    return value


def _read(body: Body, steps: Sequence[str]) -> Any:
    try:
        return read_member(body.data.decode(), steps) if body.data is not None else None
    except (UnicodeDecodeError, CannotSplice):
        return None


def _written(body: Body, steps: Sequence[str], value: Any) -> Body:
    """The body itself where the value cannot be written, or stands there already."""
    if body.data is None or _read(body, steps) == value:
        return body
    try:
        return Body.of(write_member(body.data.decode(), steps, value).encode())
    except (UnicodeDecodeError, CannotSplice):
        return body
