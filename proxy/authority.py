"""What a run may do at this moment, from the ledger's rows, the configuration's lists, and what is
being taken away just now.

An operator who revokes wants no send after the answer, and the ledger takes a moment. So a
revocation counts from the instant it is asked for (``revoking``), and every send asks once more
directly before its first byte (``objection``).
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import unquote

from proxy.core.authority import OPEN, Access, Bar, Lists, Standing, bar_of, distrusted
from proxy.core.decide.budget import READ, WRITE
from proxy.core.operation import Operation
from proxy.core.runs import Amounts, Charge, Run, shortage
from proxy.ledger.base import Ledger


@dataclass(frozen=True, slots=True)
class Rights:
    """What the configuration says about runs. ``budget``: the limits of a run that sets none."""

    lists: Lists = field(default_factory=Lists)
    budget: Amounts = field(default_factory=dict)
    tokens_required: bool = False
    fence: bool = False  # calls of a start that a newer one has taken over from are refused


class Authority:
    def __init__(self, ledger: Ledger, rights: Rights | None = None) -> None:
        self._ledger = ledger
        self.rights = rights or Rights()
        self.write = Charge(WRITE, self.rights.budget)
        self.unasked = Charge(WRITE, enforce=False)  # where nothing may be refused
        self.read = Charge(READ, self.rights.budget)
        self._revoking: Counter[str] = Counter()  # runs whose revocation is not durable yet
        self._tokens: Counter[str] = Counter()  # run tokens, by digest
        self._withdrawn: Counter[str] = Counter()  # operations whose approval is being revoked
        self._watched: dict[object, tuple[Access, Callable[[str], None]]] = {}
        lists = self.rights.lists
        rights = self.rights
        self._plain = not (lists.allow or lists.deny or rights.tokens_required or rights.fence)

    def standing(self, access: Access, charge: Charge | None = None) -> Standing:
        """``charge``: what a first attempt would cost. Raises Damaged."""
        run = self._ledger.run(access.run) if access.run else None
        free = charge is None or not (charge.defaults or (run is not None and run.limits))
        if free and self._unhindered(access, run):
            return OPEN
        above = self._ledger.above(run) if run is not None and run.parent else ()
        bar = self._bar(access, run, above)
        stop = self._stop(access, run) or self._not_theirs(access, run)
        short = None
        if charge is not None and access.run:
            name = access.owner or access.run
            payer = self._ledger.run(name) if access.owner else run
            paying = self._ledger.above(payer) if payer is not None and access.owner else above
            for each in (payer or Run(name), *paying):
                short = short or shortage(each, charge)
        if bar is None and stop is None and short is None:
            return OPEN
        return Standing(bar, stop, short)

    def epoch_of(self, run: Run | None, token: str | None) -> int:
        """The start of its run that a call belongs to."""
        if run is None:
            return 1
        held = run.token(token) if token is not None else None
        return held.epoch if held is not None else run.epoch

    def objection(
        self, access: Access, operation: Operation | None = None, now: float = 0.0
    ) -> str | None:
        """Directly before the first byte: why it must not leave after all. ``operation``: the one
        that an attempt of is to be sent, as its intent was committed; ``now``: by the wall clock,
        for the end of its approval."""
        if operation is not None and operation.approval is not None:
            stored = self._ledger.get(operation.key)
            approval = stored.approval if stored is not None else None
            if operation.key in self._withdrawn or approval is None or not approval.given:
                return "its approval was revoked"
            if now >= approval.expires_at:
                return "its approval has expired"
        run, above = self._chain(access)
        if self._unhindered(access, run):
            return None
        bar = (
            self._bar(access, run, above)
            or self._stop(access, run)
            or self._not_theirs(access, run)
        )
        return bar.detail if bar is not None else None

    def _not_theirs(self, access: Access, run: Run | None) -> Bar | None:
        """Why nothing is sent although whoever asks may have it sent: the operation is another
        run's, and that one is stopped; or the proxy asks by itself, of a start it mistrusts."""
        if access.owner:
            return self._bar(Access(access.owner, "", "", "", believed=True), *self._owner(access))
        if access.believed and self._tokens:
            return _BEING_REVOKED
        return distrusted(run, access.epoch) if access.believed and run is not None else None

    def _owner(self, access: Access) -> tuple[Run | None, Sequence[Run]]:
        run = self._ledger.run(access.owner)
        return run, self._ledger.above(run) if run is not None else ()

    def _unhindered(self, access: Access, run: Run | None) -> bool:
        """The usual run: on its own, and nobody has said anything about it."""
        if access.token is not None or access.owner or not self._plain or self._revoking:
            return False
        if access.believed and (self._tokens or (run is not None and run.tokens)):
            return False
        return run is None or (run.parent is None and run.revoked is None and run.closed is None)

    def unread(self, access: Access, places: Sequence[tuple[str, str]]) -> Bar | None:
        """Why a connection whose bytes are not read may not be opened; ``places``: service and
        endpoint of the calls that it may carry. Raises Damaged."""
        run, above = self._chain(access)
        bar = self._bar(access, run, above)
        if bar is not None:
            return bar
        if self.rights.fence and run is not None and self.epoch_of(run, access.token) < run.epoch:
            return _SUPERSEDED
        lists = self.rights.lists
        if not (lists.allow or lists.deny):
            return None
        return lists.objection_unread(unquote(access.run), places)

    def watch(self, access: Access, cut: Callable[[str], None]) -> Callable[[], None]:
        """``cut`` is called with the reason once nothing of that access may be sent any more,
        before the revocation is acknowledged. Returns what ends the watch."""
        mark = object()
        self._watched[mark] = (access, cut)
        self._check(mark)  # it may have been taken away before

        def leave() -> None:
            self._watched.pop(mark, None)

        return leave

    def recheck(self) -> None:
        """Something is taken away: cut the connections that lived on it."""
        for mark in list(self._watched):
            self._check(mark)

    def _check(self, mark: object) -> None:
        access, cut = self._watched[mark]
        bar = self._bar(access, *self._chain(access))
        if bar is not None:
            del self._watched[mark]
            cut(bar.detail)

    def _chain(self, access: Access) -> tuple[Run | None, Sequence[Run]]:
        """The run and those above it."""
        run = self._ledger.run(access.run) if access.run else None
        return run, self._ledger.above(run) if run is not None and run.parent else ()

    @contextlib.contextmanager
    def revoking(self, *, run: str = "", token: str = "", key: str = "") -> Iterator[None]:
        """While it lasts, nothing of that run, token or operation begins to be sent."""
        flags = ((self._revoking, run), (self._tokens, token), (self._withdrawn, key))
        for flagged, name in flags:
            if name:
                flagged[name] += 1
        try:
            self.recheck()
            yield
        finally:
            for flagged, name in flags:
                if name:
                    flagged[name] -= 1
                    if not flagged[name]:
                        del flagged[name]

    def _bar(self, access: Access, run: Run | None, above: Sequence[Run]) -> Bar | None:
        if self._revoking and any(
            self._revoking[name] for name in (access.run, *(each.run for each in above))
        ):
            return _BEING_REVOKED
        if access.token is not None and self._tokens[access.token]:
            return _BEING_REVOKED
        required = self.rights.tokens_required and not access.believed
        if run is None:
            if access.token is None and not required:
                return None
            run = Run(access.run)
        return bar_of(run, above, access.token, required=required)

    def _stop(self, access: Access, run: Run | None) -> Bar | None:
        if self.rights.fence and run is not None and not access.believed:
            epoch = access.epoch
            if epoch is None:
                epoch = self.epoch_of(run, access.token)
            if epoch < run.epoch:
                return _SUPERSEDED
        lists = self.rights.lists
        if not (lists.allow or lists.deny):
            return None
        name = unquote(access.run)
        return lists.objection(name, access.service, access.endpoint, access.method)


_BEING_REVOKED = Bar("authority-revoked", "It is being revoked.")
_SUPERSEDED = Bar("superseded", "A newer start of this run has taken over (runs.fence).")


@lru_cache(maxsize=1024)
def token_digest(token: str) -> str:
    return hashlib.sha256(b"onceproxy run token\0" + token.encode()).hexdigest()
