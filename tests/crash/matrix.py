"""Every crash schedule of three successive lives, judged by what the API counted.

A life makes the call, may be killed at any boundary of the engine's loop, and meets an API that
cannot be reached, rejects, loses the call before or after its effect, or answers. After the third
life an undisturbed one repeats the call until it gets a final answer.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from proxy.callers import Callers
from proxy.core.matching import RuleSet
from proxy.core.operation import State
from proxy.engine import Engine
from proxy.ledger.memory import MemoryLedger
from proxy.net.exchange import Arrival, Reply
from proxy.recovery import Recovery
from tests.fakes.clock import FakeClock
from tests.fakes.world import BEHAVIOURS, Api, body_of, engine, outcome, post

LIVES = 3
KINDS = ("keyed", "queried", "plain", "given", "batch")
BODIES: dict[str, Any] = {"batch": {"items": [{"n": 1}, {"n": 2}]}}


@dataclass(frozen=True)
class Life:
    point: str | None
    behaviour: str


def lives() -> tuple[Life, ...]:
    """What may happen in one life. Before the send the API's behaviour plays no part."""
    early = [Life(point, "answers") for point in ("before_intent", "after_intent")]
    late = [
        Life(point, behaviour)
        for point in ("during_call", "after_effect", "after_outcome", None)
        for behaviour in BEHAVIOURS
        # It dies during the call only where the call gets as far as an effect.
        if not (point == "during_call" and behaviour in ("rejects", "refuses", "loses_before"))
    ]
    return (*early, *late)


@dataclass
class World:
    """What outlives the proxy's process, and how it came about."""

    clock: FakeClock
    api: Api
    ledger: MemoryLedger
    story: tuple[Life, ...] = ()
    not_sent: int = 0
    schedules: int = 1

    @property
    def signature(self) -> object:
        """What the next life can tell apart. Times are left out: no schedule comes near a
        window."""
        operations = [
            (
                operation.key,
                operation.state,
                operation.blocked_by,
                operation.outcome is not None,
                operation.delivered_epoch,
                tuple((a.end, a.keyed) for a in operation.attempts),
            )
            for operation in self.ledger._operations.values()
        ]
        made = len(self.api.effects), tuple(sorted(self.api.by_key))
        return tuple(operations), made, self.not_sent, self.api.sends


def call(kind: str) -> Arrival:
    return post(f"/{kind}", BODIES.get(kind, {"amount": 500}))


async def worlds(kind: str, rules: RuleSet) -> list[World]:
    """Every world that three lives can leave behind. Lives that lead to the same world are followed
    once, and counted."""
    clock = FakeClock()
    reached = [World(clock, Api(clock), MemoryLedger(clock))]
    for _ in range(LIVES):
        found: dict[object, World] = {}
        for world in reached:
            for life in lives():
                after = await _live(kind, copy.deepcopy(world), life, rules)
                same = found.setdefault(after.signature, after)
                if same is not after:
                    same.schedules += after.schedules
        reached = list(found.values())
    return reached


async def _live(kind: str, world: World, life: Life, rules: RuleSet) -> World:
    world.api.script = [life.behaviour]
    made, callers, kill = engine(world.ledger, world.api, world.clock, rules, point=life.point)
    await Recovery(made).start()
    reply = await callers.handle(call(kind))
    if not kill.struck:
        reply.delivered(True)
    await _quiet(made)
    world.not_sent += life.point == "after_intent" and kill.struck
    world.not_sent += life.behaviour == "refuses" and not world.api.script
    world.api.script, world.api.on_effect = [], None
    world.clock.advance(1.0)
    world.story = (*world.story, life)
    return world


async def violations(kind: str, world: World, rules: RuleSet) -> list[str]:
    """What went wrong on the way to this world, seen by an undisturbed life that repeats the call;
    empty if every promise was kept."""
    made, callers, _ = engine(world.ledger, world.api, world.clock, rules)
    await Recovery(made).start()
    reply = await _final(callers, kind, world.clock)
    again = await callers.handle(call(kind))
    return list(_judge(kind, world.api, world.ledger, reply, again, world.not_sent))


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


async def _final(callers: Callers, kind: str, clock: FakeClock) -> Reply:
    for _ in range(12):
        reply = await callers.handle(call(kind))
        reply.delivered(True)
        if reply.status not in (403, 409, 502):
            return reply
        clock.advance(3.0)
    return reply


def _judge(
    kind: str, api: Api, ledger: MemoryLedger, reply: Reply, again: Reply, not_sent: int
) -> Iterator[str]:
    effects = len(api.effects) / len(BODIES.get(kind, {}).get("items", [1]))
    if effects > 1:
        yield f"{effects} effects"
    operation = ledger.find(f"run-1/step-1/world.{kind}.create")
    if operation is None:
        yield "no operation"
        return
    if kind != "plain" or reply.status == 200:
        if effects != 1:
            yield f"{effects} effects, answered {reply.status}"
        if reply.status != 200 or operation.state is not State.SUCCEEDED:
            yield f"not settled: {reply.status}, {operation.state}"
        elif body_of(reply) != body_of(again) or again.status != 200:
            yield "the duplicate got another answer"
        elif outcome(again) != "replayed":
            yield f"the duplicate was {outcome(again)}"
    elif reply.status != 424 or operation.state is not State.UNKNOWN:
        yield f"neither done nor honest: {reply.status}, {operation.state}"
    for each in ledger._operations.values():
        sent = {json.loads(r.body.data or b"")["id"] for r in api.seen if kind == "given"}
        if sent - {o.intent.obtained for o in ledger._operations.values()}:
            yield f"{each.key} was sent with an id that no intent has"
    attempts = sum(len(each.attempts) for each in ledger._operations.values())
    if attempts != api.sends + not_sent:
        yield f"{attempts} attempts for {api.sends} sends and {not_sent} not sent"
    if any(a.undecided for a in operation.attempts) and operation.state is State.SUCCEEDED:
        yield "succeeded with an undecided attempt"
