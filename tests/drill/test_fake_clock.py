"""The fake clock keeps the order of sleepers, or other tests would mean nothing."""

from __future__ import annotations

import asyncio

from tests.fakes.clock import FakeClock


async def test_sleepers_wake_in_the_order_of_their_times() -> None:
    clock, woken = FakeClock(), []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((seconds, clock.monotonic() - 1_000.0))

    await asyncio.gather(sleeper(20), sleeper(0.2), sleeper(5))
    assert [seconds for seconds, _ in woken] == [0.2, 5, 20]
    assert all(abs(seconds - at) < 1e-6 for seconds, at in woken)


async def test_a_wait_ends_with_its_future_or_its_time() -> None:
    clock = FakeClock()
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(done.set_result, None)
    assert await clock.wait(done, 20)
    assert clock.monotonic() == 1_000.0
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    assert not await clock.wait(never, 20)
    assert clock.monotonic() == 1_020.0
    assert not never.cancelled()


async def test_without_auto_only_the_test_moves_the_time() -> None:
    clock = FakeClock(auto=False)
    sleeping = asyncio.create_task(clock.sleep(10))
    for _ in range(200):
        await asyncio.sleep(0)
    assert not sleeping.done()
    clock.advance(10)
    await sleeping


async def test_a_step_moves_the_wall_clock_alone() -> None:
    clock = FakeClock()
    clock.step(-3_600)
    assert (clock.time(), clock.monotonic()) == (1_800_000_000.0 - 3_600, 1_000.0)
