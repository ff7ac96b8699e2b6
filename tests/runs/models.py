"""Models whose answers a test writes down, plain and streamed, and calls of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.core.model import Body, Headers
from proxy.net.exchange import Arrival, BrokenOff, Reply
from tests.fakes.scripted import answer
from tests.fakes.world import Opened, post

MODELS = """
service: models
hosts: [model.test]
source: https://model.test/docs
confidence: documented
checked: "2026-11-30"
key: none
endpoints:
  chat:
    match: POST /v1/chat/completions
    effect: read
    answers: [{status: 529, means: not_applied}]
    meter: {max_tokens: body.max_tokens, choices: body.n, usage: usage.total_tokens}
  messages:
    match: POST /v1/messages
    effect: read
    meter:
      max_tokens: body.max_tokens
      usage: [usage.input_tokens, usage.output_tokens]
      envelope: message
      complete: {type: {in: [message, message_stop]}}
  kept:
    match: POST /v1/kept
    effect: read
    journal: true
    noise: [body.trace]
    meter: {max_tokens: body.max_tokens, usage: usage.total_tokens}
  tokens.count:
    match: POST /v1/count
    effect: read
    counted: false
"""
EVENTS = (("Content-Type", "text/event-stream"),)
OPENAI = [
    b'data: {"choices":[{"delta":{"content":"Hi"}}],"usage":null}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}\n\n',
    b"data: [DONE]\n\n",
]
ANTHROPIC = [
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":'
    b'{"input_tokens":25,"output_tokens":1}}}\n\n',
    b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":15}}\n\n',
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
]


@dataclass
class Streamed(Opened):
    """An answer that comes in pieces; ``gates``: by a piece's number, what it waits for."""

    status: int = 200
    reason: str = "OK"
    headers: Headers = EVENTS
    body: bytes = b""
    pieces: Sequence[bytes] = ()
    breaks: bool = False
    gates: dict[int, asyncio.Event] = field(default_factory=dict)
    given: int = 0
    closed: bool = False

    async def read(self, limit: int) -> tuple[Body | None, bool]:
        return None, False

    async def chunks(self) -> AsyncIterator[bytes]:
        for number, piece in enumerate(self.pieces):
            if number in self.gates:
                await self.gates[number].wait()
            self.given += 1
            yield piece
        if self.breaks:
            raise BrokenOff("the connection was reset")

    def close(self) -> None:
        self.closed = True


def usage(tokens: int, text: str = "Hi") -> Opened:
    return answer(200, {"choices": [text], "usage": {"total_tokens": tokens}})


def ask(
    path: str = "/v1/chat/completions",
    *,
    run: str | None = "run-1",
    step: str | None = "step-1",
    token: str | None = None,
    headers: Sequence[tuple[str, str]] = (),
    **body: Any,
) -> Arrival:
    sent = {"messages": [{"role": "user", "content": "Hello"}], **body}
    arrival = post(path, sent, host="model.test", run=run, step=step, headers=headers)
    arrival.token = token
    return arrival


async def hear(reply: Reply, *, pieces: int | None = None) -> list[bytes]:
    """Take a reply as the front door does: to its end, or until the caller has so many pieces and
    leaves. Raises what breaks it off."""
    heard: list[bytes] = []
    whole = False
    body = reply.body
    try:
        if isinstance(body, Body):
            assert body.data is not None
            heard.append(body.data)
            whole = pieces is None
            return heard
        assert isinstance(body, AsyncIterator)
        try:
            while pieces is None or len(heard) < pieces:
                piece = await anext(body, None)
                if piece is None:
                    break
                heard.append(piece)
            whole = pieces is None
        finally:
            await body.aclose()  # type: ignore[attr-defined]
    finally:
        reply.delivered(whole)
    return heard


def said(heard: Sequence[bytes]) -> Any:
    return json.loads(b"".join(heard))
