"""What an API takes for later (202): answered at once, sent once, and asked about when it is asked
for again. Only the API's own word that it came to nothing lets the same call be sent anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.matching import RuleSet
from proxy.core.model import Lost, Request
from proxy.core.operation import State
from proxy.ledger.memory import MemoryLedger
from proxy.ledger.sqlite import SqliteLedger
from proxy.recovery import Recovery
from proxy.rulefile.loader import load_text
from proxy.rulefile.testing import run_examples
from tests.fakes.clock import FakeClock
from tests.fakes.world import Opened, body_of, engine, outcome, post

RULE = """
service: jobs
hosts: [jobs.test]
source: here
confidence: documented
key: none
answers: [{status: 202, means: accepted}]
endpoints:
  located:
    match: POST /located
    external_id: id
    poll:
      request: GET {location}
      found: {succeeded: {status: done}, failed: {status: failed}}
    examples:
      - request: {send: POST /located, json: {tag: t}}
        polls:
          - answered: {header: {Operation-Location: /jobs/7}, body: {id: j7}}
            asks: GET /jobs/7
            body: {status: done}
            means: done
          - {answered: {header: {Location: /jobs/7}}, body: {status: failed}, means: failed}
          - {answered: {header: {Location: /jobs/7}}, body: {status: queued}, means: running}
          - {answered: {body: {id: j7}}, body: {status: failed}, means: running}
  listed:
    match: POST /listed
    external_id: id
    poll:
      request: GET /jobs?tag={body.tag}
      items: jobs
      where: {id: "{answer.id}"}
      found: {succeeded: {status: done}, failed: {status: {in: [failed, cancelled]}}}
