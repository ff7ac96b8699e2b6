"""A value that the API gives before a call: asked for once, stored with the intent, or nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.core.matching import RuleSet
from proxy.core.model import Answer, Answered, Body, Lost, NotSent, Request
from proxy.core.obtaining import NotObtained, asked, taken
from proxy.core.operation import State
from proxy.ledger.memory import MemoryLedger
from proxy.net.exchange import Arrival
from proxy.recovery import Recovery
from proxy.rulefile.explain import explain
from proxy.rulefile.loader import load_text
from proxy.rulefile.testing import run_examples
from tests.fakes.clock import FakeClock
from tests.fakes.world import Opened, body_of, engine, outcome, post

RULE = """
service: files
hosts: [files.test]
source: here
confidence: documented
key: none
answers: [{status: 404, means: rejected}]
endpoints:
  create:
    match: POST /files
    obtain: {request: "GET /ids?space={body.space}&count=1", take: "ids[0]"}
    key: {in: json, name: id, as: obtained, valid_for: forever, keeps: success}
    external_id: id
    reconcile: {request: "GET /files/{key}", running: 1s, settle: 1s}
    examples:
      - request: {send: POST /files, json: {name: a, space: drive}}
        obtains: {body: {ids: [i7]}, asks: GET /ids?space=drive&count=1}
        expect: {json: {name: a, id: i7}}
        answers:
          - {body: {id: i7}, means: succeeded, external_id: i7}
          - {status: 500, means: unknown}
        lookups: [{body: {id: i7}, means: found, asks: GET /files/i7}, {status: 404, means: none}]
      - request: {send: POST /files, json: {name: a, id: mine}}
        expect: {json: {id: mine}}
  drafts.send:
    match: POST /drafts/{id}/send
    obtain: {request: "GET /drafts/{path.id}", take: thread}
    reconcile:
      request: GET /threads/{obtained}
      items: messages
      where: {sent: true}
      running: 1s
      settle: 1s
    examples:
      - request: {send: POST /drafts/d1/send}
        obtains: {body: {thread: t1}, asks: GET /drafts/d1}
        lookups: [{body: {messages: [{sent: true}]}, means: found, asks: GET /threads/t1}]
      - request: {send: POST /drafts/d1/send}
        lookups: [{means: inconclusive}]
"""
LOADED = load_text(RULE)
RULES = RuleSet([LOADED.service])
CREATE, SEND = LOADED.service.endpoints


class Files:
    """Ids are handed out once; a draft is gone when it is sent."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.sent: list[Any] = []
        self.handed = 0
        self.ids: list[Any] = []  # how the next questions for ids end
        self.lose = False
        self.drafts = {"d1": "t1"}

    async def open(self, request: Request, **kwargs: Any) -> Any:
        path = request.path
        if request.method == "GET":
            self.asked.append(request.target)
            if path == "/ids":
                if self.ids:
                    return self.ids.pop(0)
                self.handed += 1
                return _json({"ids": [f"i{self.handed}"]})
            if path.startswith("/drafts/"):
                thread = self.drafts.get(path.removeprefix("/drafts/"))
                return _json({"thread": thread} if thread else {}, 200 if thread else 404)
            if path.startswith("/threads/"):
                return _json({"messages": [{"id": "m", "sent": True}] if self.sent else []})
            found = [s for s in self.sent if s.get("id") == path.removeprefix("/files/")]
            return _json(found[0] if found else {}, 200 if found else 404)
        body = json.loads(request.body.data or b"{}")
        self.sent.append(body)
        self.drafts.pop("d1", None)
        if self.lose:
            self.lose = False
            return Lost("connection reset")
        return _json({"id": body.get("id", "made")})


def _json(body: Any, status: int = 200) -> Opened:
    return Opened(status, "", (("Content-Type", "application/json"),), json.dumps(body).encode())


class World:
    def __init__(self) -> None:
        self.clock, self.api = FakeClock(), Files()
        self.ledger = MemoryLedger(self.clock)
        self.begin()

    def begin(self, point: str | None = None) -> None:
        made = engine(self.ledger, self.api, self.clock, RULES, point=point)
        self.engine, self.callers, self.kill = made

    async def call(self, path: str = "/files", body: Any = None) -> Any:
        arrival: Arrival = post(path, body or {"name": "a", "space": "drive"}, host="files.test")
        reply = await self.callers.handle(arrival)
        reply.delivered(True)
        return reply


@pytest.fixture
def w() -> World:
    return World()


def test_its_examples_hold() -> None:
    assert [result for result in run_examples([LOADED]) if not result.passed] == []


def test_the_question_is_explained() -> None:
    lines = dict(explain(RULES, "POST", "https://files.test/files", body=b"{}"))
    assert lines["asked before"] == "GET /ids?space={body.space}&count=1, for its ids[0]"


