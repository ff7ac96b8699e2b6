"""Runs and approvals in memory, as the pages ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxy.errors import ServiceError


def a_run(run: str, **changes: Any) -> dict[str, Any]:
    return {
        "run": run, "status": "open", "epoch": 1, "budget": {}, "operations": {},
        "checkpoint": None, "parent": None, "created_at": 1_800_000_000.0 - 7200,
        "updated_at": 1_800_000_000.0 - 60, "revoked": None, "unprotected": 0, **changes,
    }  # fmt: skip


def an_approval(id_: str, **changes: Any) -> dict[str, Any]:
    return {
        "id": id_, "operation": "support-case-1842/issue-refund/shop.refunds.create/v1",
        "run": "support-case-1842", "state": "waiting", "summary": "Refund 42.50 EUR to ch_1",
        "request": {
            "method": "POST", "url": "https://api.shop.test/v1/refunds",
            "body": '{\n  "charge": "ch_1",\n  "amount": 42.50\n}', "digest": "9f2c" * 16,
        },
        "requested_at": 1_800_000_000.0 - 300, "expires_at": 1_800_000_000.0 + 3600,
        "by": None, "note": None, **changes,
    }  # fmt: skip


class FakeRuns:
    def __init__(self, *runs: dict[str, Any]) -> None:
        self.held = {run["run"]: run for run in runs}

    async def runs(self) -> Sequence[dict[str, Any]]:
        return list(self.held.values())

    async def one(self, run: str) -> dict[str, Any]:
        if run not in self.held:
            raise ServiceError("not-found", "No run has this name.")
        return self.held[run]

    async def revoke_run(self, run: str, reason: str, by: str) -> dict[str, Any]:
        revoked = {"reason": reason, "by": by, "at": 1_800_000_000.0}
        self.held[run] |= {"status": "revoked", "revoked": revoked}
        return self.held[run]

    async def restore_run(self, run: str, by: str) -> dict[str, Any]:
        self.held[run] |= {"status": "open", "revoked": None}
        return self.held[run]

    async def close_run(self, run: str, by: str) -> dict[str, Any]:
        self.held[run] |= {"status": "completed"}
        return self.held[run]


class FakeApprovals:
    def __init__(self, *approvals: dict[str, Any]) -> None:
        self.held = {one["id"]: one for one in approvals}

    async def approvals(self, state: str | None = None) -> Sequence[dict[str, Any]]:
        return [one for one in self.held.values() if state in (None, one["state"])]

    async def one(self, id_: str) -> dict[str, Any]:
        if id_ not in self.held:
            raise ServiceError("not-found", "No approval has this id.")
        return self.held[id_]

    async def grant(self, id_: str, by: str, note: str) -> dict[str, Any]:
        return self._decide(id_, "granted", by, note)

    async def deny(self, id_: str, by: str, note: str) -> dict[str, Any]:
        return self._decide(id_, "denied", by, note)

    async def revoke(self, id_: str, by: str, note: str) -> dict[str, Any]:
        return self._decide(id_, "revoked", by, note)

    def _decide(self, id_: str, state: str, by: str, note: str) -> dict[str, Any]:
        self.held[id_] |= {"state": state, "by": by, "note": note}
        return self.held[id_]
