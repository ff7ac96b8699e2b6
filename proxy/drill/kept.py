"""What a run must not lose, and what became of it: looked at before the kill, after it, at the end.

Each line has a budget of one write and one turn of a model, an approval where its rule asks for
one, a checkpoint, and the journal of the model's answer in play at once. A kill changes none of
them: what the intent has charged and consumed is charged and consumed, and nothing else is; the
resumed agent is given the answer that it has acted on, and the model is not asked again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import quote

from proxy.drill.processes import DrillError, ProxyUnderDrill

WRITES = TURNS = 1  # of a line's run: a unit that is charged twice is one too many
NOTES = {"case": 1842, "done": ["looked up the order"]}  # what the agent saves


@dataclass(frozen=True, slots=True)
class Kept:
    """``writes``, ``turns``, ``tokens``: charged to the run so far; ``approvals``: their states,
    oldest first; ``checkpoint``: the newest version, 0 where its content is not what was saved."""

    writes: int
    turns: int
    tokens: int
    approvals: tuple[str, ...]
    checkpoint: int
    status: str


async def prepare(proxy: ProxyUnderDrill, run: str) -> None:
    """Before its first call: what the run may spend, and what it goes on from."""
    await proxy.ask("PUT", _path(run, "/budget"), {"writes": WRITES, "turns": TURNS})
    await _save(proxy, run, 0)


async def look(proxy: ProxyUnderDrill, run: str) -> Kept:
    told = await proxy.ask("GET", _path(run))
    found = await proxy.ask("GET", _path(run, "/checkpoint"))
    used = {kind: int(counted["used"]) for kind, counted in told["budget"].items()}
    return Kept(
        used["writes"],
        used["turns"],
        used["tokens"],
        await approvals(proxy, run),
        int(found["version"]) if found.get("state") == NOTES else 0,
        str(told["status"]),
    )


async def approvals(proxy: ProxyUnderDrill, run: str) -> tuple[str, ...]:
    """The states of a run's approvals, oldest first."""
    asked = (await proxy.ask("GET", "/v1/approvals"))["approvals"]
    mine = sorted((one for one in asked if one["run"] == run), key=lambda one: one["requested_at"])
    return tuple(one["state"] for one in mine)


async def resume(proxy: ProxyUnderDrill, run: str) -> None:
    """A new start of the run, as an agent that goes on from its checkpoint begins it."""
    await proxy.ask("POST", _path(run, "/resume"), {})


async def grant(proxy: ProxyUnderDrill) -> None:
    """Say yes to whatever waits for a person."""
    for one in (await proxy.ask("GET", "/v1/approvals?state=waiting"))["approvals"]:
        await proxy.ask("POST", f"/v1/approvals/{one['id']}/grant", {"note": "a drill"})


async def close(proxy: ProxyUnderDrill, run: str) -> Kept:
    """The agent is done: it saves once more, and the run is closed."""
    before = await look(proxy, run)
    if before.checkpoint:
        await _save(proxy, run, before.checkpoint)
    await proxy.ask("POST", _path(run, "/close"), {})
    return await look(proxy, run)


def faults(intent: bool, before: Kept, after: Kept, end: Kept, state: str) -> list[str]:
    """What is wrong with it, a sentence each. ``intent``: it was durable when the kill came;
    ``state``: what the operation has come to."""
    wrong = []
    charged = before.writes + intent
    if after.writes != charged:
        wrong.append(f"{after.writes} writes charged after the kill, not {charged}")
    if end.writes != WRITES:
        wrong.append(f"{end.writes} writes charged in the end, not {WRITES}")
    if (after.turns, after.tokens) != (end.turns, end.tokens) or end.turns > TURNS:
        both = f"{after.turns} ({after.tokens} tokens), {end.turns} ({end.tokens} tokens)"
        wrong.append(f"turns charged after the kill and in the end: {both}")
    asked = len(before.approvals)
    if after.approvals != (("consumed",) if intent else ("granted",)) * asked:
        wrong.append(f"after the kill its approval is {_words(after.approvals)}")
    if end.approvals != ("consumed",) * asked:
        wrong.append(f"in the end its approval is {_words(end.approvals)}")
    if not before.checkpoint == after.checkpoint == end.checkpoint - 1:
        versions = f"{before.checkpoint}, {after.checkpoint}, {end.checkpoint}"
        wrong.append(f"the checkpoint's versions are {versions}")
    status = "completed_with_unknown" if state == "unknown" else "completed"
    if (before.status, after.status, end.status) != ("open", "open", status):
        wrong.append(f"the run is {before.status}, {after.status}, {end.status}, not {status}")
    return wrong


async def revoke(proxy: ProxyUnderDrill, run: str) -> list[str]:
    """Stop the run; the operations that had begun before."""
    told = await proxy.ask("POST", _path(run, "/revoke"), {"reason": "a drill"})
    return list(told["in_flight"])


def stopped(before: Kept, after: Kept, end: Kept) -> list[str]:
    """What is wrong with a run that was revoked between intent and first byte, and then killed. Its
    unit stays charged: the proxy takes nothing back, since what it paid for may be there."""
    consumed = ("consumed",) * len(before.approvals)
    wanted = replace(before, writes=before.writes + 1, approvals=consumed)
    wrong = [f"{name}: {found}" for name, found in _differences(wanted, after)]
    if after.status != "revoked":
        wrong.append(f"the run is {after.status}")
    if after != end:
        wrong.append("the refused call has changed the run")
    return wrong


def _differences(wanted: Kept, found: Kept) -> list[tuple[str, str]]:
    names = ("writes", "turns", "approvals", "checkpoint")
    pairs = ((name, getattr(wanted, name), getattr(found, name)) for name in names)
    return [(name, f"{is_}, not {should}") for name, should, is_ in pairs if is_ != should]


def _words(approvals: tuple[str, ...]) -> str:
    return ", then ".join(approvals) or "gone"


async def _save(proxy: ProxyUnderDrill, run: str, version: int) -> None:
    """The next version, if that one is the newest; an older writer is turned away."""
    condition = {"If-Match": f'"{version}"'} if version else {"If-None-Match": "*"}
    path, content = _path(run, "/checkpoint"), {"step": "act", "state": NOTES}
    await proxy.ask("PUT", path, content, **condition)
    try:
        await proxy.ask("PUT", path, content, **condition)
    except DrillError:
        return
    raise DrillError("a checkpoint was saved twice over the same version")


def _path(run: str, rest: str = "") -> str:
    return f"/v1/runs/{quote(run, safe='')}{rest}"
