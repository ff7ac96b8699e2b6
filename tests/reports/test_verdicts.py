"""What an answer was taken for: success, failure, somebody else's object."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.core.model import Request
from proxy.core.operation import Kind, State
from tests.fakes.scripted import LOST, answer, code, fields
from tests.fakes.world import outcome
from tests.reports.service import (
    Service,
    endpoint,
    header,
    json_of,
    keyed,
    lost_after,
    rule,
    says,
    world,
)


@pytest.mark.report(
    "R41",
    "https://github.com/nibor1896/Crow/issues/93",
    "A refusal was replayed even after another call had met its precondition.",
    "A refusal that its caller has heard is not kept: the next call is a new version and is sent.",
)
async def test_r41_a_refusal_that_was_heard_does_not_stick() -> None:
    must_read = "answers: [{status: 409, body: {error: must_read_first}, means: rejected}]"
    key = "key: {in: header, name: Idempotency-Key, valid_for: 24h, keeps: success}"
    async with world(rule(endpoint("files.put", "PUT /files/{x+}", key, must_read))) as w:
        w.service.fates = [says(409, {"error": "must_read_first"})]
        assert (await w.post("/files/x", {"text": "a"}, method="PUT")).status == 409
        assert (await w.post("/files/x", None, method="GET")).status == 200
        reply = await w.post("/files/x", {"text": "a"}, method="PUT")
        assert (reply.status, outcome(reply)) == (201, "sent")
        assert w.service.made() == 1
        assert await w.states() == [State.FAILED, State.SUCCEEDED]
        assert len(w.service.keys) == 1


PULLS = rule(
    endpoint(
        "pulls.create",
        "POST /repos/o/r/pulls",
        "answers: [{status: 422, body: {error: {contains: already exists}}, means: exists}]",
        "marker: {in: json, name: ref}",
        'reconcile: {request: "GET /repos/o/r/pulls?head={body.head}", items: data,'
        ' where: {ref: "{key}"}, answer: {status: 201, body: "{item}"}}',
    )
)


def one_per_head(service: Service, request: Request) -> Any:
    """A pull request per branch, and a 422 for the second."""
    said = json_of(request)
    if any(effect["head"] == said["head"] for _, _, effect in service.effects):
        return answer(422, {"error": "A pull request already exists"})
    effect = {"id": f"pr_{len(service.effects) + 1}", **said}
    service.happened(request.path, effect)
    return answer(201, effect)


@pytest.mark.report(
    "R71",
    "https://github.com/github/github-mcp-server/issues/2594",
    "The pull request had been made, the user saw a 422 and pressed again.",
    "The 422 of a repeated send means that it exists: it is looked up, and the caller "
    "gets its 201.",
)
async def test_r71_already_exists_after_a_lost_answer_is_the_lost_answer() -> None:
    async with world(PULLS.replace("answers: [", "idempotent: true\n    answers: [")) as w:
        w.service.act, w.service.fates = one_per_head, [lost_after]
        reply = await w.post("/repos/o/r/pulls", {"head": "fix", "base": "main"})
        assert (reply.status, outcome(reply)) == (201, "reconciled")
        assert json_of(reply)["id"] == "pr_1"
        assert len(w.service.wire) == 2
        assert w.service.made() == 1


@pytest.mark.report("R71")
async def test_r71_already_exists_on_a_first_send_is_somebody_elses() -> None:
    async with world(PULLS) as w:
        w.service.act = one_per_head
        w.service.happened("/repos/o/r/pulls", {"id": "pr_1", "head": "fix"})
        reply = await w.post("/repos/o/r/pulls", {"head": "fix", "base": "main"})
        assert reply.status in (409, 424)
        assert await w.states() == [State.UNKNOWN]
        assert w.service.made() == 1


def zones(by: str) -> str:
    where = '{name: "{body.name}"}' if by == "content" else '{ref: "{key}"}'
    return rule(
        endpoint(
            "zones.create",
            "POST /dns/v2/zones",
            "answers: [{status: 409, means: exists}]",
            "marker: {in: json, name: ref}",
            'reconcile: {request: "GET /dns/v2/zones?name={body.name}", items: data,'
            f' where: {where}, by: {by}, answer: {{status: 201, body: "{{item}}"}}}}',
        )
    )


def one_per_name(service: Service, request: Request) -> Any:
    said = json_of(request)
    if any(effect["name"] == said["name"] for _, _, effect in service.effects):
        return answer(409, {"error": "exists"})
    effect = {"id": f"z_{len(service.effects) + 1}", **said}
    service.happened(request.path, effect)
    return answer(201, effect)


@pytest.mark.report(
    "R73",
    "https://github.com/G-Core/terraform-provider-gcorelabs/issues/127",
    "A time-out was reported although the zone was there, and the next run failed because "
    "it existed.",
    "A new run adopts it where the rule lets content decide; else it is told that it "
    "cannot be settled, never that it failed.",
)
@pytest.mark.parametrize("by", ["content", "marker"])
async def test_r73_a_new_run_meets_the_zone_of_a_lost_call(by: str) -> None:
    async with world(zones(by)) as w:
        w.service.act = one_per_name
        w.service.fates = [_lost_and_unseen]
        zone = {"name": "example.test"}
        assert (await w.post("/dns/v2/zones", zone, "first")).status in (409, 424)
        w.service.lag = 0
        reply = await w.post("/dns/v2/zones", zone, "second")
        if by == "content":
            assert (reply.status, outcome(reply)) == (201, "reconciled")
        else:
            assert reply.status in (409, 424)
            assert State.FAILED not in await w.states()
        assert w.service.made() == 1
        await w.settle(600, every=60)
        states = {operation.run: operation.state for operation in await w.operations()}
        owner = "second" if by == "content" else "first"
        assert [run for run, state in states.items() if state is State.SUCCEEDED] == [owner]
        assert w.service.made() == 1


async def _lost_and_unseen(service: Service, request: Request) -> Any:
    service.act(service, request)
    service.lag = 1_000_000
    return LOST


@pytest.mark.report(
    "R74",
    "https://github.com/caltechlibrary/foliage/issues/3",
    "A deletion worked but timed out; the retry's 404 was taken for a failure.",
    "A 404 is success where an own undecided deletion went before; a first deletion's 404 "
    "is a 404.",
)
async def test_r74_gone_after_an_own_deletion_is_success() -> None:
    rules = rule(endpoint("items.delete", "DELETE /items/{id}"))
    async with world(rules) as w:
        gone = set()

        def delete(service: Service, request: Request) -> Any:
            if request.path == "/items/2" or request.path in gone:
                return answer(404, {"error": "no such item"})
            gone.add(request.path)
            service.happened(request.path, {})
            return answer(204)

        w.service.act = delete
        w.service.fates = [lost_after]
        await w.post("/items/1", None, step="one", method="DELETE")
        await w.post("/items/2", None, step="two", method="DELETE")
        ends = {o.step: o.state for o in await w.operations()}
        assert ends == {"one": State.SUCCEEDED, "two": State.FAILED}
        assert w.service.made() == 1


@pytest.mark.report(
    "R86",
    "https://github.com/aws-samples/sample-citadel/pull/83",
    "An exception inside a successful answer was stored as success, and nobody retried.",
    "A line of the rule reads the verdict from the body: it has failed, is not replayed "
    "as success, and may be made again.",
)
async def test_r86_an_error_inside_a_200_is_no_success() -> None:
    errors = "answers: [{status: 200, body: {error: {exists: true}}, means: rejected}]"
    async with world(keyed("/graph", errors)) as w:
        w.service.fates = [says(200, {"error": {"message": "no such node"}})]
        assert (await w.post("/graph", {"q": 1})).status == 200
        assert await w.states() == [State.FAILED]
        reply = await w.post("/graph", {"q": 1})
        assert (reply.status, outcome(reply)) == (201, "sent")
        assert w.service.made() == 1


@pytest.mark.report(
    "R68",
    "https://github.com/stripe/stripe-java/issues/389",
    "The caller could not learn whether a charge had passed; a mark added to find it "
    "changed the body under the same key.",
    "A difference in a noise field sends the first body again under its key; any other is "
    "a 422 before the API sees it.",
)
@pytest.mark.parametrize("noisy", [True, False])
async def test_r68_a_mark_added_by_the_caller_does_not_spoil_the_key(noisy: bool) -> None:
    async with world(keyed("/v1/charges", *["noise: [body.metadata.attempt]"] * noisy)) as w:
        w.service.fates = [lost_after, *[says(503)] * 9]
        charge = {"amount": 5, "metadata": {"attempt": 1}}
        assert (await w.post("/v1/charges", charge)).status in (409, 424)
        w.service.fates = []
        await w.clock.sleep(120)
        sent = len(w.service.wire)
        reply = await w.post("/v1/charges", {"amount": 5, "metadata": {"attempt": 2}})
        if noisy:
            assert reply.status == 201
            assert {json_of(r)["metadata"]["attempt"] for r in w.service.wire} == {1}
            assert len(w.service.keys) == 1
        else:
            assert (reply.status, code(reply)) == (422, "operation-mismatch")
            assert "body.metadata.attempt" in fields(reply)["next"]
            assert len(w.service.wire) == sent
        assert w.service.made() == 1


@pytest.mark.report(
    "R40",
    "https://github.com/1jehuang/jcode/issues/884",
    "Tool ids made of name and position repeated every turn, and a new call got an old "
    "call's result.",
    "The same step with another request is a 422, never a stale answer; with the turn in "
    "the step both are sent.",
)
async def test_r40_a_positional_id_gets_no_stale_answer() -> None:
    async with world(keyed("/exec")) as w:
        assert (await w.post("/exec", {"cmd": "a"}, step="bash:0")).status == 201
        reply = await w.post("/exec", {"cmd": "b"}, step="bash:0")
        assert (reply.status, code(reply)) == (422, "operation-mismatch")
        assert w.service.made() == 1
        for turn, cmd in enumerate("ab", 1):
            reply = await w.post("/exec", {"cmd": cmd}, step=f"turn-{turn}/bash:0")
            assert outcome(reply) == "sent"
        assert w.service.made() == 3
        assert header(reply, "Onceproxy-Operation") == "R/turn-2%2Fbash:0/world.made/v1"


# MCP over streamable HTTP

TOOL = rule(
    endpoint(
        "mail.send",
        "{request: POST /mcp, jsonrpc: {method: tools/call, tool: send_email}}",
        "answer_format: jsonrpc",
        "answers: [{status: 404, means: rejected}]",
    ).replace("external_id: id", "external_id: result.id")
)


def tool(number: int, to: str = "a") -> dict[str, Any]:
    arguments = {"to": to, "text": "hi"}
    params = {"name": "send_email", "arguments": arguments, "_meta": {"progressToken": number}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def sends(service: Service, request: Request) -> Any:
    said = json_of(request)
    service.happened(request.path, said["params"]["arguments"])
    return answer(200, {"jsonrpc": "2.0", "id": said["id"], "result": {"id": "m1"}})


@pytest.mark.report(
    "R34",
    "https://github.com/anthropics/claude-code/issues/83404",
    "The 404 of a retired session was shown as a time-out, so a write reported as timed "
    "out had never run.",
    "The 404 comes through at once and is a refusal without effect; the call in a new "
    "session is sent.",
)
async def test_r34_a_retired_session_is_told_at_once() -> None:
    async with world(TOOL) as w:
        w.service.act = sends
        w.service.fates = [says(404)]
        session = [("Mcp-Session-Id", "old")]
        began = w.clock.monotonic()
        assert (await w.post("/mcp", tool(7), headers=session)).status == 404
        assert w.clock.monotonic() == began
        assert await w.states() == [State.FAILED]
        reply = await w.post("/mcp", tool(1), headers=[("Mcp-Session-Id", "new")])
        assert (reply.status, outcome(reply)) == (200, "sent")
        assert w.service.made() == 1


@pytest.mark.report(
    "R37",
    "https://github.com/codefuturist/email-mcp/issues/62",
    "A repeated send could not be told from a new one: no token, and a random message id per try.",
    "Without run and step nothing is guessed from equal arguments; with an operation id "
    "each, two sends are two and a repeat is one.",
)
async def test_r37_equal_arguments_alone_make_no_duplicate() -> None:
    async with world(TOOL) as w:
        w.service.act = sends
        reply = await w.post("/mcp", tool(1), None, None)
        assert (reply.status, code(reply)) == (400, "missing-identity")
        # As MCP clients read an error: by its media type, with the id, and only its message.
        assert header(reply, "Content-Type") == "application/json"
        said = json_of(reply)
        assert (said["jsonrpc"], said["id"]) == ("2.0", 1)
        assert said["error"]["message"].startswith("This is a set-up error")
        assert w.service.made() == 0
        for number, name in enumerate(("first", "first", "second"), 1):
            reply = await w.post("/mcp", tool(number), operation_id=name)
            assert reply.status == 200
            assert json_of(reply)["id"] == number, "a client takes only the answer with its id"
        assert w.service.made() == 2


@pytest.mark.report("R37")
async def test_r37_to_a_host_without_rule_nothing_is_held_back() -> None:
    async with world(rule("  other:\n    match: POST /other\n")) as w:
        w.service.act = sends
        for number in (1, 2):
            assert (await w.post("/mcp", tool(number), None, None)).status == 200
        assert w.service.made() == 2
        assert [call for call in w.proxy.metrics.calls if call[0] == "unprotected"]
        assert Kind.ATTEMPT_STARTED not in await w.history()
