"""What a run may do: approvals, budgets and ends that others lost over a resume."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from proxy.core.model import Request
from proxy.core.operation import Kind, State
from proxy.core.runs import next_epoch
from proxy.errors import ServiceError
from proxy.net.exchange import Arrival
from tests.fakes.scripted import LOST, answer, code, fields, ruleset
from tests.fakes.world import outcome
from tests.runs.models import MODELS, ask, hear, usage
from tests.runs.support import (
    IMPATIENT,
    MADE,
    SHOP,
    World,
    call,
    kinds,
    limits,
    payout,
    refund,
    world,
)

PAID = answer(200, MADE)
NAME = "run-1/step-1/shop.payouts.create"


async def approved(proxy: World, arrival: Arrival) -> str:
    assert code(await proxy.call(arrival)) == "approval-required"
    number = str((await proxy.waiting())["id"])
    await proxy.desk.grant(number, {}, "ann")
    return number


async def resumed(proxy: World) -> None:
    """Agent and proxy begin anew."""
    await proxy.restart()
    await proxy.ledger.amend("run-1", next_epoch(proxy.clock.time()))


def amount(request: Request) -> Any:
    return json.loads(request.body.data or b"")["amount"]


@pytest.mark.report(
    "R10",
    "https://github.com/TauricResearch/TradingAgents/issues/1089",
    "A checkpoint was known by ticker and date alone; a run of another configuration resumed the "
    "state of somebody else.",
    "The run is bound to a digest of its input. Begun for another one it is 409 `run-reused`, "
    "before it has a token, a checkpoint or a call.",
)
async def test_r10_another_definition_is_another_run(tmp_path: Path) -> None:
    async with world("memory", tmp_path, [PAID]) as proxy:
        name = "NVDA-2026-06-25"
        token = (await proxy.runs.begin({"run": name, "input_digest": "h1"}, "one"))["token"]
        await proxy.ledger.save_checkpoint(name, b'{"state": "of h1"}')
        with pytest.raises(ServiceError) as refused:
            await proxy.runs.begin({"run": name, "input_digest": "h2"}, "two")
        assert refused.value.code == "run-reused"
        assert proxy.api.on_wire == []
        assert not proxy.runs.holds(name, "once_" + "x" * 43)
        assert (await proxy.call(_by(refund(run=name), token))).status == 200


@pytest.mark.report(
    "R11",
    "https://github.com/openai/openai-agents-python/issues/4244",
    "A call that had been approved was asked about again at every resume, and never ran.",
    "Fields that do not change what is sent are no part of the approval: the first call after it "
    "is sent, the others get its answer, and nobody is asked twice.",
)
async def test_r11_other_incidental_fields_do_not_ask_again(tmp_path: Path) -> None:
    async with world("memory", tmp_path, [PAID]) as proxy:
        await approved(proxy, payout())
        await resumed(proxy)
        how = []
        for agent in ("a/1", "b/2", "c/3"):
            headers = (("User-Agent", agent), ("traceparent", f"00-{agent[-1] * 32}-1-01"))
            how.append(outcome(await proxy.call(call("/payouts", headers=headers))))
        assert how == ["sent", "replayed", "replayed"]
        assert len(proxy.api.writes) == 1
        assert len(await proxy.desk.approvals()) == 1


@pytest.mark.report(
    "R13",
    "https://github.com/openai/openai-agents-python/issues/4896",
    "The policy changed while a run was parked, and the approval of before was used all the same.",
    "An approval holds under the rule it was given for. Under another one the call asks anew, and "
    "the earlier approval is marked as run out.",
)
async def test_r13_an_approval_does_not_outlive_its_rule(tmp_path: Path) -> None:
    async with world("memory", tmp_path, [PAID]) as proxy:
        first = await approved(proxy, payout(amount=80))
        stricter = SHOP.replace('"Pay {body.amount} to', '"Two must agree: {body.amount} to')
        proxy.rules = ruleset(stricter)
        await resumed(proxy)
        assert code(await proxy.call(payout(amount=80))) == "approval-required"
        assert proxy.api.on_wire == []
        told = await proxy.waiting()
        assert told["id"] != first
        assert "ApprovalExpired" in kinds(await proxy.ledger.history(f"{NAME}/v1"))
        await proxy.desk.grant(told["id"], {}, "bob")
        assert (await proxy.call(payout(amount=80))).status == 200
        assert len(proxy.api.writes) == 1


@pytest.mark.report(
    "R14",
    "https://github.com/extra-org/extra/issues/139",
    "An approval was used up by a call with other arguments, and by another tool of the same "
    "shape; the ledger showed a call as approved that had never run.",
    "It is good for the stored request of its own operation: another tool asks for itself, other "
    "arguments are 422, and the approved call is the only one that is sent.",
)
async def test_r14_an_approval_is_used_up_by_its_own_call_alone(tmp_path: Path) -> None:
    async with world("memory", tmp_path, [PAID]) as proxy:
        await approved(proxy, payout())
        await resumed(proxy)
        other = call("/orders", {"amount": 500, "to": "acct_1"}, step="step-1")
        assert code(await proxy.call(other)) == "approval-required"
        assert code(await proxy.call(payout(amount=51))) == "operation-mismatch"
        assert proxy.api.on_wire == []
        assert (await proxy.call(payout())).status == 200
        assert [amount(request) for request in proxy.api.writes] == [50]
        assert proxy.operation(NAME).state is State.SUCCEEDED
        states = {one["operation"]: one["state"] for one in await proxy.desk.approvals()}
        assert states == {
            f"{NAME}/v1": "consumed",
            "run-1/step-1/shop.orders.create/v1": "waiting",
        }


@pytest.mark.report(
    "R19",
    "https://github.com/Agenta-AI/agenta/issues/5592",
    "An approval was marked as answered before the resumed run was known to start; the start "
    "failed, and there was nothing to try again.",
    "It is used up in the transaction of the intent and not before: the agent comes back ten "
    "minutes later and its call is sent. After the approval's time it asks anew.",
)
@pytest.mark.parametrize("minutes", [10, 61])
async def test_r19_an_approval_waits_for_the_call_it_was_given_for(
    tmp_path: Path, minutes: int
) -> None:
    async with world("memory", tmp_path, [PAID]) as proxy:
        number = await approved(proxy, payout())
        proxy.clock.advance(60 * minutes)
        await resumed(proxy)
        assert (await proxy.desk.one(number))["state"] == ("granted" if minutes < 60 else "expired")
        reply = await proxy.call(payout())
        if minutes < 60:
            assert reply.status == 200
        else:
            assert code(reply) == "approval-required"
        assert len(proxy.api.writes) == (1 if minutes < 60 else 0)


@pytest.mark.report(
    "R20",
    "https://github.com/mastra-ai/mastra/issues/24796",
    "A run that had finished could be resumed, and an action that had been denied was approved "
    "after its end and carried out.",
    "What was denied cannot be granted, a closed run sends nothing, and both tries are in the "
    "history.",
)
async def test_r20_a_denied_action_of_a_finished_run_is_never_done(tmp_path: Path) -> None:
    async with world("memory", tmp_path) as proxy:
        await proxy.call(payout())
        number = (await proxy.waiting())["id"]
        await proxy.desk.deny(number, {"note": "no"}, "ann")
        assert code(await proxy.call(payout())) == "approval-denied"
        await proxy.runs.close("run-1", {}, "agent")
        with pytest.raises(ServiceError) as refused:
            await proxy.desk.grant(number, {}, "bob")
        assert refused.value.code == "not-waiting"
        assert code(await proxy.call(payout())) == "run-closed"
        await proxy.runs.restore("run-1", {}, "ann")
        assert code(await proxy.call(payout())) == "approval-denied"
        assert proxy.api.on_wire == []
        told = kinds(await proxy.ledger.history(f"{NAME}/v1"))
        assert told[:2] == ["ApprovalRequested", "ApprovalDenied"]


@pytest.mark.report(
    "R22",
    "https://github.com/OpenRouterTeam/typescript-sdk/issues/518",
    "An id that was listed twice among the approvals ran twice, and one that was approved and "
    "rejected did both.",
    "Of decisions at the same moment exactly one holds, and the others hear which. Two calls at "
    "once are one send if it was yes, and none if it was no.",
)
@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("first", ["grant", "deny"])
async def test_r22_of_decisions_at_once_one_holds(tmp_path: Path, store: str, first: str) -> None:
    async with world(store, tmp_path, [PAID]) as proxy:
        await proxy.call(payout())
        number = (await proxy.waiting())["id"]
        acts = [proxy.desk.grant(number, {}, "ann"), proxy.desk.grant(number, {}, "bob")]
        no = proxy.desk.deny(number, {}, "eve")
        acts = [no, *acts] if first == "deny" else [*acts, no]
        ends = await asyncio.gather(*acts, return_exceptions=True)
        won = [end for end in ends if isinstance(end, dict)]
        assert len(won) == 1
        assert all(isinstance(end, (dict, ServiceError)) for end in ends)
        yes = won[0]["state"] == "granted"
        replies = await asyncio.gather(*(proxy.call(payout()) for _ in range(2)))
        assert [reply.status for reply in replies] == [200 if yes else 403] * 2
        assert len(proxy.api.writes) == (1 if yes else 0)


@pytest.mark.report(
    "R50",
    "https://github.com/vercel/workflow/issues/3553",
    "Effects of a second execution landed 40 seconds after the step was recorded as complete; the "
    "journal showed one attempt.",
    "A worker that comes after the run was closed is refused: what was done is told by its id, "
    "what was not is not begun.",
)
async def test_r50_a_worker_that_outlives_its_run_does_nothing(tmp_path: Path) -> None:
    async with world("memory", tmp_path, [PAID]) as proxy:
        assert (await proxy.call(refund("x"))).status == 200
        await proxy.runs.close("run-1", {}, "agent")
        proxy.clock.advance(1)
        known = await proxy.call(refund("x"))
        assert (code(known), fields(known)["external_id"]) == ("run-closed", "po_1")
        assert code(await proxy.call(refund("y"))) == "run-closed"
        assert len(proxy.api.writes) == 1
        told = kinds(await proxy.ledger.history("run-1/x/shop.refunds.create/v1"))
        assert "AuthorityRefused" in told


@pytest.mark.report(
    "R76",
    "https://github.com/agno-agi/agno/issues/7962",
    "The counter of tool calls began at zero at every resume after an approval, so that a limit "
    "of one let more calls through.",
    "The unit is charged with the send and stays charged over approvals, resumes and restarts; "
    "the second call is 403 `budget-exhausted`.",
)
async def test_r76_a_resume_after_an_approval_gives_nothing_back(tmp_path: Path) -> None:
    async with world("memory", tmp_path, [PAID], rights=limits(tool_calls=1)) as proxy:
        await approved(proxy, payout())
        await resumed(proxy)
        assert (await proxy.call(payout())).status == 200
        for _ in range(2):
            refused = await proxy.call(refund("delegate"))
            assert (refused.status, code(refused)) == (403, "budget-exhausted")
            assert proxy.used()["tool_calls"] == 1
            await resumed(proxy)
        assert len(proxy.api.writes) == 1


@pytest.mark.report(
    "R77",
    "https://github.com/tya5/reyn/issues/1911",
    "Counters were saved once a second; a crash lost the last second, and the cap did not hold.",
    "Tokens are reserved before the call leaves and settled before its answer is whole: a kill "
    "right after it loses none, and a call that needs more than is left is refused.",
)
async def test_r77_a_kill_after_the_answer_loses_no_token(tmp_path: Path) -> None:
    rights = limits(tokens=1000)
    async with world("sqlite", tmp_path, [usage(990)], rights=rights, rules=MODELS) as proxy:
        reply = await proxy.callers.handle(ask(max_tokens=1000))
        await hear(reply)
        await proxy.restart(seconds=0.01)
        assert proxy.used()["tokens"] == 990
        assert code(await proxy.call(ask(max_tokens=11))) == "budget-exhausted"
        assert len(proxy.api.on_wire) == 1


@pytest.mark.report(
    "R79",
    "https://github.com/OpenHands/OpenHands/issues/8858",
    "Going on after the cap set the accumulated cost back to zero and showed the old cap again.",
    "An operator raises the limit; what was used stays and grows, and the history says who did it.",
)
async def test_r79_a_raised_limit_resets_nothing(tmp_path: Path) -> None:
    async with world("memory", tmp_path, [PAID] * 15, rights=limits(writes=10)) as proxy:
        for number in range(10):
            assert (await proxy.call(refund(f"s{number}"))).status == 200
        assert code(await proxy.call(refund("s10"))) == "budget-exhausted"
        told = await proxy.runs.set_budget("run-1", {"writes": 15}, "ann", raising=True)
        assert told["budget"]["writes"] == {"limit": 15, "used": 10, "remaining": 5}
        await resumed(proxy)
        for number in range(10, 15):
            assert (await proxy.call(refund(f"s{number}"))).status == 200
        assert code(await proxy.call(refund("s15"))) == "budget-exhausted"
        assert (await proxy.runs.one("run-1"))["budget"]["writes"]["used"] == 15
        events = [stored.event for stored in await proxy.ledger.events(0)]
        assert [event.data["by"] for event in events if event.kind is Kind.BUDGET_SET] == ["ann"]
        assert len(proxy.api.writes) == 15


@pytest.mark.report(
    "R80",
    "https://github.com/langchain-ai/langchainjs/issues/11241",
    "The counter of a run was never reset when its limit ended it, so every later run of the "
    "thread died at once.",
    "Counters belong to their run. A new one starts at zero, the old one stays used up, and a "
    "limit over both is that of a parent run.",
)
async def test_r80_a_new_run_has_counters_of_its_own(tmp_path: Path) -> None:
    async with world("memory", tmp_path, [PAID] * 4, rights=limits(writes=1)) as proxy:
        for run in ("r1", "r2"):
            assert (await proxy.call(refund("a", run))).status == 200
        await proxy.restart()
        for run in ("r1", "r2"):
            assert code(await proxy.call(refund("b", run))) == "budget-exhausted"
        await proxy.runs.begin({"run": "thread"}, "ann")
        await proxy.runs.set_budget("thread", {"writes": 1}, "ann", raising=True)
        for run in ("r3", "r4"):
            await proxy.runs.begin({"run": run, "parent": "thread"}, "ann")
        token = (await proxy.runs.begin({"run": "r3"}, "ann"))["token"]
        assert (await proxy.call(_by(refund("a", "r3"), token))).status == 200
        token = (await proxy.runs.begin({"run": "r4"}, "ann"))["token"]
        assert code(await proxy.call(_by(refund("a", "r4"), token))) == "budget-exhausted"
        assert len(proxy.api.writes) == 3


@pytest.mark.report(
    "R82",
    "https://github.com/egonSchiele/agency-lang/pull/796",
    "The ceiling came back from the checkpoint that the caller supplied, so that a crafted resume "
    "could raise it.",
    "A checkpoint is the agent's own text and nothing reads it; no field of a call speaks of "
    "budgets, and only an operator raises a limit.",
)
async def test_r82_no_checkpoint_and_no_field_raises_a_limit(tmp_path: Path) -> None:
    async with world("memory", tmp_path, [PAID], rights=limits(writes=1)) as proxy:
        assert (await proxy.call(refund("a"))).status == 200
        crafted = json.dumps({"state": {"budget": {"writes": {"limit": 9999, "used": 0}}}})
        await proxy.ledger.save_checkpoint("run-1", crafted.encode())
        await resumed(proxy)
        headers = (("X-Budget", "9999"), ("X-Budget-Writes", "9999"))
        again = await proxy.call(call("/refunds", {"amount": 5}, step="b", headers=headers))
        assert code(again) == "budget-exhausted"
        with pytest.raises(ServiceError, match="only an operator"):
            await proxy.runs.set_budget("run-1", {"writes": 9999}, "agent", raising=False)
        assert proxy.runs.budget("run-1")["budget"]["writes"]["limit"] == 1
        assert len(proxy.api.writes) == 1


@pytest.mark.report(
    "R85",
    "https://github.com/LionSR/TeXRA/issues/9436",
    "Runs that had crashed or been killed were told to the agent as completed.",
    "A run is open until somebody closes it, with its operations by state; closed with an unknown "
    "one it is `completed_with_unknown`, and `completed` only once that is settled.",
)
async def test_r85_a_killed_run_is_not_completed(tmp_path: Path) -> None:
    async with world("memory", tmp_path, [PAID, LOST, PAID], settings=IMPATIENT) as proxy:
        assert (await proxy.call(refund("done"))).status == 200
        await proxy.through(refund("lost"))
        await proxy.call(payout("never"))
        await proxy.restart(seconds=600)
        told = await proxy.runs.one("run-1")
        assert told["status"] == "open"
        assert told["operations"] == {"succeeded": 1, "unknown": 1, "awaiting_approval": 1}
        closed = await proxy.runs.close("run-1", {}, "ann")
        assert closed["status"] == "completed_with_unknown"
        await proxy.runs.restore("run-1", {}, "ann")
        assert (await proxy.through(refund("lost"))).status == 200
        assert (await proxy.runs.one("run-1"))["status"] == "open"
        assert (await proxy.runs.close("run-1", {}, "ann"))["status"] == "completed"
        assert len({request.header("Idempotency-Key") for request in proxy.api.writes}) == 2


def _by(arrival: Arrival, token: str) -> Arrival:
    arrival.token = token
    return arrival
