"""Calls of a model: their tokens are reserved before anything leaves, and settled by the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.authority import Rights
from proxy.core.model import NotSent, Request
from proxy.net.exchange import BrokenOff
from tests.fakes.scripted import LOST, REFUSED, answer, code, fields
from tests.fakes.world import Killed, Opened, outcome
from tests.runs.models import ANTHROPIC, MODELS, OPENAI, Streamed, ask, hear, usage
from tests.runs.support import World, limits, world

pytestmark = pytest.mark.parametrize("store", ["memory", "sqlite"])


@asynccontextmanager
async def models(
    store: str, path: Path, *sends: Any, rights: Rights | None = None
) -> AsyncIterator[World]:
    rights = rights or limits(turns=100, tokens=100_000)
    async with world(store, path, sends, rights=rights, rules=MODELS) as proxy:
        yield proxy


async def settled(proxy: World) -> dict[str, int]:
    """What is used once everything under way is written down; ``reserved``: not settled."""
    await proxy.engine.stop(10)
    await proxy.ledger.flush()
    told = proxy.runs.budget("run-1")["budget"]
    return proxy.used() | {"reserved": told["tokens"]["reserved"]}


async def budget_events(proxy: World) -> list[tuple[str, dict[str, Any]]]:
    stored = [each.event for each in await proxy.ledger.events(0)]
    return [(str(e.kind), dict(e.data)) for e in stored if str(e.kind).startswith("Budget")]


async def test_a_plain_answer_settles_what_was_reserved_before_its_caller_has_it(
    store: str, tmp_path: Path
) -> None:
    async with models(store, tmp_path, usage(12)) as proxy:
        reply = await proxy.callers.handle(ask(max_tokens=500, n=2))
        assert proxy.used() == {"turns": 1, "tokens": 1000}
        await hear(reply)
        assert proxy.used() == {"turns": 1, "tokens": 12}
        assert [name for name, _ in await budget_events(proxy)] == [
            "BudgetCharged",
            "BudgetSettled",
        ]
        assert ("model_tokens", "models", "chat", "used", 12) in proxy.metrics.calls
        assert await proxy.ledger.verify() == []


@pytest.mark.parametrize(
    ("path", "pieces", "used"),
    [("/v1/chat/completions", OPENAI, 12), ("/v1/messages", ANTHROPIC, 40)],
)
async def test_a_stream_settles_it_too_and_its_pieces_pass_as_they_come(
    store: str, tmp_path: Path, path: str, pieces: list[bytes], used: int
) -> None:
    stream = Streamed(pieces=pieces)
    async with models(store, tmp_path, stream) as proxy:
        reply = await proxy.callers.handle(ask(path, max_tokens=500, stream=True))
        assert await hear(reply) == pieces
        assert await settled(proxy) == {"turns": 1, "tokens": used, "reserved": 0}


async def test_the_reservation_is_durable_before_the_first_byte(store: str, tmp_path: Path) -> None:
    seen: list[dict[str, int]] = []

    def dies(request: Request) -> Opened:
        seen.append(proxy.used())
        raise Killed

    async with models(store, tmp_path, dies) as proxy:
        with pytest.raises(Killed):
            await proxy.callers.handle(ask(max_tokens=500))
        assert seen == [{"turns": 1, "tokens": 500}]
        await proxy.restart()
        assert await settled(proxy) == {"turns": 1, "tokens": 500, "reserved": 500}


async def test_a_stream_that_breaks_off_keeps_its_reservation_marked(
    store: str, tmp_path: Path
) -> None:
    stream = Streamed(pieces=OPENAI[:2], breaks=True)  # its usage has come, its end has not
    async with models(store, tmp_path, stream) as proxy:
        reply = await proxy.callers.handle(ask(max_tokens=500, stream=True))
        with pytest.raises(BrokenOff):
            await hear(reply)
        assert await settled(proxy) == {"turns": 1, "tokens": 500, "reserved": 500}
        name, data = (await budget_events(proxy))[-1]
        assert (name, data["reserved"], data["used"]) == ("BudgetSettled", 500, None)
        assert ("model_tokens", "models", "chat", "kept", 500) in proxy.metrics.calls


@pytest.mark.parametrize(
    ("pieces", "heard"), [(OPENAI, 0), (OPENAI, 1), ([b'{"choices": []}'], None)]
)
async def test_what_nobody_can_know_keeps_it_too(
    store: str, tmp_path: Path, pieces: list[bytes], heard: int | None
) -> None:
    """The caller leaves, before the body or within it; or the answer does not say."""
    stream = Streamed(pieces=pieces)
    async with models(store, tmp_path, stream) as proxy:
        reply = await proxy.callers.handle(ask(max_tokens=500))
        if heard == 0:
            reply.delivered(False)
        else:
            await hear(reply, pieces=heard)
        assert await settled(proxy) == {"turns": 1, "tokens": 500, "reserved": 500}
        assert [d["used"] for n, d in await budget_events(proxy) if n == "BudgetSettled"] == [None]
        assert heard is None or stream.closed, "a model that nobody hears goes on"


async def test_a_lost_answer_keeps_it(store: str, tmp_path: Path) -> None:
    async with models(store, tmp_path, LOST) as proxy:
        assert code(await proxy.call(ask(max_tokens=500))) == "upstream-lost"
        assert await settled(proxy) == {"turns": 1, "tokens": 500, "reserved": 500}


@pytest.mark.parametrize("status", [429, 529, 401])
async def test_a_call_that_was_not_looked_at_costs_nothing(
    store: str, tmp_path: Path, status: int
) -> None:
    async with models(
        store, tmp_path, answer(status, {}), usage(12), rights=limits(turns=1, tokens=500)
    ) as proxy:
        await hear(await proxy.callers.handle(ask(max_tokens=500)))
        assert await settled(proxy) == {"reserved": 0}
        again = await proxy.callers.handle(ask(max_tokens=500))
        assert again.status == 200, "the same turn, tried again"
        await hear(again)
        assert proxy.used() == {"turns": 1, "tokens": 12}


async def test_a_call_that_was_rejected_was_a_turn_without_tokens(
    store: str, tmp_path: Path
) -> None:
    async with models(store, tmp_path, answer(400, {"error": "no"})) as proxy:
        await hear(await proxy.callers.handle(ask(max_tokens=500)))
        assert await settled(proxy) == {"turns": 1, "reserved": 0}


@pytest.mark.parametrize("step", [REFUSED, NotSent("no route")])
async def test_a_call_that_never_left_costs_nothing(
    store: str, tmp_path: Path, step: NotSent
) -> None:
    async with models(store, tmp_path, step) as proxy:
        assert code(await proxy.call(ask(max_tokens=500))) == "upstream-not-reached"
        assert await settled(proxy) == {"reserved": 0}


async def test_calls_at_once_never_reserve_more_than_the_limit(store: str, tmp_path: Path) -> None:
    rights = limits(tokens=2_500)
    stream = [Streamed(pieces=OPENAI) for _ in range(10)]
    async with models(store, tmp_path, *stream, rights=rights) as proxy:
        replies = await asyncio.gather(
            *(proxy.callers.handle(ask(max_tokens=500, n=1, user=str(n))) for n in range(10))
        )
        assert sorted(reply.status for reply in replies) == [200] * 5 + [403] * 5
        assert len(proxy.api.on_wire) == 5
        refused = next(reply for reply in replies if reply.status == 403)
        assert code(refused) == "budget-exhausted"
        assert "Of 2500 tokens of the run run-1 2500 are used" in fields(refused)["detail"]
        for reply in replies:
            if reply.status == 200:
                await hear(reply)
        assert await settled(proxy) == {"turns": 5, "tokens": 60, "reserved": 0}
        assert (await proxy.call(ask(max_tokens=500))).status == 200, "there is room again"


async def test_turns_are_counted_by_themselves(store: str, tmp_path: Path) -> None:
    rights = limits(turns=1, tool_calls=0)
    async with models(store, tmp_path, usage(1), rights=rights) as proxy:
        await hear(await proxy.callers.handle(ask()))
        assert code(await proxy.callers.handle(ask())) == "budget-exhausted"
        assert await settled(proxy) == {"turns": 1, "tokens": 1, "reserved": 0}


async def test_what_no_limit_speaks_of_is_counted_without_an_event(
    store: str, tmp_path: Path
) -> None:
    async with models(store, tmp_path, usage(12), rights=Rights()) as proxy:
        await hear(await proxy.callers.handle(ask()))
        assert await settled(proxy) == {"turns": 1, "tokens": 12, "reserved": 0}
        assert await budget_events(proxy) == []


async def test_a_limit_of_the_run_above_counts_as_well(store: str, tmp_path: Path) -> None:
    async with models(store, tmp_path, usage(12), rights=Rights()) as proxy:
        await proxy.runs.begin({"run": "parent"}, "ann")
        await proxy.runs.set_budget("parent", {"tokens": 600}, "ann", raising=True)
        await proxy.runs.begin({"run": "run-1", "parent": "parent"}, "ann")
        await hear(await proxy.callers.handle(ask(max_tokens=600)))
        assert await settled(proxy) == {"turns": 1, "tokens": 12, "reserved": 0}
        assert proxy.used("parent") == {"turns": 1, "tokens": 12}
        assert code(await proxy.call(ask(max_tokens=600))) == "budget-exhausted"


async def test_a_call_without_a_run_is_not_metered(store: str, tmp_path: Path) -> None:
    async with models(store, tmp_path, usage(12), rights=limits(turns=0)) as proxy:
        reply = await proxy.call(ask(run=None, headers=[("Accept-Encoding", "br")]))
        assert reply.status == 200
        assert proxy.api.on_wire[0].header("Accept-Encoding") == "br"


async def test_a_count_of_tokens_is_neither_a_turn_nor_a_tool_call(
    store: str, tmp_path: Path
) -> None:
    async with models(store, tmp_path, answer(200, {}), rights=limits(tool_calls=0)) as proxy:
        assert (await proxy.call(ask("/v1/count"))).status == 200
        await proxy.ledger.flush()
        assert proxy.ledger.run("run-1") is None, "nothing was counted"


async def test_an_answer_is_asked_for_in_a_coding_that_can_be_read(
    store: str, tmp_path: Path
) -> None:
    async with models(store, tmp_path, usage(12)) as proxy:
        fields = [("Accept-Encoding", "br, gzip, zstd")]
        await hear(await proxy.callers.handle(ask(headers=fields)))
        assert proxy.api.on_wire[0].header("Accept-Encoding") == "gzip"


async def test_a_run_that_is_revoked_meanwhile_is_settled_all_the_same(
    store: str, tmp_path: Path
) -> None:
    gate = asyncio.Event()
    stream = Streamed(pieces=OPENAI, gates={1: gate})
    async with models(store, tmp_path, stream) as proxy:
        reply = await proxy.callers.handle(ask(max_tokens=500, stream=True))
        await proxy.runs.revoke("run-1", {"reason": "enough"}, "ann")
        gate.set()
        assert await hear(reply) == OPENAI
        assert await settled(proxy) == {"turns": 1, "tokens": 12, "reserved": 0}
        assert outcome(await proxy.call(ask())) == "refused"
