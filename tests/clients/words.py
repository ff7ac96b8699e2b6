"""What arrives at an API, and its answers in the words that its clients expect."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request as it came off the wire."""

    site: str
    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def values(self, name: str) -> list[str]:
        return [value for known, value in self.headers if known.lower() == name.lower()]

    def form(self) -> dict[str, list[str]]:
        return parse_qs(self.body.decode())


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes
    rest: bytes = b""  # of a stream, after its first event


def answer_of(arrival: Arrival, number: int) -> Answer:
    """In the words of the API that the client expects."""
    headers = {"Content-Type": "application/json", "Set-Cookie": f"session={number}"}
    if arrival.target.endswith("/chat/completions"):
        return chat(arrival, number)
    if arrival.site in SDKS:
        status, made = SDKS[arrival.site](number)
        if isinstance(made, str):
            return Answer(status, {"Content-Type": "text/xml"}, made.encode())
        return Answer(status, headers, json.dumps(made).encode())
    if arrival.site == "stripe":
        amount = int(arrival.form().get("amount", ["0"])[0])
        made: dict[str, Any] = {"id": f"re_{number}", "object": "refund", "amount": amount}
        return Answer(200, headers, json.dumps(made).encode())
    if arrival.site == "openai":
        made = {"id": f"file-{number}", "object": "file", "bytes": len(arrival.body)}
        made |= {"created_at": 1, "filename": "f", "purpose": "batch", "status": "processed"}
        return Answer(200, headers, json.dumps(made).encode())
    made = {"id": f"thing-{number}", "echo": arrival.body.decode()}
    body = json.dumps(made).encode()
    if "gzip" in ",".join(arrival.values("Accept-Encoding")):
        headers["Content-Encoding"] = "gzip"
        body = gzip.compress(body)
    return Answer(201, {**headers, "Location": f"/v1/things/{number}"}, body)


def chat(arrival: Arrival, number: int) -> Answer:
    delta = {"role": "assistant", "content": f"answer {number}"}
    made: dict[str, Any] = {"id": f"chat-{number}", "created": 1, "model": "m"}
    if not json.loads(arrival.body).get("stream"):
        made |= {"object": "chat.completion", "choices": [{"index": 0, "message": delta}]}
        return Answer(200, {"Content-Type": "application/json"}, json.dumps(made).encode())
    made |= {"object": "chat.completion.chunk"}
    asked = json.loads(arrival.body)
    deltas: list[dict[str, Any]] = [delta]
    if asked.get("tools") and asked["messages"][-1]["role"] != "tool":
        call = {"name": "refund", "arguments": '{"amount": 5}'}
        tool = {"index": 0, "id": "call_1", "type": "function", "function": call}
        deltas.append({"tool_calls": [tool]})
    events = [
        f"data: {json.dumps({**made, 'choices': [{'index': 0, 'delta': one}]})}\n\n".encode()
        for one in deltas
    ]
    rest = b"".join(events[1:]) + b"data: [DONE]\n\n"
    return Answer(200, {"Content-Type": "text/event-stream"}, events[0], rest)


SDKS: Mapping[str, Callable[[int], tuple[int, Any]]] = {
    "aws": lambda n: (
        200,
        '<PublishResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><PublishResult>'
        f"<MessageId>message-{n}</MessageId></PublishResult></PublishResponse>",
    ),
    "github": lambda n: (201, {"id": n, "number": n, "title": "t", "body": "b"}),
    "google-calendar": lambda n: (200, {"id": f"event{n}", "status": "confirmed"}),
    "resend": lambda n: (200, {"id": f"email-{n}"}),
    "slack": lambda n: (200, {"ok": True, "channel": "C024BE91L", "ts": f"17.{n}"}),
    "twilio": lambda n: (201, {"sid": f"SM{n}", "status": "queued"}),
}
