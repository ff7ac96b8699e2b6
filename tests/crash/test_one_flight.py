"""One operation is driven by one flight, whoever comes for it at the same moment, and by whatever
name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.core.model import Request
from proxy.ledger.memory import MemoryLedger
from tests.crash.support import (
    IMPATIENT,
    KEYED,
    OK,
    QUERIED,
    REFUND,
    Gate,
    invoice,
    key_of,
    keyed,
    on_disk,
    plain,
    refund,
    slowly,
)
from tests.fakes.clock import FakeClock
from tests.fakes.scripted import LOST, Proxy, Scripted, answer, code, ruleset
from tests.fakes.world import outcome, post


class SlowToRead(MemoryLedger):
    """Reading a stored request takes until ``readable``, as from a large file it may."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.reading, self.readable = asyncio.Event(), asyncio.Event()

    async def request_of(self, key: str) -> Request | None:
        self.reading.set()
        await self.readable.wait()
        return await super().request_of(key)


def one(proxy: Proxy) -> Any:
    return proxy.recovery.settle(f"{REFUND}/v1")


def all_of_them(proxy: Proxy) -> Any:
    return proxy.recovery.settle_all()


@pytest.mark.parametrize("settle", [one, all_of_them])
async def test_a_call_that_comes_while_the_background_reads_the_request_is_sent_once(
    settle: Callable[[Proxy], Any],
) -> None:
    clock = FakeClock()
    ledger = SlowToRead(clock)
    proxy = keyed(LOST, clock=clock, ledger=ledger, settings=IMPATIENT)
    await proxy.call(refund())
    await proxy.restart()
    gate = Gate(answer(200, OK))
    proxy.api.sends = [gate] * 3
    settling = asyncio.create_task(settle(proxy))
    await ledger.reading.wait()
    calling = asyncio.create_task(proxy.call(refund()))
    ledger.readable.set()
    await gate.reached()
    twin = await proxy.call(refund())
    await settle_again(proxy)
    gate.open.set()
    await asyncio.gather(settling, calling)
    assert gate.most == 1
    assert len(proxy.api.writes) == 2
    assert {key_of(r) for r in proxy.api.writes} == {f"{REFUND}/v1"}
    assert code(twin) == "operation-in-progress"


async def settle_again(proxy: Proxy) -> None:
    """The background's next round meets an attempt on the wire, and does not wait for it here."""
    proxy.clock.advance(61)
    again = asyncio.create_task(proxy.recovery.settle_all())
    await proxy.clock.sleep(1)  # returns once nothing else can happen
    again.cancel()


async def test_a_large_request_read_back_from_disk_is_sent_by_one_flight(tmp_path: Path) -> None:
    clock = FakeClock()
    async with on_disk(tmp_path, clock) as ledger:
        proxy = keyed(LOST, clock=clock, ledger=ledger, settings=IMPATIENT)
        large = {"amount": 1, "blob": "x" * 200_000}
        await proxy.call(post("/refunds", large))
        await proxy.restart()
        gate = Gate(answer(200, OK))
        proxy.api.sends = [gate] * 3
        settling = asyncio.create_task(proxy.recovery.settle(f"{REFUND}/v1"))
        calling = asyncio.create_task(proxy.call(post("/refunds", large)))
        await gate.reached()
        twin = await proxy.call(post("/refunds", large))
        gate.open.set()
        await asyncio.gather(settling, calling)
    assert gate.most == 1
    assert len(proxy.api.writes) == 2
    assert code(twin) == "operation-in-progress"


async def test_twins_under_two_names_are_sent_once() -> None:
    proxy = Proxy(ruleset(QUERIED))
    proxy.api.sends = [slowly(proxy, answer(200, OK))] * 2
    replies = await asyncio.gather(
        proxy.call(plain()), proxy.call(plain(operation_id="the-second-name"))
    )
    assert len(proxy.api.writes) == 1
    assert [outcome(r) for r in replies] == ["sent", "coalesced"]


async def test_twins_under_two_operation_ids_are_two_operations() -> None:
    proxy = Proxy(ruleset(QUERIED))
    proxy.api.sends = [slowly(proxy, answer(200, OK))] * 2
    replies = await asyncio.gather(
        proxy.call(plain(operation_id="a")), proxy.call(plain(operation_id="b"))
    )
    assert len(proxy.api.writes) == 2
    assert [outcome(r) for r in replies] == ["sent", "sent"]


async def test_twins_of_two_runs_with_one_business_key_are_sent_once() -> None:
    proxy = Proxy(ruleset(KEYED))
    proxy.api.sends = [slowly(proxy, answer(200, OK))] * 2
    replies = await asyncio.gather(
        proxy.call(invoice("invoice-42", "run-1")), proxy.call(invoice("invoice-42", "run-2"))
    )
    assert [key_of(r) for r in proxy.api.writes] == ["invoice-42"]
    assert [outcome(r) for r in replies] == ["sent", "coalesced"]


async def test_a_name_is_free_again_once_its_flight_has_ended() -> None:
    """What was claimed for a flight that came to nothing binds nobody after it."""
    proxy = Proxy(ruleset(KEYED), Scripted([answer(403, {}), answer(200, OK)]))
    assert (await proxy.call(invoice("invoice-42", "run-1"))).status == 403
    assert (await proxy.call(invoice("invoice-42", "run-1"))).status == 200
    assert len(proxy.api.writes) == 2
