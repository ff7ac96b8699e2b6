"""The schedules that broke earlier drafts, as far as runs, approvals and authority are in them;
each by its id, judged by what the service had on the wire.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.authority import Rights
from proxy.core.authority import Line, Lists
from proxy.core.model import NotSent, Request
from proxy.core.operation import State
from proxy.core.runs import next_epoch
from proxy.errors import ServiceError
from proxy.retention import Retention, prune
from tests.fakes.scripted import LOST, REFUSED, answer, code, fields, ruleset
from tests.fakes.world import Opened, outcome
from tests.runs.support import (
    IMPATIENT,
    MADE,
    SHOP,
    World,
    call,
    get,
    limits,
    payout,
    refund,
    world,
)

pytestmark = pytest.mark.parametrize("store", ["memory"])
PAID = answer(200, MADE)
DECLINED = answer(402, {"error": "declined"})
NAME = "run-1/step-1/shop.payouts.create"
DAY = 86_400.0


def denied(**line: str) -> Rights:
    return Rights(lists=Lists((), (Line.parse(line),)))


async def granted(proxy: World, arrival: Any) -> str:
    assert code(await proxy.call(arrival)) == "approval-required"
    number = str((await proxy.waiting())["id"])
    await proxy.desk.grant(number, {}, "ann")
    return number


# -- H5 --------------------------------------------------------------------------------------------


async def test_h5_a_second_version_is_not_sent_under_the_first_ones_approval(
    store: str, tmp_path: Path
) -> None:
    async with world(store, tmp_path, [DECLINED, PAID]) as proxy:
        await granted(proxy, payout())
        assert (await proxy.call(payout())).status == 402
        for _ in range(3):
            assert code(await proxy.call(payout())) == "approval-required"
        assert len(proxy.api.writes) == 1
        await proxy.desk.grant((await proxy.waiting())["id"], {}, "ann")
        assert (await proxy.call(payout())).status == 200
        assert len(proxy.api.writes) == 2


@pytest.mark.parametrize("end", [REFUSED, answer(429, {})], ids=["never left", "throttled"])
async def test_h5_three_weeks_later_a_consumed_approval_sends_nothing(
    store: str, tmp_path: Path, end: Any
) -> None:
    async with world(store, tmp_path, [end], settings=IMPATIENT) as proxy:
        await granted(proxy, payout())
        await proxy.call(payout())
        sent = len(proxy.api.writes)
        proxy.clock.advance(21 * DAY)
        await proxy.restart()
        await proxy.recovery.settle_all()
        assert code(await proxy.call(payout())) == "approval-required"
        assert len(proxy.api.writes) == sent
        proxy.api.sends = [PAID]
        await proxy.desk.grant((await proxy.waiting())["id"], {}, "ann")
        assert (await proxy.call(payout())).status == 200
        assert len(proxy.api.writes) == sent + 1


async def test_h5_an_unknown_one_whose_approval_has_run_out_is_not_sent_again(
    store: str, tmp_path: Path
) -> None:
    async with world(store, tmp_path, [LOST], settings=IMPATIENT) as proxy:
        await granted(proxy, payout())
        await proxy.through(payout())
        proxy.clock.advance(7200)  # the key holds for a day, the approval did for an hour
        assert code(await proxy.through(payout())) == "outcome-unresolved"
        await proxy.recovery.settle_all()
        assert len(proxy.api.writes) == 1


async def test_h5_a_grant_whose_agent_is_gone_sends_nothing(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path, [PAID]) as proxy:
        await granted(proxy, payout())
        for _ in range(5):
            proxy.clock.advance(60)
            await proxy.recovery.settle_all()
        await proxy.restart()
        await proxy.recovery.settle_all()
        assert proxy.api.on_wire == []
        assert (await proxy.call(payout())).status == 200
        assert len(proxy.api.writes) == 1


@pytest.mark.parametrize(
    ("old", "new", "holds"),
    [
        ("match: POST /refunds", "match: POST /refunds2", True),
        ("expires: 1h", "expires: 2h", False),
    ],
    ids=["another endpoint", "this one"],
)
async def test_h5_a_reload_takes_back_only_what_was_allowed_under_another_rule(
    store: str, tmp_path: Path, old: str, new: str, holds: bool
) -> None:
    async with world(store, tmp_path, [PAID]) as proxy:
        await granted(proxy, payout())
        proxy.engine.rules = proxy.rules = ruleset(SHOP.replace(old, new))
        reply = await proxy.call(payout())
        assert reply.status == (200 if holds else 403)
        assert len(proxy.api.writes) == holds


async def test_h5_what_goes_out_is_what_a_person_has_seen_mark_and_all(
    store: str, tmp_path: Path
) -> None:
    async with world(store, tmp_path, [answer(200, {"id": "n1"})]) as proxy:
        await proxy.call(call("/notes", {"text": "hello"}))
        told = await proxy.waiting()
        shown = told["request"]["body"]["text"].encode()
        assert "mark" in json.loads(shown)
        await proxy.desk.grant(told["id"], {}, "ann")
        assert (await proxy.call(call("/notes", {"text": "hello"}))).status == 200
        [sent] = proxy.api.writes
        assert sent.body.sha256 == hashlib.sha256(sent.body.data or b"").hexdigest()
        assert json.loads(sent.body.data or b"") == json.loads(shown)


async def test_h5_two_requests_of_one_operation_are_never_both_sent(
    store: str, tmp_path: Path
) -> None:
    """The second leaves the held one as it is; one question waits, and its answer sends that."""
    async with world(store, tmp_path, [PAID]) as proxy:
        calls = [asyncio.create_task(proxy.call(payout(amount=n))) for n in (50, 51, 52)]
        codes = sorted([code(await each) for each in calls])
        assert codes == ["approval-required", "operation-mismatch", "operation-mismatch"]
        told = await proxy.waiting()
        await proxy.desk.grant(told["id"], {}, "ann")
        for amount in (50, 51, 52):
            await proxy.call(payout(amount=amount))
        [sent] = proxy.api.writes
        assert json.loads(sent.body.data or b"") == json.loads(told["request"]["body"]["text"])


# -- H6 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["approval", "deny list", "closed", "run"])
async def test_h6a_whoever_is_stopped_still_learns_what_was_done(
    store: str, tmp_path: Path, how: str
) -> None:
    """Else the model does it by another road."""
    async with world(store, tmp_path, [PAID]) as proxy:
        number = await granted(proxy, payout())
        assert (await proxy.call(payout())).status == 200
        if how == "approval":
            await proxy.desk.revoke(number, {}, "ann")
        elif how == "deny list":
            proxy.rights = denied(service="shop")
            await proxy.restart()
        elif how == "closed":
            await proxy.runs.close("run-1", {}, "ann")
        else:
            await proxy.runs.revoke("run-1", {}, "ann")
        reply = await proxy.call(payout())
        if how in ("approval", "deny list"):
            assert (reply.status, outcome(reply)) == (200, "replayed")
        else:
            known = fields(reply)
            assert reply.status == 403
            assert (known["state"], known["external_id"]) == ("succeeded", "po_1")
        assert len(proxy.api.writes) == 1


@pytest.mark.parametrize("how", ["closed", "run"])
async def test_h6b_an_unknown_one_of_a_run_that_is_over_is_asked_about_and_its_status_follows(
    store: str, tmp_path: Path, how: str
) -> None:
    def found(request: Request) -> Opened:
        mark = json.loads(proxy.api.writes[0].body.data or b"")["mark"]
        return Opened(200, "OK", (), json.dumps({"data": [{"id": "n1", "mark": mark}]}).encode())

    lookups = [answer(500, {}), found]
    async with world(store, tmp_path, [LOST], lookups=lookups, settings=IMPATIENT) as proxy:
        await granted(proxy, call("/notes"))
        await proxy.through(call("/notes"))
        if how == "closed":
            told = await proxy.runs.close("run-1", {}, "ann")
            assert told["status"] == "completed_with_unknown"
        else:
            await proxy.runs.revoke("run-1", {}, "ann")
        proxy.clock.advance(600)
        await proxy.recovery.settle_all()
        assert proxy.operation("run-1/step-1/shop.notes.create").state is State.SUCCEEDED
        status = (await proxy.runs.one("run-1"))["status"]
        assert status == ("completed" if how == "closed" else "revoked")
        assert len(proxy.api.writes) == 1


@pytest.mark.parametrize("what", ["run", "token", "approval"])
async def test_h6c_nothing_leaves_after_the_revoke_was_acknowledged(
    store: str, tmp_path: Path, what: str
) -> None:
    """The intent is durable and the upstream is being connected to."""
    async with world(store, tmp_path) as proxy:
        token = (await proxy.runs.begin({"run": "run-1"}, "ann"))["token"]
        arrival = call("/payouts", token=token)
        assert code(await proxy.call(arrival)) == "approval-required"
        number = (await proxy.waiting())["id"]
        await proxy.desk.grant(number, {}, "bob")
        connecting, connected = asyncio.Event(), asyncio.Event()
        left: list[Request] = []

        async def open_(request: Request, **options: Any) -> Any:
            connecting.set()
            await connected.wait()
            objection = options["gate"]()
            if objection is not None:
                return NotSent(objection)
            left.append(request)
            return PAID

        proxy.api.open = open_  # type: ignore[method-assign]
        sending = asyncio.create_task(proxy.call(call("/payouts", token=token)))
        await connecting.wait()
        if what == "run":
            told = await proxy.runs.revoke("run-1", {}, "ann")
        elif what == "token":
            told = await proxy.runs.revoke("run-1", {"token": token}, "ann")
        else:
            told = await proxy.desk.revoke(number, {}, "ann")
        assert told["in_flight"] == [f"{NAME}/v1"]
        connected.set()
        assert (await sending).status >= 400
        assert left == []


async def test_h6d_a_runs_token_is_good_for_that_run_alone(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path, [PAID]) as proxy:
        token = {
            run: (await proxy.runs.begin({"run": run}, "ann"))["token"] for run in ("run-1", "b")
        }
        stranger = refund(run="b")
        stranger.token = token["run-1"]
        assert code(await proxy.call(stranger)) == "authority-revoked"
        assert proxy.api.on_wire == []
        assert proxy.runs.guarded("b"), "and no agent's token of the control API may act for it"
        assert not proxy.runs.holds("b", token["run-1"])
        own = refund(run="b")
        own.token = token["b"]
        assert (await proxy.call(own)).status == 200


# -- H8 --------------------------------------------------------------------------------------------


async def test_h8_the_same_run_id_for_another_case_gets_no_answer_of_the_first(
    store: str, tmp_path: Path
) -> None:
    """An agent that begins its run with its input hears so before its first call."""
    async with world(store, tmp_path, [PAID]) as proxy:
        await proxy.runs.begin({"run": "nightly", "input_digest": "invoice-1"}, "agent")
        assert (await proxy.call(refund(run="nightly"))).status == 200
        with pytest.raises(ServiceError) as reused:
            await proxy.runs.begin({"run": "nightly", "input_digest": "invoice-2"}, "agent")
        assert reused.value.code == "run-reused"
        await proxy.runs.begin({"run": "nightly", "input_digest": "invoice-1"}, "agent")
        assert outcome(await proxy.call(refund(run="nightly"))) == "replayed"
        assert len(proxy.api.writes) == 1


# -- H11 (what is metered: test_metering) ----------------------------------------------------------


async def test_h11_ten_calls_at_once_do_not_overshoot_and_what_failed_stays_charged(
    store: str, tmp_path: Path
) -> None:
    sends = [DECLINED, LOST, LOST, LOST, LOST, *[PAID] * 9]
    rights = limits(writes=3, tool_calls=5)
    async with world(store, tmp_path, sends, rights=rights, settings=IMPATIENT) as proxy:
        assert (await proxy.call(refund("declined"))).status == 402
        await proxy.through(refund("lost"))
        calls = [asyncio.create_task(proxy.call(refund(f"s{n}"))) for n in range(10)]
        while not all(each.done() for each in calls):
            proxy.clock.advance(0.1)
            await asyncio.sleep(0)
        refused = [each.result() for each in calls if each.result().status == 403]
        assert len(refused) == 9
        steps = {request.header("Idempotency-Key") for request in proxy.api.writes}
        assert len(steps) == 3, "three operations reached the service"
        assert proxy.used() == {"writes": 3, "tool_calls": 3}
        proxy.api.lookups = [answer(200, {})] * 2
        for n in range(2):
            assert (await proxy.call(get(f"/orders/{n}"))).status == 200
        assert code(await proxy.call(get("/orders/9"))) == "budget-exhausted", "reads count too"
        await proxy.restart()
        assert proxy.used() == {"writes": 3, "tool_calls": 5}


# -- H12 (its journal: the tests of the journal) ---------------------------------------------------

WORDED = SHOP.replace("noise: [body.trace]", "noise: [body.trace]\n    wording: [body.memo]")


@pytest.mark.parametrize("fence", [False, True])
async def test_h12_a_second_start_does_not_move_the_first_ones_calls_into_its_epoch(
    store: str, tmp_path: Path, fence: bool
) -> None:
    """What worker 1 words anew is a second message of its own start, and no replay, whatever worker
    2 has begun meanwhile."""
    rights = Rights(fence=fence)
    async with world(store, tmp_path, [PAID] * 2, rights=rights, rules=WORDED) as proxy:
        one = (await proxy.runs.begin({"run": "run-1"}, "ann"))["token"]

        def says(memo: str, token: str, step: str = "a") -> Any:
            return call("/refunds", {"amount": 5, "memo": memo}, step=step, token=token)

        assert (await proxy.call(says("first", one))).status == 200
        await proxy.ledger.amend("run-1", next_epoch(proxy.clock.time()))
        two = (await proxy.runs.begin({"run": "run-1"}, "ann"))["token"]
        again = await proxy.call(says("second", one))
        assert code(again) == "operation-mismatch"
        assert outcome(await proxy.call(says("reworded", two))) == "replayed"
        assert len(proxy.api.writes) == 1
        late = await proxy.call(says("late", one, "b"))
        assert late.status == (409 if fence else 200)
        assert len(proxy.api.writes) == (1 if fence else 2)


# -- M ---------------------------------------------------------------------------------------------


async def test_m11_no_two_runs_share_an_operation_whatever_their_names_hold(
    store: str, tmp_path: Path
) -> None:
    """Clients differ in what they percent-encode; each name is one run, and none is another's."""
    names = ["a/b", "a%2Fb", "a b", "a+b", "a:b", "\u00e9", "e\u0301", "A", "a"]
    async with world(store, tmp_path, [PAID] * len(names)) as proxy:
        for name in names:
            assert (await proxy.call(refund(run=name))).status == 200
        for name in names:
            assert outcome(await proxy.call(refund(run=name))) == "replayed"
        keys = {request.header("Idempotency-Key") for request in proxy.api.writes}
        assert len(proxy.api.writes) == len(keys) == len(names)


