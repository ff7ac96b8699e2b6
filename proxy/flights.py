"""What this process knows and the ledger does not: who is driving which operation, since when it
has been quiet. All of it may be lost; none of it permits a send.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from proxy.core.decide import Decision
from proxy.core.model import EMPTY, Answer, Answered, NotSent, SendResult
from proxy.core.operation import Operation
from proxy.core.rules import Lookup
from proxy.core.settle import next_look_in
from proxy.relay import Relay

Claim = tuple[str, ...]
"""What an operation that is being begun will be found by, besides its name."""


def bare(answer: Answer) -> Answer:
    """Without its body, which broke off or was too large, and without what describes one."""
    fields = tuple(pair for pair in answer.headers if not pair[0].lower().startswith("content-"))
    return replace(answer, headers=fields, body=EMPTY)


class Flight:
    """One operation being driven. Its caller waits for ``news``, which comes when there is
    something to tell while the driving may go on; twins wait until it is ``done``."""

    __slots__ = (
        "_attempt",
        "_found",
        "answer",
        "base",
        "claims",
        "complete",
        "decision",
        "done",
        "epoch",
        "error",
        "fingerprint",
        "news",
        "operation",
        "patience",
        "relay",
        "result",
        "task",
        "unknown_since",
        "unrecorded",
    )

    def __init__(self, base: str) -> None:
        loop = asyncio.get_running_loop()
        self.base = base
        self.claims: tuple[Claim, ...] = ()
        self.news: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[None] = loop.create_future()
        self.task: asyncio.Task[None] | None = None
        self.relay: Relay | None = None  # None: no caller, the background drives
        self.decision: Decision | None = None
        self.operation: Operation | None = None
        self.epoch: int | None = None  # of its caller
        self.fingerprint: str | None = None  # of what its caller asked for
        self.answer: Answer | None = None  # the newest one, with all its headers
        self._attempt: int | None = None  # the attempt it answers
        self.complete = False  # it has its end
        self._found = False
        self.result: SendResult | None = None
        self.error: Exception | None = None
        self.unrecorded = False  # the ledger failed after the send
        self.unknown_since: float | None = None  # monotonic
        self.patience: asyncio.Task[None] | None = None

    def expect_caller(self, epoch: int, fingerprint: str) -> None:
        self.relay, self.epoch, self.fingerprint = Relay(self.tell), epoch, fingerprint

    def ended(self, operation: Operation, attempt: int, result: SendResult) -> None:
        """An attempt of this flight has ended, and this is the operation after it."""
        self.operation, self.result, self._attempt = operation, result, attempt
        self.answer = result.answer if isinstance(result, Answered) else None
        self.complete = isinstance(result, Answered) and result.complete

    def found(self, operation: Operation, answer: Answer | None) -> None:
        """A lookup of this flight has found the effect."""
        self.operation, self.answer, self._found = operation, answer, True

    @property
    def sent(self) -> bool:
        """Whether anything may have left."""
        return self.result is not None and not isinstance(self.result, NotSent)

    def answer_for(self, operation: Operation) -> Answer | None:
        """This flight's answer, whole, if it is the end that the operation came to."""
        if self.operation is None or self.operation.key != operation.key or self.answer is None:
            return None
        outcome = operation.outcome
        if outcome is not None and outcome.how == "found":
            return self.answer if self._found else None
        if outcome is not None and outcome.how != "answered":
            return None
        last = operation.last
        number = outcome.attempt if outcome is not None else last.number if last else None
        if number != self._attempt:
            return None
        if self.complete and self.answer.body is not None:
            return self.answer
        # An API that did not look at the call says so in status and fields; nothing else is kept.
        return bare(self.answer) if outcome is None else None

    def tell(self) -> None:
        if not self.news.done():
            self.news.set_result(None)

    def finish(self) -> None:
        if self.relay is not None:
            self.relay.end(whole=False)  # nothing, where it has ended
        self.tell()
        self.done.set_result(None)
        if self.patience is not None:
            self.patience.cancel()


@dataclass(slots=True)
class Sight:
    """The monotonic memory behind ``core.decide.Watch`` for one unknown operation."""

    quiet_since: float
    looks: int = 0
    tries: int = 0
    last_look: float | None = None
    looked_with: tuple[str | None] | None = None  # whose credential the last look had

    def next_look_in(self, lookup: Lookup | None, now: float) -> float:
        if lookup is None:
            return 0.0
        return next_look_in(
            lookup,
            quiet_for=now - self.quiet_since,
            since_last=now - self.last_look if self.last_look is not None else None,
            looks=self.looks,
            tries=self.tries,
        )


class Sights:
    """Sights of all unknown operations, by operation key."""

    def __init__(self) -> None:
        self._sights: dict[str, Sight] = {}

    def get(self, key: str, now: float) -> Sight:
        """An operation that this process meets for the first time counts from now."""
        sight = self._sights.get(key)
        if sight is None:
            sight = self._sights[key] = Sight(now)
        return sight

    def left(self, key: str, now: float) -> None:
        """A byte may have left until now: quiet begins anew, and earlier looks count no more."""
        self._sights[key] = Sight(now)

    def looked(self, key: str, began: float, credential: str | None, *, counts: bool) -> None:
        """A lookup that began then has ended; ``counts``: it found nothing, late enough."""
        sight = self.get(key, began)
        sight.tries += 1
        sight.last_look, sight.looked_with = began, (credential,)
        sight.looks = sight.looks + 1 if counts else 0

    def settled(self, key: str) -> None:
        self._sights.pop(key, None)
