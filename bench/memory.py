"""``python -m bench.memory``: how much memory the proxy holds after many operations.

One proxy, one ledger, new operations without end; its resident memory is read after each stretch.
It must stay below a bound, and the second half of the run must add little: what grows with the
number of operations would be a leak, since all that has to be known of them is in the ledger.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from bench import machine, processes

OPERATIONS = 200_000
BOUND_MB = 120.0
GROWTH_MB = 10.0  # over the second half: allocator's noise, not a row per operation
STRETCH_SECONDS = 5.0
CONNECTIONS = 64


def measure(folder: Path, operations: int) -> list[tuple[int, float]]:
    """(operations so far, resident MB) after each stretch."""
    seen: list[tuple[int, float]] = []
    done = 0
    with processes.upstream(folder) as api, processes.onceproxy(folder, api) as proxy:
        seen.append((0, machine.resident_mb(proxy.pid)))
        while done < operations:
            plan = {
                "proxy_port": proxy.port,
                "upstream_port": api,
                "load": "unique",
                "connections": CONNECTIONS,
                "seconds": STRETCH_SECONDS,
                "warm_seconds": 0.0,
                "run": f"memory-{len(seen)}",
            }
            with processes.load(plan) as load:
                result = load.measure()
            if result["bad"]:
                raise SystemExit(f"answers that were no 200: {result['bad']}")
            done += result["requests"]
            seen.append((done, machine.resident_mb(proxy.pid)))
            print(f"  {done:8} operations  {seen[-1][1]:6.1f} MB", file=sys.stderr)
        hits = processes.count(api)["hits"]
    if hits < done:
        raise SystemExit(f"{hits} sent for {done} operations")
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.memory", description="Memory after many calls.")
    parser.add_argument("--operations", type=int, default=OPERATIONS)
    parser.add_argument("--dir", type=Path, default=Path(__file__).parent / "out")
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        seen = measure(Path(folder), options.operations)
    last, half = seen[-1], next(one for one in seen if one[0] >= seen[-1][0] / 2)
    growth = last[1] - half[1]
    print(
        f"{last[1]:.1f} MB after {last[0]} operations (at the start {seen[0][1]:.1f}, "
        f"half way {half[1]:.1f}); at most {BOUND_MB:g}, and {GROWTH_MB:g} more since half way"
    )
    return 0 if last[1] <= BOUND_MB and growth <= GROWTH_MB else 1


if __name__ == "__main__":
    sys.exit(main())
