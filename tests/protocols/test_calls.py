"""JSON-RPC and MCP, judged by what reached the server: one call of a tool, one effect, and an
answer that the client takes for its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proxy.core.identity import Sources
from proxy.core.model import Body, Request
from proxy.core.operation import State
from proxy.net.exchange import BrokenOff, Reply
from tests.fakes.scripted import LOST, answer, code, ruleset
from tests.fakes.world import Opened, outcome, post
from tests.reports.service import HOST, Held, Service, World, header, json_of, rule, world

MCP = (Path(__file__).parent.parent.parent / "rules" / "mcp.yaml").read_text()
ACCEPT = ("Accept", "application/json, text/event-stream")
TILL = rule(
    "  look:\n    effect: read\n"
    "    match: {request: POST /mcp, jsonrpc: {method: tools/call, tool: look*}}\n"
    "  call: {match: {request: POST /mcp, jsonrpc: {method: tools/call}}}\n",
    top="key: none\nanswer_format: jsonrpc\n",
)
KEYED = rule(
    "  call: {match: {request: POST /mcp, jsonrpc: {method: tools/call}}}\n",
    top="key: {in: json, name: params._meta.key, valid_for: 24h, keeps: all}\n"
    "answer_format: jsonrpc\n",
)


def tool(number: Any, name: str = "pay", meta: Any = None, **arguments: Any) -> dict[str, Any]:
    params: dict[str, Any] = {"name": name, "arguments": arguments}
    params["_meta"] = {"progressToken": number, "traceparent": f"00-{number}", **(meta or {})}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def works(service: Service, request: Request) -> Opened:
    """A server of JSON-RPC: what it is called for happens, batches included."""
    said = json_of(request)
    calls = said if isinstance(said, list) else [said]
    for call in calls:
        service.happened(request.path, call["params"])
    told = [{"jsonrpc": "2.0", "id": c["id"], "result": {"n": 1}} for c in calls if "id" in c]
    if not told:
        return answer(202)
    return answer(200, told if isinstance(said, list) else told[0])


class Streamed(Opened):
    """An event stream in pieces; None breaks it off, an Event is waited for."""

    def __init__(self, *pieces: Any) -> None:
        super().__init__(200, "", (("Content-Type", "text/event-stream"),), b"")
        self.pieces = pieces

    async def read(self, limit: int) -> tuple[Body | None, bool]:
        return Body.of(b"".join([chunk async for chunk in self.chunks()])), True

    async def chunks(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            if piece is None:
                raise BrokenOff("reset")
            if isinstance(piece, asyncio.Event):
                await piece.wait()
            else:
                yield piece.encode()


def event(message: Any, own: str = "") -> str:
    return (f"id: {own}\n" if own else "") + f"data: {json.dumps(message)}\n\n"


PROGRESS = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 1}}


async def begun(
    w: World, message: Any, run: str | None = "R", step: str | None = "S", *fields: Any, **more: Any
) -> Reply:
    """The reply as it begins."""
    arrival = post(
        "/mcp", message, run=run, step=step, headers=[ACCEPT, *fields], host=HOST, **more
    )
    arrival.sources = Sources(run=run, step=step)
    return await w.proxy.callers.handle(arrival)


async def call(w: World, message: Any, *where: Any, **more: Any) -> Reply:
    """The reply, whole also where it flowed."""
    reply = await begun(w, message, *where, **more)
    if not isinstance(reply.body, Body):
        assert isinstance(reply.body, AsyncIterator)
        reply.body = Body.of(b"".join([chunk async for chunk in reply.body]))
    reply.delivered(True)
    return reply


def events_of(reply: Reply) -> list[Any]:
    assert isinstance(reply.body, Body)
    text = (reply.body.data or b"").decode()
    return [json.loads(line[5:]) for line in text.splitlines() if line.startswith("data: ")]


# A server that nobody has named


async def test_a_tool_is_called_once_at_a_server_that_no_rule_names() -> None:
    """In another session, with other ids and traces."""
    async with world(MCP) as w:
        w.service.act = works
        for number in (1, "two"):
            session = ("Mcp-Session-Id", f"s{number}")
            reply = await call(w, tool(number, amount=5), "R", "S", session)
            assert json_of(reply)["id"] == number
        assert w.service.made() == 1
        assert outcome(reply) == "replayed"
        key = header(reply, "Onceproxy-Operation") or ""
        assert key.startswith("R/S/POST%20api.world.test%2Fmcp=pay~")
        await call(w, tool(3, amount=6))
        await call(w, tool(4, name="other", amount=5))
        assert w.service.made() == 3, "other content is another call where no rule says more"


async def test_a_server_that_no_rule_names_needs_no_identity() -> None:
    async with world(MCP) as w:
        w.service.act = works
        for number in (1, 1):
            assert outcome(await call(w, tool(number), None, None)) is None
        assert w.service.made() == 2


# One that a rule describes


async def test_the_tool_is_part_of_the_name_and_other_arguments_are_drift() -> None:
    async with world(TILL) as w:
        w.service.act = works
        for number, name in enumerate(("pay", "mail", "pay", "mail")):
            assert (await call(w, tool(number, name, to="a"))).status == 200
        assert w.service.made() == 2
        assert sorted(o.name for o in await w.operations()) == ["world.call=mail", "world.call=pay"]
        reply = await call(w, tool(9, "pay", to="b"))
        assert (reply.status, code(reply), json_of(reply)["id"]) == (422, "operation-mismatch", 9)
        for number in (1, 1):
            assert outcome(await call(w, tool(number, "look_up"))) is None
        assert w.service.made() == 4, "a tool that reads is passed each time"


@pytest.mark.parametrize("name", ["a=b", "a~b", "a:b", "a+b", "a@b", "a/b", "ä b"])
async def test_no_two_tools_share_a_name(name: str) -> None:
    async with world(TILL) as w:
        w.service.act = works
        await call(w, tool(1, name, n=1))
        await call(w, tool(2, "a", n=2), operation_id="b")
        await call(w, tool(3, "a", n=3))
        assert w.service.made() == 3
        assert len({o.name for o in await w.operations()}) == 3


# Identity inside the call


async def test_run_and_step_may_stand_in_the_baggage_of_the_call_and_go_no_further() -> None:
    async with world(MCP) as w:
        w.service.act = works
        for number in (1, 2):
            meta = {"baggage": "run.id=case-7,tenant=acme,step.id=pay%201", "kept": 1.50}
            reply = await call(w, tool(number, meta=meta), None, None)
        assert w.service.made() == 1
        assert outcome(reply) == "replayed"
        assert (header(reply, "Onceproxy-Operation") or "").startswith("case-7/pay%201/")
        [sent] = w.service.wire
        assert json_of(sent)["params"]["_meta"]["baggage"] == "tenant=acme"
        meta = {"baggage": "run.id=case-7,step.id=other"}
        await call(w, tool(3, meta=meta), None, None)
        assert "baggage" not in json_of(w.service.wire[-1])["params"]["_meta"]


async def test_a_call_that_names_two_runs_is_refused() -> None:
    async with world(MCP) as w:
        meta = {"baggage": "run.id=other"}
        reply = await call(w, tool(1, meta=meta))
        assert (reply.status, code(reply), json_of(reply)["id"]) == (400, "bad-request", 1)
        assert not w.service.wire


# Batches and notifications


async def test_a_batch_is_one_operation_and_its_answers_find_the_new_ids() -> None:
    async with world(MCP) as w:
        w.service.act = works
        for first in (1, 10):
            batch = [tool(first, amount=1), tool(first + 1, amount=2)]
            reply = await call(w, batch)
            assert [one["id"] for one in json_of(reply)] == [first, first + 1]
        assert (w.service.made(), outcome(reply)) == (2, "replayed")


async def test_a_batch_with_a_call_that_a_rule_describes_is_refused() -> None:
    """It would be protected by its content alone, and no approval or deny line would see it."""
    async with world(TILL) as w:
        reply = await call(w, [tool(1), tool(2)])
        assert (reply.status, code(reply), json_of(reply)["id"]) == (400, "bad-request", None)
        assert not w.service.wire


async def test_a_notification_has_no_answer_and_is_sent_once() -> None:
    async with world(TILL) as w:
        w.service.act = works
        message = tool(1)
        del message["id"]
        for _ in range(2):
            reply = await call(w, message)
            assert reply.status == 202
        assert (w.service.made(), outcome(reply)) == (1, "replayed")


# What an answer means


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ({"result": {"isError": False}}, State.SUCCEEDED),
        ({"result": {"isError": True, "content": []}}, State.SUCCEEDED),
        ({"error": {"code": -32601, "message": "no such tool"}}, State.FAILED),
        ({"error": {"code": -32602, "message": "no amount"}}, State.FAILED),
        ({"error": {"code": -32022, "message": "version"}}, State.NOT_APPLIED),
        ({"error": {"code": -32042, "message": "visit"}}, State.NOT_APPLIED),
        ({"error": {"code": -32603, "message": "broken"}}, State.UNKNOWN),
        ({"error": {"code": -1, "message": "?"}}, State.UNKNOWN),
        ({"error": "?"}, State.UNKNOWN),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("rules", [TILL, MCP])
async def test_errors_inside_a_200_are_told_apart(
    said: Any, state: State, streams: bool, rules: str
) -> None:
    async with world(rules) as w:
        message = {"jsonrpc": "2.0", "id": 1, **said}
        w.service.act = lambda service, request: (
            Streamed(event(PROGRESS), event(message)) if streams else answer(200, message)
        )
        reply = await call(w, tool(1))
        assert await w.states() == [state]
        told = events_of(reply)[-1] if streams else json_of(reply)
        assert told["id"] == 1
        if state is State.UNKNOWN:
            assert told["error"]["data"]["type"] == "urn:onceproxy:outcome-unresolved"
        else:
            assert told == message


# Streams


async def test_all_but_the_answer_flows_at_once_and_the_answer_when_it_is_recorded() -> None:
    """A server may ask its client something in the middle of a call, and waits for it."""
    asks = {"jsonrpc": "2.0", "id": "srv-1", "method": "elicitation/create", "params": {}}
    done = {"jsonrpc": "2.0", "id": 1, "result": {"content": []}}
    answered = asyncio.Event()
    async with world(TILL) as w:
        w.service.act = lambda *_: Streamed(
            event(PROGRESS), event(asks)[:9], event(asks)[9:], answered, event(done)
        )
        reply = await begun(w, tool(1))
        assert isinstance(reply.body, AsyncIterator)
        seen = [await anext(reply.body), await anext(reply.body)]
        assert seen == [event(PROGRESS).encode(), event(asks).encode()]
        answered.set()
        assert await anext(reply.body) == event(done).encode()
        assert await w.states() == [State.SUCCEEDED]
        assert [chunk async for chunk in reply.body] == []
        again = await call(w, tool(7))
        assert events_of(again) == [{**done, "id": 7}], "what was said on the way is not repeated"


async def test_a_server_that_keeps_its_stream_open_has_answered_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("proxy.outbound.STREAM_END", 0.01)
    done = {"jsonrpc": "2.0", "id": 1, "result": {"content": []}}
    async with world(TILL) as w:
        w.service.act = lambda *_: Streamed(event(done), asyncio.Event())
        reply = await asyncio.wait_for(call(w, tool(1)), 10)
        assert events_of(reply) == [done]
        assert await w.states() == [State.SUCCEEDED]


@pytest.mark.parametrize("end", [(None,), ()])
async def test_a_stream_without_an_answer_ends_with_a_word_about_it(end: Any) -> None:
    async with world(TILL) as w:
        w.service.act = lambda *_: Streamed(event(PROGRESS), *end)
        reply = await call(w, tool(1))
        progress, refusal = events_of(reply)
        assert progress == PROGRESS
        assert refusal["id"] == 1
        assert refusal["error"]["data"]["type"] == "urn:onceproxy:outcome-unresolved"
        assert await w.states() == [State.UNKNOWN]
        assert code(await call(w, tool(2))) == "outcome-unresolved"
        assert len(w.service.wire) == 1


async def test_a_broken_stream_that_settles_late_still_brings_the_answer() -> None:
    async with world(KEYED) as w:
        done = {"jsonrpc": "2.0", "id": 1, "result": {"content": []}}
        streams = [Streamed(event(PROGRESS), None), Streamed(event(done))]
        w.service.act = lambda *_: streams.pop(0)
        reply = await call(w, tool(1))
        assert events_of(reply) == [PROGRESS, done]
        assert await w.states() == [State.SUCCEEDED]
        keys = {json_of(sent)["params"]["_meta"]["key"] for sent in w.service.wire}
        assert (len(w.service.wire), len(keys)) == (2, 1)


@pytest.mark.parametrize("broken", [False, True])
async def test_a_stream_in_which_each_event_answers_is_read_to_its_end(broken: bool) -> None:
    """A2A: a task on its way, under the id of the call in every event."""
    call_of = {"jsonrpc": "2.0", "method": "message/stream", "params": {"message": {"parts": []}}}
    told = [{"jsonrpc": "2.0", "id": 1, "result": {"state": word}} for word in ("working", "done")]
    async with world(MCP) as w:
        w.service.act = lambda *_: Streamed(*map(event, told), *([None] if broken else []))
        reply = await call(w, {**call_of, "id": 1})
        assert await w.states() == [State.UNKNOWN if broken else State.SUCCEEDED]
        assert events_of(reply)[: 1 if broken else 2] == told[: 1 if broken else 2]
        again = await call(w, {**call_of, "id": 2})
        if broken:
            assert code(again) == "outcome-unresolved"
        else:
            assert events_of(again) == [{**one, "id": 2} for one in told]
        assert len(w.service.wire) == 1


@pytest.mark.parametrize("end", [(None,), ()])
async def test_the_rest_of_a_stream_is_fetched_where_its_server_keeps_it(end: Any) -> None:
    """By a GET with the id of the last event that came: nothing is called again."""
    done = {"jsonrpc": "2.0", "id": 1, "result": {"content": []}}
    async with world(TILL) as w:
        w.service.act = lambda *_: Streamed("id: e0\ndata:\n\n", event(PROGRESS, "e1"), *end)
        w.service.look = lambda *_: Streamed(event(PROGRESS, "e2"), event(done, "e3"))
        reply = await call(w, tool(1), "R", "S", ("Mcp-Session-Id", "s"))
        assert events_of(reply) == [PROGRESS, PROGRESS, done]
        assert await w.states() == [State.SUCCEEDED]
        [read] = w.service.reads
        assert (read.header("Last-Event-ID"), read.header("Mcp-Session-Id")) == ("e1", "s")
        assert len(w.service.wire) == 1


async def test_a_stream_is_not_fetched_from_a_server_without_sessions() -> None:
    async with world(TILL) as w:
        w.service.act = lambda *_: Streamed(event(PROGRESS, "e1"), None)
        await call(w, tool(1))
        assert not w.service.reads
        assert await w.states() == [State.UNKNOWN]


# A new session


async def test_what_is_sent_again_in_a_new_session_has_its_id_and_its_session() -> None:
    """The old one is gone, and its ids may be at work in the new one."""
    async with world(KEYED) as w:
        held = Held(acts=False)
        w.service.act = works
        w.service.fates = [held]
        old = ("Mcp-Session-Id", "old")
        task = asyncio.create_task(begun(w, tool(5, amount=1), "R", "S", old))
        await held.reached()
        await w.restart()
        task.cancel()
        reply = await call(w, tool(2, amount=1), "R", "S", ("Mcp-Session-Id", "new"))
        assert (reply.status, json_of(reply)["id"]) == (200, 2)
        before, after = w.service.wire
        assert (before.header("Mcp-Session-Id"), after.header("Mcp-Session-Id")) == ("old", "new")
        first, again = json_of(before), json_of(after)
        assert (first["id"], again["id"], again["params"]["_meta"]["progressToken"]) == (5, 2, 2)
        assert again["params"]["_meta"]["key"] == first["params"]["_meta"]["key"]
        assert w.service.made() == 1
        stored = [await w.proxy.ledger.request_of(o.key) for o in await w.operations()]
        assert all(one is not None and one.header("Mcp-Session-Id") is None for one in stored)


# More input wanted (2026-07-28)


async def test_each_round_of_a_call_that_wants_input_goes_through_once() -> None:
    wants = {"resultType": "input_required", "inputRequests": {"ok": {}}, "requestState": "s1"}

    def asks(service: Service, request: Request) -> Opened:
        said = json_of(request)
        if "requestState" not in said["params"]:
            return answer(200, {"jsonrpc": "2.0", "id": said["id"], "result": wants})
        return works(service, request)

    def more(number: int, word: str) -> dict[str, Any]:
        message = tool(number, amount=5)
        message["params"] |= {"requestState": "s1", "inputResponses": {"ok": {"said": word}}}
        return message

    async with world(TILL) as w:
        w.service.act = asks
        for number in (1, 11):
            assert json_of(await call(w, tool(number, amount=5)))["result"] == wants
            reply = await call(w, more(number + 1, "yes"))
            assert (reply.status, json_of(reply)["id"]) == (200, number + 1)
        assert outcome(reply) == "replayed"
        assert w.service.made() == 1
        reply = await call(w, more(21, "certainly"))
        assert (reply.status, code(reply)) == (422, "operation-mismatch")
        assert w.service.made() == 1, "another word in the same round pays no second time"


# Hints


TRUSTING = TILL.replace("{method: tools/call}", "{method: tools/call, trust_annotations: true}")


@pytest.mark.parametrize("trusts", [False, True])
async def test_a_servers_word_for_a_tool_counts_only_where_a_rule_trusts_it(trusts: bool) -> None:
    tools = [
        {"name": "find", "annotations": {"readOnlyHint": True}},
        {"name": "put", "annotations": {"idempotentHint": True}},
        {"name": "pay"},
    ]

    def serves(service: Service, request: Request) -> Opened:
        said = json_of(request)
        if said["method"] != "tools/list":
            return works(service, request)
        return Streamed(event({"jsonrpc": "2.0", "id": said["id"], "result": {"tools": tools}}))

    async with world(TILL) as w:
        w.proxy.rules = ruleset(TRUSTING if trusts else TILL, MCP)
        w.proxy.start()
        w.service.act = serves
        await call(w, tool(1, "find", a=1), "R", "before")
        await call(w, tool(1, "find", a=1), "R", "before")
        assert w.service.made() == 1, "a server that was not asked has said nothing"
        listed = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        assert outcome(await call(w, listed)) is None
        for name, read in (("find", trusts), ("put", False), ("pay", False)):
            made = w.service.made()
            for number in (1, 2):
                await call(w, tool(number, name, a=1))
            assert w.service.made() - made == (2 if read else 1), name
        assert {o.name: o.intent.idempotent for o in await w.operations()} == {
            **({} if trusts else {"world.call=find": False}),
            "world.call=find": False,
            "world.call=put": trusts,
            "world.call=pay": False,
        }


async def test_a_lost_call_of_an_unnamed_server_is_not_sent_again() -> None:
    async with world(MCP) as w:
        w.service.act = lambda service, request: (works(service, request), LOST)[1]
        for number in (1, 2):
            reply = await call(w, tool(number, amount=5))
            assert code(reply) == "outcome-unresolved"
            assert json_of(reply)["id"] == number, "a client of MCP reads no other error"
        assert w.service.made() == 1
