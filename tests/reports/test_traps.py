"""Traps in the meaning of HTTP, keys and protocols that others fell into."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from proxy.core.model import Body
from proxy.core.operation import State
from proxy.net.exchange import BytesInlet
from tests.fakes.scripted import answer, code, ruleset
from tests.fakes.world import outcome, post
from tests.reports.service import (
    Held,
    World,
    endpoint,
    header,
    json_of,
    keyed,
    queried,
    rule,
    says,
    slow,
    world,
)

MCP = (Path(__file__).parent.parent.parent / "rules" / "mcp.yaml").read_text()
ACCEPT = [("Accept", "application/json, text/event-stream")]


async def test_a_hint_not_to_retry_is_no_proof_that_nothing_happened() -> None:
    async with world(keyed("/v1/refunds")) as w:
        w.service.fates = [says(500, acts=True, Stripe_Should_Retry="false")]
        assert (await w.post("/v1/refunds", {"amount": 1})).status == 201
        assert len(w.service.wire) == 2
        assert w.service.made() == 1


async def test_a_hint_to_retry_is_no_permit_to_send_without_a_key() -> None:
    async with world(queried("/mails")) as w:
        w.service.fates = [says(503, acts=True, Retry_After="0", X_Should_Retry="true")]
        reply = await w.post("/mails", {"to": "a"})
        assert (reply.status, outcome(reply)) == (201, "reconciled")
        assert len(w.service.wire) == w.service.made() == 1


async def test_the_key_is_for_the_service_and_never_goes_back_to_the_agent() -> None:
    """Clients repeat by themselves what carries one."""
    async with world(keyed("/v1/refunds")) as w:
        for _ in range(2):
            assert header(await w.post("/v1/refunds", {"amount": 1}), "Idempotency-Key") is None
        assert w.service.keys == {"R/S/world.made/v1"}


async def test_an_upload_and_its_commit_are_two_operations_of_one_step() -> None:
    async with world(rule(endpoint("up", "POST /uploads"), endpoint("do", "POST /commit"))) as w:
        for _ in range(2):
            for path in ("/uploads", "/commit"):
                assert (await w.post(path, {"file": "a"})).status == 201
        assert [w.service.made(path) for path in ("/uploads", "/commit")] == [1, 1]


async def test_parallel_calls_of_one_step_do_not_swap_their_answers() -> None:
    """They are told apart by what they say, not by the order in which they come."""
    async with world(keyed("/mails", "distinguish: [body.to]")) as w:
        w.service.fates = [slow(2), slow(1)]
        first = w.begin("/mails", {"to": "a"})
        second = w.begin("/mails", {"to": "b"})
        said = [json_of(reply)["to"] for reply in (await first, await second)]
        await w.restart()
        said += [json_of(await w.post("/mails", {"to": to}))["to"] for to in "ba"]
        assert said == ["a", "b", "b", "a"]
        assert w.service.made() == 2


async def test_an_id_that_the_client_makes_up_stays_the_first_one_when_it_is_sent_again() -> None:
    async with world(keyed("/pay", "noise: [body.id, body.nonce, body.sent_at]")) as w:
        held = Held()
        w.service.fates = [held]
        body = {"amount": 5, "id": "c-1", "nonce": "x", "sent_at": 1}
        w.begin("/pay", body)
        await held.reached()
        await w.restart()
        again = body | {"id": "c-2", "nonce": "y", "sent_at": 2}
        assert (await w.post("/pay", again)).status == 201
        assert [json_of(r)["id"] for r in w.service.wire] == ["c-1", "c-1"]
        assert w.service.made() == 1


async def test_a_read_that_acts_is_a_write_where_the_rule_says_so() -> None:
    rules = rule(endpoint("leave", "GET /unsubscribe", "effect: write", "idempotent: false"))
    async with world(rules) as w:
        w.service.look = lambda service, request: answer(200, {"left": True})
        how = [outcome(await w.post("/unsubscribe?token=t", None, method="GET")) for _ in range(3)]
        assert how == ["sent", "replayed", "replayed"]
        assert len(w.service.reads) == 1


async def test_an_accepted_job_is_accepted_once() -> None:
    async with world(keyed("/jobs", "answers: [{status: 202, means: accepted}]")) as w:
        w.service.fates = [says(202, {"id": "j1", "state": "queued"}, acts=True)]
        replies = [await w.post("/jobs", {"n": 1}) for _ in range(2)]
        assert [(r.status, json_of(r)["id"]) for r in replies] == [(202, "j1")] * 2
        assert w.service.made() == 1


async def test_a_charge_declined_for_good_is_a_new_charge_only_after_it_was_heard() -> None:
    async with world(keyed("/charges")) as w:
        w.service.fates = [says(402, {"error": "declined"})]
        assert (await w.post("/charges", {"amount": 5}, heard=False)).status == 402
        reply = await w.post("/charges", {"amount": 5})
        assert (reply.status, outcome(reply)) == (402, "replayed")
        assert (await w.post("/charges", {"amount": 5})).status == 201
        assert w.service.made() == 1
        assert await w.states() == [State.FAILED, State.SUCCEEDED]


async def test_a_body_that_was_compressed_anew_is_the_same_request() -> None:
    async with world(keyed("/v1/refunds")) as w:
        fields = [("Content-Encoding", "gzip")]
        for level in (1, 9):
            data = gzip.compress(json.dumps({"amount": 5, "text": "a" * 500}).encode(), level)
            assert (await packed(w, data, fields)).status == 201
        assert len(w.service.wire) == 1


async def packed(w: World, data: bytes, fields: list[tuple[str, str]]) -> Any:
    arrival = post("/v1/refunds", {}, headers=fields)
    arrival.inlet, arrival.content_length = BytesInlet(data), len(data)
    w.service.act = lambda service, request: answer(201, {"id": "re_1"})
    return await w.proxy.call(arrival)


GRAPH = rule(
    endpoint(
        "issue.create",
        "{request: POST /graphql, graphql: issueCreate}",
        "answers: [{status: 200, body: {data.issueCreate: {exists: false}}, means: rejected}]",
    )
)


async def test_a_mutation_is_known_by_what_it_does_and_judged_by_its_body() -> None:
    document = "mutation M($t: String!) { issueCreate(input: {title: $t}) { issue { id } } }"
    body = {"query": document, "variables": {"t": "bug"}}
    async with world(GRAPH) as w:
        w.service.fates = [says(200, {"errors": [{"message": "no"}], "data": None})]
        assert (await w.post("/graphql", body)).status == 200
        assert await w.states() == [State.FAILED]
        w.service.fates = [says(200, {"data": {"issueCreate": {"issue": {"id": "i1"}}}}, acts=True)]
        assert outcome(await w.post("/graphql", body)) == "sent"
        assert outcome(await w.post("/graphql", body)) == "replayed"
        worded = body | {"query": document.replace("mutation M", "mutation  Other")}
        reply = await w.post("/graphql", worded)
        assert outcome(reply) == "replayed" or code(reply) == "operation-mismatch"
        assert w.service.made() == 1


# MCP


@pytest.mark.parametrize("own_rule", [False, True])
async def test_every_start_of_an_mcp_client_opens_a_session_of_its_own(own_rule: bool) -> None:
    """The same bytes in the same step, and they must reach the server each time."""
    tool = endpoint("mail", "{request: POST /mcp, jsonrpc: {method: tools/call, tool: mail}}")
    async with world(MCP if not own_rule else rule(tool)) as w:
        if own_rule:
            w.proxy.rules = ruleset(rule(tool), MCP)
            w.proxy.start()
        for _ in range(2):
            for message in (
                {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}},
                {"jsonrpc": "2.0", "method": "notifications/initialized"},
                {"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
                {"jsonrpc": "2.0", "id": 9, "result": {"roots": []}},
            ):
                reply = await w.post("/mcp", message, headers=ACCEPT)
                assert outcome(reply) is None
            call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "mail"}}
            assert (await w.post("/mcp", call, headers=ACCEPT)).status == 201
            gone = [*ACCEPT, ("Mcp-Session-Id", "s")]
            await w.post("/mcp", None, method="DELETE", headers=gone)
            await w.resume()
        assert [r.method for r in w.service.wire].count("DELETE") == 2
        assert sum(json_of(r or b"{}").get("method") == "tools/call" for r in _posts(w)) == 1
        assert len(_posts(w)) == 2 * 4 + 1


def _posts(w: World) -> list[Any]:
    return [request for request in w.service.wire if request.method == "POST"]


STREAM = rule(
    endpoint(
        "mail",
        "{request: POST /mcp, jsonrpc: {method: tools/call}}",
        "answer_format: jsonrpc",
        "key: {in: json, name: params._meta.key, valid_for: 24h, keeps: all}",
    )
)


async def test_an_answer_as_an_event_stream_finds_the_client_that_asks_again() -> None:
    """After a crash the first body is sent again, with the id of who asks now."""

    def act(service: Any, request: Any) -> Any:
        said = json_of(request)
        key = said["params"]["_meta"]["key"]
        if key not in service.kept:
            service.kept[key] = True
            service.happened(request.path, said)
        event = json.dumps({"jsonrpc": "2.0", "id": said["id"], "result": {"content": []}})
        made = answer(200, None)
        made.headers = (("Content-Type", "text/event-stream"),)
        made.body = f"event: message\ndata: {event}\n\n".encode()
        return made

    async with world(STREAM) as w:
        w.service.act = act
        held = Held()
        w.service.fates = [held]
        call = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "mail"}}
        w.begin("/mcp", {"id": 5, **call}, headers=ACCEPT)
        await held.reached()
        await w.restart()
        for number in (1, "two"):
            arrival = post("/mcp", {"id": number, **call}, run="R", step="S", headers=ACCEPT)
            reply = await w.proxy.callers.handle(arrival)
            data = reply.body.data if isinstance(reply.body, Body) else await anext(reply.body)
            assert json.loads(data.decode().split("data: ")[1])["id"] == number
        assert w.service.made() == 1
        assert [json_of(r)["id"] for r in w.service.wire] == [5, 1]
