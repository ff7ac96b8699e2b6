"""One line of the drill: one point, one kind of API, one kill, one restart, one verdict."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from proxy.drill import kept
from proxy.drill.agent import Answer, Call, Plan, make, settled
from proxy.drill.kept import Kept
from proxy.drill.processes import Child, DrillError, ProxyUnderDrill, agent
from proxy.drill.targets import Hold, Target

LINE_WITHIN = 90.0  # seconds; an honest line takes two to five, a loaded machine more


@dataclass(frozen=True, slots=True)
class Point:
    """Where the proxy is killed. ``moment`` and ``release`` are set where the API tells the moment
    (see ``proxy.drill.trouble``); elsewhere, or if it cannot, ``failpoint`` strikes."""

    name: str
    failpoint: str
    story: str
    may_have_happened: bool = True
    intent: bool = True  # whether it is durable then
    moment: str | None = None
    release: str = "asked"


REVOKED = "revoked"  # here a person stops the run, and the kill comes after that
TOO_LATE = 3  # tries to revoke in time: a busy machine may take longer than the send waits
POINTS: Mapping[str, Point] = {
    point.name: point
    for point in (
        Point("before_intent", "before_intent", "nothing recorded, nothing sent", False, False),
        Point("after_intent", "after_intent", "intent durable, nothing sent"),
        Point("during_call", "during_call", "sent, effect made, no answer", moment="effect"),
        Point(
            "during_call_late",
            "during_call",
            "sent, effect made after the next look",
            moment="received",
            release="next_call",
        ),
        Point("after_effect", "after_effect", "answer here, nothing recorded"),
        Point("after_outcome", "after_outcome", "outcome durable, caller not told", False),
        Point(REVOKED, "after_intent", "run revoked after the intent, nothing sent; then killed"),
    )
}


@dataclass(frozen=True, slots=True)
class Line:
    """What one line found. ``attempts`` and ``state`` are the ledger's, ``answer`` is the status
    that the resumed agent got, ``before``, ``after`` and ``end`` what the run had then, ``why``
    says what does not hold."""

    point: str
    kind: str
    effects: int = 0
    attempts: int = 0
    state: str = "-"
    answer: int = 0
    outcome: str = "-"
    before: Kept | None = None
    after: Kept | None = None
    end: Kept | None = None
    why: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return not self.why


def judge(point: Point, kind: str, effects: int, state: str, answer: int) -> str | None:
    """What is wrong with this end, or None.

    With a key or a query the operation must have happened once and be known to have. An API with
    neither may leave it unknown, honestly told (424), if it may have happened; never twice."""
    if effects > 1:
        return f"{effects} effects: a duplicate"
    if state == "succeeded" and 200 <= answer < 300:
        return None if effects == 1 else "reported as done, but it never happened: lost"
    if state == "unknown" and answer == 424:
        if kind == "neither" and point.may_have_happened:
            return None
        return "unknown, though the API can tell"
    return f"ended as {state} with {answer}"


@dataclass(slots=True)
class Run:
    """One line while it is being run."""

    point: Point
    kind: str
    reference: str
    target: Target
    proxy: ProxyUnderDrill
    wrong: list[str] = field(default_factory=list)
    before: Kept | None = None
    thought: str | None = None  # what the model said before the kill

    @property
    def call(self) -> Call:
        return self.target.call(self.kind, self.reference, large=True)

    @property
    def plan(self) -> Plan:
        """Of the agent: it asks its model, where it has one, and then acts."""
        asks = self.target.model_call(self.reference)
        return Plan((*([asks] if asks else []), self.call), self.proxy.address)

    async def line(self) -> Line:
        try:
            async with asyncio.timeout(LINE_WITHIN):
                return await self._line()
        except TimeoutError:
            return self._end(f"not over after {LINE_WITHIN:.0f} s: stuck")
        except DrillError as error:
            return self._end(str(error))
        finally:
            await self.proxy.kill()

    async def _line(self) -> Line:
        if self.point.name == REVOKED:
            return await self._revoked()
        hold = await self._killed()
        await self.proxy.start()
        after = await kept.look(self.proxy, self.reference)
        first = await self._resume()
        if hold is not None:
            await hold.release()  # where no later call has done so: the effect still comes
        if not first:
            return self._end("the resumed agent got no answer")
        plan = Plan((), self.proxy.address)
        again = await asyncio.to_thread(settled, self.call, plan)
        if (again.status, again.body) != (first["status"], first["body"]):
            self.wrong.append("the repeated call got another answer")
        operations = await self.proxy.operations(self.reference)
        last = operations[-1] if operations else {}
        effects = await self.target.count(self.reference)
        turns = await self.target.turns(self.reference)
        if turns > kept.TURNS:
            self.wrong.append(f"the model was asked {turns} times")
        state = str(last.get("state", "not in the ledger"))
        end = await kept.close(self.proxy, self.reference)
        assert self.before is not None
        wrong = judge(self.point, self.kind, effects, state, again.status)
        lost = kept.faults(self.point.intent, self.before, after, end, state)
        return self._end(
            *([wrong] if wrong else []),
            *lost,
            before=self.before,
            after=after,
            end=end,
            effects=effects,
            attempts=sum(int(operation["attempts"]) for operation in operations),
            state=state,
            answer=again.status,
            outcome=first["outcome"] or "-",
        )

    async def _revoked(self) -> Line:
        """The intent is durable, the first byte has not left, and the run is revoked."""
        delay = 1.0
        for _ in range(TOO_LATE):
            answer, in_flight = await self._revoke_while_it_waits(delay)
            if in_flight:
                break
            delay *= 4
            self.reference += "-again"
        await self.proxy.kill()
        await self.proxy.start()
        after = await kept.look(self.proxy, self.reference)
        again = await self._asked(self.call)
        end = await kept.look(self.proxy, self.reference)
        operations = await self.proxy.operations(self.reference)
        effects = await self.target.count(self.reference)
        assert self.before is not None
        wrong = [*self.wrong, *kept.stopped(self.before, after, end)]
        if effects:
            wrong.append(f"{effects} effects after the revocation was acknowledged")
        if {answer.code, again.code} != {"authority-revoked"}:
            wrong.append(f"the answers were {answer.status} and {again.status}")
        if in_flight != [operation["key"] for operation in operations]:
            wrong.append(f"the revocation told of {in_flight or 'nothing'} on its way")
        self.wrong = []
        return self._end(
            *wrong,
            before=self.before,
            after=after,
            end=end,
            effects=effects,
            attempts=sum(int(operation["attempts"]) for operation in operations),
            state=str(operations[-1]["state"]) if operations else "not in the ledger",
            answer=again.status,
            outcome=again.outcome or "-",
        )

    async def _revoke_while_it_waits(self, delay: float) -> tuple[Answer, list[str]]:
        """The answer of the call that is stopped, and what was on its way by then."""
        faults = {"after_intent": "delay", "seconds": delay, "match": f"{self.reference}/*"}
        await self.proxy.kill()
        await self.proxy.start(faults)
        await self._prepare()
        call = asyncio.create_task(self._asked(self.call))
        while not call.done():
            found = await self.proxy.operations(self.reference)
            if any(operation["state"] == "in_flight" for operation in found):
                break
        told = await kept.revoke(self.proxy, self.reference)
        return await call, told

    def _end(self, *wrong: str, **found: Any) -> Line:
        return Line(self.point.name, self.kind, why=(*self.wrong, *wrong), **found)

    async def _killed(self) -> Hold | None:
        """The first call, up to the death of the proxy; the hold that is still closed, if any."""
        hold: Hold | None = None
        if self.point.moment is not None:
            hold = await self.target.hold(self.reference, self.point.moment, self.point.release)
        faults = {self.point.failpoint: "kill", "match": f"{self.reference}/*"}
        child = await self.proxy.start(None if hold else faults)
        await self._prepare()
        plan = self.plan
        async with agent(plan, self.proxy.folder) as caller:
            if hold is not None:
                await _first_of(hold.reached(), caller.ended())
                await child.kill()
            *thoughts, act = await _ends(caller, plan)
            if act is not None:
                self.wrong.append("the kill came too late: the agent had its answer")
                return hold
            self.thought = thoughts[0]["body"] if thoughts and thoughts[0] else None
        if not await _died(child):
            self.wrong.append(f"the failpoint {self.point.failpoint} was not reached")
        if hold is not None and self.point.release == "asked":
            await hold.release()
            return None
        return hold

    async def _prepare(self) -> None:
        """The run as it is when the call that meets the kill is made: with something to spend, a
        checkpoint, and an approval where the rule asks for one."""
        await kept.prepare(self.proxy, self.reference)
        if self.target.asks:
            held = await self._asked(self.call)
            if held.outcome != "held":
                self.wrong.append(f"{held.status} before anybody has approved")
            await kept.grant(self.proxy)
            other = replace(self.call, body=self.call.body.replace('"amount": ', '"amount": 1'))
            swapped = await self._asked(other)
            if swapped.status != 422:
                self.wrong.append(f"{swapped.status} for an amount that nobody has approved")
        self.before = await kept.look(self.proxy, self.reference)

    async def _asked(self, call: Call) -> Answer:
        """One call, made here; of status 0 if the connection broke."""
        try:
            return await asyncio.to_thread(make, call, self.proxy.address)
        except (OSError, http.client.HTTPException):
            return Answer(0, None, "", 0.0)

    async def _resume(self) -> dict[str, Any]:
        """The agent started again, with the same run and step; what it was told in the end."""
        await kept.resume(self.proxy, self.reference)
        plan = self.plan
        async with agent(plan, self.proxy.folder) as caller:
            *thoughts, act = await _ends(caller, plan)
        if [thought and thought["body"] for thought in thoughts] != [self.thought] * len(thoughts):
            self.wrong.append("the resumed agent's model said something else")
        return act or {}


async def _ends(caller: Child, plan: Plan) -> list[dict[str, Any] | None]:
    """How each call of the plan ended, None for those that did not."""
    ends: list[dict[str, Any] | None] = [None] * len(plan.calls)
    async for line in caller.lines():
        if line["event"] == "end":
            ends[line["call"]] = line
    return ends


async def _first_of(*waits: Any) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _died(child: Child) -> bool:
    """Whether it was killed; ends it if it lives."""
    try:
        # The agent has seen its connection break: the process is gone or never will be.
        async with asyncio.timeout(5.0):
            await child.ended()
    except TimeoutError:
        await child.kill()
        return False
    return child.killed


def line_of(point: Point, kind: str, tag: str, target: Target, folder: Path, ledger: str) -> Run:
    """Prepares one line with a proxy and a ledger of its own in ``folder``. ``tag`` makes the
    operation unique at a server that outlives the drill."""
    reference = f"drill-{point.name.replace('_', '-')}-{kind}-{tag}"
    own = folder / reference
    own.mkdir(parents=True)
    return Run(point, kind, reference, target, ProxyUnderDrill(own, target.rules, ledger))
