"""An API whose every answer a test writes down, and one life of a proxy in front of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxy.authority import Rights
from proxy.core.call import Policy
from proxy.core.matching import RuleSet
from proxy.core.model import Lost, NotSent, Request
from proxy.core.operation import Operation
from proxy.engine import Settings
from proxy.ledger.base import Ledger
from proxy.ledger.memory import MemoryLedger
from proxy.net.exchange import Arrival, Reply
from proxy.recovery import Recovery
from proxy.rulefile.loader import load_text
from tests.fakes.clock import FakeClock
from tests.fakes.world import Metrics, Opened, engine, objection_of

Step = NotSent | Lost | Opened | Callable[[Request], Any]

LOST = Lost("connection reset by peer")
REFUSED = NotSent("connection refused")


def answer(status: int, value: Any = None, **headers: str) -> Opened:
    fields = (("Content-Type", "application/json"), *headers.items())
    fields = tuple((name.replace("_", "-"), text) for name, text in fields)
    body = b"" if value is None else json.dumps(value).encode()
    return Opened(status, "", fields, body)


@dataclass
class Scripted:
    """Sends take ``sends`` in order, GET lookups take ``lookups``; running out is a failed test.
    ``on_wire`` lists every request that left, lookups included."""

    sends: list[Step] = field(default_factory=list)
    lookups: list[Step] = field(default_factory=list)
    on_wire: list[Request] = field(default_factory=list)

    @property
    def writes(self) -> list[Request]:
        return [r for r in self.on_wire if r.method != "GET"]

    async def open(self, request: Request, **kwargs: Any) -> NotSent | Lost | Opened:
        queue = self.lookups if request.method == "GET" else self.sends
        assert queue, f"unexpected {request.method} {request.url}"
        step = queue.pop(0)
        if (objection := objection_of(kwargs)) is not None:
            return NotSent(objection)
        if not isinstance(step, NotSent):
            self.on_wire.append(request)
        if callable(step):
            step = step(request)
            if asyncio.iscoroutine(step):
                step = await step
        assert isinstance(step, (NotSent, Lost, Opened))
        return step


def ruleset(*texts: str) -> RuleSet:
    return RuleSet([load_text(text).service for text in texts])


@dataclass
class Proxy:
    """One life of the proxy after another, over the same ledger."""

    rules: RuleSet
    api: Scripted = field(default_factory=Scripted)
    settings: Settings = field(default_factory=lambda: Settings(policy=Policy(digest_key=b"d")))
    clock: FakeClock = field(default_factory=FakeClock)
    ledger: Ledger = None  # type: ignore[assignment]
    rights: Rights | None = None

    def __post_init__(self) -> None:
        if self.ledger is None:
            self.ledger = MemoryLedger(self.clock)
        self.start()

    def start(self) -> None:
        made, callers, _ = engine(
            self.ledger,
            self.api,
            self.clock,
            self.rules,
            settings=self.settings,
            rights=self.rights,
        )
        self.engine, self.callers, self.recovery = made, callers, Recovery(made)
        assert isinstance(made.metrics, Metrics)
        self.metrics = made.metrics

    async def restart(self, *, seconds: float = 1.0) -> None:
        """The process is gone with all it had in memory; some time later a new one starts."""
        self.clock.advance(seconds)
        self.start()
        await self.recovery.start()

    async def call(self, arrival: Arrival, *, heard: bool = True) -> Reply:
        """Make a call; ``heard``: its caller gets the whole answer."""
        reply = await self.callers.handle(arrival)
        reply.delivered(heard)
        return reply

    def operation(self, base: str, version: int = 1) -> Operation:
        found = self.ledger.get(f"{base}/v{version}")
        assert found is not None, f"no operation {base}/v{version}"
        return found


def code(reply: Reply) -> str:
    """The refusal code of a problem document, or of an error of JSON-RPC."""
    value = json.loads(_bytes(reply))
    value = value["error"]["data"] if "jsonrpc" in value else value
    return str(value["type"]).removeprefix("urn:onceproxy:")


def fields(reply: Reply) -> dict[str, Any]:
    value = json.loads(_bytes(reply))
    assert isinstance(value, dict)
    return value


def _bytes(reply: Reply) -> bytes:
    data = getattr(reply.body, "data", None)
    assert isinstance(data, bytes)
    return data


__all__ = [
    "LOST",
    "REFUSED",
    "Path",
    "Proxy",
    "Scripted",
    "Sequence",
    "answer",
    "code",
    "fields",
    "ruleset",
]
