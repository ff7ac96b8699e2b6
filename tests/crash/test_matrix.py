"""All crash schedules, and eight planted bugs that must turn them red."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import structlog

from proxy.core import reconcile, settle
from proxy.core.decide import state as by_state
from proxy.core.model import Lost, NotSent
from proxy.core.operation import Event, Kind
from proxy.core.transitions import evolve, evolve_all
from proxy.engine import Engine
from proxy.ledger.base import Change
from tests.crash.matrix import KINDS, LIVES, World, lives, violations, worlds
from tests.fakes.world import rules

RULES = rules()


@pytest.fixture(autouse=True)
def _quiet_log() -> Any:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.configure(**before)


async def _failing(
    most: int | None = None, kinds: tuple[str, ...] = KINDS
) -> tuple[list[str], int]:
    """Schedules with a violation, as text, and how many were judged; stops at ``most``."""
    found: list[str] = []
    judged = 0
    for kind in kinds:
        for world in await worlds(kind, RULES):
            judged += world.schedules
            for violation in await violations(kind, world, RULES):
                found.append(f"{kind} {_story(world)}: {violation}")
            if most is not None and len(found) >= most:
                return found, judged
    return found, judged


def _story(world: World) -> str:
    return ", ".join(f"{life.behaviour} killed at {life.point}" for life in world.story)


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.slow] if k == "batch" else []) for k in KINDS]
)
async def test_every_schedule_ends_in_one_effect_or_an_honest_unknown(kind: str) -> None:
    found, judged = await _failing(kinds=(kind,))
    assert found == []
    assert judged == len(lives()) ** LIVES


def _no_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Engine, operation: Any) -> Any:
        return operation

    monkeypatch.setattr(Engine, "mend", nothing)


def _resend_whatever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_state, "_permit", lambda *args: by_state.UNDER_KEY)


def _lost_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    true = settle.attempt_ended

    def planted(
        operation: Any, endpoint: Any, attempt: Any, result: Any, *rest: Any, **more: Any
    ) -> Any:
        if isinstance(result, Lost):
            result = NotSent(result.reason)
        return true(operation, endpoint, attempt, result, *rest, **more)

    monkeypatch.setattr(settle, "attempt_ended", planted)


def _commit_after_act(monkeypatch: pytest.MonkeyPatch) -> None:
    act, intend = Engine._attempt, Engine._intend
    late: list[Any] = []

    async def pretend(self: Engine, bound: Any, operation: Any, forward: Any, request: Any) -> Any:
        late.append((operation, forward, request))
        started = Event(
            Kind.ATTEMPT_STARTED, operation.updated_at, {"attempt": forward.attempt, "keyed": True}
        )
        return replace(evolve(operation, started), revision=operation.revision + 1)

    async def attempt(self: Engine, flight: Any, bound: Any, operation: Any, request: Any) -> Any:
        result = await act(self, flight, bound, operation, request)
        await intend(self, bound, *late.pop())
        return result

    monkeypatch.setattr(Engine, "_intend", pretend)
    monkeypatch.setattr(Engine, "_attempt", attempt)


def _counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Engine._intend

    async def planted(self: Engine, bound: Any, operation: Any, forward: Any, request: Any) -> Any:
        operation = await true(self, bound, operation, forward, request)
        more = (Event(Kind.ATTEMPT_STARTED, 1.0, {"attempt": forward.attempt + 1, "keyed": True}),)
        return await self.ledger.commit(Change(evolve_all(operation, more), more))

    monkeypatch.setattr(Engine, "_intend", planted)


def _refusal_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "_recorded_answer", lambda *args: True)


async def test_a_second_id_for_the_same_call_turns_it_red(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Engine._obtain

    async def planted(self: Engine, bound: Any, snapshot: Any) -> Any:
        return await true(self, bound, replace(snapshot, operation=None))

    monkeypatch.setattr(Engine, "_obtain", planted)
    found, _ = await _failing(most=1, kinds=("given",))
    assert found


async def test_marks_that_all_items_share_turn_it_red(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "key_of_item", lambda endpoint, key, index: key)
    found, _ = await _failing(most=1, kinds=("batch",))
    assert found


@pytest.mark.parametrize(
    "plant",
    [
        _no_recovery,
        _resend_whatever,
        _lost_is_not_sent,
        _commit_after_act,
        _counted_twice,
        _refusal_closes,
    ],
)
async def test_a_planted_bug_turns_the_matrix_red(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found, _ = await _failing(most=1)
    assert found
