"""Recorded answers of models: an agent that resumes gets again what it had, and pays once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.authority import Rights, token_digest
from proxy.core.authority import Line, Lists
from proxy.core.call import Policy
from proxy.core.runs import next_epoch
from proxy.engine import Settings
from proxy.journal import split
from proxy.net.exchange import Arrival, Reply
from proxy.relay import CutOff
from tests.fakes.scripted import answer, code
from tests.fakes.world import Opened, outcome
from tests.runs.models import ANTHROPIC, MODELS, OPENAI, Streamed, ask, hear, said, usage
from tests.runs.support import SETTINGS, World, limits, world

pytestmark = pytest.mark.parametrize("store", ["memory", "sqlite"])
KEPT = "/v1/kept"


@asynccontextmanager
async def models(
    store: str,
    path: Path,
    *sends: Any,
    rights: Rights | None = None,
    settings: Settings = SETTINGS,
) -> AsyncIterator[World]:
    rights = rights or limits(turns=100, tokens=100_000)
    async with world(store, path, sends, rights=rights, settings=settings, rules=MODELS) as proxy:
        yield proxy
        await proxy.engine.stop(10)


async def epoch(proxy: World, run: str = "run-1") -> None:
    """The agent of that run is started anew."""
    await proxy.ledger.amend(run, next_epoch(proxy.clock.time()))


async def asked(proxy: World, **body: Any) -> Reply:
    return await proxy.callers.handle(ask(KEPT, **body))


async def heard(proxy: World, **body: Any) -> Any:
    return said(await hear(await asked(proxy, **body)))["choices"]


async def still(proxy: World) -> None:
    """Until what the proxy does by itself is done."""
    await proxy.engine.stop(10)


class Left:
    """The connection of a caller that has gone."""

    def __init__(self, arrival: Arrival) -> None:
        self._inlet = arrival.inlet
        self.gone = False
        self.read, self.stream = self._inlet.read, self._inlet.stream


async def test_a_later_start_gets_the_same_answers_in_their_order(
    store: str, tmp_path: Path
) -> None:
    sends = [usage(1, "one"), usage(1, "two"), usage(1, "three")]
    async with models(store, tmp_path, *sends) as proxy:
        assert await heard(proxy) == ["one"]
        await still(proxy)
        assert await heard(proxy) == ["two"], "the same prompt twice in one start is two calls"
        await still(proxy)
        before = proxy.used()
        for _ in range(2):
            await epoch(proxy)
            again = await asked(proxy)
            assert (outcome(again), said(await hear(again))["choices"]) == ("replayed", ["one"])
            await still(proxy)
            assert await heard(proxy) == ["two"]
            await still(proxy)
        assert len(proxy.api.on_wire) == 2, "the model was asked again"
        assert proxy.used() == before == {"turns": 2, "tokens": 2}
        assert await heard(proxy) == ["three"], "behind the last recorded one calls are sent"
        assert ("suppressed", "models", "kept", "journal") in proxy.metrics.calls
        assert await proxy.ledger.verify() == []


async def test_an_agent_killed_within_a_stream_gets_its_events_again(
    store: str, tmp_path: Path
) -> None:
    gate = asyncio.Event()
    stream = Streamed(pieces=OPENAI, gates={2: gate})
    async with models(store, tmp_path, stream) as proxy:
        reply = await asked(proxy, stream=True)
        assert await hear(reply, pieces=1) == OPENAI[:1]
        await epoch(proxy)
        again = asyncio.create_task(asked(proxy, stream=True))
        await asyncio.sleep(0)
        assert not again.done(), "it waits for the answer that is on its way"
        gate.set()
        assert await hear(await again) == OPENAI, "byte-equal, event by event"
        assert outcome(again.result()) == "replayed"
        assert len(proxy.api.on_wire) == 1
        await still(proxy)
        assert proxy.used() == {"turns": 1, "tokens": 12}


async def test_events_pass_as_they_come_and_the_end_waits_for_the_record(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent acts on what it takes for the whole: then the answer must be safe."""
    durable, gate = asyncio.Event(), asyncio.Event()
    stream = Streamed(pieces=OPENAI, gates={1: gate})
    async with models(store, tmp_path, stream) as proxy:
        record = proxy.ledger.record

        async def slow(*told: Any) -> None:
            await durable.wait()
            await record(*told)

        monkeypatch.setattr(proxy.ledger, "record", slow)
        body = (await asked(proxy, stream=True)).body
        assert isinstance(body, AsyncIterator)
        assert await anext(body) == OPENAI[0], "nothing has come after it"
        gate.set()
        assert await anext(body) == OPENAI[1]
        rest = asyncio.create_task(anext(body))  # type: ignore[arg-type]
        await asyncio.sleep(0.02)
        assert not rest.done(), "its end was given before the answer was recorded"
        durable.set()
        assert await rest == OPENAI[2]
        await body.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("gone_while", ["waiting", "streaming", "afterwards"])
