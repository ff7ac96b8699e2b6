"""What a run may spend: charged once, in the step that permits the send, and never given back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from proxy.core.model import Lost, NotSent
from proxy.errors import ServiceError
from tests.fakes.scripted import LOST, answer, code, fields
from tests.fakes.world import outcome
from tests.runs.support import IMPATIENT, get, limits, refund, world

pytestmark = pytest.mark.parametrize("store", ["memory", "sqlite"])
OK = answer(200, {"id": "re_1"})


async def test_one_operation_is_one_unit_however_often_it_is_sent(
    store: str, tmp_path: Path
) -> None:
    async with world(store, tmp_path, [LOST, OK], rights=limits(writes=1)) as proxy:
        first = await proxy.through(refund())
        assert (first.status, outcome(first)) == (200, "sent")
        assert outcome(await proxy.call(refund())) == "replayed"
        assert len(proxy.api.writes) == 2
        assert proxy.used() == {"tool_calls": 1, "writes": 1}


async def test_what_is_over_the_limit_is_refused_and_never_sent(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path, [OK], rights=limits(writes=1)) as proxy:
        await proxy.call(refund("a"))
        refused = await proxy.call(refund("b"))
        assert (refused.status, code(refused)) == (403, "budget-exhausted")
        told = fields(refused)["detail"]
        assert "Of 1 writes of the run run-1 1 are used and 0 left" in told
        assert "onceproxy budget run-1" in told
        assert len(proxy.api.writes) == 1
        assert outcome(await proxy.call(refund("a"))) == "replayed", "what is done is still told"


async def test_calls_at_once_never_overshoot(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path, [OK] * 5, rights=limits(writes=5)) as proxy:
        replies = await asyncio.gather(*(proxy.call(refund(f"s{n}")) for n in range(20)))
        assert sorted(reply.status for reply in replies) == [200] * 5 + [403] * 15
        assert len(proxy.api.writes) == 5
        assert proxy.used() == {"tool_calls": 5, "writes": 5}


async def test_a_restart_and_a_resume_change_no_counter(store: str, tmp_path: Path) -> None:
    sends, rights = [OK, Lost("gone")], limits(writes=2)
    async with world(store, tmp_path, sends, rights=rights, settings=IMPATIENT) as proxy:
        await proxy.call(refund("a"))
        await proxy.through(refund("b"))
        before = proxy.used()
        assert before == {"tool_calls": 2, "writes": 2}
        await proxy.restart()
        assert proxy.used() == before
        assert code(await proxy.call(refund("c"))) == "budget-exhausted"


async def test_what_was_provably_not_sent_keeps_its_unit_for_the_call_that_comes_again(
    store: str, tmp_path: Path
) -> None:
    sends = [NotSent("refused"), OK]
    async with world(store, tmp_path, sends, rights=limits(writes=1)) as proxy:
        assert code(await proxy.call(refund())) == "upstream-not-reached"
        assert (await proxy.call(refund())).status == 200
        assert proxy.used() == {"tool_calls": 1, "writes": 1}


async def test_a_new_version_is_a_unit_of_its_own(store: str, tmp_path: Path) -> None:
    sends = [answer(402, {"error": "declined"}), OK]
    async with world(store, tmp_path, sends, rights=limits(writes=2)) as proxy:
        assert (await proxy.call(refund())).status == 402
        assert (await proxy.call(refund())).status == 200
        assert proxy.used()["writes"] == 2


async def test_a_read_is_a_tool_call_and_its_unit_is_durable_before_it_is_sent(
    store: str, tmp_path: Path
) -> None:
    lookups = [answer(200, {})] * 2
    rights = limits(tool_calls=2)
    async with world(store, tmp_path, lookups=lookups, rights=rights) as proxy:
        for _ in range(2):
            assert (await proxy.call(get())).status == 200
        refused = await proxy.call(get())
        assert code(refused) == "budget-exhausted"
        assert len(proxy.api.on_wire) == 2
        await proxy.restart()
        assert proxy.used() == {"tool_calls": 2}


async def test_a_read_that_no_limit_speaks_of_is_counted_all_the_same(
    store: str, tmp_path: Path
) -> None:
    async with world(store, tmp_path, lookups=[answer(200, {})]) as proxy:
        await proxy.call(get())
        await proxy.ledger.flush()
        assert proxy.used() == {"tool_calls": 1}
        assert await proxy.ledger.events(0) == []


async def test_a_call_without_a_run_has_no_budget(store: str, tmp_path: Path) -> None:
    async with world(
        store, tmp_path, lookups=[answer(200, {})], rights=limits(tool_calls=0)
    ) as proxy:
        assert (await proxy.call(get(run=None))).status == 200


async def test_operators_raise_and_agents_lower(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path, [OK] * 3, rights=limits(writes=2)) as proxy:
        await proxy.call(refund("a"))
        runs = proxy.runs
        lowered = await runs.set_budget("run-1", {"writes": 1}, "agent", raising=False)
        assert lowered["budget"]["writes"] == {"limit": 1, "used": 1, "remaining": 0}
        assert code(await proxy.call(refund("b"))) == "budget-exhausted"
        for higher in (2, None):
            with pytest.raises(ServiceError, match="only an operator"):
                await runs.set_budget("run-1", {"writes": higher}, "agent", raising=False)
        await runs.set_budget("run-1", {"writes": 3}, "ann", raising=True)
        assert (await proxy.call(refund("b"))).status == 200
        await runs.set_budget("run-1", {"writes": None}, "ann", raising=True)
        assert code(await proxy.call(refund("c"))) == "budget-exhausted", "the default holds"


async def test_a_child_spends_of_the_runs_above_it(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path, [OK] * 2) as proxy:
        await proxy.runs.begin({"run": "parent"}, "ann")
        await proxy.runs.set_budget("parent", {"writes": 2}, "ann", raising=True)
        for child in ("one", "two"):
            await proxy.runs.begin({"run": child, "parent": "parent"}, "ann")
        assert (await proxy.call(refund(run="one"))).status == 200
        assert (await proxy.call(refund(run="two"))).status == 200
        refused = await proxy.call(refund("again", run="one"))
        assert code(refused) == "budget-exhausted"
        assert "of the run parent" in fields(refused)["detail"]
        assert proxy.used("parent")["writes"] == 2
        assert proxy.used("one")["writes"] == 1


async def test_the_history_says_what_was_charged(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path, [OK], rights=limits(writes=2)) as proxy:
        await proxy.call(refund())
        (charged,) = [
            stored.event
            for stored in await proxy.ledger.events(0)
            if stored.event.kind == "BudgetCharged"
        ]
        assert charged.data["amounts"] == {"tool_calls": 1, "writes": 1}
        assert await proxy.ledger.verify() == []