async def test_the_id_is_asked_for_once_and_stored_before_anything_is_sent(w: World) -> None:
    first, second = await w.call(), await w.call()
    assert w.api.asked == ["/ids?space=drive&count=1"]
    assert w.api.sent == [{"name": "a", "space": "drive", "id": "i1"}]
    assert (outcome(first), outcome(second)) == ("sent", "replayed")
    [operation] = w.ledger._operations.values()
    assert (operation.intent.upstream_key, operation.intent.obtained) == ("i1", "i1")


@pytest.mark.parametrize("point", ["before_intent", "after_intent", "after_effect"])
async def test_a_crash_leaves_no_second_object(w: World, point: str) -> None:
    w.begin(point)
    await w.call()
    assert w.kill.struck
    w.begin()
    await Recovery(w.engine).start()
    reply = await w.call()
    assert reply.status == 200
    kept = {"before_intent": "i2", "after_intent": "i1", "after_effect": "i1"}[point]
    assert {body["id"] for body in w.api.sent} == {kept}
    # At the after_intent kill nobody knows that nothing left: the API has the last word.
    [operation] = w.ledger._operations.values()
    assert operation.intent.obtained == kept


async def test_a_lost_answer_is_settled_by_the_id_that_was_stored(w: World) -> None:
    w.api.lose = True
    reply = await w.call()
    assert reply.status == 200
    assert {body["id"] for body in w.api.sent} == {"i1"}
    assert w.api.handed == 1


@pytest.mark.parametrize(
    "end",
    [Lost("reset"), NotSent("refused"), _json({}, 503), _json({"ids": []}), _json({}, 429)],
    ids=str,
)
async def test_where_it_cannot_be_asked_for_nothing_is_sent_and_nothing_is_left(
    w: World, end: Any
) -> None:
    w.api.ids = [end]
    reply = await w.call()
    assert reply.status == 502
    assert json.loads(body_of(reply))["type"] == "urn:onceproxy:upstream-not-reached"
    assert ("Onceproxy-Operation", "run-1/step-1/files.create/v1") in reply.headers
    assert (w.api.sent, w.ledger._operations) == ([], {})
    assert (await w.call()).status == 200
    assert len(w.api.sent) == 1


async def test_where_the_api_refuses_to_give_one_the_call_hears_it_itself(w: World) -> None:
    w.api.ids = [_json({}, 403)]
    reply = await w.call()
    assert reply.status == 200
    assert w.api.sent == [{"name": "a", "space": "drive"}]
    [operation] = w.ledger._operations.values()
    assert operation.intent.upstream_key is None


async def test_a_callers_own_id_is_kept_and_none_is_asked_for(w: World) -> None:
    await w.call(body={"name": "a", "id": "mine"})
    assert (w.api.asked, w.api.sent) == ([], [{"name": "a", "id": "mine"}])


async def test_a_draft_is_sent_once_though_it_is_gone_afterwards(w: World) -> None:
    w.api.lose = True
    first, second = await w.call("/drafts/d1/send", {}), await w.call("/drafts/d1/send", {})
    assert (first.status, second.status) == (200, 200)
    assert w.api.asked == ["/drafts/d1", "/threads/t1"]
    assert len(w.api.sent) == 1
    [operation] = w.ledger._operations.values()
    assert operation.state is State.SUCCEEDED


async def test_a_draft_whose_thread_was_not_read_is_for_a_person(w: World) -> None:
    w.api.drafts, w.api.lose = {}, True
    reply = await w.call("/drafts/d1/send", {})
    assert reply.status in (409, 424)
    assert len(w.api.sent) == 1
    [operation] = w.ledger._operations.values()
    assert operation.state is State.UNKNOWN


def test_what_is_not_wanted_is_not_asked() -> None:
    spec = (
        load_text(RULE.replace('count=1", take', 'count=1", when: {body.kind: file}, take', 1))
        .service.endpoints[0]
        .obtain
    )
    assert spec is not None
    kind = (("Content-Type", "application/json"), ("Authorization", "Bearer x"))
    for body, wanted in ((b'{"kind": "file"}', True), (b'{"kind": "x"}', False), (b"<", False)):
        request = Request("POST", "https", "files.test", 443, "/files", kind, Body.of(body))
        question = asked(spec, request, {})
        assert (question is not None) is wanted
        if question is not None:
            assert question.body.size == 0
            assert question.header("content-type") is None


@pytest.mark.parametrize("value", [None, "", {}, [], "a\nb", "x" * 1025])
def test_only_a_value_that_can_be_written_is_taken(value: Any) -> None:
    assert CREATE.obtain is not None
    answer = Answer(200, "", (), Body.of(json.dumps({"ids": [value]}).encode()))
    with pytest.raises(NotObtained):
        taken(CREATE.obtain, CREATE, Answered(answer))
