"""What a scrape shows, and that the reference names all of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from proxy.core.operation import Event, Intent, Kind, Operation
from proxy.core.transitions import evolve_all
from proxy.ledger.base import Gap
from proxy.metrics import MAX_PAIRS, Metrics

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "metrics.md"


class Counted:
    """A ledger as the gauges see it."""

    def __init__(self, counts: Mapping[tuple[str, str, str | None], int], *lost: Operation) -> None:
        self._counts = counts
        self._lost = lost
        self.generation = "2-abc"
        self.gap: Gap | None = Gap(1.0, 2.0)

    async def waiting(self) -> int:
        return 2

    async def counts(self) -> Mapping[tuple[str, str, str | None], int]:
        return self._counts

    async def unsettled(self) -> Sequence[Operation]:
        return self._lost


def lost_operation(at: float) -> Operation:
    new = Operation(
        "run", "step", "x.y", 1, "x", "y", "POST", "https://x/y", Intent("f", "f"), at, at
    )
    started = Event(Kind.ATTEMPT_STARTED, at, {"attempt": 1})
    return evolve_all(new, [started, Event(Kind.ATTEMPT_LOST, at, {"attempt": 1})])


def shown(metrics: Metrics) -> dict[str, float]:
    lines = metrics.expose().decode().splitlines()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in lines
        if not line.startswith("#")
    }


def test_every_metric_is_in_the_reference_and_the_reference_names_no_other() -> None:
    families = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in Metrics().registry.collect()
    }
    assert set(re.findall(r"^\| `(onceproxy_\w+)`", DOCUMENT.read_text(), re.M)) == families


def test_the_reference_names_the_labels() -> None:
    rows = dict(re.findall(r"^\| `(onceproxy_\w+)` \| \w+ \|([^|]*)\|", DOCUMENT.read_text(), re.M))
    metrics = Metrics()
    metrics.decided("stripe", "refunds.create", "sent")
    for line in shown(metrics):
        name, _, labels = line.partition("{")
        if name in rows and labels:
            assert set(re.findall(r"(\w+)=", labels)) <= set(re.findall(r"`(\w+)`", rows[name]))


def test_calls_and_suppressed_duplicates_are_counted_by_endpoint() -> None:
    metrics = Metrics()
    metrics.decided("stripe", "refunds.create", "sent")
    metrics.decided("stripe", "refunds.create", "replayed")
    metrics.suppressed("stripe", "refunds.create", "replayed")
    seen = shown(metrics)
    labels = 'endpoint="refunds.create",outcome="replayed",service="stripe"'
    assert seen[f"onceproxy_calls_total{{{labels}}}"] == 1
    assert sum(v for k, v in seen.items() if k.startswith("onceproxy_duplicates")) >= 1


def test_labels_stay_bounded_whatever_names_arrive() -> None:
    metrics = Metrics()
    for number in range(MAX_PAIRS * 2):
        metrics.decided(f"service-{number}", "x", "sent")
        metrics.upstream(f"service-{number}", 0.1)
    pairs = [name for name in shown(metrics) if name.startswith("onceproxy_calls_total")]
    assert len(pairs) == MAX_PAIRS + 1


def test_two_sets_of_metrics_do_not_share_anything() -> None:
    one, other = Metrics(), Metrics()
    one.unprotected("pass")
    assert 'onceproxy_unprotected_total{reason="pass"}' not in shown(other)


async def test_gauges_come_from_the_ledger_and_forget_what_is_settled() -> None:
    metrics = Metrics()
    counts = {("", "unknown", None): 2, ("", "succeeded", None): 5, ("x", "unknown", "lag"): 2}
    await metrics.refresh(Counted(counts, lost_operation(100.0), lost_operation(130.0)), 160.0)
    seen = shown(metrics)
    assert seen['onceproxy_operations{state="unknown"}'] == 2
    assert seen['onceproxy_operations{state="succeeded"}'] == 5
    assert seen['onceproxy_unknown{blocked_by="lag",service="x"}'] == 2
    assert seen["onceproxy_oldest_unknown_seconds"] == 60
    assert seen["onceproxy_ledger_lives"] == 2
    assert seen["onceproxy_ledger_gap"] == 1
    assert seen["onceproxy_approvals_waiting"] == 2

    await metrics.refresh(Counted({("", "unknown", None): 0}), 200.0)
    seen = shown(metrics)
    assert seen["onceproxy_oldest_unknown_seconds"] == 0
    assert not any(name.startswith("onceproxy_unknown{") for name in seen)
