"""Somebody sends again: an SDK, a framework, a gateway, or all of them at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from proxy.core.model import Request
from proxy.core.operation import Kind, State
from proxy.net.exchange import Reply
from tests.fakes.scripted import answer, code
from tests.fakes.world import body_of, outcome, post
from tests.reports.service import (
    HOST,
    Service,
    World,
    blind,
    header,
    json_of,
    keyed,
    lost_after,
    queried,
    rule,
    says,
    slow,
    world,
)

SHIPPED = Path(__file__).parent.parent.parent / "rules"


async def impatient(
    w: World, at: Sequence[float], *args: Any, gives_up: float = 1.0, **more: Any
) -> Reply:
    """A client that sends at these seconds, each time on a new connection; it hangs up on a try
    after ``gives_up`` seconds, and waits for its last one."""
    began, calls = w.clock.monotonic(), []
    for moment in at:
        await w.clock.sleep(began + moment - w.clock.monotonic())
        calls.append(w.begin(*args, **more))
        if moment != at[-1]:
            await w.clock.sleep(gives_up)
            calls[-1].cancel()
    reply = await calls[-1]
    await asyncio.gather(*calls, return_exceptions=True)
    return reply


@pytest.mark.report(
    "R04",
    "https://abn.company/blog/ai-agent-production-audit",
    "A payment API answered 503 though it had acted; node retries and a resume made nine "
    "refunds of one charge.",
    "Every send carries the operation's one key; a 503 leaves it unknown until an answer "
    "under that key comes.",
)
async def test_r04_refunds_behind_a_503_stay_one() -> None:
    async with world(keyed("/v1/refunds")) as w:
        body = {"charge": "ch_1", "amount": 900}
        w.service.fates = [says(503, acts=True)] * 9
        for _ in range(4):
            reply = await w.post("/v1/refunds", body, "order-77", "refund")
            assert reply.status in (409, 424)
            assert await w.states() == [State.UNKNOWN]
        await w.restart(seconds=30)
        await w.resume("order-77")
        w.service.fates = []
        await w.clock.sleep(120)
        reply = await w.post("/v1/refunds", body, "order-77", "refund")
        assert reply.status == 201
        for _ in range(4):
            assert outcome(await w.post("/v1/refunds", body, "order-77", "refund")) == "replayed"
        assert w.service.made() == 1
        assert w.service.keys == {"order-77/refund/world.made/v1"}


@pytest.mark.report(
    "R05",
    "https://github.com/crewAIInc/crewAI/issues/5802",
    "A task that raised after its mail had gone was run again from its top, mail included.",
    "The read goes through each time, the mail is answered from the ledger.",
)
async def test_r05_a_task_run_again_sends_no_second_mail() -> None:
    async with world(queried("/emails")) as w:
        w.service.fates = [says(202, {"id": "m1"}, acts=True)]
        assert (await w.post("/emails", {"to": "a"}, step="send-invoice")).status == 202
        assert (await w.post("/customers/9", None, step="look", method="GET")).status == 200
        reply = await w.post("/emails", {"to": "a"}, step="send-invoice")
        assert (reply.status, outcome(reply)) == (202, "replayed")
        assert w.service.made() == 1
        assert (await w.post("/customers/9", None, step="look", method="GET")).status == 200
        assert len(w.service.reads) == 2
        assert {o.endpoint for o in await w.operations()} == {"made"}


@pytest.mark.report(
    "R08",
    "https://github.com/langchain-ai/langchain/issues/40688",
    "A retry middleware repeated a transfer on dropped connections, then the model sent "
    "it once more in other words.",
    "The API is asked first and the found transfer is the answer; other words replay it "
    "after a resume and are a 422 before.",
)
async def test_r08_a_dropped_transfer_is_looked_up_and_not_repeated() -> None:
    async with world(queried("/transfers", "wording: [body.memo]")) as w:
        w.service.fates = [lost_after]
        transfer = {"to": "DE1", "amount": 5, "memo": "late parcel"}
        reply = await w.post("/transfers", transfer, step="pay")
        assert (reply.status, outcome(reply)) == (201, "reconciled")
        for _ in range(3):
            assert outcome(await w.post("/transfers", transfer, step="pay")) == "replayed"
        worded = transfer | {"memo": "for the parcel that was late"}
        assert code(await w.post("/transfers", worded, step="pay")) == "operation-mismatch"
        await w.resume()
        reply = await w.post("/transfers", worded, step="pay")
        assert (reply.status, outcome(reply)) == (201, "replayed")
        assert w.service.made() == len(w.service.wire) == 1


@pytest.mark.report(
    "R28",
    "https://github.com/MervinPraison/PraisonAI/issues/4621",
    "A wrapper sent a mail up to three times without the key that the provider would have "
    "honoured.",
    "The proxy puts one key on it, has one send on the wire at a time, and the last try "
    "gets the recorded answer.",
)
async def test_r28_three_impatient_tries_are_one_mail() -> None:
    path = "/v0/inboxes/7/messages/send"
    async with world(keyed(path)) as w:
        w.service.fates = [slow(1.5)] * 3
        reply = await impatient(w, (0, 1, 2), path, {"to": "a"})
        assert reply.status == 201
        assert (w.service.made(), w.service.most, len(w.service.wire)) == (1, 1, 1)
        assert None not in w.service.keys


def slack(service: Service, request: Request) -> Any:
    """chat.postMessage keeps what it is given."""
    said = json_of(request)
    ts = f"17000000{len(service.effects)}.000100"
    service.happened(request.path, {"ts": ts, **said})
    return answer(200, {"ok": True, "channel": said["channel"], "ts": ts})


def history(service: Service, request: Request) -> Any:
    messages = [effect for _, _, effect in service.effects]
    return answer(200, {"ok": True, "messages": messages, "has_more": False})


@pytest.mark.report(
    "R31",
    "https://github.com/openclaw/openclaw/issues/22780",
    "One logged send made two chat messages 77 ms apart: the SDK re-sends when its "
    "connection drops.",
    "The client's connection is not dropped because the API's was; the channel's history "
    "tells that the message is there.",
)
async def test_r31_a_reset_at_the_chat_service_stays_behind_the_proxy() -> None:
    rules = (SHIPPED / "slack.yaml").read_text()
    async with world(rules) as w:
        w.service.act, w.service.look = slack, history
        w.service.fates = [lost_after]
        auth = [("Authorization", "Bearer xoxb-1")]
        path, body = "/api/chat.postMessage", {"channel": "C1", "text": "hi"}
        calls = [post(path, body, headers=auth, host="slack.com") for _ in range(2)]
        first, second = await asyncio.gather(*map(w.proxy.call, calls))
        assert (first.status, json_of(first)["ok"]) == (200, True)
        assert body_of(second) == body_of(first)
        assert {outcome(first), outcome(second)} == {"reconciled", "coalesced"}
        assert w.service.made() == len(w.service.wire) == 1


@pytest.mark.report(
    "R35",
    "https://github.com/ComposioHQ/composio/pull/3657",
    "A generated client repeated a tool call twice on read time-outs, and mails went out twice.",
    "Later tries join the send that runs, though its client has hung up; the last one "
    "gets the answer.",
)
async def test_r35_tries_of_a_generated_client_join_the_first() -> None:
    path = "/api/v3/tools/execute/GMAIL_SEND_EMAIL"
    async with world(queried(path)) as w:
        w.service.fates = [slow(2.2)]
        first = w.begin(path, {"to": "a"}, headers=[("x-stainless-retry-count", "0")])
        await w.clock.sleep(1)
        first.cancel()
        second = w.begin(path, {"to": "a"}, headers=[("x-stainless-retry-count", "1")])
        await w.clock.sleep(1)
        second.cancel()
        reply = await w.post(path, {"to": "a"}, headers=[("x-stainless-retry-count", "2")])
        assert (reply.status, outcome(reply)) == (201, "coalesced")
        assert w.service.made() == len(w.service.wire) == 1


@pytest.mark.report(
    "R43",
    "https://github.com/n8n-io/n8n/issues/17022",
    "The workflow's log shows one message sent, the provider counts two or three.",
    "One send, the same answer for all three connections, and a history that shows three arrivals.",
)
async def test_r43_the_history_shows_what_arrived_and_what_was_sent() -> None:
    async with world(blind("/message/sendText")) as w:
        w.service.fates = [slow(3)]
        tasks = []
        for _ in range(3):
            tasks.append(w.begin("/message/sendText", {"text": "hi"}))
            await w.clock.sleep(1)
        replies = await asyncio.gather(*tasks)
        assert {(r.status, body_of(r)) for r in replies} == {(201, body_of(replies[0]))}
        assert w.service.made() == len(w.service.wire) == 1
        kinds = await w.history()
        assert kinds.count(Kind.ATTEMPT_STARTED) == 1
        assert kinds.count(Kind.COALESCED) == 2


@pytest.mark.report(
    "R44",
    "https://github.com/n8n-io/n8n/issues/12096",
    "With retries switched on, a request that had succeeded was repeated up to the limit.",
    "One send and four replays, equal in every byte, with the API's own request id.",
)
async def test_r44_a_success_repeated_five_times_is_sent_once() -> None:
    async with world(keyed("/v1/predictions")) as w:
        replies = []
        for _ in range(5):
            replies.append(await w.post("/v1/predictions", {"model": "m"}))
            await w.clock.sleep(5)
        assert w.service.made() == len(w.service.wire) == 1
        assert [outcome(r) for r in replies] == ["sent", *["replayed"] * 4]
        assert {body_of(r) for r in replies} == {body_of(replies[0])}
        for name in ("Content-Type", "X-Request-Id"):
            assert {header(r, name) for r in replies} == {header(replies[0], name)}
            assert header(replies[0], name)


MINTED = ("0b9f8c1e-7c43-4b5e-9d2a-4f1f3f1a2b3c", "8b1c6d3e-11a2-4c58-8f0e-2b7d9a1e5f60")


@pytest.mark.report(
    "R53",
    "https://github.com/triggerdotdev/trigger.dev/pull/4952",
    "A platform's key covers its triggers only; inside the task the SDK made a new random "
    "key for each attempt.",
    "A random key is replaced by the operation's; where a rule keeps it, the second one "
    "still meets the first operation.",
)
@pytest.mark.parametrize("existing", ["replace", "keep"])
async def test_r53_a_random_key_per_attempt_makes_one_charge(existing: str) -> None:
    rules = keyed("/v1/charges").replace(
        "keeps: success", f"keeps: success, minted: [uuid4], existing: {existing}"
    )
    async with world(rules) as w:
        for key in MINTED:
            headers = [("Idempotency-Key", key)]
            assert (await w.post("/v1/charges", {"amount": 5}, headers=headers)).status == 201
        assert w.service.made() == 1
        kept = "R/S/world.made/v1" if existing == "replace" else MINTED[0]
        assert w.service.keys == {kept}


@pytest.mark.report(
    "R62",
    "https://github.com/Comfy-Org/ComfyUI/pull/16204",
    "A disconnect after a minute was retried three times: four paid generations and no picture.",
    "The send outlives its client; the tries that follow get its result.",
)
async def test_r62_a_generation_outlives_the_disconnect_of_its_client() -> None:
    async with world(queried("/proxy/generate")) as w:
        w.service.fates = [slow(1.4)]
        reply = await impatient(w, (0, 2, 5, 10), "/proxy/generate", {"prompt": "cat"})
        assert (reply.status, outcome(reply)) == (201, "replayed")
        assert w.service.made() == len(w.service.wire) == 1


@pytest.mark.report(
    "R88",
    "https://orbiresearch.com/lab/agent-double-charged-customers-idempotency",
    "On a slow night of the provider, time-outs were read as failures and 312 accounts "
    "were charged again.",
    "312 charges for 312 accounts, each operation succeeded, every time-out absorbed.",
)
async def test_r88_a_slow_night_charges_nobody_twice() -> None:
    async with world(keyed("/charges")) as w:
        late = [number % 10 < 3 for number in range(312)]

        async def sometimes_slow(service: Service, request: Request) -> Any:
            if late[json_of(request)["amount"]]:
                await service.clock.sleep(45)
            return service.act(service, request)

        async def account(number: int) -> int:
            call = ("/charges", {"amount": number}, f"run-{number}", "charge")
            task = w.begin(*call)
            if late[number]:
                await w.clock.sleep(30)
                task.cancel()
                task = w.begin(*call)
            return (await task).status

        w.service.fates = [sometimes_slow] * 1_000
        statuses = await asyncio.gather(*(account(number) for number in range(312)))
        assert set(statuses) == {201}
        amounts = [effect["amount"] for _, _, effect in w.service.effects]
        assert (len(amounts), sum(amounts)) == (312, sum(range(312)))
        assert await w.states() == [State.SUCCEEDED] * 312
        assert w.suppressed("coalesced") + w.suppressed("replayed") == sum(late)


@pytest.mark.report(
    "R89",
    "https://inthevalley.blog/agentic-workflows/we-charged-three-customers-twice-why-did-retries-keep-billing",
    "A dashboard was green because the last retry had worked; nobody asked what the first "
    "ones had done.",
    "Before anything is sent again the API is asked, and the history says that the effect "
    "was found.",
)
async def test_r89_the_api_is_asked_before_anything_turns_green() -> None:
    async with world(queried("/charge")) as w:
        w.service.lag, w.service.fates = 30, [lost_after]
        reply = await w.post("/charge", {"amount": 5})
        assert (reply.status, code(reply)) == (409, "outcome-unknown")
        assert await w.states() == [State.UNKNOWN]
        await w.clock.sleep(30)
        reply = await w.post("/charge", {"amount": 5})
        assert (reply.status, outcome(reply)) == (201, "reconciled")
        assert w.service.made() == len(w.service.wire) == 1
        kinds = await w.history()
        assert kinds.index(Kind.EFFECT_FOUND) > kinds.index(Kind.ATTEMPT_LOST)
        assert Kind.OUTCOME_RECORDED not in kinds


@pytest.mark.report(
    "R61",
    "https://github.com/boto/boto3/issues/1104",
    "One invocation of a slow function became eight after the client's read time-outs.",
    "All tries, each signed anew, are one operation; what a signature covers goes out as it came.",
)
async def test_r61_a_signed_invocation_runs_once_and_goes_out_as_signed() -> None:
    path = "/2015-03-31/functions/f/invocations"
    rules = blind(path).replace("key: none", "signed: sigv4\nkey: none")
    async with world(rules) as w:
        w.service.fates = [slow(7.5)]
        signed = [_signature(second) for second in range(8)]
        tries = []
        for headers in signed:
            tries.append(w.begin(path, {"n": 1}, headers=headers))
            await w.clock.sleep(1)
            if len(tries) < len(signed):
                tries[-1].cancel()
        reply = await tries[-1]
        assert reply.status == 201
        assert w.service.made() == len(w.service.wire) == 1
        assert set(signed[0]) <= set(w.service.wire[0].headers)
        covered = {"content-type", "authorization", "x-amz-date"}
        assert {name.lower() for name, _ in w.service.wire[0].headers} == covered
        await asyncio.gather(*tries, return_exceptions=True)


def _signature(second: int) -> list[tuple[str, str]]:
    scope = "Credential=AKIDEXAMPLE/20261130/eu-west-1/lambda/aws4_request"
    signature = f"SignedHeaders=content-type;host;x-amz-date, Signature={second:064x}"
    return [
        ("Authorization", f"AWS4-HMAC-SHA256 {scope}, {signature}"),
        ("X-Amz-Date", f"20261130T12000{second}Z"),
    ]


@pytest.mark.report(
    "R67",
    "https://github.com/golang/go/issues/19943",
    "A transport took a request with an idempotency key for safe to repeat and sent it "
    "twice by itself.",
    "The repeated arrival joins the first; to a host without a rule the proxy adds no "
    "key, so nothing behind it is invited to repeat.",
)
async def test_r67_a_transport_that_repeats_a_keyed_request_meets_one_send() -> None:
    async with world(rule("  other:\n    match: POST /other\n")) as w:
        headers = [("Idempotency-Key", MINTED[0])]
        w.service.fates = [slow(2)]
        first = w.begin("/jobs", {"n": 1}, headers=headers)
        await w.clock.sleep(0.1)
        first.cancel()
        reply = await w.post("/jobs", {"n": 1}, headers=headers)
        assert (reply.status, outcome(reply)) == (201, "coalesced")
        assert w.service.made() == len(w.service.wire) == 1
        assert (await w.post("/jobs", {"n": 2}, step="T")).status == 201
        assert [r.header("Idempotency-Key") for r in w.service.wire] == [MINTED[0], None]
        assert w.service.wire[0].host == HOST
