"""Failpoints strike where, whom and as often as they were told, and cost nothing when off."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from proxy.failpoints import OFF, POINTS, Failpoints, InjectedFault, parse_faults
from tests.fakes.clock import FakeClock

KEY = "case-1/refund/toy.refunds.create/v1"


async def test_off_does_nothing_and_says_nothing() -> None:
    for point in POINTS:
        await OFF.reach(point, KEY)
    assert not OFF.enabled
    assert OFF.warning is None
    assert not Failpoints.from_config(None).enabled


async def test_a_fault_strikes_only_its_point_and_operation_and_only_so_often() -> None:
    failpoints = Failpoints.from_config({"after_intent": "raise", "match": "case-1/*", "times": 2})
    await failpoints.reach("before_intent", KEY)
    await failpoints.reach("after_intent", "case-2/refund/toy.refunds.create/v1")
    for _ in range(2):
        with pytest.raises(InjectedFault):
            await failpoints.reach("after_intent", KEY)
    await failpoints.reach("after_intent", KEY)


async def test_a_delay_takes_its_seconds() -> None:
    clock = FakeClock()
    failpoints = Failpoints.from_config({"after_effect": "delay", "seconds": 0.5}, clock)
    await failpoints.reach("after_effect", KEY)
    assert clock.slept == [0.5]


def test_a_kill_is_a_real_one() -> None:
    program = (
        "import asyncio, atexit\n"
        "from proxy.failpoints import Failpoints\n"
        "atexit.register(print, 'goodbye')\n"
        "asyncio.run(Failpoints.from_config({'after_outcome': 'kill'}).reach('after_outcome', 'k'))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=30)
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == b""


def test_being_on_is_loud() -> None:
    failpoints = Failpoints.from_config([{"after_intent": "kill"}, {"during_call": "delay"}])
    assert failpoints.enabled
    assert failpoints.warning is not None
    assert "FAULT INJECTION IS ON" in failpoints.warning
    assert "kill at after_intent" in failpoints.warning


def test_every_mistake_is_named_at_once() -> None:
    with pytest.raises(ValueError) as caught:
        parse_faults([{"after_lunch": "kill"}, {"after_intent": "stop", "times": 0, "tims": 1}, 3])
    text = str(caught.value)
    assert "before_intent, after_intent" in text
    assert "kill, raise, delay" in text
    assert "faults.times" in text
    assert "faults.tims: unknown" in text
    assert "expected a mapping" in text


async def test_during_call_strikes_after_bytes_left_and_before_the_answer() -> None:
    left, story = asyncio.Event(), []
    clock = FakeClock()

    async def call() -> str:
        story.append("sent")
        left.set()
        while not clock.slept:
            await asyncio.sleep(0)
        story.append("answered")
        return "answer"

    failpoints = Failpoints.from_config({"during_call": "delay", "seconds": 2}, clock)
    assert await failpoints.during(call(), left, KEY) == "answer"
    assert story == ["sent", "answered"]
    assert clock.slept == [2.0]


async def test_during_call_is_not_reached_where_nothing_left() -> None:
    async def call() -> str:
        return "not sent"

    failpoints = Failpoints.from_config({"during_call": "raise"})
    assert await failpoints.during(call(), asyncio.Event(), KEY) == "not sent"


async def test_a_raise_during_a_call_gives_it_up() -> None:
    left, gone = asyncio.Event(), asyncio.Event()

    async def call() -> None:
        left.set()
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    failpoints = Failpoints.from_config({"during_call": "raise"})
    with pytest.raises(InjectedFault):
        await failpoints.during(call(), left, KEY)
    await asyncio.wait_for(gone.wait(), 5)
