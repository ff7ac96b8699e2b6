"""How long the ledger keeps what has ended: bodies for a time, that it ended for longer.

What is in flight or unknown is never touched. Works in small slices, so that calls do not wait.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Final

from proxy.clock import Clock
from proxy.ledger.base import Ledger

SLICE: Final = 200  # operations of one transaction: some 10 ms of the writer
PAUSE: Final = 0.02  # seconds between two, in which calls are first
EVERY_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Retention:
    """Seconds; infinite: for ever."""

    keep_outcomes: float = math.inf
    keep_keys: float = math.inf
    keep_checkpoints: float = math.inf


@dataclass(frozen=True, slots=True)
class Pruned:
    bodies: int = 0  # operations whose bodies went
    keys: int = 0  # operations that are forgotten
    checkpoints: int = 0  # whose contents went
    answers: int = 0  # of models, that the journal had

    def as_json(self) -> dict[str, int]:
        return asdict(self)


async def prune(ledger: Ledger, retention: Retention, clock: Clock) -> Pruned:
    """Take what is older than it has to be kept. Raises LedgerError."""
    now = clock.time()
    bodies = keys = checkpoints = answers = 0
    if retention.keep_outcomes < math.inf:
        while taken := await ledger.prune(now - retention.keep_outcomes, SLICE):
            bodies += taken
            await clock.sleep(PAUSE)
        while gone := await ledger.prune_journal(now - retention.keep_outcomes, SLICE):
            answers += gone
            await clock.sleep(PAUSE)
    keep_keys = max(retention.keep_keys, retention.keep_outcomes)
    if keep_keys < math.inf:
        while gone := await ledger.forget(now - keep_keys, SLICE):
            keys += gone
            await clock.sleep(PAUSE)
    if retention.keep_checkpoints < math.inf:
        before = now - retention.keep_checkpoints
        while gone := await ledger.prune_checkpoints(before, SLICE):
            checkpoints += gone
            await clock.sleep(PAUSE)
    return Pruned(bodies, keys, checkpoints, answers)
