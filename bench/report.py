"""From readings to the table and the goals: medians, ranges, and what was met."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.run import Reading

Readings = Mapping[tuple[int, str], Sequence["Reading"]]


@dataclass(frozen=True, slots=True)
class Goal:
    text: str
    seen: str
    met: bool


# (connections, variant, least median ratio to the plain proxy). The plain proxy keeps nothing.
RATIOS = (
    (64, "onceproxy, unique", 0.50),
    (1, "onceproxy, unique", 0.33),
    (64, "onceproxy, replay", 2.5),
)
BESIDE_MITMDUMP = 3.0  # times its throughput, which comes without a ledger; 4.5 is aimed at
# (connections, most commits per operation): two durable points, shared by what is in flight.
COMMITS = ((1, 2.0), (16, 0.3), (64, 0.1))
COMMITS_SLACK = 1.03  # commits of calls that straddle the two readings of the counter
ADDED_FLUSHES = 4.5  # durable p50 minus plain p50 at one connection, in flushes of this disk


def _median(readings: Sequence[Reading], what: Callable[[Reading], float]) -> float:
    return statistics.median(what(reading) for reading in readings)


def judge(readings: Readings, flush: float, *, ratios: bool) -> list[Goal]:
    """The goals that this run can speak about. Counts are exact, so one bad reading fails them."""
    goals = [_single_effects(readings), _no_bad_answers(readings), *_commits(readings)]
    return [*goals, *_ratios(readings), *_added(readings, flush)] if ratios else goals


def _single_effects(readings: Readings) -> Goal:
    wrong = [
        f"{title} c{connections}: {r.hits} sent for {r.keys}"
        for (connections, title), rows in readings.items()
        for r in rows
        if r.hits != r.keys
    ]
    seen = "; ".join(wrong) or f"{sum(r.keys for rows in readings.values() for r in rows)} keys"
    return Goal("each key reached the API exactly once", seen, not wrong)


def _no_bad_answers(readings: Readings) -> Goal:
    others = [
        f"{title} c{connections}: {r.bad}"
        for (connections, title), rows in readings.items()
        for r in rows
        if r.bad
    ]
    return Goal("no answer but 200, none broken off", "; ".join(others) or "none", not others)


def _commits(readings: Readings) -> list[Goal]:
    goals = []
    for connections, most in COMMITS:
        # On a disk too fast for commits to queue up, the run with the slower one is the judge.
        slow = readings.get((connections, "onceproxy, slow disk, unique"))
        rows = slow or readings.get((connections, "onceproxy, unique"))
        if rows:
            seen = _median(rows, lambda r: r.commits)
            disk = " (slow disk)" if slow else ""
            text = f"commits per operation at c{connections}{disk} <= {most:g}"
            goals.append(Goal(text, f"{seen:.3f}", 0 < seen <= most * COMMITS_SLACK))
    return goals


def _ratios(readings: Readings) -> list[Goal]:
    goals = []
    for connections, title, least in RATIOS:
        if rows := readings.get((connections, title)):
            seen = _median(rows, lambda r: r.ratio)
            text = f"{title} at c{connections} / plain proxy >= {least:g}"
            goals.append(Goal(text, f"{seen:.2f}", seen >= least))
    ours, theirs = readings.get((64, "onceproxy, unique")), readings.get((64, "mitmdump, unique"))
    if ours and theirs:
        pairs = zip(ours, theirs, strict=True)  # of the same rounds
        seen = statistics.median(one.per_second / other.per_second for one, other in pairs)
        text = f"onceproxy, unique at c64 / mitmdump >= {BESIDE_MITMDUMP:g}"
        goals.append(Goal(text, f"{seen:.2f}", seen >= BESIDE_MITMDUMP))
    return goals


def _added(readings: Readings, flush: float) -> list[Goal]:
    plain, durable = readings.get((1, "plain, unique")), readings.get((1, "onceproxy, unique"))
    if not plain or not durable:
        return []
    added = (_median(durable, lambda r: r.p50) - _median(plain, lambda r: r.p50)) / flush
    text = f"p50 added at c1, in flushes of this disk <= {ADDED_FLUSHES:g}"
    return [Goal(text, f"{added:.1f}", added <= ADDED_FLUSHES)]


def render(head: str, readings: Readings, goals: Sequence[Goal]) -> str:
    lines = [
        "# Results",
        "",
        f"{head}.",
        "",
        "One process each, keep-alive, 500-byte JSON POSTs, answers of about 330 bytes. onceproxy "
        "flushes every intent and every outcome (WAL, `synchronous=FULL`); the plain proxy keeps "
        "nothing. The ratio is taken to the plain proxy of the same round: median [min, max].",
        "",
        "| variant | connections | ratio | req/s | p50 ms | p99 ms | CPU us/req | commits/op "
        "| RSS MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (connections, title), rows in readings.items():
        ratios = [r.ratio for r in rows]
        lines.append(
            f"| {title} | {connections} "
            f"| {statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}] "
            f"| {_median(rows, lambda r: r.per_second):.0f} "
            f"| {_median(rows, lambda r: r.p50) * 1e3:.2f} "
            f"| {_median(rows, lambda r: r.p99) * 1e3:.2f} "
            f"| {_median(rows, lambda r: r.cpu_us):.0f} "
            f"| {_median(rows, lambda r: r.commits):.3f} "
            f"| {_median(rows, lambda r: r.resident_mb):.0f} |"
        )
    lines += ["", "| goal | seen | |", "|---|---|---|"]
    lines += [f"| {g.text} | {g.seen} | {'met' if g.met else 'MISSED'} |" for g in goals]
    return "\n".join(lines) + "\n"
