"""Whose word counts, and whose budget pays, where it is not simply the caller's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.core.model import Lost
from proxy.core.operation import State
from tests.fakes.scripted import answer, code, fields
from tests.fakes.world import outcome
from tests.runs.support import IMPATIENT, World, call, world

pytestmark = pytest.mark.parametrize("store", ["memory", "sqlite"])
OK = answer(200, {"id": "re_1"})
KEY = (("Idempotency-Key", "invoice-77"),)


async def test_what_a_revoked_tokens_call_began_is_not_sent_again_by_the_proxy_itself(
    store: str, tmp_path: Path
) -> None:
    sends = [Lost("reset"), OK]
    async with world(store, tmp_path, sends, settings=IMPATIENT) as proxy:
        token = (await proxy.runs.begin({"run": "run-1"}, "ann"))["token"]
        await proxy.through(call("/refunds", token=token))
        await proxy.runs.revoke("run-1", {"token": token}, "ann")
        proxy.clock.advance(20)
        await proxy.recovery.settle_all()
        assert len(proxy.api.writes) == 1
        assert proxy.operation("run-1/step-1/shop.refunds.create").state is State.UNKNOWN
        new = (await proxy.runs.begin({"run": "run-1"}, "ann"))["token"]
        assert (await proxy.through(call("/refunds", token=new))).status == 200


async def test_while_no_token_is_revoked_the_proxy_settles_by_sending_again(
    store: str, tmp_path: Path
) -> None:
    sends = [Lost("reset"), OK]
    async with world(store, tmp_path, sends, settings=IMPATIENT) as proxy:
        token = (await proxy.runs.begin({"run": "run-1"}, "ann"))["token"]
        await proxy.through(call("/refunds", token=token))
        proxy.clock.advance(20)
        await proxy.recovery.settle_all()
        assert proxy.operation("run-1/step-1/shop.refunds.create").state is State.SUCCEEDED


async def test_a_business_key_that_leads_to_another_runs_operation_spends_that_runs_budget(
    store: str, tmp_path: Path
) -> None:
    async with world(store, tmp_path, [OK]) as proxy:
        await _granted_to_run_1(proxy)
        await proxy.runs.set_budget("run-1", {"writes": 0}, "ann", raising=True)
        refused = await proxy.call(call("/payouts", run="run-2", headers=KEY))
        assert code(refused) == "budget-exhausted"
        assert "of the run run-1" in fields(refused)["detail"]
        await proxy.runs.set_budget("run-1", {"writes": 1}, "ann", raising=True)
        assert (await proxy.call(call("/payouts", run="run-2", headers=KEY))).status == 200
        assert (proxy.used("run-1"), proxy.used("run-2")) == ({"tool_calls": 1, "writes": 1}, {})


async def test_a_revoked_runs_operation_is_not_sent_for_another_run_that_has_its_key(
    store: str, tmp_path: Path
) -> None:
    async with world(store, tmp_path, [OK]) as proxy:
        await _granted_to_run_1(proxy)
        await proxy.runs.revoke("run-1", {}, "ann")
        assert code(await proxy.call(call("/payouts", run="run-2", headers=KEY))) == (
            "authority-revoked"
        )
        assert proxy.api.on_wire == []
        await proxy.runs.restore("run-1", {}, "ann")
        assert (await proxy.call(call("/payouts", run="run-2", headers=KEY))).status == 200
        await proxy.runs.revoke("run-1", {}, "ann")
        told = await proxy.call(call("/payouts", run="run-2", headers=KEY))
        assert outcome(told) == "replayed", "what is done is told to who is not revoked"


async def _granted_to_run_1(proxy: World) -> None:
    for run in ("run-1", "run-2"):
        await proxy.runs.begin({"run": run}, "ann")
    await proxy.call(call("/payouts", run="run-1", headers=KEY))
    number = (await proxy.waiting())["id"]
    await proxy.desk.grant(number, {}, "bob")
