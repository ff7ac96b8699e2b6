"""Which steps a run has operations of, so that the first call of a step asks the file nothing.

Nearly every call is the first of its step. Each question to the file also hands the interpreter to
the writing thread, and under load it comes back only after a while; that costs more than the
question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

RUNS = 512  # at hand
STEPS_OF_RUN = 20_000  # of a run with more of them the file is asked
STEPS = 50_000  # of all runs at hand: about 6 MB


class Steps:
    """``read``: the steps of a run, in the file. It may be behind by what is being committed, so
    ``add`` is told of that before."""

    def __init__(self, read: Callable[[str, int], Iterable[str]]) -> None:
        self._read = read
        self._runs: dict[str, set[str]] = {}
        self._number = 0

    def has(self, run: str, step: str) -> bool | None:
        """None where it is not known here."""
        steps = self._of(run)
        return step in steps if len(steps) <= STEPS_OF_RUN else None

    def add(self, run: str, step: str) -> None:
        steps = self._of(run)
        if step not in steps and len(steps) <= STEPS_OF_RUN:
            steps.add(step)
            self._number += 1
            if self._number > STEPS:
                self._make_room(run)

    def _of(self, run: str) -> set[str]:
        steps = self._runs.get(run)
        if steps is None:
            steps = self._runs[run] = set(self._read(run, STEPS_OF_RUN + 1))
            self._number += len(steps)
            self._make_room(run)
        return steps

    def _make_room(self, needed: str) -> None:
        """The runs that came first go first, but not the one that is asked for."""
        while len(self._runs) > 1 and (len(self._runs) > RUNS or self._number > STEPS):
            oldest = next(run for run in self._runs if run != needed)
            self._number -= len(self._runs.pop(oldest))
