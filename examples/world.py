"""What the examples talk to: a scripted model and a shop, on this machine, that count what they do.

    $ python -m examples.world

The model is OpenAI-compatible (chat completions, plain and streamed). It asks for the one tool it
is offered, once, under a new id each time it is asked, as real ones do; when the conversation holds
the tool's result, it says goodbye. The shop has ``POST /v1/refunds`` and honours Idempotency-Key.
"""

from __future__ import annotations

import http.server
import json
import secrets
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

MODEL_PORT, SHOP_PORT = 8905, 8906


@dataclass(frozen=True)
class Refund:
    id: str
    charge: str
    amount: int
    key: str | None

    def as_json(self) -> dict[str, Any]:
        return {"id": self.id, "charge": self.charge, "amount": self.amount}


@dataclass
class World:
    """``refunds``: the effects. ``asked``: calls of the model, by the charge they are about.
    ``after_refund``: called when a refund is made and before the shop answers."""

    refunds: list[Refund] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    after_refund: Callable[[Refund], None] = lambda _: None
    model_url: str = ""
    shop_url: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _servers: list[http.server.ThreadingHTTPServer] = field(default_factory=list)

    def start(self, model_port: int = 0, shop_port: int = 0) -> World:
        """Ports: 0 takes free ones."""
        self.model_url = self._serve(self._model, model_port) + "/v1"
        self.shop_url = self._serve(self._shop, shop_port)
        return self

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def __enter__(self) -> World:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # The shop

    def _shop(self, request: Request) -> None:
        if request.path != "/v1/refunds":
            return request.answer(404, {"error": "there is nothing here"})
        wanted, key = request.json(), request.headers.get("Idempotency-Key")
        with self._lock:
            earlier = next((one for one in self.refunds if key and one.key == key), None)
            made = earlier or Refund(
                f"re_{len(self.refunds) + 1}", wanted["charge"], wanted["amount"], key
            )
            if earlier is None:
                self.refunds.append(made)
        if earlier is None:
            self.after_refund(made)
        return request.answer(201, made.as_json())

    # The model

    def _model(self, request: Request) -> None:
        asked = request.json()
        messages = asked["messages"]
        user = next(one["content"] for one in messages if one["role"] == "user")
        charge = _text(user).split()[-1]  # the user's last word
        with self._lock:
            self.asked[charge] += 1
        result = next((one["content"] for one in messages if one["role"] == "tool"), None)
        if result is None:
            message = {"role": "assistant", "content": None, "tool_calls": [_call(asked, charge)]}
        else:
            message = {"role": "assistant", "content": f"It is refunded: {_text(result)}"}
        if asked.get("stream"):
            request.stream(_chunks(message))
        else:
            request.answer(200, _completion(message))

    def _serve(self, answer: Callable[[Request], None], port: int) -> str:
        handler = type("Handler", (Request,), {"then": staticmethod(answer)})
        server = Server(("127.0.0.1", port), handler)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        self._servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128  # many-runs comes with all its calls at once

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # who asked was killed: that is what the examples are about


class Request(http.server.BaseHTTPRequestHandler):
    """One request to one of them."""

    protocol_version = "HTTP/1.1"
    then: Callable[[Request], None]

    def do_POST(self) -> None:
        self.body = self.rfile.read(int(self.headers["Content-Length"]))
        self.then(self)

    def json(self) -> Any:
        return json.loads(self.body)

    def answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream(self, events: Iterator[str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            data = f"data: {event}\n\n".encode()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: Any) -> None:
        pass


def _call(asked: dict[str, Any], charge: str) -> dict[str, Any]:
    """The one tool that is offered."""
    function = {
        "name": asked["tools"][0]["function"]["name"],
        "arguments": json.dumps({"charge": charge, "amount": 4200}),
    }
    return {"id": f"call_{secrets.token_hex(8)}", "type": "function", "function": function}


def _text(content: Any) -> str:
    """A message's content is a text, or a list of parts with a text each."""
    if isinstance(content, str):
        return content
    return " ".join(part.get("text", "") for part in content)


HEAD = {"id": "chatcmpl-1", "created": 0, "model": "scripted"}
USAGE = {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}


def _completion(message: dict[str, Any]) -> dict[str, Any]:
    why = "tool_calls" if "tool_calls" in message else "stop"
    choice = {"index": 0, "message": message, "finish_reason": why}
    return {**HEAD, "object": "chat.completion", "choices": [choice], "usage": USAGE}


def _chunks(message: dict[str, Any]) -> Iterator[str]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": word + " "} for word in (message["content"] or "").split()]
    for number, call in enumerate(message.get("tool_calls", ())):
        deltas.append({"tool_calls": [{"index": number, **call}]})
    for delta in deltas:
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        yield json.dumps({**HEAD, "object": "chat.completion.chunk", "choices": [choice]})
    why = "tool_calls" if "tool_calls" in message else "stop"
    last = {"index": 0, "delta": {}, "finish_reason": why}
    yield json.dumps({**HEAD, "object": "chat.completion.chunk", "choices": [last], "usage": USAGE})
    yield "[DONE]"


def main() -> None:
    world = World(after_refund=lambda made: print(f"shop: {made}", flush=True))
    world.start(MODEL_PORT, SHOP_PORT)
    print(f"export OPENAI_BASE_URL={world.model_url} OPENAI_API_KEY=none SHOP_URL={world.shop_url}")
    print("The model and the shop are there until Ctrl-C.", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        sys.exit(f"refunds made: {len(world.refunds)}, calls of the model: {world.asked.total()}")


if __name__ == "__main__":
    main()
