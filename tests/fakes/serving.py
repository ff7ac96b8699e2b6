"""The services over any ledger, without an engine behind them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from proxy.approvals import Approvals
from proxy.authority import Authority
from proxy.clock import Clock
from proxy.core.rules import Service
from proxy.ledger.base import Ledger
from proxy.service.approvals import ApprovalService
from proxy.service.checkpoints import CheckpointService
from proxy.service.operations import OperationService
from proxy.service.resume import Resumes
from proxy.service.runs import RunService
from proxy.service.services import Services


def services_of(
    ledger: Ledger,
    clock: Clock,
    *,
    settle: Callable[[str], Awaitable[object]],
    reload: Callable[[], Awaitable[None]],
    rules: Callable[[], Sequence[Service]] = lambda: (),
    checkpoint_max: int = 10_000_000,
) -> Services:
    authority = Authority(ledger)
    operations = OperationService(
        ledger=ledger, clock=clock, services=rules, settle=settle, reload=reload
    )
    runs = RunService(ledger=ledger, clock=clock, authority=authority)
    approvals = ApprovalService(
        ledger=ledger,
        clock=clock,
        services=rules,
        authority=authority,
        approvals=Approvals(ledger, clock),
    )
    return Services(
        operations=operations,
        runs=runs,
        approvals=approvals,
        checkpoints=CheckpointService(ledger, size_max=checkpoint_max),
        resumes=Resumes(ledger, clock, operations, runs, approvals),
    )
