"""Something dies between the effect and its record."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from proxy.core.operation import Kind, State
from tests.fakes.rawclient import Got
from tests.fakes.scripted import answer, code
from tests.fakes.served import Served, served
from tests.fakes.upstream import Gate, Moment, ToyApi
from tests.fakes.whole import Door, configure, door_of, toy_rules
from tests.fakes.whole import outcome as outcome_of
from tests.fakes.world import outcome
from tests.reports.service import Held, json_of, keyed, queried, says, world

PATHS = {"key": "/refunds", "query": "/invoices"}


@pytest.mark.report(
    "R25",
    "https://github.com/andrewyng/openworker/issues/443",
    "A mail was sent, the process died before its result was saved, and on resume it went "
    "out again.",
    "Recorded but not delivered: replayed. Not recorded: unknown at the next start, found "
    "by asking, answered.",
)
async def test_r25_recorded_and_not_delivered_is_replayed() -> None:
    async with world(queried("/send")) as w:
        assert outcome(await w.post("/send", {"to": "a"}, heard=False)) == "sent"
        await w.restart()
        await w.resume()
        reply = await w.post("/send", {"to": "a"})
        assert (reply.status, outcome(reply)) == (201, "replayed")
        assert w.service.made() == len(w.service.wire) == 1


@pytest.mark.report("R25")
@pytest.mark.parametrize("kind", ["query", pytest.param("key", marks=pytest.mark.slow)])
async def test_r25_a_proxy_killed_after_the_effect_repeats_nothing(
    kind: str, tmp_path: Path
) -> None:
    """K3 with a real SIGKILL: the API has acted, nobody has written it down."""
    api = ToyApi()
    url = await api.start()
    api.troubles.gates.append(gate := Gate("case-1", Moment.EFFECT))
    config = configure(tmp_path, toy_rules(url))
    try:
        with served(tmp_path / "state", "--config", str(config)) as proxy:
            call = asyncio.create_task(_send(door_of(proxy), url, kind))
            await asyncio.wait_for(gate.reached.wait(), 10)
            proxy.process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(proxy.process.wait, 10)
            with pytest.raises(asyncio.IncompleteReadError):
                await call
        gate.opened.set()
        with served(tmp_path / "state", "--config", str(config)) as proxy:
            got = await _send(door_of(proxy), url, kind)
            assert got.status == 201
            again = await _send(door_of(proxy), url, kind)
            assert (again.body, outcome_of(again)) == (got.body, "replayed")
        assert api.effects.of("case-1") == 1
    finally:
        await api.close()


async def _send(door: Door, url: str, kind: str, reference: str = "case-1") -> Got:
    return await door.call(url + PATHS[kind], {"reference": reference}, "R", reference)


@pytest.mark.report(
    "R29",
    "https://github.com/MervinPraison/PraisonAI/issues/3862",
    "A process died before its message had left; the message was lost and the model was "
    "run again instead.",
    "The intent is on disk and shown as unknown; ten minutes later nothing has been sent "
    "behind the agent's back, and its next call sends it, once.",
)
async def test_r29_an_intent_that_never_left_waits_for_its_agent() -> None:
    async with world(keyed("/messages")) as w:
        before = Held(acts=False)
        w.service.fates = [before]
        w.begin("/messages", {"text": "hi"})
        await before.reached()
        await w.restart(seconds=600)
        assert await w.states() == [State.UNKNOWN]
        await w.settle(60)
        assert w.service.made() == 0
        reply = await w.post("/messages", {"text": "hi"})
        assert (reply.status, outcome(reply)) == (201, "sent")
        assert w.service.made() == 1


@pytest.mark.report(
    "R32",
    "https://github.com/NousResearch/hermes-agent/pull/92589",
    "A graceful restart did not count the last delivery as work and sent a received reply again.",
    "SIGTERM waits for what is on the wire, records it and answers it; after the restart "
    "both calls are replays.",
)
async def test_r32_a_graceful_restart_finishes_what_is_on_the_wire(tmp_path: Path) -> None:
    api = ToyApi()
    url = await api.start()
    api.troubles.gates.append(gate := Gate("slow", Moment.RECEIVED))
    config = configure(tmp_path, toy_rules(url))
    try:
        with served(tmp_path / "state", "--config", str(config)) as proxy:
            door = door_of(proxy)
            done = await _send(door, url, "key", "done")
            call = asyncio.create_task(_send(door, url, "key", "slow"))
            await asyncio.wait_for(gate.reached.wait(), 10)
            proxy.process.send_signal(signal.SIGTERM)
            await _refuses(proxy, door, url)
            gate.opened.set()
            first = await call
            assert (first.status, outcome_of(first)) == (201, "sent")
            assert await asyncio.to_thread(proxy.process.wait, 20) == 0
        with served(tmp_path / "state", "--config", str(config)) as proxy:
            for reference, got in (("done", done), ("slow", first)):
                again = await _send(door_of(proxy), url, "key", reference)
                assert (again.body, outcome_of(again)) == (got.body, "replayed")
        assert [api.effects.of(r) for r in ("done", "slow", "late")] == [1, 1, 0]
    finally:
        await api.close()


async def _refuses(proxy: Served, door: Door, url: str) -> None:
    """Until a proxy that is stopping takes no call any more; these name nobody and are refused."""
    for _ in range(200):
        try:
            got = await door.call(f"{url}/refunds", {"reference": "late"}, "")
        except (OSError, asyncio.IncompleteReadError):
            return
        if got.status == 503:
            return
        assert got.status == 400
        await asyncio.sleep(0.02)
    raise AssertionError("it still takes calls")


@pytest.mark.report(
    "R58",
    "https://github.com/aws-powertools/powertools-lambda-python/issues/8049",
    "A record in progress lapsed with the function's time limit, and the same withdrawal "
    "ran again.",
    "An hour later the operation is still unknown, never free: the API is asked what became of it.",
)
@pytest.mark.parametrize("acted", [True, False])
async def test_r58_an_hour_makes_nothing_free_to_run(acted: bool) -> None:
    async with world(queried("/withdrawals")) as w:
        held = Held(acts=acted)
        w.service.fates = [held]
        w.begin("/withdrawals", {"amount": 5})
        await held.reached()
        await w.restart(seconds=3600)
        reply = await w.post("/withdrawals", {"amount": 5})
        if (
            not acted
        ):  # not there yet: the service may still be at it, so absence must be believable
            assert (reply.status, code(reply)) == (409, "outcome-unknown")
            assert w.service.made() == 0
            await w.settle(120)
            reply = await w.post("/withdrawals", {"amount": 5})
        assert reply.status == 201
        assert w.service.made() == 1
        assert len(w.service.wire) == (1 if acted else 2)


@pytest.mark.report(
    "R59",
    "https://github.com/aws-powertools/powertools-lambda-python/issues/1038",
    "The opposite: a time-out left the record in progress, and every retry was refused "
    "until it expired.",
    "At its start the proxy knows that nobody drives the call any more; the first retry "
    "is settled under the same key.",
)
async def test_r59_nothing_stays_in_progress_after_a_crash() -> None:
    async with world(keyed("/charges")) as w:
        held = Held()
        w.service.fates = [held]
        w.begin("/charges", {"amount": 5})
        await held.reached()
        await w.restart()
        assert await w.states() == [State.UNKNOWN]
        reply = await w.post("/charges", {"amount": 5})
        assert reply.status == 201
        assert len(w.service.wire) == 2
        assert len(w.service.keys) == w.service.made() == 1


@pytest.mark.report(
    "R70",
    "https://github.com/SpillwaveSolutions/wiki_ticket_sdd/issues/235",
    "An issue was created, reading it back was throttled, and the whole unit was retried "
    "into four issues.",
    "The creation is replayed each time, the read goes through each time.",
)
async def test_r70_a_throttled_read_repeats_no_creation() -> None:
    path = "/repos/o/r/issues"
    async with world(queried(path)) as w:
        w.service.look = lambda service, request: answer(403, {"message": "rate limit exceeded"})
        how = []
        for _ in range(4):
            created = await w.post(path, {"title": "bug"}, step="open-issue")
            how.append(outcome(created))
            number = json_of(created)["id"]
            read = await w.post(f"{path}/{number}", None, step="read", method="GET")
            assert read.status == 403
        assert how == ["sent", "replayed", "replayed", "replayed"]
        assert w.service.made() == 1
        assert len(w.service.reads) == 4


@pytest.mark.report(
    "R83",
    "https://github.com/xorbitsai/xagent/pull/2106",
    "A replayed call met an expired token, its row already said executed, and the 401 "
    "became final.",
    "A 401 ends nothing: the same version is sent again with the new token.",
)
async def test_r83_an_expired_token_is_not_the_end_of_the_call() -> None:
    async with world(keyed("/grants")) as w:
        w.service.fates = [says(401)]
        old, new = ([("Authorization", f"Bearer {token}")] for token in ("old", "new"))
        assert (await w.post("/grants", {"n": 1}, headers=old)).status == 401
        assert await w.states() == [State.NOT_APPLIED]
        reply = await w.post("/grants", {"n": 1}, headers=new)
        assert (reply.status, outcome(reply)) == (201, "sent")
        assert w.service.keys == {"R/S/world.made/v1"}
        assert w.service.wire[-1].header("Authorization") == "Bearer new"
        assert w.service.made() == 1
        assert (await w.history(reply)).count(Kind.ATTEMPT_STARTED) == 2
