"""An API for the field reports, the rules for it, and one proxy after another in front of it.

The API counts effects: what has happened in the world, whatever anybody says about it. ``fates``
says what becomes of its next writes, in order; a write without one goes well. ``{R, S}`` of the
reports are run and step; K0 to K5 are the moments at which something dies.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from proxy.core.model import Body, Lost, NotSent, Request
from proxy.core.operation import Kind, Operation, State
from proxy.core.runs import next_epoch
from proxy.engine import Settings
from proxy.ledger.base import Query
from proxy.net.exchange import Arrival, Reply
from tests.fakes.clock import FakeClock
from tests.fakes.scripted import LOST, Proxy, answer, ruleset
from tests.fakes.world import Opened, body_of, objection_of, outcome, post

HOST = "api.world.test"
HEAD = f"""\
service: world
hosts: [{HOST}]
source: tests/reports/service.py
confidence: documented
checked: "2026-11-30"
"""
KEYED = """\
key: {in: header, name: Idempotency-Key, valid_for: 24h, keeps: success}
answers:
  - {header: {Idempotent-Replayed: "true"}, replayed: true}
"""
LOOKUP = """\
    marker: {in: json, name: ref}
    reconcile:
      request: GET %s
      items: data
      where: {ref: "{key}"}
      running: 60s
      settle: 5s
      looks: 2
      answer: {status: 201, body: "{item}"}
"""


def rule(*endpoints: str, top: str = "key: none\n") -> str:
    """A rule file with these endpoints."""
    return HEAD + top + "endpoints:\n" + "".join(endpoints)


def endpoint(name: str, match: str, *lines: str) -> str:
    """One entry; its lines stand at the depth of ``match``."""
    head = f"  {name}:\n    match: {match}\n    external_id: id\n"
    return head + "".join(f"    {line}\n" for line in lines)


def keyed(path: str, *lines: str) -> str:
    """An API that honours a key at this path."""
    return rule(endpoint("made", f"POST {path}", *lines), top=KEYED)


def queried(path: str, *lines: str) -> str:
    """One without keys that can be asked what it has."""
    return rule(endpoint("made", f"POST {path}", *lines) + LOOKUP % path)


def blind(path: str, *lines: str) -> str:
    """One with neither."""
    return rule(endpoint("made", f"POST {path}", *lines))


Result = NotSent | Lost | Opened
Act = Callable[["Service", Request], Result]
Fate = Callable[["Service", Request], Awaitable[Result]]


def make(service: Service, request: Request) -> Result:
    """What the API does unless a test says otherwise: one more object, or the one of this key."""
    key = request.header("Idempotency-Key")
    if key is not None and (key, request.path) in service.kept:
        return answer(201, service.kept[key, request.path], Idempotent_Replayed="true")
    effect = {"id": f"ob_{len(service.effects) + 1}", **json_of(request)}
    service.happened(request.path, effect)
    if key is not None and service.honours_keys:
        service.kept[key, request.path] = effect
    return answer(201, effect, X_Request_Id=f"req_{len(service.wire)}")


def show(service: Service, request: Request) -> Result:
    """A lookup or any other read: the objects made at that path."""
    path = request.path
    wanted = dict(parse_qsl(request.target.partition("?")[2]))
    found = [
        effect
        for where, at, effect in service.effects
        if where == path and at + service.lag <= service.clock.time()
    ]
    found = [e for e in found if all(e.get(k) == v for k, v in wanted.items())]
    return answer(200, {"data": found})


@dataclass
class Service:
    """``wire``: every write that came, in order; ``reads``: every GET; ``working``: how many writes
    are being worked on, ``most`` at once. ``lag``: seconds until a read shows an effect."""

    clock: FakeClock
    act: Act = make
    look: Act = show
    honours_keys: bool = True
    lag: float = 0.0
    fates: list[Fate] = field(default_factory=list)
    effects: list[tuple[str, float, dict[str, Any]]] = field(default_factory=list)
    kept: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    wire: list[Request] = field(default_factory=list)
    reads: list[Request] = field(default_factory=list)
    working: int = 0
    most: int = 0

    def happened(self, path: str, effect: dict[str, Any]) -> None:
        self.effects.append((path, self.clock.time(), effect))

    async def open(self, request: Request, **kwargs: Any) -> Result:
        if request.method == "GET":
            self.reads.append(request)
            return self.look(self, request)
        if kwargs.get("stream") is not None:  # a call that is passed on unread
            data = b"".join([chunk async for chunk in kwargs["stream"]])
            request = request.with_(body=Body.of(data))
        if (objection := objection_of(kwargs)) is not None:
            return NotSent(objection)
        self.wire.append(request)
        self.working += 1
        self.most = max(self.most, self.working)
        try:
            fate = self.fates.pop(0) if self.fates else well
            return await fate(self, request)
        finally:
            self.working -= 1

    def made(self, path: str | None = None) -> int:
        """How many effects there are: the only judge of duplicates."""
        return sum(path is None or where == path for where, _, _ in self.effects)

    @property
    def keys(self) -> set[str | None]:
        return {request.header("Idempotency-Key") for request in self.wire}


# Fates


async def well(service: Service, request: Request) -> Result:
    return service.act(service, request)


async def lost_after(service: Service, request: Request) -> Result:
    """The effect is made, its answer never comes."""
    service.act(service, request)
    return LOST


async def lost_before(service: Service, request: Request) -> Result:
    """Bytes left, nothing came of them."""
    return LOST


def slow(seconds: float, fate: Fate = well) -> Fate:
    async def wait(service: Service, request: Request) -> Result:
        await service.clock.sleep(seconds)
        return await fate(service, request)

    return wait


def says(status: int, value: Any = None, *, acts: bool = False, **headers: str) -> Fate:
    """That answer; ``acts``: and the effect is made all the same."""

    async def tell(service: Service, request: Request) -> Result:
        if acts:
            service.act(service, request)
        return answer(status, {"error": status} if value is None else value, **headers)

    return tell


class Held:
    """A write that stays in the API until ``go_on``; ``reached`` returns when it is there.
    ``acts``: its effect is made before it is held."""

    def __init__(self, *, acts: bool = True) -> None:
        self._acts, self._there, self._open = acts, asyncio.Event(), asyncio.Event()

    async def __call__(self, service: Service, request: Request) -> Result:
        result = service.act(service, request) if self._acts else None
        self._there.set()
        await self._open.wait()
        return service.act(service, request) if result is None else result

    async def reached(self) -> None:
        await asyncio.wait_for(self._there.wait(), 10)

    def go_on(self) -> None:
        self._open.set()


# The world


@dataclass
class World:
    """One proxy in front of the API; ``kill`` ends its life, ``restart`` begins the next."""

    rules: str
    clock: FakeClock = field(default_factory=FakeClock)
    settings: Settings | None = None
    service: Service = None  # type: ignore[assignment]
    proxy: Proxy = None  # type: ignore[assignment]
    said: list[tuple[Arrival, Reply]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.service = Service(self.clock)
        more = {} if self.settings is None else {"settings": self.settings}
        self.proxy = Proxy(ruleset(self.rules), self.service, clock=self.clock, **more)  # type: ignore[arg-type]

    async def post(
        self,
        path: str,
        body: Any,
        run: str | None = "R",
        step: str | None = "S",
        *,
        method: str = "POST",
        heard: bool = True,
        **more: Any,
    ) -> Reply:
        """A call of an agent with {R, S}; ``heard``: it gets the whole answer (else K4)."""
        arrival = post(path, body, run=run, step=step, method=method, host=HOST, **more)
        reply = await self.proxy.call(arrival, heard=heard)
        self.said.append((arrival, reply))
        return reply

    def begin(self, *args: Any, **more: Any) -> asyncio.Task[Reply]:
        """The same, not waited for. Cancelling it is a client that hangs up."""
        return asyncio.create_task(self.post(*args, **more))

    async def kill(self) -> None:
        """SIGKILL: what was under way in the proxy goes nowhere, its memory is gone."""
        flights = list(self.proxy.engine._flights.values())
        tasks = [flight.task for flight in flights if flight.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def restart(self, seconds: float = 1.0) -> None:
        await self.kill()
        await self.proxy.restart(seconds=seconds)

    async def resume(self, run: str = "R") -> None:
        """The agent's next start under the same run id."""
        await self.proxy.ledger.amend(run, next_epoch(0.0))

    async def settle(self, seconds: float, every: float = 5.0) -> None:
        """Time passes with nobody calling; the proxy settles what it can."""
        while seconds > 0:
            self.clock.advance(min(every, seconds))
            seconds -= every
            await self.proxy.recovery.settle_all()

    async def operations(self) -> list[Operation]:
        return list(await self.proxy.ledger.operations(Query(limit=1_000)))

    async def states(self) -> list[State | None]:
        return sorted(operation.state for operation in await self.operations())

    async def history(self, reply: Reply | None = None) -> list[Kind]:
        """Event kinds of all runs, or of the operation that this answer is about."""
        events = await self.proxy.ledger.events(0, 10_000)
        key = None if reply is None else header(reply, "Onceproxy-Operation")
        return [e.event.kind for e in events if key is None or e.key == key]

    def suppressed(self, how: str) -> int:
        calls = self.proxy.metrics.calls
        return sum(call[0] == "suppressed" and call[-1] == how for call in calls)