@pytest.mark.parametrize(("keeps", "known"), [("24h", True), ("1h", False), ("forever", True)])
async def test_m13_a_key_that_the_api_honours_is_not_forgotten_however_short_keep_keys_is(
    store: str, tmp_path: Path, keeps: str, known: bool
) -> None:
    rules = SHOP.replace("valid_for: 24h", f"valid_for: {keeps}")
    async with world(store, tmp_path, [PAID] * 2, rules=rules) as proxy:
        assert (await proxy.call(refund())).status == 200
        proxy.clock.advance(3 * 3600)
        await prune(proxy.ledger, Retention(60.0, 60.0, 60.0), proxy.clock)
        again = await proxy.call(refund())
        assert len(proxy.api.writes) == (1 if known else 2)
        if known:
            assert code(again) == "outcome-not-kept"
            assert fields(again)["external_id"] == "po_1"


async def test_m14_an_api_that_ignores_keys_has_a_rule_that_says_so(
    store: str, tmp_path: Path
) -> None:
    """With a rule that promised a key, the re-send would be a second refund."""
    honest = SHOP.replace(
        "key: {in: header, name: Idempotency-Key, valid_for: 24h, keeps: all, existing: replace}",
        "key: none",
    )
    async with world(store, tmp_path, [LOST, PAID], rules=honest) as proxy:
        assert code(await proxy.through(refund())) == "outcome-unresolved"
        await proxy.restart()
        await proxy.recovery.settle_all()
        assert code(await proxy.through(refund())) == "outcome-unresolved"
        assert len(proxy.api.writes) == 1
    async with world(store, tmp_path, [LOST, PAID]) as proxy:  # the control
        assert (await proxy.through(refund())).status == 200
        assert len(proxy.api.writes) == 2


async def test_m16_an_api_that_replays_its_500_for_a_day_is_sent_to_five_times(
    store: str, tmp_path: Path
) -> None:
    broken = answer(500, {"error": "internal"})
    patient = replace(IMPATIENT, patience=120.0)
    async with world(store, tmp_path, [broken] * 50, settings=patient) as proxy:
        began = proxy.clock.time()
        await proxy.through(refund())
        assert len(proxy.api.writes) == 5
        assert proxy.clock.time() - began > 5, "and not all at once"
        for _ in range(20):
            proxy.clock.advance(60)
            await proxy.recovery.settle_all()
        assert len(proxy.api.writes) == 5, "none of it in the background"
        assert len({request.header("Idempotency-Key") for request in proxy.api.writes}) == 1
        assert proxy.used()["writes"] == 1
