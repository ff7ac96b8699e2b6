"""All services of one proxy, as API and console are given them."""

from __future__ import annotations

from dataclasses import dataclass

from proxy.service.approvals import ApprovalService
from proxy.service.checkpoints import CheckpointService
from proxy.service.operations import OperationService
from proxy.service.resume import Resumes
from proxy.service.runs import RunService


@dataclass(frozen=True, slots=True)
class Services:
    operations: OperationService
    runs: RunService
    approvals: ApprovalService
    checkpoints: CheckpointService
    resumes: Resumes
