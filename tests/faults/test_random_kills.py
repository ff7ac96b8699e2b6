"""R1, R21: SIGKILL at random moments under load; R4's kills stand in test_windows.py.

Callers repeat what has no end yet, or begin something new; the proxy is killed some milliseconds
after they began; in the end one that is left alone gives every operation its end.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
from dataclasses import dataclass, field

import pytest

from tests.fakes.rawclient import Got
from tests.faults.lives import KINDS, Gone, Life, World, Zeros, Zygote, is_done_unkept, is_end
from tests.reliability import control, figure

CALLERS = 3
REACH = 0.02  # seconds after the first call within which most kills fall: a call takes some ten
LONG = 0.4  # a few lives get as far as settling what is unknown
LONG_SHARE = 0.1
TROUBLES = ("drop_before", "drop_after", "error_after", "cut")
TROUBLED = 0.1
TRIES = 3  # of one operation while kills go on: after five attempts a person is asked
SEED_VARIABLE = "FAULT_SEED"


@dataclass
class Case:
    kind: str
    reference: str
    told: bytes | None = None  # the success that its caller got
    tries: int = 0


@dataclass
class Load:
    world: World
    choice: random.Random
    cases: list[Case] = field(default_factory=list)
    zeros: Zeros = field(default_factory=Zeros)

    async def caller(self, life: Life) -> None:
        """Calls until the proxy is gone."""
        try:
            while True:
                case = self._next()
                case.tries += 1
                self._told(case, await self.world.call(life, case.kind, case.reference))
        except Gone:
            pass

    def _next(self) -> Case:
        known = [case for case in self.cases[-12:] if case.tries < TRIES]
        if known and self.choice.random() < 0.5:
            return self.choice.choice(known)
        case = Case(self.choice.choice(list(KINDS)), f"case-{len(self.cases)}")
        if self.choice.random() < TROUBLED:
            fault = self.choice.choice(TROUBLES)
            self.world.api(case.kind).troubles.fault(case.reference, fault)
        self.cases.append(case)
        return case

    def _told(self, case: Case, got: Got) -> None:
        status, body = got.status, got.body
        if status == 201:
            if self.world.effects(case.kind, case.reference) == 0:
                self.zeros.count("lost", f"{case} was told of a success too early")
            if case.told not in (None, body):
                self.zeros.count("wrong_status", f"{case}: two answers")
            case.told = body
        elif not self._honest(case, got):
            self.zeros.count("wrong_status", f"{case}: {status}")
        elif case.told is not None:
            self.zeros.count("wrong_status", f"{case}: {status} after a success")

    def _honest(self, case: Case, got: Got) -> bool:
        """Not an end, or one that may be."""
        unknown = case.kind == "plain" and got.status == 424
        return not is_end(got) or is_done_unkept(got) or unknown

    async def end(self, life: Life) -> None:
        free = asyncio.Semaphore(8)

        async def one(case: Case) -> None:
            async with free:
                got = await self.world.final(life, case.kind, case.reference)
            self.world.judge(self.zeros, case.kind, case.reference, got, "at the end")
            if got is not None:
                self._told(case, got)

        await asyncio.gather(*(one(case) for case in self.cases))


async def kills(zygote: Zygote, world: World, number: int, seed: int, *plants: str) -> Load:
    load = Load(world, random.Random(seed))
    for _ in range(number):
        life = await zygote.life(world.config, plants=plants, steps=False)
        callers = [asyncio.create_task(load.caller(life)) for _ in range(CALLERS)]
        reach = LONG if load.choice.random() < LONG_SHARE else REACH
        await asyncio.sleep(load.choice.random() * reach)
        await life.kill()
        await asyncio.gather(*callers)
    life = await zygote.life(world.config, plants=plants, steps=False)
    await load.end(life)
    await life.kill()
    world.judge_budgets(load.zeros, [case.reference for case in load.cases])
    return load


def chosen_seed() -> int:
    return int(os.environ.get(SEED_VARIABLE) or secrets.randbelow(1 << 32))


def repeat(seed: int, test: str) -> str:
    """The command that repeats a failing run."""
    return f"repeat with: {SEED_VARIABLE}={seed} make test-all ARGS='-k {test}'"


async def _check(zygote: Zygote, world: World, number: int, test: str) -> None:
    seed = chosen_seed()
    load = await kills(zygote, world, number, seed)
    assert load.zeros.wrong == [], repeat(seed, test)
    assert len(load.cases) > number / 2, "too little load to mean anything"
    figure(
        "R1",
        "SIGKILL at a random moment of load, four kinds of API, three callers that repeat",
        kills=number,
        operations=len(load.cases),
        **load.zeros.figures(),
    )
    resets = load.zeros.budget_resets
    figure("R21", "budgets of the runs of R1", runs=len(load.cases), budget_resets=resets)


async def test_r1_random_kills_duplicate_and_lose_nothing(zygote: Zygote, world: World) -> None:
    await _check(zygote, world, 20, "test_r1_random_kills_duplicate")


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_r1_five_hundred_random_kills(zygote: Zygote, world: World) -> None:
    await _check(zygote, world, 500, "test_r1_five_hundred")


async def test_r1_control_an_outcome_written_before_the_send_is_seen(
    zygote: Zygote, world: World
) -> None:
    for seed in range(5):
        load = await kills(zygote, world, 10, seed, "outcome_first")
        if load.zeros.wrong:
            break
    assert load.zeros.lost > 0
    told = f"{load.zeros.lost} of {len(load.cases)} operations lost in 10 kills"
    control("R1", "the outcome written before the send", told)


@pytest.mark.parametrize(
    "plant", ["charged_every_time", pytest.param("charged_late", marks=pytest.mark.slow)]
)
async def test_r21_control_a_budget_that_counts_something_else_is_seen(
    zygote: Zygote, world: World, plant: str
) -> None:
    for seed in range(5):
        load = await kills(zygote, world, 6, seed, plant)
        if load.zeros.budget_resets:
            break
    assert load.zeros.budget_resets > 0
    told = f"{load.zeros.budget_resets} of {len(load.cases)} runs charged wrongly in 6 kills"
    control("R21", f"`{plant.replace('_', ' ')}` under kills", told)
