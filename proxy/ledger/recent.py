"""Ends that were read a moment ago: operations at rest, and their answers.

A duplicate seldom comes alone. What is here is as the file had it when it was read; only this
process writes the file, and what it writes about an operation is forgotten here once it is durable.
"""

from __future__ import annotations

from proxy.core.model import Answer
from proxy.core.operation import Operation, State

REMEMBERED = 1024  # operations: about 3 MB
ANSWER_LIMIT = 16 * 1024  # bytes of an answer that is kept at hand
ANSWERS_BYTES = 4 * 1024 * 1024  # of all of them

_AT_REST = (State.SUCCEEDED, State.FAILED)


class Recent:
    """By RUN/STEP/OPERATION: the newest version, and its answer. The oldest are given up first."""

    def __init__(self) -> None:
        self._operations: dict[str, Operation] = {}
        self._answers: dict[str, Answer] = {}
        self._bytes = 0

    def operation(self, base: str) -> Operation | None:
        return self._operations.get(base)

    def answer(self, key: str) -> Answer | None:
        return self._answers.get(key)

    def keep(self, newest: Operation) -> None:
        """``newest``: of its base, as the file has it."""
        if newest.state in _AT_REST:
            self._operations[newest.base] = newest
            if len(self._operations) > REMEMBERED:
                self.forget(next(iter(self._operations)))

    def keep_answer(self, key: str, answer: Answer) -> None:
        """Of an operation that is here."""
        size = answer.body.size if answer.body is not None else 0
        known = self._operations.get(key.rpartition("/")[0])
        if known is None or known.key != key or size > ANSWER_LIMIT:
            return
        self._answers[key] = answer
        self._bytes += size
        while self._bytes > ANSWERS_BYTES:
            self.forget(next(iter(self._operations)))

    def forget(self, base: str) -> None:
        known = self._operations.pop(base, None)
        answer = self._answers.pop(known.key, None) if known is not None else None
        if answer is not None and answer.body is not None:
            self._bytes -= answer.body.size
