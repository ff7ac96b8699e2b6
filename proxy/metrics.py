"""What Prometheus sees. Every name here is explained in ``docs/metrics.md``; a test holds the two.

Labels are bounded: services and endpoints come from rule files, everything else is a closed word.
Runs, steps, operation keys and host names are never labels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Final, Protocol, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from proxy import __version__
from proxy.clock import Clock
from proxy.core.operation import Operation, State

A = TypeVar("A")
R = TypeVar("R")
C = TypeVar("C", Counter, Histogram)

CONTENT_TYPE = CONTENT_TYPE_LATEST

NONE = "-"
"""The label of a call that no rule speaks for."""

OTHER = "other"
MAX_PAIRS = 500  # (service, endpoint) pairs; rule sets have some dozens, more would be a leak

# A call to an API takes 50 ms to some seconds; a model's answer up to minutes.
_UPSTREAM_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
# What the proxy adds is one or two commits: some ms on a good disk, and tails matter.
_LOCAL_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

_spent: ContextVar[list[float] | None] = ContextVar("spent", default=None)
"""Seconds that services have taken of the call that is being handled."""

REFRESH_SECONDS: Final = 5.0  # gauges of the ledger; a scrape interval is rarely shorter


class LedgerCounts(Protocol):
    """The part of a ledger that the gauges are read from."""

    generation: str

    @property
    def gap(self) -> object: ...

    async def counts(self) -> Mapping[tuple[str, str, str | None], int]: ...

    async def waiting(self) -> int: ...

    async def unsettled(self) -> Sequence[Operation]: ...


class _Children(dict[tuple[str, ...], C]):
    """A metric's children by their labels: the library goes a longer way to each of them."""

    def __init__(self, metric: C) -> None:
        self._make: Callable[..., C] = metric.labels

    def __missing__(self, labels: tuple[str, ...]) -> C:
        child = self[labels] = self._make(*labels)
        return child


