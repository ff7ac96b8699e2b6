"""Failpoints: named places in the life of a call where the proxy dies, fails or waits on purpose.

They exist so that crashes can be tried at the exact moments that matter. They are read from the
configuration once, at start, are never changed afterwards, and are loud: ``warning`` is logged at
start and a metric says that they are on. Without ``faults:`` reaching one costs a truth test.

    faults:
      after_effect: kill            # kill | raise | delay
      match: "case-1/*"             # glob over the operation key; default every operation
      times: 1                      # how often it strikes, then never again; default 1
      seconds: 0.5                  # how long a delay takes; default 1

Several at once are a list of such mappings.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from proxy.clock import Clock, SystemClock

T = TypeVar("T")

POINTS = (
    "before_intent",  # nothing is known of the call yet
    "after_intent",  # the intent is durable, no byte has left
    "during_call",  # bytes have left, no answer has come
    "after_effect",  # the answer is here, nothing of it is recorded
    "after_outcome",  # the outcome is durable, the caller has not got it
)
ACTIONS = ("kill", "raise", "delay")


class InjectedFault(Exception):
    """What a failpoint with the action ``raise`` throws: a defect nobody has foreseen."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of ``faults:``. ``seconds`` is used by ``delay`` only."""

    point: str
    action: str
    match: str = "*"
    times: int = 1
    seconds: float = 1.0


class Failpoints:
    """The failpoints of one process. ``await reach(point, operation_key)`` at each of them."""

    __slots__ = ("_clock", "_faults", "_left")

    def __init__(self, faults: Sequence[Fault] = (), clock: Clock | None = None) -> None:
        self._faults = tuple(faults)
        self._left = [fault.times for fault in self._faults]
        self._clock = clock or SystemClock()

    @classmethod
    def from_config(cls, value: object, clock: Clock | None = None) -> Failpoints:
        """From the value of ``faults:`` (None, a mapping, or a list of mappings).

        Raises ValueError with a sentence for each thing wrong with it."""
        return cls(parse_faults(value), clock)

    @property
    def enabled(self) -> bool:
        return bool(self._faults)

    @property
    def warning(self) -> str | None:
        """One line for the log at start, or None when failpoints are off."""
        if not self._faults:
            return None
        listed = ", ".join(
            f"{f.action} at {f.point} for {f.match} x{f.times}" for f in self._faults
        )
        return f"FAULT INJECTION IS ON, never use this for real work: {listed}"

    async def reach(self, point: str, operation_key: str) -> None:
        """Dies, raises InjectedFault or waits if a fault is set for this point and operation."""
        if not self._faults:
            return
        for number, fault in enumerate(self._faults):
            if (
                fault.point == point
                and self._left[number] > 0
                and fnmatchcase(operation_key, fault.match)
            ):
                self._left[number] -= 1
                await self._strike(fault)

    async def during(
        self, call: Coroutine[Any, Any, T], left: asyncio.Event, operation_key: str
    ) -> T:
        """Awaits ``call``; reaches ``during_call`` as soon as ``left`` says that bytes have left.

        A delay there holds back the answer; a raise gives the call up."""
        calling = asyncio.create_task(call)
        leaving = asyncio.create_task(left.wait())
        try:
            await asyncio.wait((calling, leaving), return_when=asyncio.FIRST_COMPLETED)
            if left.is_set():
                await self.reach("during_call", operation_key)
            return await calling
        finally:
            leaving.cancel()
            calling.cancel()  # nothing where it is done

    async def _strike(self, fault: Fault) -> None:
        if fault.action == "kill":
            # SIGKILL and not an exit: no handler, no flush, no goodbye to any connection.
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.action == "raise":
            raise InjectedFault(f"failpoint {fault.point}")
        await self._clock.sleep(fault.seconds)


OFF = Failpoints()
"""What runs outside of tests and drills."""


def parse_faults(value: object) -> tuple[Fault, ...]:
    """The entries of ``faults:``. Raises ValueError naming every problem, one a line."""
    if value is None:
        return ()
    entries = list(value) if isinstance(value, (list, tuple)) else [value]
    problems: list[str] = []
    faults = [_parse(entry, problems) for entry in entries]
    if problems:
        raise ValueError("\n".join(problems))
    return tuple(fault for fault in faults if fault is not None)


def _parse(entry: object, problems: list[str]) -> Fault | None:
    if not isinstance(entry, Mapping):
        problems.append("faults: expected a mapping such as {after_effect: kill, times: 1}")
        return None
    rest: dict[str, Any] = {str(name): value for name, value in entry.items()}
    points = [name for name in rest if name in POINTS]
    if len(points) != 1:
        problems.append(f"faults: each entry names one point, one of {', '.join(POINTS)}")
        return None
    point = points[0]
    action = rest.pop(point)
    match, times, seconds = rest.pop("match", "*"), rest.pop("times", 1), rest.pop("seconds", 1.0)
    known = len(problems)
    if action not in ACTIONS:
        problems.append(f"faults.{point}: expected one of {', '.join(ACTIONS)}")
    if not isinstance(match, str):
        problems.append("faults.match: expected a glob over the operation key, such as 'case-1/*'")
    if isinstance(times, bool) or not isinstance(times, int) or times < 1:
        problems.append("faults.times: expected a whole number from 1 on")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or seconds < 0:
        problems.append("faults.seconds: expected a number of seconds")
    problems.extend(f"faults.{name}: unknown; remove it" for name in rest)
    if len(problems) > known:
        return None
    return Fault(point, action, match, times, float(seconds))