async def test_a_call_made_again_in_the_same_start_is_the_one_whose_caller_has_gone(
    store: str, tmp_path: Path, gone_while: str
) -> None:
    """An SDK gives up waiting, and tries again by itself."""
    gate = asyncio.Event()
    stream = Streamed(pieces=OPENAI, gates={1: gate})
    async with models(store, tmp_path, stream) as proxy:
        first = ask(KEPT)
        first.inlet = left = Left(first)  # type: ignore[assignment]
        reply = await proxy.callers.handle(first)
        if gone_while == "waiting":
            left.gone = True
        else:
            await hear(reply, pieces=0)
        if gone_while == "afterwards":
            gate.set()
            await still(proxy)
        again = asyncio.create_task(asked(proxy))
        third = ask(KEPT)
        await asyncio.sleep(0.01)
        gate.set()
        assert await hear(await again) == OPENAI
        await still(proxy)
        assert len(proxy.api.on_wire) == 1
        proxy.api.sends.append(usage(1, "more"))
        assert said(await hear(await proxy.callers.handle(third)))["choices"] == ["more"]


async def test_two_samples_at_once_in_one_start_are_two_calls(store: str, tmp_path: Path) -> None:
    gate = asyncio.Event()
    first = Streamed(pieces=OPENAI, gates={1: gate})
    async with models(store, tmp_path, first, Streamed(pieces=ANTHROPIC)) as proxy:
        one, two = await asked(proxy), await asked(proxy)
        other = await hear(two)
        gate.set()
        assert (await hear(one), other) == (OPENAI, ANTHROPIC)
        await still(proxy)
        await epoch(proxy)
        again = [await asked(proxy), await asked(proxy)]
        got = [await hear(reply) for reply in again]
        assert sorted(got) == sorted([OPENAI, ANTHROPIC]), "each of them once"
        assert len(proxy.api.on_wire) == 2


async def test_each_worker_counts_by_the_start_of_its_own_token(store: str, tmp_path: Path) -> None:
    """H12: another worker's start resets nothing of this one's."""
    sends = [usage(1, "one"), usage(1, "two")]
    async with models(store, tmp_path, *sends) as proxy:
        one = (await proxy.runs.begin({"run": "run-1"}, "ann"))["token"]

        async def worker(token: str) -> tuple[str | None, Any]:
            reply = await proxy.callers.handle(ask(KEPT, token=token))
            got = said(await hear(reply))["choices"]
            await still(proxy)
            return outcome(reply), got

        assert await worker(one) == (None, ["one"])
        await epoch(proxy)
        two = (await proxy.runs.begin({"run": "run-1"}, "ann"))["token"]
        assert proxy.ledger.run("run-1").token(token_digest(two)).epoch == 2  # type: ignore[union-attr]
        assert await worker(one) == (None, ["two"]), "its second sample, not a replay"
        assert await worker(two) == ("replayed", ["one"])
        assert await worker(two) == ("replayed", ["two"])
        assert len(proxy.api.on_wire) == 2


async def test_a_restart_of_the_proxy_begins_no_start_of_the_run(
    store: str, tmp_path: Path
) -> None:
    sends = [usage(1, "one"), usage(1, "two"), usage(1, "three")]
    async with models(store, tmp_path, *sends) as proxy:
        assert await heard(proxy) == ["one"]
        await still(proxy)
        assert await heard(proxy) == ["two"]
        await still(proxy)
        await epoch(proxy)
        assert await heard(proxy) == ["one"]
        await still(proxy)
        await proxy.restart()
        assert await heard(proxy) == ["two"], "it goes on where this start is"
        await still(proxy)
        await proxy.restart()
        assert await heard(proxy) == ["three"]


@pytest.mark.parametrize("bad", ["cut", "rejected", "large"])
async def test_only_whole_answers_are_recorded(store: str, tmp_path: Path, bad: str) -> None:
    first: Opened = {
        "cut": Streamed(pieces=OPENAI[:2], breaks=True),
        "rejected": answer(400, {"choices": []}),
        "large": usage(1, "x" * 1000),
    }[bad]
    settings = replace(SETTINGS, kept_body=500)
    async with models(store, tmp_path, first, usage(1, "one"), settings=settings) as proxy:
        reply = await asked(proxy)
        if bad == "cut":
            with pytest.raises(CutOff):
                await hear(reply)
        else:
            assert b"choices" in b"".join(await hear(reply))
        await still(proxy)
        await epoch(proxy)
        assert await heard(proxy) == ["one"]
        assert len(proxy.api.on_wire) == 2