"""
LOADED = load_text(RULE)
RULES = RuleSet([LOADED.service])
AUTHORISED = (("Authorization", "Bearer x"),)


class Jobs:
    def __init__(self) -> None:
        self.jobs: list[str] = []  # their status, by number
        self.asked: list[str] = []
        self.end: Any = None  # of the next questions
        self.location = "/jobs/{n}?v=1"

    async def open(self, request: Request, **kwargs: Any) -> Any:
        if request.method == "POST":
            self.jobs.append("running")
            number = len(self.jobs)
            where = (("Operation-Location", self.location.format(n=number)),)
            return _json({"id": f"j{number}"}, 202, where)
        assert request.header("authorization") == "Bearer x"
        self.asked.append(request.target)
        if self.end is not None:
            return self.end
        jobs = [{"id": f"j{n}", "status": status} for n, status in enumerate(self.jobs, 1)]
        if request.path == "/jobs":
            return _json({"jobs": jobs}, 200)
        return _json(jobs[int(request.path.removeprefix("/jobs/")) - 1], 200)


def _json(body: Any, status: int, headers: Any = ()) -> Opened:
    fields = (("Content-Type", "application/json"), *headers)
    return Opened(status, "", fields, json.dumps(body).encode())


class World:
    def __init__(self, path: str = "/located") -> None:
        self.path, self.clock, self.api = path, FakeClock(), Jobs()
        self.ledger = MemoryLedger(self.clock)
        self.begin()

    def begin(self) -> None:
        self.engine, self.callers, _ = engine(self.ledger, self.api, self.clock, RULES)

    async def restart(self) -> None:
        self.begin()
        await Recovery(self.engine).start()

    async def call(self, headers: Any = AUTHORISED) -> Any:
        made = post(self.path, {"tag": "t"}, host="jobs.test", headers=headers)
        reply = await self.callers.handle(made)
        reply.delivered(True)
        return reply

    def states(self) -> list[State | None]:
        return [operation.state for operation in self.ledger._operations.values()]


def test_its_examples_hold() -> None:
    assert [result for result in run_examples([LOADED]) if not result.passed] == []


def test_an_example_that_is_wrong_about_the_end_is_told() -> None:
    wrong = RULE.replace("means: done", "means: failed").replace("means: running", "means: done")
    [first, *_] = run_examples([load_text(wrong)])
    assert [each.split(" (")[0] for each in first.problems] == [
        "polls[0]: expected failed, it is done",
        "polls[2]: expected done, it is running",
        "polls[3]: expected done, it is running",
    ]


@pytest.mark.parametrize("path", ["/located", "/listed"])
async def test_it_is_answered_at_once_and_asked_about_when_it_comes_again(path: str) -> None:
    w = World(path)
    first = await w.call()
    assert (first.status, outcome(first), w.api.asked) == (202, "sent", [])
    again = await w.call()
    assert (again.status, outcome(again)) == (202, "replayed")
    assert body_of(again) == body_of(first)
    assert ("Operation-Location", "/jobs/1?v=1") in again.headers
    assert w.api.asked == ["/jobs/1?v=1" if path == "/located" else "/jobs?tag=t"]
    assert w.api.jobs == ["running"]


@pytest.mark.parametrize("path", ["/located", "/listed"])
async def test_once_it_is_done_it_is_not_asked_about_any_more(path: str) -> None:
    w = World(path)
    await w.call()
    w.api.jobs = ["done"]
    answers = [await w.call() for _ in range(3)]
    assert {outcome(answer) for answer in answers} == {"replayed"}
    assert len(w.api.asked) == 1
    assert (w.states(), len(w.api.jobs)) == ([State.SUCCEEDED], 1)


async def test_what_came_to_nothing_is_heard_once_and_then_a_new_version() -> None:
    w = World()
    await w.call()
    w.api.jobs = ["failed"]
    heard = await w.call()
    assert (heard.status, outcome(heard)) == (202, "replayed")
    assert (w.states(), len(w.api.jobs)) == ([State.FAILED], 1)
    anew = await w.call()
    assert (anew.status, outcome(anew)) == (202, "sent")
    assert w.api.jobs == ["failed", "running"]
    assert w.states() == [State.FAILED, State.SUCCEEDED]


@pytest.mark.parametrize(
    "end",
    [
        Lost("reset"),
        _json({"status": "failed"}, 500),
        _json({"status": "failed"}, 202),
        _json({}, 404),
        _json({"status": "failed", "error": "x"}, 200),
        _json([{"status": "failed"}, {"status": "running"}], 200),
        _json({"status": "unheard of"}, 200),
        Opened(200, "", (), b"<html>"),
    ],
    ids=str,
)
async def test_what_cannot_be_told_leaves_it_as_it_is(end: Any) -> None:
    w = World()
    await w.call()
    w.api.jobs, w.api.end = ["failed"], end
    for _ in range(3):
        assert outcome(await w.call()) == "replayed"
    assert (w.states(), len(w.api.jobs)) == ([State.SUCCEEDED], 1)


@pytest.mark.parametrize(
    "location",
    [
        "https://evil.test/jobs/1",
        "http://jobs.test/jobs/1",
        "https://jobs.test:99999/",
        "http://[jobs/1",
        "/jobs/1 HTTP/1.0",
        "/jobs/\u00fc",
    ],
)
async def test_an_address_elsewhere_gets_no_credentials(location: str) -> None:
    w = World()
    w.api.location = location
    await w.call()
    assert outcome(await w.call()) == "replayed"
    assert w.api.asked == []


async def test_a_call_without_the_credential_asks_nothing() -> None:
    w = World()
    await w.call()
    assert (await w.call(headers=())).status == 202
    assert w.api.asked == []


async def test_a_stored_ledger_keeps_the_answer_of_what_came_to_nothing(tmp_path: Path) -> None:
    w = World()
    ledger = SqliteLedger(tmp_path / "ledger.db", key=b"k" * 32, clock=w.clock)
    await ledger.open()
    w.ledger = ledger  # type: ignore[assignment]
    w.begin()
    first = await w.call()
    w.api.jobs = ["failed"]
    heard = await w.call()
    assert body_of(heard) == body_of(first)
    found = ledger.find("run-1/step-1/jobs.located")
    assert found is not None
    assert found.outcome is not None
    assert (found.state, found.outcome.accepted) == (State.FAILED, False)
    assert outcome(await w.call()) == "sent"
    await ledger.close()


async def test_the_same_host_may_be_named_in_full() -> None:
    w = World()
    w.api.location = "https://jobs.test/jobs/{n}"
    await w.call()
    await w.call()
    assert w.api.asked == ["/jobs/1"]


@given(
    st.lists(
        st.sampled_from(["call", "call", "restart", "fails", "ends", "breaks", "mends"]),
        min_size=4,
        max_size=14,
    ),
    st.sampled_from(["/located", "/listed"]),
)
async def test_there_is_never_a_second_one_beside_one_that_lives(
    story: list[str], path: str
) -> None:
    w = World(path)
    for what in story:
        match what:
            case "call":
                assert (await w.call()).status == 202
            case "restart":
                await w.restart()
            case "fails" | "ends":
                word = "failed" if what == "fails" else "done"
                w.api.jobs = [word if j == "running" else j for j in w.api.jobs]
            case "breaks":
                w.api.end = Lost("reset")
            case "mends":
                w.api.end = None
        alive = [job for job in w.api.jobs if job != "failed"]
        assert len(alive) <= 1, story
        assert len(w.api.jobs) == len(w.states())


async def test_what_came_to_nothing_is_made_anew_under_another_key() -> None:
    """The API keeps under the first one that it took it, and would only say that again."""
    keyed = RULE.replace(
        "match: POST /located\n",
        "match: POST /located\n"
        "    key: {in: header, name: Idempotency-Key, valid_for: 24h, keeps: success}\n",
    )
    w = World()
    keys: list[str | None] = []
    plain = w.api.open

    async def seen(request: Request, **kwargs: Any) -> Any:
        if request.method == "POST":
            keys.append(request.header("idempotency-key"))
        return await plain(request, **kwargs)

    w.api.open = seen  # type: ignore[method-assign]
    made = engine(w.ledger, w.api, w.clock, RuleSet([load_text(keyed).service]))
    w.engine, w.callers, _ = made
    await w.call()
    w.api.jobs = ["failed"]
    assert outcome(await w.call()) == "replayed"
    assert outcome(await w.call()) == "sent"
    assert len(keys) == len(set(keys)) == 2
