"""A run begins again and repeats what it had done."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from proxy.core.model import Request
from proxy.core.operation import State
from proxy.net.exchange import Reply
from tests.fakes.scripted import answer, code
from tests.fakes.upstream import ToyApi
from tests.fakes.whole import outcome as outcome_of
from tests.fakes.whole import toy_rules, whole
from tests.fakes.world import outcome
from tests.reports.service import (
    Held,
    Result,
    Service,
    endpoint,
    json_of,
    keyed,
    lost_after,
    rule,
    says,
    slow,
    well,
    world,
)


@pytest.mark.report(
    "R02",
    "https://github.com/langchain-ai/langgraph/issues/7780",
    "A node with an interrupt in a loop ran from its top at every resume, and so did the "
    "calls before the interrupt.",
    "One message and three replays; a second message of the step needs an X-Operation-Id "
    "of its own.",
)
async def test_r02_calls_before_an_interrupt_happen_once() -> None:
    async with world(keyed("/v1/messages")) as w:
        body = {"to": "reviewer", "text": "please look"}
        how = []
        for _ in range(4):
            how.append(outcome(await w.post("/v1/messages", body, "t1", "notify-reviewer")))
            await w.resume("t1")
        assert how == ["sent", "replayed", "replayed", "replayed"]
        assert w.suppressed("replayed") == 3
        assert w.service.made() == 1
        more = {"operation_id": "reminder"}
        worded = body | {"text": "please look again"}
        assert outcome(await w.post("/v1/messages", worded, "t1", "notify-reviewer", **more))
        assert w.service.made() == 2


@pytest.mark.report(
    "R16",
    "https://github.com/microsoft/agent-framework/issues/7458",
    "A deployment was made, then the model's API failed; the retry could not tell what "
    "had happened.",
    "The deployment is replayed; the failed model call is not recorded and is simply made again.",
)
async def test_r16_a_model_that_fails_later_does_not_repeat_the_deployment() -> None:
    model = endpoint("chat", "POST /v1/chat/completions", "effect: read")
    rules = rule(endpoint("made", "POST /deployments"), model)
    async with world(rules) as w:
        assert (await w.post("/deployments", {"app": "shop"})).status == 201
        w.service.fates = [says(500)]
        assert (await w.post("/v1/chat/completions", {"messages": []}, step="T")).status == 500
        await w.resume()
        assert outcome(await w.post("/deployments", {"app": "shop"})) == "replayed"
        assert (await w.post("/v1/chat/completions", {"messages": []}, step="T")).status == 201
        assert w.service.made("/deployments") == 1
        assert await w.states() == [State.SUCCEEDED]


@pytest.mark.report(
    "R17",
    "https://github.com/microsoft/agent-framework/issues/7137",
    "After the machine was made anew the run began from its entry point instead of its checkpoint.",
    "Agent and proxy start from nothing but the ledger's file: the finished steps are replayed.",
)
async def test_r17_a_run_from_its_entry_point_repeats_nothing(tmp_path: Path) -> None:
    api = ToyApi()
    url = await api.start()
    try:
        steps = [("s1", "/refunds"), ("s2", "/messages"), ("s3", "/invoices")]
        async with whole(tmp_path, toy_rules(url)) as door:
            for step, path in steps[:2]:
                got = await door.call(url + path, {"reference": step}, "R", step)
                assert (got.status, outcome_of(got)) == (201, "sent")
        async with whole(tmp_path, toy_rules(url)) as door:
            how = [
                outcome_of(await door.call(url + path, {"reference": step}, "R", step))
                for step, path in steps
            ]
        assert how == ["replayed", "replayed", "sent"]
        assert [api.effects.of(step) for step, _ in steps] == [1, 1, 1]
        assert api.requests.total() == 3
    finally:
        await api.close()


@pytest.mark.report(
    "R23",
    "https://github.com/strands-agents/harness-sdk/pull/3615",
    "A cancellation in the middle of a tool left it looking unfinished, and it ran again.",
    "A caller that hangs up cancels no send; what came of it is the answer to the next call.",
)
@pytest.mark.parametrize("back_after", [0.2, 30.0])
async def test_r23_a_cancelled_tool_is_finished_and_not_repeated(back_after: float) -> None:
    async with world(keyed("/shipments")) as w:
        w.service.fates = [slow(1)]
        call = w.begin("/shipments", {"order": 7})
        await w.clock.sleep(0.1)
        call.cancel()
        await w.clock.sleep(back_after)
        reply = await w.post("/shipments", {"order": 7})
        assert (reply.status, outcome(reply)) in ((201, "coalesced"), (201, "replayed"))
        assert w.service.made() == len(w.service.wire) == 1


@pytest.mark.report(
    "R26",
    "https://github.com/GEMISIS/leviath/issues/96",
    "A batch of parallel calls was saved only as a whole, so a crash repeated all of it.",
    "Each call of the batch stands for itself: finished ones are replayed, the one still "
    "running is joined.",
)
@pytest.mark.parametrize("proxy_dies", [False, True])
async def test_r26_a_batch_is_repeated_call_by_call(proxy_dies: bool) -> None:
    rules = rule(
        endpoint("b", "POST /b"),
        endpoint("c", "POST /c", "key: {in: header, name: Idempotency-Key, valid_for: 24h}"),
        endpoint("d", "DELETE /d", "idempotent: false"),
    )
    async with world(rules) as w:
        hangs = Held()

        async def of_path(service: Service, request: Request) -> Result:
            if request.path == "/d":
                service.happened("/d", {})
                return answer(204)
            return await (hangs if request.path == "/c" else well)(service, request)

        def batch() -> list[asyncio.Task[Reply]]:
            calls = [("GET", "/a"), ("POST", "/b"), ("POST", "/c"), ("DELETE", "/d")]
            return [w.begin(path, {"n": 1}, step=path[1:], method=m) for m, path in calls]

        w.service.fates = [of_path] * 3
        first = batch()
        await hangs.reached()
        await asyncio.wait({first[0], first[1], first[3]})
        for task in first:
            task.cancel()
        if proxy_dies:
            await w.restart()
        else:
            hangs.go_on()
        read, b, c, d = await asyncio.gather(*batch())
        assert (read.status, len(w.service.reads)) == (200, 2)
        assert (b.status, outcome(b)) == (201, "replayed")
        assert c.status == 201
        assert (d.status, outcome(d)) == (204, "replayed")
        assert [w.service.made(path) for path in ("/b", "/c", "/d")] == [1, 1, 1]
        await asyncio.gather(*first, return_exceptions=True)


@pytest.mark.report(
    "R38",
    "https://github.com/KeeperHub/keeperhub/pull/1877",
    "Keys made of the body failed: after a crash two models reworded the reason, and one "
    "intent was paid twice.",
    "The key comes from run and step; the wording may differ after a resume, another amount never.",
)
async def test_r38_a_reason_in_other_words_pays_once() -> None:
    payment = {"to": "0xabc", "amount": 7, "reason": "refund for late parcel"}
    worded = payment | {"reason": "Refund because parcel was late"}
    async with world(keyed("/payments", "wording: [body.reason]")) as w:
        held = Held()
        w.service.fates = [held]
        w.begin("/payments", payment)
        await held.reached()
        await w.restart()
        await w.resume()
        assert (await w.post("/payments", worded)).status == 201
        assert {json_of(request)["reason"] for request in w.service.wire} == {payment["reason"]}
        reply = await w.post("/payments", worded | {"amount": 8})
        assert (reply.status, code(reply)) == (422, "operation-mismatch")
        assert w.service.made() == 1


@pytest.mark.report("R38")
async def test_r38_without_a_word_on_wording_another_reason_is_refused() -> None:
    async with world(keyed("/payments")) as w:
        w.service.fates = [lost_after]
        assert (await w.post("/payments", {"amount": 7, "reason": "late"})).status == 201
        await w.resume()
        reply = await w.post("/payments", {"amount": 7, "reason": "parcel was late"})
        assert (reply.status, code(reply)) == (422, "operation-mismatch")
        assert w.service.made() == 1
