"""``onceproxy drill``: kill the proxy at every point against every kind of API, and count.

Everything is real: processes, sockets, SIGKILL, files. Each line has a proxy and a ledger of its
own, so lines can run side by side. It holds only if every line holds.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from proxy.drill.lines import POINTS, Line, Run, line_of
from proxy.drill.processes import DrillError
from proxy.drill.randomly import LATENCY, RandomDrill, Report
from proxy.drill.report import as_json, summary, table
from proxy.drill.targets import Foreign, Target, Toy, reachable, toy


@dataclass(frozen=True, slots=True)
class Options:
    """``points`` and ``kinds`` empty mean all. ``random`` is the number of random kills, done
    instead of the table; ``jobs`` how many lines run side by side; ``keep`` leaves the folder."""

    points: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    random: int = 0
    seed: int | None = None
    jobs: int = 2
    json: bool = False
    keep: bool = False
    ledger: str = "sqlite:ledger.db"
    foreign: Foreign | None = None
    within: float = 10.0  # seconds to wait for a server of somebody else


async def drill(options: Options, tell: Callable[[str], None] = print) -> bool:
    """Runs it and tells the result. True if everything holds. Raises DrillError."""
    quiet: Callable[[str], None] = (lambda _: None) if options.json else tell
    folder = Path(tempfile.mkdtemp(prefix="onceproxy-drill-"))
    lines: Sequence[Line] = ()
    report: Report | None = None
    holds = False
    try:
        async with _target(options, folder) as target:
            if options.random:
                report = await _random(options, target, folder, quiet)
            else:
                lines = await _lines(options, target, folder)
        holds = all(line.holds for line in lines) and (report is None or report.holds)
    finally:
        if not _cleared(folder, holds and not options.keep):
            quiet(f"Ledgers and logs are kept in {folder}")
    if options.json:
        tell(json.dumps(as_json(lines, report, holds)))
    else:
        tell("\n\n".join(filter(None, [table(lines) if lines else "", summary(lines, report)])))
    return holds


def _cleared(folder: Path, clear: bool) -> bool:
    """Removes what a drill leaves, unless it failed: then it is evidence."""
    if clear or not any(folder.iterdir()):
        shutil.rmtree(folder)
        return True
    return False


@asynccontextmanager
async def _target(options: Options, folder: Path) -> AsyncIterator[Target]:
    if options.foreign is not None:
        if not await reachable(options.foreign.url, options.within):
            raise DrillError(f"Nothing answers at {options.foreign.url}: start the server first")
        yield options.foreign
    else:
        async with toy(folder, latency=LATENCY if options.random else 0.0) as target:
            yield target


async def _lines(options: Options, target: Target, folder: Path) -> list[Line]:
    tag = secrets.token_hex(3)
    side_by_side = asyncio.Semaphore(options.jobs)
    runs = [
        line_of(POINTS[point], kind, tag, target, folder, options.ledger)
        for point in options.points or POINTS
        for kind in target.kinds
        if kind in (options.kinds or target.kinds)
        # A server that cannot tell its moments has no late effect to arrange.
        if point != "during_call_late" or isinstance(target, Toy)
    ]

    async def in_turn(run: Run) -> Line:
        async with side_by_side:
            return await run.line()

    return list(await asyncio.gather(*(in_turn(run) for run in runs)))


async def _random(
    options: Options, target: Target, folder: Path, tell: Callable[[str], None]
) -> Report:
    if not isinstance(target, Toy):
        raise DrillError("--random works with the toy API: leave --upstream out")
    seed = options.seed if options.seed is not None else secrets.randbelow(1 << 32)
    tell(f"Seed {seed}; repeat with: onceproxy drill --random {options.random} --seed {seed}")
    return await RandomDrill(target, folder, seed, options.ledger, tell).run(options.random)
