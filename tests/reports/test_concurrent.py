"""Two executors of one step, both alive."""

from __future__ import annotations

import asyncio

import pytest

from proxy.core.operation import Kind, State
from tests.fakes.scripted import code, fields
from tests.fakes.world import body_of, outcome
from tests.reports.service import header, keyed, queried, slow, world


@pytest.mark.report(
    "R01",
    "https://github.com/langchain-ai/langgraph/issues/7417",
    "Tool calls of more than three minutes were dispatched again while the first dispatch "
    "still ran.",
    "The second arrival waits and gets the first one's answer; if that takes too long it "
    "is told to ask again, and nothing is sent.",
)
async def test_r01_a_second_dispatch_waits_for_the_first() -> None:
    path = "/api/now/table/change_request"
    async with world(queried(path)) as w:
        w.service.fates = [slow(200)]
        call = (path, {"short_description": "reboot"}, "chg-1", "open-change")
        first = w.begin(*call)
        await w.clock.sleep(60)
        early = await w.post(*call)
        assert (early.status, code(early)) == (409, "operation-in-progress")
        assert header(early, "Retry-After")
        assert fields(early)["retryable"] is True
        await w.clock.sleep(110)
        second = await w.post(*call)
        assert (second.status, outcome(second)) == (201, "coalesced")
        assert body_of(second) == body_of(await first)
        assert w.service.made() == len(w.service.wire) == 1
        kinds = await w.history()
        assert kinds.count(Kind.ATTEMPT_STARTED) == kinds.count(Kind.COALESCED) == 1


@pytest.mark.report(
    "R07",
    "https://github.com/crewAIInc/crewAI/issues/1978",
    "A kickoff function ran twice per trigger, and the user got two mails.",
    "Both get the same message id from one send; a call that names no run is refused "
    "before anything is sent.",
)
async def test_r07_two_kickoffs_send_one_mail() -> None:
    async with world(keyed("/emails")) as w:
        w.service.fates = [slow(0.3)]
        first = w.begin("/emails", {"to": "a"}, "kick-1", "send")
        await w.clock.sleep(0.05)
        second = await w.post("/emails", {"to": "a"}, "kick-1", "send")
        assert body_of(second) == body_of(await first)
        assert (outcome(await first), outcome(second)) == ("sent", "coalesced")
        assert w.service.made() == 1
        reply = await w.post("/emails", {"to": "a"}, None, None)
        assert (reply.status, code(reply)) == (400, "missing-identity")
        assert w.service.made() == 1


@pytest.mark.report(
    "R49",
    "https://github.com/vercel/workflow/issues/2780",
    "A hook woke the run and dispatched the step that still ran in the same process; only "
    "one completion was logged.",
    "One send answers both connections, and the history shows both.",
)
async def test_r49_a_step_dispatched_twice_in_one_process_is_sent_once() -> None:
    async with world(keyed("/x")) as w:
        w.service.fates = [slow(1)]
        first = w.begin("/x", {"n": 1})
        await w.clock.sleep(0.3)
        second = w.begin("/x", {"n": 1})
        replies = await asyncio.gather(first, second)
        assert [r.status for r in replies] == [201, 201]
        assert w.service.made() == len(w.service.wire) == 1
        assert (await w.history()).count(Kind.COALESCED) == 1


@pytest.mark.report(
    "R52",
    "https://github.com/dbos-inc/dbos-transact-py/issues/818",
    "The execution that had lost the race for step 0 went on and ran the later steps as well.",
    "Whoever comes second, at every step, gets the answer of the first.",
)
async def test_r52_two_executions_in_lock_step_have_one_effect_per_step() -> None:
    async with world(keyed("/x")) as w:
        w.service.fates = [slow(0.5)] * 9

        async def execution() -> list[bytes]:
            return [body_of(await w.post("/x", {"n": n}, step=f"s{n}")) for n in range(3)]

        a, b = await asyncio.gather(execution(), execution())
        assert a == b
        assert w.service.made() == len(w.service.wire) == 3


@pytest.mark.report(
    "R55",
    "https://github.com/apache/airflow/issues/23520",
    "A scheduler restarted while the worker lived on, and a second instance of the task "
    "began beside the first.",
    "The number of a try is no part of the identity: the second one joins.",
)
async def test_r55_the_number_of_a_try_is_no_identity() -> None:
    async with world(keyed("/jobs")) as w:
        w.service.fates = [slow(2)]
        first = w.begin("/jobs", {"n": 1}, headers=[("X-Try", "1")])
        await w.clock.sleep(0.5)
        second = await w.post("/jobs", {"n": 1}, headers=[("X-Try", "2")])
        assert (second.status, outcome(second)) == (201, "coalesced")
        assert (await first).status == 201
        assert w.service.made() == len(w.service.wire) == 1


@pytest.mark.report(
    "R56",
    "https://github.com/celery/kombu/issues/337",
    "A message became visible again while its worker still held it, and a mailing was "
    "begun once per hour.",
    "A hundred recipients get one mail each, whatever two workers do.",
)
async def test_r56_a_mailing_begun_twice_reaches_everybody_once() -> None:
    async with world(keyed("/emails")) as w:
        w.service.fates = [slow(0.2)] * 200
        addresses = [f"user{n}@example.test" for n in range(100)]

        async def worker(begin_at: int) -> None:
            while len(w.service.wire) < begin_at:
                await w.clock.sleep(0.2)
            for address in addresses:
                reply = await w.post("/emails", {"to": address}, "mailing-9", f"to:{address}")
                assert reply.status == 201

        await asyncio.gather(worker(0), worker(60))
        assert sorted(e["to"] for _, _, e in w.service.effects) == sorted(addresses)
        assert w.suppressed("replayed") + w.suppressed("coalesced") == 100
        assert await w.states() == [State.SUCCEEDED] * 100