class Metrics:
    """All counters of one proxy, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self._pairs: set[tuple[str, str]] = set()
        self._calls = _Children(
            Counter(
                "onceproxy_calls",
                "Calls answered, by what became of them",
                ["service", "endpoint", "outcome"],
                registry=r,
            )
        )
        self._suppressed = _Children(
            Counter(
                "onceproxy_duplicates_suppressed",
                "Calls that would have repeated an effect and did not",
                ["service", "endpoint", "how"],
                registry=r,
            )
        )
        self._operations = Gauge(
            "onceproxy_operations", "Operations in the ledger", ["state"], registry=r
        )
        self._unknown = Gauge(
            "onceproxy_unknown",
            "Operations whose outcome is not known, by what settling waits for",
            ["service", "blocked_by"],
            registry=r,
        )
        self._oldest_unknown = Gauge(
            "onceproxy_oldest_unknown_seconds",
            "Age of the oldest operation whose outcome is not known; 0 without one",
            registry=r,
        )
        self._reconciled = Counter(
            "onceproxy_reconcile",
            "Questions to APIs whether an effect exists, by their answer",
            ["service", "result"],
            registry=r,
        )
        self._upstream = _Children(
            Histogram(
                "onceproxy_upstream_seconds",
                "From the start of a send to the head of its answer, or to its loss",
                ["service"],
                buckets=_UPSTREAM_BUCKETS,
                registry=r,
            )
        )
        self._overhead = Histogram(
            "onceproxy_overhead_seconds",
            "Time the proxy added to a call: its whole time without the service's",
            buckets=_LOCAL_BUCKETS,
            registry=r,
        )
        self._commit = Histogram(
            "onceproxy_ledger_commit_seconds",
            "Time of one durable ledger transaction",
            buckets=_LOCAL_BUCKETS,
            registry=r,
        )
        self._batch = Histogram(
            "onceproxy_ledger_batch_size",
            "Changes that shared one ledger transaction",
            buckets=_BATCH_BUCKETS,
            registry=r,
        )
        self._ledger_errors = Counter(
            "onceproxy_ledger_errors",
            "Ledger work that failed; nothing was sent on the strength of it",
            registry=r,
        )
        self._tunnels = Counter(
            "onceproxy_tunnels",
            "Connections passed on unopened: seen, not protected",
            ["host_kind"],
            registry=r,
        )
        self._waiting = Gauge(
            "onceproxy_approvals_waiting", "Calls that wait for a person to allow them", registry=r
        )
        self._connections = Gauge(
            "onceproxy_connections", "Callers' connections that are open", registry=r
        )
        self._turned_away = Counter(
            "onceproxy_turned_away",
            "Callers told that there is no room for them, by the limit they met",
            ["reason"],
            registry=r,
        )
        self._unprotected = Counter(
            "onceproxy_unprotected",
            "Writes passed on without protection, by why",
            ["reason"],
            registry=r,
        )
        self._budget_refusals = Counter(
            "onceproxy_budget_refusals",
            "Calls refused because a budget of their run was used up",
            ["kind"],
            registry=r,
        )
        self._model_tokens = _Children(
            Counter(
                "onceproxy_model_tokens",
                "Tokens of model calls: used, or kept as reserved where the use is not known",
                ["service", "endpoint", "how"],
                registry=r,
            )
        )
        self._observed = Counter(
            "onceproxy_observed",
            "What would have been decided for calls in observe mode",
            ["decision"],
            registry=r,
        )
        self._foreign = Counter(
            "onceproxy_foreign_effects",
            "Effects under our own key or mark that this ledger knows nothing of",
            ["service"],
            registry=r,
        )
        self._conflicts = Counter(
            "onceproxy_conflicts",
            "Effects that showed where the operation had failed or had been sent anew",
            ["service"],
            registry=r,
        )
        self._notified = Counter(
            "onceproxy_notifications",
            "Webhooks, by what became of them",
            ["type", "result"],
            registry=r,
        )
        self._notify_behind = Gauge(
            "onceproxy_notify_behind_seconds",
            "Age of the oldest webhook that its receiver did not take; 0 without one",
            registry=r,
        )
        self._notify_aside = Gauge(
            "onceproxy_notify_set_aside",
            "Webhooks that later ones do not wait for: refused by their receiver, or not due yet",
            registry=r,
        )
        self._lives = Gauge(
            "onceproxy_ledger_lives",
            "Lives of the ledger; above 1 it was restored or replaced",
            registry=r,
        )
        self._gap = Gauge(
            "onceproxy_ledger_gap",
            "1 while calls of runs are asked about that a lost ledger may have sent",
            registry=r,
        )
        self._reload_ok = Gauge(
            "onceproxy_reload_ok", "1 if the newest (re)load of the rules was accepted", registry=r
        )
        self._reload_time = Gauge(
            "onceproxy_reload_last_success_timestamp_seconds",
            "When rules were last accepted",
            registry=r,
        )
        self._faults = Gauge(
            "onceproxy_fault_injection_enabled", "1 if failpoints are configured", registry=r
        )
        self._build = Gauge("onceproxy_build_info", "1, with the version", ["version"], registry=r)
        self._build.labels(__version__).set(1)
        for state in State:
            self._operations.labels(state.value).set(0)

    # What the engine and the front door report

    def decided(self, service: str, endpoint: str, outcome: str) -> None:
        """A call got its answer: sent, replayed, coalesced, reconciled, resolved, refused, held,
        or passed (forwarded without protection, or a read)."""
        self._calls[*self._pair(service, endpoint), outcome].inc()

    def suppressed(self, service: str, endpoint: str, how: str) -> None:
        """replayed | coalesced | reconciled | upstream_replayed | drift_replayed | journal"""
        self._suppressed[*self._pair(service, endpoint), how].inc()

    def upstream(self, service: str, seconds: float) -> None:
        """One send took so long until the head of its answer, or until it was lost."""
        self._upstream[(self._service(service),)].observe(seconds)
        spent = _spent.get()
        if spent is not None:
            spent[0] += seconds

    def measuring(
        self, handle: Callable[[A], Awaitable[R]], clock: Clock, outcome: Callable[[R], str]
    ) -> Callable[[A], Awaitable[R]]:
        """The same handler, its own share of each call's time measured. ``outcome`` of a reply:
        ``coalesced`` has no share, it waited for its twin; ``ledger_error`` is counted as one."""

        async def measured(arrival: A) -> R:
            began = clock.monotonic()
            spent = [0.0]
            _spent.set(spent)  # the task that sends inherits it
            reply = await handle(arrival)
            word = outcome(reply)
            if word == "ledger_error":
                self.ledger_error()
            if word != "coalesced":
                self._overhead.observe(max(0.0, clock.monotonic() - began - spent[0]))
            return reply

        return measured

    def measuring_at_once(
        self, at_once: Callable[[A], R | None], clock: Clock
    ) -> Callable[[A], R | None]:
        """The same for replies that wait for nothing: all of their time is the proxy's."""

        def measured(arrival: A) -> R | None:
            began = clock.monotonic()
            reply = at_once(arrival)
            if reply is not None:
                self._overhead.observe(max(0.0, clock.monotonic() - began))
            return reply

        return measured

    def reconciled(self, service: str, result: str) -> None:
        """found | absent | several | inconclusive"""
        self._reconciled.labels(self._service(service), result).inc()

    def foreign(self, service: str) -> None:
        """Somebody else, or a ledger that is lost, has had this effect before."""
        self._foreign.labels(self._service(service)).inc()

    def conflict(self, service: str) -> None:
        """An effect came too late to be the only one."""
        self._conflicts.labels(self._service(service)).inc()

    def notified(self, type_: str, result: str) -> None:
        """delivered | failed (one try) | given_up"""
        self._notified.labels(type_, result).inc()

    def notices_behind(self, seconds: float, aside: int) -> None:
        self._notify_behind.set(seconds)
        self._notify_aside.set(aside)

    def tunnel(self, host_kind: str) -> None:
        """ruled | unruled | configured"""
        self._tunnels.labels(host_kind).inc()

    def unprotected(self, reason: str) -> None:
        """no_identity | pass | tunnel | observe ..."""
        self._unprotected.labels(reason).inc()

    def exhausted(self, unit: str) -> None:
        self._budget_refusals.labels(unit).inc()

    def model_tokens(self, service: str, endpoint: str, how: str, number: int) -> None:
        """used | kept"""
        self._model_tokens[*self._pair(service, endpoint), how].inc(number)

    def observed(self, decision: str) -> None:
        self._observed.labels(decision).inc()

    def commit(self, seconds: float, batch: int) -> None:
        self._commit.observe(seconds)
        self._batch.observe(batch)

    def ledger_error(self) -> None:
        self._ledger_errors.inc()

    # What the wiring reports

    def connections(self, count: Callable[[], int]) -> None:
        self._connections.set_function(count)

    def turned_away(self, reason: str) -> None:
        """connections | run_calls | control"""
        self._turned_away.labels(reason).inc()

    def reloaded(self, ok: bool, at: float) -> None:
        self._reload_ok.set(1 if ok else 0)
        if ok:
            self._reload_time.set(at)

    def faults_enabled(self, enabled: bool) -> None:
        self._faults.set(1 if enabled else 0)

    async def refresh(self, ledger: LedgerCounts, now: float) -> None:
        """Read the gauges from the ledger."""
        self._lives.set(int(ledger.generation.partition("-")[0]))
        self._gap.set(0 if ledger.gap is None else 1)
        self._show_counts(await ledger.counts())
        self._waiting.set(await ledger.waiting())
        unknown = [op for op in await ledger.unsettled() if op.state is State.UNKNOWN]
        # An attempt that is only presumed may be of any age: what counts is how long it is asked.
        ages = (max(op.first_maybe_sent_at or 0, op.created_at) for op in unknown)
        oldest = min(ages, default=now)
        self._oldest_unknown.set(max(0.0, now - oldest))

    async def keep_fresh(self, ledger: LedgerCounts, clock: Clock) -> None:
        """Refresh the gauges until cancelled. A ledger that cannot be read leaves them as they are
        and is counted."""
        while True:
            try:
                await self.refresh(ledger, clock.time())
            except asyncio.CancelledError:
                raise
            except Exception:
                self.ledger_error()
            await clock.sleep(REFRESH_SECONDS)

    def expose(self) -> bytes:
        """The text that a scrape gets."""
        return generate_latest(self.registry)

    def _show_counts(self, counts: Mapping[tuple[str, str, str | None], int]) -> None:
        """Entries with the service "" are totals by state, the others are of unsettled ones."""
        self._unknown.clear()
        for (service, state, blocked_by), number in counts.items():
            if not service:
                self._operations.labels(state).set(number)
            elif state == State.UNKNOWN.value:
                self._unknown.labels(self._service(service), blocked_by or NONE).inc(number)

    def _pair(self, service: str, endpoint: str) -> tuple[str, str]:
        pair = (service or NONE, endpoint or NONE)
        if pair in self._pairs:
            return pair
        if len(self._pairs) >= MAX_PAIRS:
            return (OTHER, OTHER)
        self._pairs.add(pair)
        return pair

    def _service(self, service: str) -> str:
        known = len(self._pairs) < MAX_PAIRS or any(service == name for name, _ in self._pairs)
        return (service or NONE) if known else OTHER
