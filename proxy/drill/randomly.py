"""Kills at random moments: many runs, many kills, and at the end no duplicate and nothing lost.

In each round the proxy is started, an agent resumes the run of the round before and begins a new
one, and the proxy is killed a random time after a random call has begun. Half of the calls wait for
a person, who approves them before the round after that. All choices come from the seed. What the
machine makes of a moment differs from time to time, so a seed repeats the choices exactly and the
schedule nearly.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from proxy.drill import kept
from proxy.drill.agent import Call, Plan
from proxy.drill.processes import Child, DrillError, ProxyUnderDrill, agent
from proxy.drill.targets import Toy

CALLS = 6  # of one run; two of each kind, the second of which needs an approval
REACH = 0.06  # seconds after a call has begun within which a kill falls: beyond a call's whole life
LATENCY = 0.01  # seconds a write takes at the API, so that some kills fall into the middle of it
FAULTS = ("drop_before", "drop_after", "error_before", "error_after", "cut", "delay")
TROUBLED = 0.15  # share of operations whose first request meets a fault of the API as well
ROUND_WITHIN = 120.0  # seconds


@dataclass(frozen=True, slots=True)
class Planned:
    """One operation of one run: its kind and reference."""

    kind: str
    reference: str
    run: str
    step: str
    large: bool = False  # of an amount that a person has to approve


@dataclass(slots=True)
class Report:
    """``wrong`` has one sentence for every operation that did not end as promised."""

    seed: int
    kills: int = 0
    operations: int = 0
    succeeded: int = 0
    unknown: int = 0  # honest ones, at the API with neither key nor query
    duplicates: int = 0
    lost: int = 0
    wrong_status: int = 0
    stuck: int = 0
    budget_resets: int = 0  # runs that were charged less than what has left, or less than before
    approvals: int = 0  # runs whose calls were not each approved once and sent once under it
    wrong: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.wrong

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}

    def count(self, planned: Planned, effects: int, state: str, end: dict[str, Any]) -> None:
        """Judges how one operation ended: its effects, the ledger's state, the agent's answer."""
        self.operations += 1
        fault = _fault(planned.kind, effects, state, end)
        if fault is None:
            self.succeeded += state == "succeeded"
            self.unknown += state == "unknown"
            return
        self.fault(
            fault,
            f"{planned.reference} ({planned.kind}): {effects} effects, {state}, "
            f"answer {end.get('status', 'none')} {end.get('code', '')}".rstrip(),
        )

    def count_run(
        self, run: str, told: dict[str, Any], states: Sequence[str], approvals: Sequence[str]
    ) -> None:
        """Judges a run that was closed at the end, by what became of its operations and what its
        approvals have come to."""
        if list(approvals) != ["consumed"] * (CALLS // 2):
            self.fault("approvals", f"{run}: {', '.join(approvals) or 'none'}")
        charged = int(told["budget"]["writes"]["used"])
        if charged != len(states):
            self.fault("budget_resets", f"{run}: {charged} writes charged for {len(states)}")
        status = "completed_with_unknown" if "unknown" in states else "completed"
        if told["status"] != status:
            self.fault("wrong_status", f"{run} is {told['status']}, not {status}")

    def fault(self, name: str, sentence: str) -> None:
        setattr(self, name, getattr(self, name) + 1)
        self.wrong.append(f"{name}: {sentence}")


def _fault(kind: str, effects: int, state: str, end: dict[str, Any]) -> str | None:
    if effects > 1:
        return "duplicates"
    if state in ("in_flight", "not_applied", "not in the ledger") or not end:
        return "stuck"
    if end["code"] in ("outcome-unknown", "operation-in-progress"):
        return "stuck"
    done = 200 <= end["status"] < 300 or end["code"] == "outcome-not-kept"
    if state == "succeeded" and done:
        return None if effects == 1 else "lost"
    if state == "unknown" and end["status"] == 424 and kind == "neither":
        return None
    return "wrong_status"


@dataclass(slots=True)
class RandomDrill:
    toy: Toy
    folder: Path
    seed: int
    ledger: str = "sqlite:ledger.db"
    tell: Callable[[str], None] = print
    runs: list[list[Planned]] = field(default_factory=list)
    charged: dict[str, int] = field(default_factory=dict)  # run -> writes, as last seen

    async def run(self, kills: int) -> Report:
        """``kills`` rounds, then everything once more in peace, then the count."""
        choice = random.Random(self.seed)
        report = Report(self.seed)
        proxy = ProxyUnderDrill(self.folder / "random", self.toy.rules, self.ledger)
        proxy.folder.mkdir()
        try:
            for number in range(kills):
                await self._new_run(number, choice)
                report.kills += await self._round(proxy, choice, report)
                if (number + 1) % 10 == 0:
                    self.tell(f"{number + 1} of {kills} kills")
            await proxy.start()
            await self._judge(proxy, report)
        finally:
            await proxy.kill()
        return report

    async def _new_run(self, number: int, choice: random.Random) -> None:
        run = f"random-{self.seed}-{number}"
        planned = []
        for step in range(CALLS):
            kind = self.toy.kinds[step % len(self.toy.kinds)]
            reference = f"{run}-{step}"
            large = step >= CALLS // 2
            planned.append(Planned(kind, reference, run, f"step-{step}", large))
            if choice.random() < TROUBLED:
                await self.toy.trouble(reference, choice.choice(FAULTS), choice.random() * REACH)
        self.runs.append(planned)

    def _call(self, planned: Planned) -> Call:
        call = self.toy.call(planned.kind, planned.reference, large=planned.large)
        return Call(planned.run, planned.step, call.method, call.url, call.body, call.headers)

    async def _round(self, proxy: ProxyUnderDrill, choice: random.Random, report: Report) -> int:
        """One start, one kill. Returns how many kills there were: 0 if the agent was done first."""
        planned = [one for run in self.runs[-2:] for one in run]
        at, after = choice.randrange(len(planned)), choice.random() * REACH
        child = await proxy.start()
        await kept.grant(proxy)
        for run in (planned[0].run, planned[-1].run):
            await self._look(proxy, run, report)
        async with asyncio.timeout(ROUND_WITHIN), self._agent(proxy, planned) as caller:
            async for line in caller.lines():
                if line["event"] == "begin" and line["call"] == at:
                    await asyncio.sleep(after)
                    await child.kill()
        await child.kill()
        return int(child.killed)

    async def _look(self, proxy: ProxyUnderDrill, run: str, report: Report) -> None:
        """A run's budget holds just what it is to do; what was charged stays charged."""
        if run not in self.charged:
            await proxy.ask("PUT", f"/v1/runs/{run}/budget", {"writes": CALLS})
        told = await proxy.ask("GET", f"/v1/runs/{run}/budget")
        writes, limit = (told["budget"]["writes"][name] for name in ("used", "limit"))
        if writes < self.charged.get(run, 0) or limit != CALLS:
            report.fault("budget_resets", f"{run}: {self.charged[run]}, then {writes} of {limit}")
        self.charged[run] = writes

    @asynccontextmanager
    async def _agent(self, proxy: ProxyUnderDrill, planned: list[Planned]) -> AsyncIterator[Child]:
        calls = tuple(self._call(one) for one in planned)
        async with agent(Plan(calls, proxy.address), proxy.folder) as caller:
            yield caller

    async def _judge(self, proxy: ProxyUnderDrill, report: Report) -> None:
        for run in self.runs:
            await self._ends(proxy, run)  # what has not been asked for is asked for now
            await kept.grant(proxy)
            ends = await self._ends(proxy, run)
            if proxy.child is None or proxy.child.process.returncode is not None:
                raise DrillError("The proxy ended by itself in the last, quiet round")
            states = {
                operation["step"]: str(operation["state"])
                for operation in await proxy.operations(run[0].run)
            }
            for number, one in enumerate(run):
                effects = await self.toy.count(one.reference)
                state = states.get(one.step, "not in the ledger")
                report.count(one, effects, state, ends.get(number, {}))
            name = run[0].run
            await self._look(proxy, name, report)
            approvals = await kept.approvals(proxy, name)
            told = await proxy.ask("POST", f"/v1/runs/{name}/close", {})
            report.count_run(name, told, list(states.values()), approvals)

    async def _ends(self, proxy: ProxyUnderDrill, run: list[Planned]) -> dict[int, dict[str, Any]]:
        """How each call of a run ends when nothing disturbs it."""
        ends: dict[int, dict[str, Any]] = {}
        async with asyncio.timeout(ROUND_WITHIN), self._agent(proxy, run) as caller:
            async for line in caller.lines():
                if line["event"] == "end":
                    ends[line["call"]] = line
        return ends
