"""What a table over ``decide`` is written with: a case is a snapshot, an ask, and the decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from proxy.core.decide import Ask, Decision, Limits, Refuse, Snapshot, decide
from proxy.core.operation import Operation
from proxy.core.rules import Endpoint
from tests.fakes.operations import T

ASK = Ask(
    version=1,
    fingerprint="whole",
    core_fingerprint="core",
    account=None,
    epoch=1,
    fresh=True,
    arrived_at=T,
    attempts_before=1,
    credential=None,
    body_sha256="b",
)
ENDPOINT = Endpoint(service="svc", name="create", match=None, digest="")
BACKGROUND: Mapping[str, Any] = {"fresh": False, "body_sha256": None}


@dataclass(frozen=True)
class Case:
    """``code``: of the refusal, where the decision is one. ``after``: the wall clock, seconds since
    the operation was created. ``ask``, ``seen``, ``endpoint``: what differs from a call that comes
    again after one attempt, with nothing else known."""

    title: str
    operation: Operation | None
    kind: type[Any]
    reason: str
    code: str | None = None
    after: float = 10.0
    ask: Mapping[str, Any] = field(default_factory=dict)
    seen: Mapping[str, Any] = field(default_factory=dict)
    endpoint: Mapping[str, Any] = field(default_factory=dict)

    def decide(self) -> Decision:
        now = T + self.after
        return decide(
            replace(ASK, **self.ask),
            replace(ENDPOINT, **self.endpoint),
            replace(Snapshot(now, now, self.operation), **self.seen),
            Limits(),
        )


def check(case: Case) -> None:
    decision = case.decide()
    assert (type(decision), decision.reason) == (case.kind, case.reason)
    if case.code is not None:
        assert isinstance(decision, Refuse)
        assert decision.refusal.code == case.code


def table(*cases: Case) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=[case.title for case in cases])