async def test_a_call_that_waited_for_an_answer_that_broke_off_is_sent_itself(
    store: str, tmp_path: Path
) -> None:
    gate = asyncio.Event()
    cut = Streamed(pieces=OPENAI[:2], breaks=True, gates={1: gate})
    async with models(store, tmp_path, cut, usage(1, "one")) as proxy:
        await hear(await asked(proxy), pieces=0)
        await epoch(proxy)
        again = asyncio.create_task(asked(proxy))
        await asyncio.sleep(0)
        gate.set()
        assert said(await hear(await again))["choices"] == ["one"]


async def test_a_replay_is_free_and_needs_an_open_run_only(store: str, tmp_path: Path) -> None:
    rights = Rights(budget={"turns": 1, "tokens": 5000})
    async with models(store, tmp_path, usage(1, "one"), rights=rights) as proxy:
        assert await heard(proxy) == ["one"]
        await still(proxy)
        assert code(await asked(proxy)) == "budget-exhausted"
        await epoch(proxy)
        rights = Rights(lists=Lists(deny=(Line(service="models"),)))
        proxy.rights = rights
        await proxy.restart()
        assert await heard(proxy) == ["one"], "a deny list stops sends only"
        await still(proxy)
        assert code(await asked(proxy)) == "authority-revoked"
        await epoch(proxy)
        await proxy.runs.revoke("run-1", {"reason": "enough"}, "ann")
        assert code(await asked(proxy)) == "authority-revoked", "revoked: nothing is replayed"


async def test_another_request_is_another_prompt_and_noise_is_none(
    store: str, tmp_path: Path
) -> None:
    sends = [usage(1, "one"), usage(1, "two")]
    async with models(store, tmp_path, *sends) as proxy:
        assert await heard(proxy, trace="a", temperature=0.5) == ["one"]
        await still(proxy)
        await epoch(proxy)
        assert await heard(proxy, trace="b", temperature=0.5) == ["one"]
        assert await heard(proxy, trace="b", temperature=0.6) == ["two"]
        assert len(proxy.api.on_wire) == 2


async def test_runs_and_steps_have_answers_of_their_own(store: str, tmp_path: Path) -> None:
    sends = [usage(1, text) for text in ("one", "two", "three", "four")]
    async with models(store, tmp_path, *sends) as proxy:
        calls = [{}, {"step": None}, {"step": "step-2"}, {"run": "run-2"}]
        for call in calls:
            await hear(await proxy.callers.handle(ask(KEPT, **call)))  # type: ignore[arg-type]
        await still(proxy)
        for run in ("run-1", "run-2"):
            await epoch(proxy, run)
        got = []
        for call in calls:
            reply = await proxy.callers.handle(ask(KEPT, **call))  # type: ignore[arg-type]
            got += said(await hear(reply))["choices"]
        assert got == ["one", "two", "three", "four"]
        assert len(proxy.api.on_wire) == 4


async def test_the_configuration_may_turn_it_on_for_every_model(store: str, tmp_path: Path) -> None:
    for journal, sent in ((True, 1), (False, 2)):
        settings = replace(SETTINGS, journal=journal)
        folder = tmp_path / str(journal)
        folder.mkdir()
        async with models(store, folder, usage(1), usage(1), settings=settings) as proxy:
            for _ in range(2):
                await hear(await proxy.callers.handle(ask()))
                await still(proxy)
                await epoch(proxy)
            assert len(proxy.api.on_wire) == sent


async def test_nothing_is_replayed_where_the_proxy_only_observes(
    store: str, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, policy=Policy(mode="observe", digest_key=b"d"))
    async with models(store, tmp_path, usage(1), usage(1), settings=settings) as proxy:
        for _ in range(2):
            await heard(proxy)
            await still(proxy)
            await epoch(proxy)
        assert len(proxy.api.on_wire) == 2


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_a_stream_is_cut_behind_each_event(store: str, end: bytes) -> None:
    events = [
        b"data: a" + end,
        b": ping" + end,
        b"event: b" + end[: len(end) // 2] + b"data: c" + end,
    ]
    assert list(split(b"".join(events))) == events
    assert list(split(b"".join(events) + b"data: rest")) == [*events, b"data: rest"]
    assert list(split(b"")) == []
