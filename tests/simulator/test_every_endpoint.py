"""Every endpoint of every shipped rule file is killed and resumed, against its service as the file
describes it: one effect or an honest unknown, never two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.core.coverage import settles
from proxy.rulefile.loader import load_file
from tests.simulator.matrix import FEW, Life, end, lives, mechanism, worlds
from tests.simulator.service import Scenario, scenarios

pytestmark = pytest.mark.usefixtures("quiet_log")

RULES = sorted((Path(__file__).parents[2] / "rules").rglob("*.yaml"))


THREE = tuple(life for life in FEW if life.point in ("during_call", "after_effect", None))[1:]
"""Killed with the effect there, and both ways in which an answer tells nothing."""


def kinds(path: Path) -> Iterator[Scenario]:
    """Of each mechanism in a file the first scenario."""
    seen: set[object] = set()
    for scenario in scenarios(load_file(path)):
        if mechanism(scenario) not in seen:
            seen.add(mechanism(scenario))
            yield scenario


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
async def test_an_endpoint_that_is_killed_at_any_point_has_one_effect_or_an_honest_unknown(
    path: Path,
) -> None:
    """One of each mechanism; all of them in the slow suite."""
    for scenario in kinds(path):
        for world in await worlds(scenario, [THREE]):
            result = await end(world)
            assert not result.violations, f"{world}: {result.violations}"


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
async def test_what_the_list_of_rules_says_to_settle_settles(path: Path) -> None:
    """The effect is there and its answer is lost; nobody but the proxy does anything about it."""
    for scenario in kinds(path):
        if settles(scenario.endpoint) and scenario.marked and _seen(scenario):
            [world] = await worlds(scenario, [[Life("after_effect", "loses_after")]])
            result = await end(world)
            assert (result.settled, result.effects) == (True, 1), f"{world}: {result}"


def _seen(scenario: Scenario) -> bool:
    """Of an endpoint with several lookups, a request that one of them is for. (To ask where every
    request is signed takes an ``auth`` of the operator's.)"""
    if scenario.lookup is not None:
        return scenario.endpoint.signed == "none"
    return not scenario.endpoint.reconcile


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
async def test_no_schedule_makes_a_second_effect(path: Path) -> None:
    """All that may happen in one life, for every endpoint; and in two, for each mechanism of the
    file."""
    played: set[object] = set()
    for scenario in scenarios(load_file(path)):
        if settles(scenario.endpoint) and scenario.marked and _seen(scenario):
            [world] = await worlds(scenario, [[Life("after_effect", "loses_after")]])
            result = await end(world)
            assert (result.settled, result.effects) == (True, 1), f"{world}: {result}"
        steps = [lives(scenario)]
        if mechanism(scenario) not in played:
            played.add(mechanism(scenario))
            steps.append((*FEW, Life(None, "slow"), Life("after_effect", "loses_before")))
        judged = 0
        for world in await worlds(scenario, steps):
            judged += world.schedules
            result = await end(world)
            assert not result.violations, f"{world}: {result.violations}"
        assert judged >= len(lives(scenario))
