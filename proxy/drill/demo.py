"""``onceproxy demo``: the refund that was paid twice, then the same story with the proxy.

Everything in it is real: an API with a file of effects, an agent as a process, SIGKILL. Only the
money is not.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy.drill.agent import Call, Plan
from proxy.drill.processes import Child, DrillError, ProxyUnderDrill, agent
from proxy.drill.targets import Toy, toy

RUN = "support-case-1842"
STEP = "issue-refund"
COLOURS = {"red": 31, "green": 32, "bold": 1, "dim": 2}


@dataclass(slots=True)
class Teller:
    """Writes the story line by line. ``colour`` only where a terminal shows it."""

    write: Callable[[str], None] = print
    colour: bool = False

    def paint(self, colour: str, text: str) -> str:
        return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if self.colour else text

    def head(self, text: str) -> None:
        self.write("\n" + self.paint("bold", text))

    def say(self, text: str) -> None:
        self.write(f"  {text}")

    def aside(self, text: str) -> None:
        self.write("  " + self.paint("dim", text))

    def verdict(self, good: bool, text: str) -> None:
        self.write("  " + self.paint("green" if good else "red", text))


def teller() -> Teller:
    return Teller(colour=sys.stdout.isatty())


async def demo(tell: Teller) -> bool:
    """Tells both stories. True if the proxy kept its promise. Raises DrillError."""
    tell.write(
        "A support agent refunds 42.00 and is killed at the worst moment: the payment API has\n"
        "made the refund, and nobody has stored that. Then the agent is started again, as any\n"
        "job runner would do."
    )
    with tempfile.TemporaryDirectory(prefix="onceproxy-demo-") as name:
        folder = Path(name)
        async with toy(folder) as api:
            twice = await _without(api, folder, tell)
            once = await _with(api, folder, tell)
    tell.head("What happened")
    tell.say(f"without onceproxy: {_refunds(twice)}    with onceproxy: {_refunds(once)}")
    tell.aside("The agent's code was the same both times. See README for how to point yours at it.")
    return once == 1


async def _without(api: Toy, folder: Path, tell: Teller) -> int:
    tell.head("1. Without onceproxy")
    call = _refund(api, "case-1842 without proxy")
    plan = Plan((call,), None)
    async with _at_the_worst_moment(api, call, plan, folder) as worker:
        tell.say("agent   POST /refunds 42.00")
        tell.say("API     refund made")
        await worker.kill()
    tell.say("agent   killed before it could store the answer  (kill -9)")
    tell.say("agent   started again: its notes say that the refund is still to do")
    end = await _to_the_end(plan, folder)
    tell.say(f"agent   POST /refunds 42.00 -> {end['status']} {_id(end)}")
    count = await api.count(_reference(call))
    tell.verdict(count == 1, f"The customer got {_refunds(count)}, {42 * count}.00 in all.")
    return count


async def _with(api: Toy, folder: Path, tell: Teller) -> int:
    tell.head("2. With onceproxy, the same agent and the same kill")
    call = _refund(api, "case-1842 with proxy")
    proxy = ProxyUnderDrill(folder, api.rules)
    try:
        await proxy.start()
        plan = Plan((call,), proxy.address)
        async with _at_the_worst_moment(api, call, plan, folder) as worker:
            tell.say(f"agent   POST /refunds 42.00  as run {RUN}, step {STEP}")
            tell.say(
                "proxy   the intent is on disk; sent under a key that follows from run and step"
            )
            tell.say("API     refund made")
            await asyncio.gather(worker.kill(), proxy.kill())
        tell.say("agent   killed, and the proxy with it  (kill -9)")
        await proxy.start()
        tell.say("proxy   started again: one operation whose outcome is not known")
        end = await _to_the_end(Plan((call,), proxy.address), folder)
        tell.say("agent   started again, makes the same call")
        tell.say("proxy   sends it under the same key; the API answers that it has it already")
        tell.say(f"agent   got {end['status']} {_id(end)}: true, and late")
        again = await _to_the_end(Plan((call,), proxy.address), folder)
        tell.say(f"agent   asks once more -> {again['status']} {_id(again)} ({again['outcome']})")
        operation = (await proxy.operations(RUN))[-1]
    finally:
        await proxy.kill()
    count = await api.count(_reference(call))
    tell.verdict(count == 1, f"The customer got {_refunds(count)}, {42 * count}.00 in all.")
    tell.aside(
        f"ledger: {operation['key']} is {operation['state']} after {operation['attempts']} attempts"
    )
    return count


def _refund(api: Toy, reference: str) -> Call:
    made = api.call("key", reference)
    return Call(RUN, STEP, made.method, made.url, made.body)


def _reference(call: Call) -> str:
    return str(json.loads(call.body)["reference"])


@asynccontextmanager
async def _at_the_worst_moment(
    api: Toy, call: Call, plan: Plan, folder: Path
) -> AsyncIterator[Child]:
    """The agent, while its request's effect is made and nothing is answered."""
    hold = await api.hold(_reference(call), "effect", "asked")
    if hold is None:
        raise DrillError("The toy API cannot hold a request")
    async with agent(plan, folder) as worker:
        await hold.reached()
        yield worker
    await hold.release()


async def _to_the_end(plan: Plan, folder: Path) -> Mapping[str, Any]:
    async with agent(plan, folder) as worker:
        async for line in worker.lines():
            if line["event"] == "end":
                return line
    raise DrillError("The agent got no answer")


def _refunds(count: int) -> str:
    return f"{count} refund" if count == 1 else f"{count} refunds"


def _id(end: Mapping[str, Any]) -> str:
    try:
        return str(json.loads(end["body"])["id"])
    except (ValueError, KeyError, TypeError):
        return "without id"
