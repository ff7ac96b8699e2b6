"""What a decision is made from: the operation as the ledger has it, what this process has seen of
it, and what its run may do at this moment.
"""

from __future__ import annotations

from proxy.authority import Authority
from proxy.bound import Bound, Seen
from proxy.clock import Clock
from proxy.core.authority import OPEN, Access, Standing
from proxy.core.decide import Snapshot, Watch
from proxy.core.operation import Operation, State
from proxy.flights import Sights
from proxy.ledger.base import Ledger


class Snapshots:
    def __init__(
        self, *, ledger: Ledger, clock: Clock, authority: Authority, sights: Sights
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._authority = authority
        self._sights = sights

    def load(self, bound: Bound) -> Seen:
        return self.seen(bound, self._ledger.find(bound.base))

    def seen(self, bound: Bound, newest: Operation | None) -> Seen:
        """What a call looks at that is bound to a version; ``newest``: the newest there is."""
        version = bound.ask.version
        if newest is None:
            return Seen(None)
        if newest.version == version:
            return Seen(newest, self._late_success(newest))
        if newest.version < version:
            return Seen(None, newest)
        return Seen(self._ledger.get(f"{bound.base}/v{version}"), None, overtaken=True)

    def _late_success(self, newest: Operation) -> Operation | None:
        """The version before one that has not left yet, where that has succeeded after all."""
        if newest.version == 1 or newest.ever_left:
            return None
        earlier = self._ledger.get(f"{newest.base}/v{newest.version - 1}")
        return earlier if earlier is not None and earlier.state is State.SUCCEEDED else None

    def of(self, bound: Bound, seen: Seen) -> Snapshot:
        operation = seen.operation
        wall = self._clock.time()
        now = wall if operation is None else max(wall, operation.updated_at)
        doubt = self._doubt(bound, operation)
        standing = self._standing(bound, operation)
        if operation is None or operation.state is not State.UNKNOWN:
            return Snapshot(
                now,
                wall,
                operation,
                seen.previous,
                seen.overtaken,
                standing=standing,
                doubt=doubt,
                poll=bound.endpoint.poll is not None and bound.enforced and not bound.polled,
            )
        rewritten = operation.intent.idempotent and self._ledger.written_since(
            (operation.method, operation.url), operation.created_at, operation.key
        )
        mono = self._clock.monotonic()
        sight = self._sights.get(operation.key, mono)
        watch = Watch(
            quiet_for=mono - sight.quiet_since,
            looked_with=sight.looked_with,
            looks=sight.looks,
            next_look_in=sight.next_look_in(bound.lookup, mono),
        )
        return Snapshot(
            now,
            wall,
            operation,
            seen.previous,
            seen.overtaken,
            watch,
            bound.lookup is not None,
            rewritten,
            standing,
        )

    def _standing(self, bound: Bound, operation: Operation | None) -> Standing:
        if not bound.enforced:
            return OPEN  # what may not go out in any mode was refused when the call came
        charge = self._authority.write if operation is None or not operation.attempts else None
        return self._authority.standing(self.access(bound), charge)

    def access(self, bound: Bound) -> Access:
        """Who would have it sent: the run of the call, which a business key may have led to the
        operation of another one (then that one must be free to have it sent, too, and pays);
        without a call the run that began it."""
        if bound.access is not None:
            return bound.access
        endpoint, call = bound.endpoint, bound.call
        owner = bound.base.partition("/")[0]
        run = call.run if call is not None else owner
        request = call.request if call is not None else bound.stored
        bound.access = Access(
            run,
            endpoint.service,
            endpoint.name,
            request.method if request is not None else "",
            bound.token,
            bound.ask.epoch,
            believed=call is None,
            owner=owner if owner != run else "",
        )
        return bound.access

    def _doubt(self, bound: Bound, operation: Operation | None) -> float | None:
        """Since when, at the earliest, a lost ledger may have sent what this call asks for; None
        if there is none, or if the run began under this one."""
        gap = self._ledger.gap
        if gap is None or bound.call is None or not bound.enforced:
            return None
        if operation is not None and operation.attempts and operation.updated_at > gap.until:
            return None
        run = self._ledger.run(bound.base.partition("/")[0])
        if run is not None and run.generation == self._ledger.generation:
            return None
        return gap.since
