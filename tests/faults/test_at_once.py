"""R6: two hundred identical calls at once. R25: the same seed gives the same history."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from proxy.ledger.memory import MemoryLedger
from proxy.recovery import Recovery
from tests.fakes.clock import FakeClock
from tests.fakes.rawclient import Got
from tests.fakes.whole import whole
from tests.fakes.world import BEHAVIOURS, POINTS, Api, engine, post, rules
from tests.faults.lives import World
from tests.faults.plants import no_flights
from tests.faults.test_random_kills import chosen_seed, repeat
from tests.reliability import control, figure

CALLERS = 200


async def at_once(world: World, kind: str, reference: str) -> list[Got]:
    text = (world.folder / "rules" / "service.yaml").read_text()
    async with whole(world.folder, text, tls={"intercept": "none"}, patience="20s") as door:
        body = {"reference": reference}
        calls = (door.call(world.url(kind), body, reference, "step") for _ in range(CALLERS))
        return list(await asyncio.gather(*calls))


@pytest.mark.parametrize("kind", ["keyed", "plain"])
async def test_r6_two_hundred_identical_calls_are_sent_once(world: World, kind: str) -> None:
    got = await at_once(world, kind, "same")
    assert world.api(kind).requests["same"] == world.effects(kind, "same") == 1
    assert {(one.status, one.body) for one in got} == {(201, got[0].body)}
    how = [word for one in got for word in one.all("onceproxy-outcome")]
    assert how.count("sent") == 1
    assert set(how) <= {"sent", "coalesced", "replayed"}
    replayed = [one for one in got if one.all("idempotent-replayed") == ["true"]]
    assert len(replayed) == how.count("replayed")
    figure("R6", "200 identical calls at once", calls=len(got), sends=1, equal_answers=len(got))


async def test_r6_control_nobody_knows_of_the_call_in_flight(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_flights(monkeypatch.setattr)
    got = await at_once(world, "plain", "same")
    sent, ends = world.api("plain").requests["same"], {one.status for one in got}
    assert sent > 1 or ends != {201}
    control("R6", "no record of who is in flight", f"{sent} sends, answers {sorted(ends)}")


async def history(seed: int) -> list[Any]:
    """Random calls, faults of the API, crashes and pauses, in one process under a virtual clock."""
    choice, clock, ruleset = random.Random(seed), FakeClock(), rules()
    ledger, api = MemoryLedger(clock), Api(clock)
    told: list[Any] = []
    for _ in range(12):
        api.script = [choice.choice(BEHAVIOURS) for _ in range(choice.randrange(3))]
        made, callers, kill = engine(ledger, api, clock, ruleset, point=choice.choice(POINTS))
        await Recovery(made).start()
        for _ in range(choice.randrange(1, 5)):
            kind = choice.choice(["keyed", "queried", "plain"])
            arrival = post(f"/{kind}", {"amount": 5}, run=f"run-{choice.randrange(3)}")
            reply = await callers.handle(arrival)
            reply.delivered(True)
            told.append((reply.status, clock.time()))
            if kill.struck:
                break
            clock.advance(choice.random() * 10)
        for flight in list(made._flights.values()):
            assert flight.task is not None
            flight.task.cancel()
            await asyncio.wait({flight.task})
    events = [
        (e.key, e.event.kind, e.event.at, e.event.data) for e in await ledger.events(0, 10_000)
    ]
    return [told, events, api.sends, api.lookups, len(api.effects)]


async def test_r25_the_same_seed_gives_the_same_history() -> None:
    seed = chosen_seed()
    first, second = await history(seed), await history(seed)
    assert first == second, repeat(seed, "test_r25")
    figure("R25", "a seeded simulation played twice", events=len(first[1]), differences=0)


async def test_r25_control_another_seed_gives_another_history() -> None:
    assert await history(1) != await history(2)
    control("R25", "another seed", "another history")


def test_r25_a_failing_seed_is_told_as_the_command_that_repeats_it(tmp_path: Path) -> None:
    assert repeat(7, "test_r1") == "repeat with: FAULT_SEED=7 make test-all ARGS='-k test_r1'"
