"""``python -m bench.run``: onceproxy beside a plain proxy on the same library, in one run.

Everything is started here, on 127.0.0.1. A round measures each variant once, the plain proxy first
and last, so that a ratio is always taken between neighbours in time; a round in which the two plain
readings differ by more than a quarter is thrown away and repeated. Only ratios and counts are
judged: req/s are for orientation, since load generator, API and proxy share the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import statistics
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench import loop, machine, processes
from bench.report import Goal, judge, render

NOISE = 0.25  # two readings of the same proxy further apart than this say that others used the CPU
REPEATS = 3  # then the round counts as it is, and is marked
SLOW_DISK_MS = 2.0  # an ordinary cloud disk
FAST_DISK = 0.0003  # below this many seconds a flush, commits do not queue up enough to share one


@dataclass(frozen=True, slots=True)
class Variant:
    name: str  # plain | onceproxy | onceproxy, slow disk
    load: str  # unique | replay | hot
    slow_ms: float | None = None

    @property
    def title(self) -> str:
        return f"{self.name}, {self.load}"


@dataclass(frozen=True, slots=True)
class Reading:
    per_second: float
    p50: float
    p99: float
    cpu_us: float  # of the proxy process, per request
    commits: float  # per request
    resident_mb: float
    requests: int
    bad: dict[str, int]  # what was not a 200: status or "broken" -> times
    keys: int
    hits: int  # POSTs that reached the API
    ratio: float = 0.0  # req/s to the plain proxy of the same round


@dataclass(slots=True)
class Results:
    readings: dict[tuple[int, str], list[Reading]] = field(
        default_factory=lambda: defaultdict(list)
    )
    noisy: int = 0


PLAIN = Variant("plain", "unique")
UNIQUE = Variant("onceproxy", "unique")
REPLAY = Variant("onceproxy", "replay")
HOT = Variant("onceproxy", "hot")
MITMDUMP = Variant("mitmdump", "unique")
SLOW = Variant("onceproxy, slow disk", "unique", SLOW_DISK_MS)


class Bench:
    def __init__(
        self, folder: Path, seconds: float, warm_seconds: float, mitmdump: Path | None = None
    ) -> None:
        self.mitmdump = mitmdump
        self.folder = folder
        self.seconds = seconds
        self.warm_seconds = warm_seconds
        self.count = 0

    def measure(self, variant: Variant, connections: int) -> Reading:
        """One variant with a new API, a new proxy and a new ledger."""
        self.count += 1
        with contextlib.ExitStack() as stack:
            api = stack.enter_context(processes.upstream(self.folder))
            proxy = stack.enter_context(self._start(variant, api))
            plan = {
                "proxy_port": proxy.port,
                "upstream_port": api,
                "load": variant.load,
                "connections": connections,
                "seconds": self.seconds,
                "warm_seconds": self.warm_seconds,
                "run": f"bench-{self.count}",
            }
            load = stack.enter_context(processes.load(plan))
            cpu, commits = machine.cpu_seconds(proxy.pid), proxy.commits()
            result = load.measure()
            cpu = machine.cpu_seconds(proxy.pid) - cpu
            requests = max(1, result["requests"])
            reading = Reading(
                per_second=result["per_second"],
                p50=result["p50"],
                p99=result["p99"],
                cpu_us=cpu / requests * 1e6,
                commits=(proxy.commits() - commits) / requests,
                resident_mb=machine.resident_mb(proxy.pid),
                requests=result["requests"],
                bad=result["bad"],
                keys=result["keys"],
                hits=processes.count(api)["hits"],
            )
        print(
            f"  {variant.title:32} c{connections:<3} {reading.per_second:8.0f}/s  "
            f"p50 {reading.p50 * 1000:7.2f} ms  {reading.cpu_us:6.0f} us CPU",
            file=sys.stderr,
        )
        return reading

    def _start(self, variant: Variant, api: int) -> Any:
        if variant.name == "plain":
            return processes.plain(self.folder, api)
        if variant.name == "mitmdump":
            assert self.mitmdump is not None
            return processes.mitmdump(self.folder, api, self.mitmdump)
        return processes.onceproxy(self.folder, api, slow_ms=variant.slow_ms)

    def round(self, variants: list[Variant], connections: int) -> tuple[dict[str, Reading], bool]:
        """All variants once; True when the two plain readings agree."""
        first = self.measure(PLAIN, connections)
        between = {v.title: self.measure(v, connections) for v in variants}
        last = self.measure(PLAIN, connections)
        low, high = sorted((first.per_second, last.per_second))
        return {PLAIN.title: first, "again": last, **between}, high - low <= NOISE * high


def with_ratios(readings: dict[str, Reading]) -> dict[str, Reading]:
    again = readings.pop("again")
    base = statistics.mean((readings[PLAIN.title].per_second, again.per_second))
    return {
        title: replace(reading, ratio=reading.per_second / base)
        for title, reading in readings.items()
    }


def run(options: argparse.Namespace, folder: Path) -> tuple[Results, float]:
    flush = machine.flush_p50(folder)
    bench = Bench(folder, options.seconds, options.warm, options.mitmdump)
    results = Results()
    for connections in options.connections:
        variants = [] if options.plain_only else [UNIQUE, REPLAY]
        if variants and connections >= 64:
            variants.append(HOT)
        if variants and flush < FAST_DISK:
            variants.append(SLOW)
        if options.mitmdump is not None:
            variants.append(MITMDUMP)
        for number in range(options.rounds):
            print(f"c{connections}, round {number + 1} of {options.rounds}", file=sys.stderr)
            for _ in range(REPEATS):
                readings, quiet = bench.round(variants, connections)
                if quiet or options.quick:
                    break
            results.noisy += not quiet
            for title, reading in with_ratios(readings).items():
                results.readings[connections, title].append(reading)
    return results, flush


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="about a minute; judges counts only")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--connections", type=int, nargs="+", default=None)
    parser.add_argument("--seconds", type=float, default=None, help="of one measurement")
    parser.add_argument("--plain-only", action="store_true", help="only the plain proxy")
    parser.add_argument("--mitmdump", type=Path, help="that program, in an environment of its own")
    parser.add_argument("--dir", type=Path, default=None, help="where ledgers are kept meanwhile")
    parser.add_argument("--write", type=Path, default=None, help="write the table here too")
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.connections = options.connections or ([1, 64] if options.quick else [1, 16, 64])
    options.seconds = options.seconds or (1.0 if options.quick else 2.0)
    options.warm = 0.5 if options.quick else 1.0
    options.dir = options.dir or Path(__file__).parent / "out"
    return options


def main() -> int:
    options = arguments()
    options.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        results, flush = run(options, Path(folder))
    goals: list[Goal] = judge(results.readings, flush, ratios=not options.quick)
    head = (
        f"{datetime.date.today().isoformat()}, {machine.describe()}, {loop.NAME}; "
        f"{options.rounds} rounds of {options.seconds:g} s, {results.noisy} of them noisy; "
        f"fdatasync p50 {flush * 1e3:.2f} ms"
    )
    text = render(head, results.readings, goals)
    print(text)
    if options.write:
        options.write.write_text(text)
    return 0 if all(goal.met for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
