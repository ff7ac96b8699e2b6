"""A person's word: on exactly this call, once, until it runs out or is taken back."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.core.model import Lost, NotSent, Request
from proxy.core.operation import State
from proxy.errors import ServiceError
from proxy.net.exchange import BytesInlet
from tests.fakes.scripted import answer, code, fields, ruleset
from tests.fakes.world import Opened, outcome
from tests.faults.plants import PLANTS
from tests.reliability import control, figure
from tests.runs.support import IMPATIENT, MADE, SETTINGS, SHOP, call, kinds, limits, payout, world

pytestmark = pytest.mark.parametrize("store", ["memory", "sqlite"])
PAID = answer(200, MADE)
NAME = "run-1/step-1/shop.payouts.create"


def prefer(seconds: int) -> Any:
    return call("/payouts", headers=(("Prefer", f"wait={seconds}"),))


async def test_nothing_is_sent_before_a_person_allows_it_and_then_once(
    store: str, tmp_path: Path
) -> None:
    async with world(store, tmp_path, [PAID]) as proxy:
        held = await proxy.call(payout())
        assert (held.status, code(held), outcome(held)) == (403, "approval-required", "held")
        assert proxy.api.on_wire == []
        told = await proxy.waiting()
        assert told["operation"] == f"{NAME}/v1"
        assert told["summary"] == "Pay 50 to acct_1"
        assert told["request"]["method"] == "POST"
        assert json.loads(told["request"]["body"]["text"]) == {"amount": 50, "to": "acct_1"}
        assert told["expires_at"] == told["requested_at"] + 3600
        assert code(await proxy.call(payout())) == "approval-required"
        assert len(await proxy.desk.approvals()) == 1, "it is asked for once"

        granted = await proxy.desk.grant(told["id"], {"note": "fine"}, "ann")
        assert (granted["state"], granted["by"], granted["note"]) == ("granted", "ann", "fine")
        assert proxy.api.on_wire == [], "a grant sends nothing"
        sent = await proxy.call(payout())
        assert (sent.status, outcome(sent)) == (200, "sent")
        assert (await proxy.desk.one(told["id"]))["state"] == "consumed"
        assert outcome(await proxy.call(payout())) == "replayed"
        assert len(proxy.api.writes) == 1


async def test_only_what_the_condition_names_waits(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path, [PAID]) as proxy:
        assert (await proxy.call(call("/orders", {"amount": 100}, step="a"))).status == 200
        held = await proxy.call(call("/orders", {"amount": 101}, step="b"))
        assert code(held) == "approval-required"


async def test_another_request_is_422_and_leaves_the_held_one(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path, [PAID]) as proxy:
        await proxy.call(payout())
        told = await proxy.waiting()
        assert code(await proxy.call(payout(amount=51))) == "operation-mismatch"
        await proxy.desk.grant(told["id"], {}, "ann")
        assert code(await proxy.call(payout(amount=51))) == "operation-mismatch"
        assert (await proxy.call(payout())).status == 200
        assert [json.loads(r.body.data or b"")["amount"] for r in proxy.api.writes] == [50]


@pytest.mark.parametrize("tries", [300, pytest.param(5000, marks=pytest.mark.slow)])
async def test_a_changed_byte_is_never_sent_under_an_approval(
    store: str, tries: int, tmp_path: Path
) -> None:
    chance = random.Random(5)
    body = json.dumps({"amount": 50, "to": "acct_1", "memo": "invoice 7"}).encode()
    async with world(store, tmp_path) as proxy:
        await proxy.call(_raw(body))
        await proxy.desk.grant((await proxy.waiting())["id"], {}, "ann")
        left = tries
        while left:
            place = chance.randrange(len(body))
            other = chance.choice([b for b in range(256) if b != body[place]])
            changed = body[:place] + bytes([other]) + body[place + 1 :]
            if _same_meaning(changed, body):
                continue  # another blank: it is the call that was approved
            left -= 1
            reply = await proxy.call(_raw(changed))
            assert reply.status in (400, 422), changed
        assert proxy.api.on_wire == []
        figure("S4", "one byte of an approved call changed", changes=tries, accepted=0)
        proxy.api.sends = [PAID]
        assert (await proxy.call(_raw(body))).status == 200, "the approved one is still good"


async def test_control_an_approval_that_is_not_bound_to_the_body_is_seen(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PLANTS["approval_of_anything"](monkeypatch.setattr)  # type: ignore[operator]
    async with world(store, tmp_path, [PAID]) as proxy:
        await proxy.call(payout())
        await proxy.desk.grant((await proxy.waiting())["id"], {}, "ann")
        await proxy.call(payout(amount=51))
        assert [json.loads(r.body.data or b"")["amount"] for r in proxy.api.writes] == [51]
    control("S4", "an approval good for any body", "another amount was sent")


async def test_a_person_can_say_no_and_the_agent_is_told_why(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path, [PAID]) as proxy:
        await proxy.call(payout())
        number = (await proxy.waiting())["id"]
        await proxy.desk.deny(number, {"note": "pay half"}, "ann")
        for _ in range(2):
            denied = await proxy.call(payout())
            assert (denied.status, code(denied)) == (403, "approval-denied")
            assert "pay half" in fields(denied)["detail"]
        assert proxy.operation(NAME).state is State.NOT_APPLIED
        edited = await proxy.call(payout(amount=25))
        assert code(edited) == "approval-required", "edited, it is another question"
        again = await proxy.waiting()
        assert again["id"] != number
        await proxy.desk.grant(again["id"], {}, "ann")
        assert (await proxy.call(payout(amount=25))).status == 200
        assert [json.loads(r.body.data or b"")["amount"] for r in proxy.api.writes] == [25]


async def test_an_approval_runs_out_granted_or_not(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path, [PAID]) as proxy:
        await proxy.call(payout())
        first = await proxy.waiting()
        proxy.clock.advance(3600)
        with pytest.raises(ServiceError, match="has expired"):
            await proxy.desk.grant(first["id"], {}, "ann")
        assert (await proxy.desk.one(first["id"]))["state"] == "expired"
        assert code(await proxy.call(payout())) == "approval-required"
        second = await proxy.waiting()
        assert second["id"] != first["id"]
        await proxy.desk.grant(second["id"], {}, "ann")
        proxy.clock.advance(3600)
        assert code(await proxy.call(payout())) == "approval-required"
        assert proxy.api.on_wire == []


async def test_a_grant_can_be_taken_back_until_the_send(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path) as proxy:
        await proxy.call(payout())
        number = (await proxy.waiting())["id"]
        await proxy.desk.grant(number, {}, "ann")
        taken = await proxy.desk.revoke(number, {"note": "wrong account"}, "bob")
        assert (taken["state"], taken["in_flight"]) == ("revoked", [])
        denied = await proxy.call(payout())
        assert code(denied) == "approval-denied"
        assert "wrong account" in fields(denied)["detail"]
        assert proxy.api.on_wire == []
        with pytest.raises(ServiceError, match="was revoked"):
            await proxy.desk.grant(number, {}, "ann")


async def test_an_answer_that_is_known_is_told_although_its_approval_was_revoked(
    store: str, tmp_path: Path
) -> None:
    async with world(store, tmp_path, [PAID]) as proxy:
        await proxy.call(payout())
        number = (await proxy.waiting())["id"]
        await proxy.desk.grant(number, {}, "ann")
        await proxy.call(payout())
        await proxy.desk.revoke(number, {}, "ann")
        assert outcome(await proxy.call(payout())) == "replayed"


async def test_a_lost_one_is_not_sent_again_once_its_approval_is_gone(
    store: str, tmp_path: Path
) -> None:
    async with world(store, tmp_path, [Lost("reset")], settings=IMPATIENT) as proxy:
        await proxy.call(payout())
        number = (await proxy.waiting())["id"]
        await proxy.desk.grant(number, {}, "ann")
        await proxy.through(payout())
        assert proxy.operation(NAME).state is State.UNKNOWN
        await proxy.desk.revoke(number, {}, "ann")
        denied = await proxy.through(payout())
        assert (code(denied), fields(denied)["state"]) == ("approval-denied", "unknown")
        await proxy.recovery.settle_all()
        assert len(proxy.api.writes) == 1


async def test_one_that_can_be_asked_about_is_asked_about_all_the_same(
    store: str, tmp_path: Path
) -> None:
    name = "run-1/step-1/shop.notes.create"

    def found(request: Request) -> Opened:
        mark = json.loads(proxy.api.writes[0].body.data or b"")["mark"]
        return Opened(200, "OK", (), json.dumps({"data": [{"id": "n1", "mark": mark}]}).encode())

    sends, lookups = [Lost("reset")], [answer(500, {}), found]
    async with world(store, tmp_path, sends, lookups=lookups, settings=IMPATIENT) as proxy:
        await proxy.call(call("/notes"))
        number = (await proxy.waiting())["id"]
        await proxy.desk.grant(number, {}, "ann")
        await proxy.through(call("/notes"))
        assert proxy.operation(name).state is State.UNKNOWN
        await proxy.desk.revoke(number, {}, "ann")
        proxy.clock.advance(600)
        await proxy.recovery.settle_all()
        assert proxy.operation(name).state is State.SUCCEEDED
        assert len(proxy.api.writes) == 1


async def test_a_crash_after_the_consumption_does_not_ask_again(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path, [Lost("killed"), PAID], settings=IMPATIENT) as proxy:
        await proxy.call(payout())
        await proxy.desk.grant((await proxy.waiting())["id"], {}, "ann")
        await proxy.through(payout())
        await proxy.restart()
        sent = await proxy.call(payout())
        assert sent.status == 200
        assert len(await proxy.desk.approvals()) == 1
        keys = {request.header("Idempotency-Key") for request in proxy.api.writes}
        assert len(keys) == 1, "sent again under the key that was approved"
        events = kinds(await proxy.ledger.history(f"{NAME}/v1"))
        assert events.count("ApprovalRequested") == 1


async def test_a_call_is_held_until_the_decision(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path, [PAID]) as proxy:
        held = asyncio.create_task(proxy.call(prefer(30)))
        number = await _asked(proxy)
        await proxy.desk.grant(number, {}, "ann")
        reply = await held
        assert (reply.status, outcome(reply)) == (200, "sent")
        assert len(proxy.api.writes) == 1


async def test_twins_that_are_held_are_one_send(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path, [PAID]) as proxy:
        held = [asyncio.create_task(proxy.call(prefer(30))) for _ in range(5)]
        number = await _asked(proxy)
        await proxy.desk.grant(number, {}, "ann")
        replies = await asyncio.gather(*held)
        assert [reply.status for reply in replies] == [200] * 5
        assert len(proxy.api.writes) == 1


async def test_a_held_call_hears_a_denial_and_the_end_of_the_wait(
    store: str, tmp_path: Path
) -> None:
    async with world(store, tmp_path, settings=replace(SETTINGS, approval_wait=30.0)) as proxy:
        held = asyncio.create_task(proxy.call(payout("a")))
        number = await _asked(proxy)
        await proxy.desk.deny(number, {}, "ann")
        assert code(await held) == "approval-denied"
        waited = await proxy.through(payout("b"))
        assert code(waited) == "approval-required"
        assert proxy.api.on_wire == []


async def test_whoever_began_the_run_does_not_approve_for_it(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path, [PAID]) as proxy:
        await proxy.runs.begin({"run": "run-1"}, "ann")
        await proxy.call(payout())
        number = (await proxy.waiting())["id"]
        with pytest.raises(ServiceError, match="somebody else"):
            await proxy.desk.grant(number, {"by": "bob"}, "ann")
        await proxy.desk.grant(number, {"by": "Bob B."}, "bob")
        assert (await proxy.desk.one(number))["by"] == "Bob B. (bob)"


async def test_it_is_asked_again_when_the_endpoints_rule_has_changed(
    store: str, tmp_path: Path
) -> None:
    async with world(store, tmp_path, [PAID]) as proxy:
        await proxy.call(payout())
        number = (await proxy.waiting())["id"]
        await proxy.desk.grant(number, {}, "ann")
        proxy.engine.rules = proxy.rules = ruleset(SHOP.replace("expires: 1h", "expires: 2h"))
        assert code(await proxy.call(payout())) == "approval-required"
        assert (await proxy.waiting())["id"] != number
        assert proxy.api.on_wire == []


async def test_a_version_after_a_failure_needs_its_own(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path, [answer(402, {"error": "no"})]) as proxy:
        await proxy.call(payout())
        await proxy.desk.grant((await proxy.waiting())["id"], {}, "ann")
        assert (await proxy.call(payout())).status == 402
        held = await proxy.call(payout())
        assert code(held) == "approval-required"
        assert (await proxy.waiting())["operation"] == f"{NAME}/v2"


async def test_what_was_not_sent_goes_out_under_the_same_approval(
    store: str, tmp_path: Path
) -> None:
    sends = [NotSent("refused"), answer(429, {}), PAID]
    async with world(store, tmp_path, sends, settings=IMPATIENT) as proxy:
        await proxy.call(payout())
        await proxy.desk.grant((await proxy.waiting())["id"], {}, "ann")
        for _ in range(4):
            reply = await proxy.through(payout())
        assert reply.status == 200
        assert len(await proxy.desk.approvals()) == 1


async def test_nobody_is_asked_in_observe_mode(store: str, tmp_path: Path) -> None:
    settings = replace(SETTINGS, policy=replace(SETTINGS.policy, mode="observe"))
    async with world(store, tmp_path, [PAID], settings=settings) as proxy:
        assert (await proxy.call(payout())).status == 200
        assert await proxy.desk.approvals() == []


async def test_what_has_run_out_waits_no_longer(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path) as proxy:
        await proxy.call(payout("a"))
        await proxy.call(payout("b"))
        number = (await proxy.desk.approvals())[0]["id"]
        await proxy.desk.grant(number, {}, "ann")
        assert await proxy.ledger.waiting() == 1
        assert await proxy.engine.approvals.expire() == 0
        proxy.clock.advance(3600)
        assert await proxy.engine.approvals.expire() == 2
        assert await proxy.ledger.waiting() == 0
        assert await proxy.ledger.states("run-1") == {"not_applied": 2}
        assert await proxy.engine.approvals.expire() == 0


async def test_a_budget_that_is_used_up_asks_nobody(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path, rights=limits(writes=0)) as proxy:
        assert code(await proxy.call(payout())) == "budget-exhausted"
        assert await proxy.desk.approvals() == []


async def test_waiting_costs_nothing_and_the_send_one_unit(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path, [PAID]) as proxy:
        await proxy.call(payout())
        assert proxy.used() == {}
        await proxy.desk.grant((await proxy.waiting())["id"], {}, "ann")
        await proxy.call(payout())
        assert proxy.used() == {"tool_calls": 1, "writes": 1}
        assert await proxy.ledger.verify() == []


def _same_meaning(changed: bytes, body: bytes) -> bool:
    try:
        return bool(json.loads(changed) == json.loads(body))
    except ValueError:
        return False


def _raw(body: bytes) -> Any:
    arrival = call("/payouts")
    arrival.inlet = BytesInlet(body)
    arrival.content_length = len(body)
    return arrival


async def _asked(proxy: Any) -> str:
    """The id of the approval that is asked for in a moment."""
    for _ in range(1000):
        found = await proxy.desk.approvals(["waiting"])
        if found:
            return str(found[0]["id"])
        await asyncio.sleep(0)
    raise AssertionError("nobody was asked")
