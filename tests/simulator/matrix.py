"""An endpoint is killed and resumed in every way, and what its service counted is judged.

In one life of the proxy the agent makes its call until it gets a final answer. The proxy may be
killed at any boundary of the engine's loop, and the first send may meet a service that cannot be
reached, refuses, throttles, fails before or after its effect, is slow, or whose connection breaks.
Between two lives a second passes, or most of the key's window, or more than all of it. After the
last life an undisturbed one repeats the call.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from proxy.callers import Callers
from proxy.core.model import Identity
from proxy.core.operation import Operation, State
from proxy.core.sigv4 import AccessKey, sign
from proxy.engine import Engine, Settings
from proxy.ledger.memory import MemoryLedger
from proxy.net.exchange import Arrival, BytesInlet, Reply
from proxy.recovery import Recovery
from proxy.rulefile.testing import SENT_AT
from tests.fakes.clock import FakeClock
from tests.fakes.world import engine, outcome
from tests.simulator.service import Scenario, Service

CALLS = 12  # of one life; enough for two lookups that must agree a minute after the send
LATER = 3.0  # seconds until the agent repeats a call that it was told to repeat
BACKGROUND, BETWEEN = 3, 1500.0  # rounds and seconds; together longer than any lag is here
ACCESS_KEY = AccessKey("AKIDEXAMPLE", "secret")  # the agent's and the proxy's own
SETTINGS = Settings(
    secret_of=lambda auth: f"{ACCESS_KEY.id}\n{ACCESS_KEY.secret}" if auth.sigv4 else None
)
AGAIN = frozenset({"operation-in-progress", "outcome-unknown", "upstream-not-reached"})


@dataclass(frozen=True)
class Life:
    point: str | None
    behaviour: str
    pause: float = 1.0

    def __str__(self) -> str:
        killed = f" killed at {self.point}" if self.point else ""
        return f"{self.behaviour}{killed}, {self.pause:g}s"


def behaviours(scenario: Scenario) -> tuple[str, ...]:
    endpoint = scenario.endpoint
    found = ["answers", "refuses", "rejects", "throttles", "loses_before", "loses_after"]
    found += ["errs_before", "errs_after"]
    if endpoint.key is not None and endpoint.key.keeps == "all":
        found += ["fails_before", "fails_after"]
    if scenario.lookup is None or scenario.lookup.running > 0:
        found.append("slow")
    return tuple(found)


def mechanism(scenario: Scenario) -> object:
    """What decides how a scenario ends; endpoints that differ in nothing of it end alike."""
    endpoint, lookup, key = scenario.endpoint, scenario.lookup, scenario.endpoint.key
    return (
        key and (key.place, key.valid_for, key.keeps),
        endpoint.marker is not None and scenario.marked,
        lookup and (lookup.by, lookup.settle, lookup.running > 0, lookup.absent, lookup.looks),
        lookup and lookup.pages and lookup.pages.kind,
        endpoint.idempotent,
        endpoint.match and endpoint.match.method == "DELETE",
        endpoint.answer_format,
        tuple(scenario.example(means) is None for means in ("exists", "running", "accepted")),
    )


def pauses(scenario: Scenario) -> tuple[float, ...]:
    """Seconds between two lives: soon, and where it matters late in the key's window and after
    it."""
    key = scenario.endpoint.key
    if key is None or key.valid_for == math.inf:
        return 1.0, 3600.0
    if key.valid_for is None:
        return 1.0, 600.0
    return 1.0, 0.85 * key.valid_for, key.valid_for + 3600.0


def lives(scenario: Scenario) -> tuple[Life, ...]:
    """What may happen in one life. Before the send the service's behaviour plays no part."""
    early = [Life(point, "answers") for point in ("before_intent", "after_intent")]
    late = [
        Life(point, behaviour, pause)
        for point in ("during_call", "after_effect", "after_outcome", None)
        for behaviour in behaviours(scenario)
        # It dies during the call only where the call gets as far as an effect.
        if point != "during_call" or behaviour in ("answers", "loses_after", "errs_after")
        for pause in pauses(scenario)
    ]
    return (*early, *late)


FEW = (
    Life("after_intent", "answers"),
    Life("during_call", "answers"),
    Life("after_effect", "answers"),
    Life("after_outcome", "answers"),
    Life(None, "loses_before"),
    Life(None, "errs_after"),
)
"""Every point, and both ways in which an answer tells nothing."""


@dataclass
class World:
    """What outlives the proxy's process, and how it came about."""

    scenario: Scenario
    clock: FakeClock
    service: Service
    ledger: MemoryLedger
    story: tuple[Life, ...] = ()
    schedules: int = 1

    def __str__(self) -> str:
        return f"{self.scenario.title} [{'; '.join(map(str, self.story))}]"

    @property
    def signature(self) -> object:
        """What the next life can tell apart."""
        operations = [
            (
                operation.key,
                operation.state,
                operation.blocked_by,
                operation.outcome is not None,
                operation.delivered_epoch,
                tuple((a.end, a.keyed, a.status) for a in operation.attempts),
            )
            for operation in self.ledger._operations.values()
        ]
        service = self.service
        made = len(service.effects), len(service.late), tuple(sorted(service.keys))
        return tuple(operations), made, sum(life.pause for life in self.story)


