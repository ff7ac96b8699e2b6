"""A world for the engine: an API that does what a script says, and a proxy that can be killed.

The API is keyed, queryable or neither by its path; it counts effects, and every request on the
wire. It stands in for the network, so that thousands of schedules run in seconds. ``kill`` ends a
life of the proxy at a named moment; what it had in memory is gone, what its ledger holds stays.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxy.authority import Rights
from proxy.bound import Bound
from proxy.callers import Callers
from proxy.core.matching import RuleSet
from proxy.core.model import Body, Headers, Identity, Lost, NotSent, Request
from proxy.engine import Engine, Settings
from proxy.flights import Flight
from proxy.ledger.base import Ledger
from proxy.net.exchange import Arrival, BytesInlet, Reply
from proxy.rulefile.loader import load
from tests.fakes.clock import FakeClock

RULES = Path(__file__).parent.parent / "crash"
BEHAVIOURS = ("answers", "rejects", "refuses", "loses_before", "loses_after")
POINTS = ("before_intent", "after_intent", "during_call", "after_effect", "after_outcome")


class Killed(BaseException):
    """The proxy's process is gone."""


@dataclass
class Opened:
    status: int
    reason: str
    headers: Headers
    body: bytes
    length: int | None = None
    pipe: None = None

    async def read(self, limit: int) -> tuple[Body | None, bool]:
        return (Body.of(self.body) if len(self.body) <= limit else None), True

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self.body

    def close(self) -> None: ...


@dataclass
class Api:
    """``script``: what happens to the next sends, in order; then it answers. ``lag``: seconds until
    a lookup sees an effect."""

    clock: FakeClock
    script: list[str] = field(default_factory=list)
    lag: float = 0.0
    effects: list[dict[str, Any]] = field(default_factory=list)
    by_key: dict[str, dict[str, Any]] = field(default_factory=dict)
    sends: int = 0
    lookups: int = 0
    given: int = 0  # ids handed out before a call
    seen: list[Request] = field(default_factory=list)
    on_effect: Callable[[], None] | None = None

    async def open(self, request: Request, **kwargs: Any) -> NotSent | Lost | Opened:
        if request.method == "GET":
            self.lookups += 1
            now = self.clock.time()
            if request.path == "/ids":
                self.given += 1
                return _json(200, {"ids": [f"given_{self.given}"]})
            if request.path.startswith("/given/"):
                found = self.by_key.get(request.path.removeprefix("/given/"))
                return _json(404 if found is None else 200, found or {})
            data = [e for e in self.effects if e["at"] + self.lag <= now]
            return _json(200, {"data": data})
        behaviour = self.script.pop(0) if self.script else "answers"
        if behaviour == "refuses":
            return NotSent("connection refused")
        if (objection := objection_of(kwargs)) is not None:
            return NotSent(objection)
        self.sends += 1
        self.seen.append(request)
        on_sent = kwargs.get("on_sent")
        if on_sent is not None:
            on_sent()
        if behaviour == "loses_before":
            return Lost("connection reset")
        if behaviour == "rejects":  # and remembers nothing of it
            return _json(403, {"error": "not allowed just now"})
        answer = self._perform(request)
        if self.on_effect is not None:
            self.on_effect()
        if behaviour == "loses_after":
            return Lost("connection reset")
        return answer

    def _perform(self, request: Request) -> Opened:
        key = request.header("Idempotency-Key")
        if request.path == "/keyed" and key in self.by_key:
            return _json(200, self.by_key[key], (("Idempotent-Replayed", "true"),))
        assert request.body.data is not None
        body = json.loads(request.body.data)
        if request.path == "/given" and body["id"] in self.by_key:
            return _json(409, {"error": "exists"})
        if request.path == "/batch":
            self.effects += [{"at": self.clock.time(), **item} for item in body["items"]]
            return _json(200, {"items": body["items"]})
        effect = {"id": f"ob_{len(self.effects) + 1}", "at": self.clock.time(), **body}
        self.effects.append(effect)
        if key is not None or request.path == "/given":
            self.by_key[key or body["id"]] = effect
        return _json(200, effect)


def objection_of(options: dict[str, Any]) -> str | None:
    """What the gate of a send says, asked directly before its first byte."""
    gate = options.get("gate")
    return gate() if gate is not None else None


def _json(status: int, value: Any, headers: Headers = ()) -> Opened:
    fields = (("Content-Type", "application/json"), *headers)
    return Opened(status, "OK", fields, json.dumps(value).encode())


class Metrics:
    """Counts what the engine reports."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: self.calls.append((name, *args))


class KillAt:
    """Failpoints of one life: dies at the first of these moments, once."""

    enabled = False

    def __init__(self, point: str | None) -> None:
        self.point = point
        self.struck = False

    async def reach(self, point: str, operation_key: str) -> None:
        if point == self.point and not self.struck:
            self.struck = True
            raise Killed

    def during(self) -> None:
        """Called by the API when the effect is made and its answer is still on the way."""
        if self.point == "during_call" and not self.struck:
            self.struck = True
            raise Killed


def rules() -> RuleSet:
    return load([RULES])


def engine(
    ledger: Ledger,
    api: Any,
    clock: FakeClock,
    ruleset: RuleSet,
    *,
    point: str | None = None,
    settings: Settings | None = None,
    rights: Rights | None = None,
) -> tuple[Engine, Callers, KillAt]:
    """One life of the proxy."""
    kill = KillAt(point)
    if isinstance(api, Api):
        api.on_effect = kill.during
    made = Engine(
        ledger=ledger,
        rules=ruleset,
        upstream=api,
        clock=clock,
        metrics=Metrics(),
        settings=settings,
        rights=rights,
        failpoints=kill,  # type: ignore[arg-type]
    )
    depart = made.depart

    def depart_and_forget(bound: Bound) -> Flight:
        """A killed flight's task has an exception that nobody is left to ask for."""
        flight = depart(bound)
        assert flight.task is not None
        flight.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return flight

    made.depart = depart_and_forget  # type: ignore[method-assign]
    return made, Callers(made), kill


def post(
    path: str,
    body: Any,
    *,
    run: str | None = "run-1",
    step: str | None = "step-1",
    operation_id: str | None = None,
    headers: Iterable[tuple[str, str]] = (),
    host: str = "api.world.test",
    method: str = "POST",
) -> Arrival:
    data = json.dumps(body).encode()
    request = Request(
        method,
        "https",
        host,
        443,
        path,
        (("Content-Type", "application/json"), *headers),
    )
    return Arrival(
        request,
        Identity(run, step, operation_id),
        content_length=len(data),
        inlet=BytesInlet(data),
    )


def outcome(reply: Reply) -> str | None:
    return next((v for k, v in reply.headers if k == "Onceproxy-Outcome"), None)


def body_of(reply: Reply) -> bytes:
    assert isinstance(reply.body, Body)
    assert reply.body.data is not None
    return reply.body.data
