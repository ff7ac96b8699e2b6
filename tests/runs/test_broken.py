"""Schedules that once ended in a second send, a send that nobody allowed any more, a charge that
nobody paid, or a word about another run. Each is named after what must not happen."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from proxy.authority import Rights
from proxy.core.model import Lost, NotSent, Request
from proxy.core.operation import State
from proxy.core.runs import DEPTH, next_epoch
from proxy.errors import ServiceError
from proxy.ledger.base import Gap, RunQuery
from tests.fakes.scripted import answer, code, fields
from tests.fakes.world import outcome
from tests.runs.support import IMPATIENT, SHOP, World, call, get, payout, refund, world
from tests.runs.test_authority import listed

pytestmark = pytest.mark.parametrize("store", ["memory", "sqlite"])
OK = answer(200, {"id": "re_1"})
INVOICE = (("Idempotency-Key", "invoice-77"),)  # a business key: whoever sends it means one effect
NOTE = "run-1/step-1/shop.notes.create"
NAME = "run-1/step-1/shop.payouts.create"
WORDED = SHOP.replace("POST /payouts\n", "POST /payouts\n    wording: [body.why]\n")


# Twins of other runs


async def test_a_call_that_waited_for_a_twin_that_was_refused_is_sent_once(
    store: str, tmp_path: Path
) -> None:
    """It took the twin's name, under which nothing came into being; its own twins then did not find
    it in flight, took it for abandoned and sent it again."""
    async with world(store, tmp_path) as proxy:
        await proxy.runs.revoke("run-1", {}, "ann")
        begun, end = asyncio.Event(), asyncio.Event()
        left = []

        async def open_(request: Request, **options: Any) -> Any:
            left.append(request)
            begun.set()
            await end.wait()
            return OK

        proxy.api.open = open_  # type: ignore[method-assign]
        arrivals = [call("/refunds", headers=INVOICE, run=run) for run in ("run-1", "run-2")]
        calls = [asyncio.create_task(proxy.call(arrival)) for arrival in arrivals]
        await begun.wait()
        calls.append(
            asyncio.create_task(proxy.call(call("/refunds", headers=INVOICE, run="run-2")))
        )
        for _ in range(20):
            await asyncio.sleep(0)
        await proxy.ledger.flush()
        end.set()
        replies = await asyncio.gather(*calls)
        assert len(left) == 1
        assert [outcome(reply) for reply in replies] == ["refused", "sent", "coalesced"]
        key = "run-2/step-1/shop.refunds.create/v1"
        assert dict(replies[1].headers)["Onceproxy-Operation"] == key


async def test_many_calls_behind_twins_that_are_refused_all_come_to_an_end(
    store: str, tmp_path: Path
) -> None:
    async with world(store, tmp_path) as proxy:
        runs = [f"run-{number}" for number in range(200)]
        for run in runs:
            await proxy.runs.revoke(run, {}, "ann")
        arrivals = [call("/refunds", headers=INVOICE, run=run) for run in runs]
        replies = await asyncio.gather(*map(proxy.call, arrivals))
        assert {code(reply) for reply in replies} == {"authority-revoked"}
        assert proxy.api.on_wire == []


async def test_a_key_that_another_run_is_sending_with_tells_nothing_about_that_run(
    store: str, tmp_path: Path
) -> None:
    async with world(store, tmp_path, [OK]) as proxy:
        other = call("/refunds", {"amount": 99}, headers=INVOICE, run="run-2")
        first, second = await asyncio.gather(
            proxy.call(call("/refunds", headers=INVOICE)), proxy.call(other)
        )
        assert (first.status, code(second)) == (200, "key-reused")
        assert "run-1" not in json.dumps(fields(second))
        assert fields(second).get("external_id") is None


async def test_a_key_that_another_run_sends_with_for_long_tells_nothing_either(
    store: str, tmp_path: Path
) -> None:
    async with world(store, tmp_path, settings=IMPATIENT) as proxy:
        end = asyncio.Event()

        async def open_(request: Request, **options: Any) -> Any:
            await end.wait()
            return OK

        proxy.api.open = open_  # type: ignore[method-assign]
        first = asyncio.create_task(proxy.call(call("/refunds", headers=INVOICE)))
        other = call("/refunds", {"amount": 99}, headers=INVOICE, run="run-2")
        second = asyncio.create_task(proxy.call(other))
        while not second.done():
            await asyncio.sleep(0)
            proxy.clock.advance(0.05)
        told = second.result()
        assert code(told) == "operation-in-progress"
        assert "run-1" not in json.dumps(fields(told)) + str(told.headers)
        end.set()
        assert (await first).status == 200


async def test_a_call_whose_operation_another_run_pays_for_is_not_decided_for_ever(
    store: str, tmp_path: Path
) -> None:
    """The budget that was looked at was not the one that was charged."""
    async with world(store, tmp_path, [OK]) as proxy:
        await proxy.runs.set_budget("run-1", {"writes": 1}, "ann", raising=True)
        await proxy.call(call("/payouts", headers=INVOICE))
        await proxy.desk.grant((await proxy.waiting())["id"], {}, "ann")
        await proxy.call(refund("other"))
        refused = await proxy.call(call("/payouts", headers=INVOICE, run="run-2"))
        assert (refused.status, code(refused)) == (403, "budget-exhausted")
        assert len(proxy.api.writes) == 1
        assert proxy.used() == {"tool_calls": 1, "writes": 1}


# Directly before the first byte


async def test_an_approval_that_runs_out_while_connecting_lets_nothing_leave(
    store: str, tmp_path: Path
) -> None:
    async with world(store, tmp_path) as proxy:
        await proxy.call(payout())
        number = (await proxy.waiting())["id"]
        await proxy.desk.grant(number, {}, "ann")
        left = _while_connecting(proxy, lambda: _later(proxy, 3600))
        reply = await proxy.through(payout())
        assert (left, code(reply)) == ([], "approval-required")
        assert (await proxy.waiting())["id"] != number, "it is asked for anew"


async def test_a_start_that_is_superseded_while_connecting_lets_nothing_leave(
    store: str, tmp_path: Path
) -> None:
    async with world(store, tmp_path, rights=Rights(fence=True)) as proxy:
        old = (await proxy.runs.begin({"run": "run-1"}, "ann"))["token"]
        left = _while_connecting(proxy, lambda: _supersede(proxy))
        reply = await proxy.through(call("/refunds", token=old))
        assert (left, code(reply)) == ([], "superseded")


async def test_a_revoked_approval_is_told_as_such_by_the_very_call_it_stopped(
    store: str, tmp_path: Path
) -> None:
    async with world(store, tmp_path) as proxy:
        await proxy.call(payout())
        number = (await proxy.waiting())["id"]
        await proxy.desk.grant(number, {}, "ann")
        left = _while_connecting(proxy, lambda: proxy.desk.revoke(number, {}, "bob"))
        reply = await proxy.through(payout())
        assert (left, code(reply)) == ([], "approval-denied")


# Who may


async def test_reads_of_a_superseded_start_are_fenced_too(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path, lookups=[OK], rights=Rights(fence=True)) as proxy:
        old = (await proxy.runs.begin({"run": "run-1"}, "ann"))["token"]
        await _supersede(proxy)
        new = (await proxy.runs.begin({"run": "run-1"}, "ann"))["token"]
        arrival = get()
        arrival.token = old
        assert code(await proxy.call(arrival)) == "superseded"
        arrival = get()
        arrival.token = new
        assert (await proxy.call(arrival)).status == 200


async def test_a_method_that_is_denied_is_not_sent_again_by_the_background(
    store: str, tmp_path: Path
) -> None:
    async with world(store, tmp_path, [Lost("reset")], settings=IMPATIENT) as proxy:
        await proxy.through(refund())
        proxy.rights = listed(deny=[{"method": "POST"}])
        await proxy.restart(seconds=30)
        await proxy.recovery.settle_all()
        assert len(proxy.api.writes) == 1


async def test_no_run_is_so_far_below_another_that_revoking_that_misses_it(
    store: str, tmp_path: Path
) -> None:
    async with world(store, tmp_path) as proxy:
        await proxy.runs.begin({"run": "run-0"}, "ann")
        for number in range(DEPTH):
            below = {"run": f"run-{number + 1}", "parent": f"run-{number}"}
            await proxy.runs.begin(below, "ann")
        with pytest.raises(ServiceError, match="further up"):
            await proxy.runs.begin({"run": "lowest", "parent": f"run-{DEPTH}"}, "ann")
        await proxy.runs.revoke("run-0", {}, "ann")
        refused = await proxy.call(refund(run=f"run-{DEPTH}"))
        assert code(refused) == "authority-revoked"


@pytest.mark.parametrize("name", ["c" * 300, "case 7 " * 50])
async def test_a_long_name_as_lists_tell_it_revokes_that_very_run(
    store: str, tmp_path: Path, name: str
) -> None:
    """Another run was made by that name and revoked, and the true one went on."""
    async with world(store, tmp_path, [OK]) as proxy:
        await proxy.call(refund(run=name))
        told = (await proxy.runs.runs(RunQuery()))[0]["run"]
        for spelled in (told, unquote(told), name):
            await proxy.runs.revoke(spelled, {}, "ann")
            assert code(await proxy.call(refund("b", run=name))) == "authority-revoked"
            await proxy.runs.restore(spelled, {}, "ann")
        assert len(await proxy.runs.runs(RunQuery())) == 1


# Approvals of what has left before


async def test_a_grant_that_a_lost_ledger_may_have_used_runs_out_like_any_other(
    store: str, tmp_path: Path
) -> None:
    """It was presumed sent, found not to be, and its approval could not even expire."""
    nothing = answer(200, {"data": []})
    async with world(store, tmp_path, lookups=[nothing] * 20, settings=IMPATIENT) as proxy:
        await proxy.call(call("/notes"))
        await proxy.desk.grant((await proxy.waiting())["id"], {}, "ann")
        now = proxy.clock.time()
        proxy.ledger.gap, proxy.ledger.generation = Gap(now - 100, now), "2-restored"
        await proxy.restart()
        await proxy.through(call("/notes"))
        for _ in range(4):
            if proxy.operation(NOTE).state is State.UNKNOWN:
                proxy.clock.advance(300)
                await proxy.recovery.settle_all()
        assert proxy.operation(NOTE).state is State.NOT_APPLIED
        proxy.clock.advance(86_400)
        assert code(await proxy.call(call("/notes"))) == "approval-required"
        assert proxy.api.writes == []


async def test_a_call_that_is_worded_anew_does_not_strand_what_was_approved_and_lost(
    store: str, tmp_path: Path
) -> None:
    sends = [Lost("reset"), OK]
    async with world(store, tmp_path, sends, rules=WORDED, settings=IMPATIENT) as proxy:
        await proxy.call(payout(why="a"))
        await proxy.desk.grant((await proxy.waiting())["id"], {}, "ann")
        await proxy.through(payout(why="a"))
        await proxy.restart()
        assert (await proxy.through(payout(why="b"))).status == 200
        bodies = [json.loads(request.body.data or b"")["why"] for request in proxy.api.writes]
        assert bodies == ["a", "a"], "what a person has seen is what is sent"


async def test_no_other_request_goes_out_under_a_key_that_the_api_has_seen(
    store: str, tmp_path: Path
) -> None:
    sends = [answer(429, {}), OK]
    async with world(store, tmp_path, sends, settings=IMPATIENT) as proxy:
        await proxy.call(payout())
        await proxy.desk.grant((await proxy.waiting())["id"], {}, "ann")
        await proxy.through(payout())
        proxy.clock.advance(3600)
        assert code(await proxy.call(payout())) == "approval-required"
        proxy.clock.advance(3600)  # and nobody has answered that
        assert code(await proxy.call(payout(amount=51))) == "operation-mismatch"
        await proxy.engine.approvals.expire()
        assert proxy.operation(NAME).state is State.NOT_APPLIED
        assert code(await proxy.call(payout(amount=51))) == "approval-required"
        told = await proxy.waiting()
        assert told["operation"] == f"{NAME}/v2"
        await proxy.desk.grant(told["id"], {}, "ann")
        assert (await proxy.through(payout(amount=51))).status == 200
        keys = [request.header("Idempotency-Key") for request in proxy.api.writes]
        assert len(set(keys)) == 2


def _while_connecting(proxy: World, happens: Any) -> list[Request]:
    """What leaves although something has happened between the intent and the first byte."""
    left: list[Request] = []

    async def open_(request: Request, **options: Any) -> Any:
        await happens()
        objection = options["gate"]()
        if objection is not None:
            return NotSent(objection)
        left.append(request)
        return OK

    proxy.api.open = open_  # type: ignore[method-assign]
    return left


async def _later(proxy: World, seconds: float) -> None:
    proxy.clock.advance(seconds)


async def _supersede(proxy: World) -> None:
    await proxy.ledger.amend("run-1", next_epoch(proxy.clock.time()))