def begun(scenario: Scenario, **habits: float) -> World:
    clock = FakeClock(SENT_AT)
    return World(scenario, clock, Service(scenario, clock, **habits), MemoryLedger(clock))


async def worlds(
    scenario: Scenario, steps: Sequence[Sequence[Life]], **habits: float
) -> list[World]:
    """Every world that lives of these kinds, one step after the other, can leave behind. Lives that
    lead to the same world are followed once, and counted."""
    reached = [begun(scenario, **habits)]
    for step in steps:
        found: dict[object, World] = {}
        for world in reached:
            for life in step:
                after = await _live(copy.deepcopy(world), life)
                same = found.setdefault(after.signature, after)
                if same is not after:
                    same.schedules += after.schedules
        reached = list(found.values())
    return reached


async def _live(world: World, life: Life) -> World:
    world.service.script = [life.behaviour]
    made, callers, kill = engine(
        world.ledger,
        world.service,
        world.clock,
        world.scenario.rules,
        point=life.point,
        settings=SETTINGS,
    )
    world.service.on_effect = kill.during
    await Recovery(made).start()
    await _called(world, callers, until=lambda: kill.struck)
    await _quiet(made)
    world.service.script, world.service.on_effect = [], None
    world.clock.advance(life.pause)
    world.story = (*world.story, life)
    return world


async def _called(world: World, callers: Callers, until: object = None) -> Reply:
    """The agent makes its call until it is told something final."""
    for _ in range(CALLS):
        reply = await callers.handle(arrival(world.scenario, world.clock.time()))
        if callable(until) and until():
            return reply  # nobody is there to hear it
        reply.delivered(True)
        if not _is_to_be_repeated(reply):
            return reply
        world.clock.advance(LATER)
    return reply


def _is_to_be_repeated(reply: Reply) -> bool:
    if outcome(reply) != "refused":
        return False
    text = repr(getattr(reply.body, "data", b""))
    return any(code in text for code in AGAIN)


def arrival(scenario: Scenario, now: float) -> Arrival:
    """Where AWS signs, with the signature of this moment."""
    data, request = scenario.request.body.data or b"", scenario.request
    auth = scenario.endpoint.auth
    if auth is not None and auth.sigv4 is not None:
        request = sign(request, ACCESS_KEY, auth.sigv4, now)
    request = request.with_(body=type(request.body).of(b""))
    return Arrival(
        request, Identity("run-1", "step-1"), content_length=len(data), inlet=BytesInlet(data)
    )


async def _quiet(made: Engine) -> None:
    """A killed life is over: nothing of it goes on."""
    for flight in list(made._flights.values()):
        if flight.patience is not None:
            flight.patience.cancel()
        if flight.task is not None and not flight.task.done():
            flight.task.cancel()
            try:
                await flight.task
            except BaseException:
                pass


@dataclass(frozen=True)
class End:
    """How a story ended: ``settled`` without a person, or not."""

    state: State | None
    effects: int
    violations: tuple[str, ...]

    @property
    def settled(self) -> bool:
        return self.state is not State.UNKNOWN


async def end(world: World) -> End:
    """An undisturbed life repeats the call, and goes on in the background for a while; what the
    agent is told must be true of what there is."""
    made, callers, _ = engine(
        world.ledger, world.service, world.clock, world.scenario.rules, settings=SETTINGS
    )
    recovery = Recovery(made)
    await recovery.start()
    await _called(world, callers)  # it may be told a refusal of before: then it tries anew
    reply = await _called(world, callers)
    for _ in range(BACKGROUND):
        operation = newest(world.ledger)
        if operation is None or operation.state is not State.UNKNOWN:
            break
        world.clock.advance(BETWEEN)
        await recovery.settle_all()
        reply = await _called(world, callers)
    again = await callers.handle(arrival(world.scenario, world.clock.time()))
    again.delivered(True)
    world.service.catch_up(all_of_it=True)
    operation = newest(world.ledger)
    state = operation.state if operation is not None else None
    found = tuple(_violations(world, operation, reply, again))
    return End(state, len(world.service.effects), found)


def newest(ledger: MemoryLedger) -> Operation | None:
    found = list(ledger._operations.values())
    return found[-1] if found else None


def _violations(
    world: World, operation: Operation | None, reply: Reply, again: Reply
) -> Iterator[str]:
    effects = len(world.service.effects)
    if effects > 1:
        yield f"{effects} effects"
    if world.service.mismatches:
        yield f"{world.service.mismatches} times another request under the same key"
    if operation is None:
        yield f"no operation, answered {reply.status}"
        return
    match operation.state:
        case State.SUCCEEDED:
            if effects != 1:
                yield f"succeeded, with {effects} effects"
            if operation.outcome is not None and operation.outcome.kept:
                if outcome(again) != "replayed":
                    yield f"the duplicate was {outcome(again)}"
                elif getattr(again.body, "data", None) != getattr(reply.body, "data", None):
                    yield "the duplicate got another answer"
        case State.UNKNOWN:
            if outcome(reply) != "refused":
                yield f"unknown, and yet the caller got {reply.status}"
        case _:
            if effects:
                yield f"{operation.state}, with {effects} effects"