@asynccontextmanager
async def world(rules: str, **more: Any) -> AsyncIterator[World]:
    """A world, and what holds at the end of every report: the history has only grown, and a new
    process over the same ledger answers each call that had succeeded as before, sending nothing.
    """
    w = World(rules, **more)
    yield w
    before = await w.proxy.ledger.events(0, 10_000)
    effects, sent = w.service.made(), len(w.service.wire)
    await w.restart()
    done: dict[str | None, tuple[Arrival, Reply]] = {}
    for arrival, reply in w.said:
        if reply.status < 400 and outcome(reply) and await _succeeded(w, reply):
            done.setdefault(header(reply, "Onceproxy-Operation"), (arrival, reply))
    for arrival, reply in done.values():
        again = await w.proxy.call(arrival)
        assert outcome(again) in ("replayed", "resolved")
        assert (again.status, body_of(again)) == (reply.status, body_of(reply))
    assert (w.service.made(), len(w.service.wire)) == (effects, sent)
    after = await w.proxy.ledger.events(0, 10_000)
    assert after[: len(before)] == before


async def _succeeded(w: World, reply: Reply) -> bool:
    key = header(reply, "Onceproxy-Operation")
    operation = None if key is None else w.proxy.ledger.get(key)
    return operation is not None and operation.state is State.SUCCEEDED


def header(reply: Reply, name: str) -> str | None:
    return next((v for k, v in reply.headers if k.lower() == name.lower()), None)


def json_of(message: Request | Reply) -> Any:
    data = message.body.data if isinstance(message, Request) else body_of(message)
    return json.loads(data or b"{}")
