"""One line of the drill: one point, one kind of API, one kill, one restart, one verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxy.drill.agent import Call, Plan
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
    moment: str | None = None
    release: str = "asked"


POINTS: Mapping[str, Point] = {
    point.name: point
    for point in (
        Point("before_intent", "before_intent", "nothing recorded, nothing sent", False),
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
    )
}


@dataclass(frozen=True, slots=True)
class Line:
    """What one line found. ``attempts`` and ``state`` are the ledger's, ``answer`` is the status
    that the resumed agent got, ``why`` says what does not hold."""

    point: str
    kind: str
    effects: int = 0
    attempts: int = 0
    state: str = "-"
    answer: int = 0
    outcome: str = "-"
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

    @property
    def call(self) -> Call:
        return self.target.call(self.kind, self.reference)

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
        hold = await self._killed()
        await self.proxy.start()
        first = await self._resume()
        if hold is not None:
            await hold.release()  # where no later call has done so: the effect still comes
        again = await self._resume()
        if not first or not again:
            return self._end("the resumed agent got no answer")
        if (again["status"], again["body"]) != (first["status"], first["body"]):
            self.wrong.append("the repeated call got another answer")
        operations = await self.proxy.operations(self.reference)
        last = operations[-1] if operations else {}
        effects = await self.target.count(self.reference)
        state = str(last.get("state", "not in the ledger"))
        wrong = judge(self.point, self.kind, effects, state, again["status"])
        return self._end(
            *([wrong] if wrong else []),
            effects=effects,
            attempts=sum(int(operation["attempts"]) for operation in operations),
            state=state,
            answer=again["status"],
            outcome=first["outcome"] or "-",
        )

    def _end(self, *wrong: str, **found: Any) -> Line:
        return Line(self.point.name, self.kind, why=(*self.wrong, *wrong), **found)

    async def _killed(self) -> Hold | None:
        """The first call, up to the death of the proxy; the hold that is still closed, if any."""
        hold: Hold | None = None
        if self.point.moment is not None:
            hold = await self.target.hold(self.reference, self.point.moment, self.point.release)
        faults = {self.point.failpoint: "kill", "match": f"{self.reference}/*"}
        child = await self.proxy.start(None if hold else faults)
        async with agent(Plan((self.call,), self.proxy.address), self.proxy.folder) as caller:
            if hold is not None:
                await _first_of(hold.reached(), caller.ended())
                await child.kill()
            told = [line async for line in caller.lines()]
            if any(line["event"] == "end" for line in told):
                self.wrong.append("the kill came too late: the agent had its answer")
                return hold
        if not await _died(child):
            self.wrong.append(f"the failpoint {self.point.failpoint} was not reached")
        if hold is not None and self.point.release == "asked":
            await hold.release()
            return None
        return hold

    async def _resume(self) -> dict[str, Any]:
        """The agent started again, with the same run and step; what it was told in the end."""
        async with agent(Plan((self.call,), self.proxy.address), self.proxy.folder) as caller:
            ends = [line async for line in caller.lines() if line["event"] == "end"]
        return ends[-1] if ends else {}


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
