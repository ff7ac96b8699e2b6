"""One proxy over either store, and everything that people can do to its runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from proxy.authority import Rights
from proxy.core.call import Policy
from proxy.engine import Settings
from proxy.ledger.base import Ledger
from proxy.ledger.memory import MemoryLedger
from proxy.ledger.sqlite import SqliteLedger
from proxy.net.exchange import Arrival, Reply
from proxy.service.approvals import ApprovalService
from proxy.service.runs import RunService
from tests.fakes.clock import FakeClock
from tests.fakes.scripted import Proxy, Scripted, Step, ruleset
from tests.fakes.world import post

SHOP = """
service: shop
hosts: [shop.test]
source: https://shop.test/docs
confidence: documented
checked: "2026-11-30"
key: {in: header, name: Idempotency-Key, valid_for: 24h, keeps: all, existing: replace}
answers: [{status: 429, means: not_applied}]
endpoints:
  refunds.create:
    match: POST /refunds
    external_id: id
    noise: [body.trace]
  payouts.create:
    match: POST /payouts
    external_id: id
    approval: {required: true, summary: "Pay {body.amount} to {body.to}", expires: 1h}
  orders.create:
    match: POST /orders
    external_id: id
    approval: {when: {body.amount: {over: 100}}}
  notes.create:
    match: POST /notes
    key: none
    external_id: id
    approval: {required: true}
    marker: {in: json, name: mark}
    reconcile:
      request: GET /notes
      items: data
      where: {mark: "{key}"}
"""
SETTINGS = Settings(policy=Policy(digest_key=b"d"))
IMPATIENT = replace(SETTINGS, patience=0.1)
PAYOUT = {"amount": 50, "to": "acct_1"}
MADE = {"id": "po_1"}


class World(Proxy):
    """``proxy.runs`` and ``proxy.desk`` are of the proxy's present life."""

    runs: RunService
    desk: ApprovalService

    def start(self) -> None:
        super().start()
        authority = self.engine.authority
        self.runs = RunService(ledger=self.ledger, clock=self.clock, authority=authority)
        self.desk = ApprovalService(
            ledger=self.ledger,
            clock=self.clock,
            services=lambda: self.rules.services,
            authority=authority,
            approvals=self.engine.approvals,
        )

    async def waiting(self) -> dict[str, Any]:
        """The one approval that waits."""
        found = await self.desk.approvals(["waiting"])
        assert len(found) == 1, found
        return found[0]

    async def through(self, arrival: Arrival) -> Reply:
        """Make a call while time passes."""
        task = asyncio.create_task(self.call(arrival))
        while not (await asyncio.wait({task}, timeout=0.005))[0]:
            self.clock.advance(0.05)
        return task.result()

    def used(self, run: str = "run-1") -> dict[str, int]:
        budget = self.runs.budget(run)["budget"]
        return {unit: told["used"] for unit, told in budget.items() if told["used"]}


@asynccontextmanager
async def world(
    store: str,
    path: Path,
    sends: Sequence[Step] = (),
    *,
    lookups: Sequence[Step] = (),
    rights: Rights | None = None,
    settings: Settings = SETTINGS,
    rules: str = SHOP,
) -> AsyncIterator[World]:
    clock = FakeClock(auto=store == "memory")  # a jump does not wait for a disk
    ledger: Ledger = MemoryLedger(clock)
    if store == "sqlite":
        ledger = SqliteLedger(path / "ledger.db", key=b"k" * 32, clock=clock)
        await ledger.open()
    try:
        yield World(
            ruleset(rules),
            Scripted(list(sends), list(lookups)),
            settings=settings,
            clock=clock,
            ledger=ledger,
            rights=rights,
        )
    finally:
        await ledger.close()


def limits(**amounts: int) -> Rights:
    return Rights(budget=amounts)


def call(path: str, body: Any = None, *, token: str | None = None, **more: Any) -> Arrival:
    arrival = post(path, PAYOUT if body is None else body, host="shop.test", **more)
    arrival.token = token
    return arrival


def payout(step: str = "step-1", **changes: Any) -> Arrival:
    return call("/payouts", {**PAYOUT, **changes}, step=step)


def refund(step: str = "step-1", run: str = "run-1", **changes: Any) -> Arrival:
    return call("/refunds", {"amount": 5, **changes}, step=step, run=run)


def get(path: str = "/orders/1", *, run: str | None = "run-1", step: str = "step-1") -> Arrival:
    arrival = post(path, None, host="shop.test", run=run, step=step, method="GET")
    arrival.content_length = 0
    return arrival


def kinds(events: Sequence[Any]) -> list[str]:
    return [str(stored.event.kind) for stored in events]
