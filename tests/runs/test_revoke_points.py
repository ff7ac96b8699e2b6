"""A revocation at every suspension point of a call: whatever goes on after it was acknowledged, no
byte leaves, and its answer names what was on its way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from proxy.core.model import NotSent, Request
from proxy.core.operation import State
from tests.fakes.scripted import answer, code, fields
from tests.faults.plants import PLANTS
from tests.reliability import control, figure
from tests.runs.support import World, call, world

POINTS_MAX = 100  # of one call: some fifteen
WHATS = ("run", "parent", "token", "approval")


@dataclass
class Points:
    """Counts how often the call's tasks go on. At the ``at``-th time the one whose turn it is waits
    until ``act`` is done, and everybody else may go on."""

    at: int
    act: Any
    count: int = 0
    done: asyncio.Future[Any] | None = None

    def factory(self, loop: Any, coro: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(Held(coro, self), loop=loop, **options)


class Held(Coroutine[Any, Any, Any]):
    def __init__(self, inner: Any, points: Points) -> None:
        self._inner, self._points = inner, points

    def send(self, value: Any) -> Any:
        points = self._points
        points.count += 1
        if points.count == points.at:
            loop = asyncio.get_running_loop()
            points.done = asyncio.Task(points.act(), loop=loop)
            points.done._asyncio_future_blocking = True  # as ``await`` does it
            return points.done
        return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        return self._inner.throw(*error)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._inner.__await__()


@dataclass
class Api:
    """``late``: what arrived after the revocation was acknowledged."""

    acknowledged: bool = False
    inside: set[str] = field(default_factory=set)
    arrived: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)

    async def open(self, request: Request, **options: Any) -> Any:
        for _ in range(2):  # connecting
            await asyncio.sleep(0)
        objection = options["gate"]()
        if objection is not None:
            return NotSent(objection)
        self.arrived.append(request.url)
        if self.acknowledged:
            self.late.append(request.url)
        self.inside.add(request.url)
        for _ in range(2):  # working
            await asyncio.sleep(0)
        self.inside.discard(request.url)
        return answer(200, {"id": "ob_1"})


async def revoke(proxy: World, what: str, token: str) -> dict[str, Any]:
    if what == "approval":
        given = await proxy.desk.approvals(["granted", "consumed"])
        return await proxy.desk.revoke(given[0]["id"], {}, "bob")
    run = "top" if what == "parent" else "run-1"
    return await proxy.runs.revoke(run, {"token": token} if what == "token" else {}, "ann")


async def one_point(store: str, folder: Path, what: str, path: str, at: int) -> tuple[bool, Api]:
    """Whether the call has so many points, and what the API saw."""
    folder.mkdir()
    async with world(store, folder) as proxy:
        api = Api()
        proxy.api.open = api.open  # type: ignore[method-assign]
        await proxy.runs.begin({"run": "top"}, "ann")
        begun = await proxy.runs.begin({"run": "run-1", "parent": "top"}, "ann")
        token = begun["token"]
        if path == "/payouts":
            await proxy.call(call(path, token=token))
            await proxy.desk.grant((await proxy.waiting())["id"], {}, "bob")

        async def act() -> dict[str, Any]:
            told = await revoke(proxy, what, token)
            api.acknowledged = True
            if api.inside:
                assert told["in_flight"], f"point {at}: not told of what is on its way"
            if not api.arrived:
                stopped.append(True)
            return told

        stopped: list[bool] = []
        loop, points = asyncio.get_running_loop(), Points(at, act)
        loop.set_task_factory(points.factory)
        reply = await loop.create_task(proxy.call(call(path, token=token)))
        loop.set_task_factory(None)
        if points.done is None:
            return False, api
        told = await points.done
        await proxy.ledger.flush()
        assert api.late == [], f"point {at}: sent after the revocation was acknowledged"
        base = f"run-1/step-1/shop.{path[1:]}.create"
        operation = proxy.ledger.find(base)
        if stopped:
            assert api.arrived == []
            assert reply.status == 403
            assert code(reply) in ("authority-revoked", "approval-denied")
            assert operation is None or operation.state is not State.SUCCEEDED
        else:
            assert operation is not None
            assert operation.state is State.SUCCEEDED, "what had left is settled all the same"
            if reply.status != 200:
                assert fields(reply)["external_id"] == "ob_1"
        assert set(told["in_flight"]) <= {f"{base}/v1"}
        assert await proxy.ledger.verify() == []
    return True, api


async def every_point(store: str, folder: Path, what: str, path: str) -> tuple[int, int]:
    """How many points there are, and before how many of them nothing had left."""
    before = 0
    for at in range(1, POINTS_MAX):
        reached, api = await one_point(store, folder / f"{at}", what, path, at)
        if not reached:
            return at - 1, before
        before += not api.arrived
    raise AssertionError(f"more than {POINTS_MAX} points")


@pytest.mark.parametrize("what", WHATS)
@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_nothing_is_sent_after_a_revocation_at_any_point(
    store: str, what: str, tmp_path: Path
) -> None:
    points, before = await every_point(store, tmp_path, what, "/payouts")
    assert 0 < before < points
    figure("S5", "revoked at every suspension point of a call", points=points, late_sends=0)


@pytest.mark.parametrize("what", WHATS[:3])
async def test_nor_of_a_call_that_needs_no_approval(what: str, tmp_path: Path) -> None:
    points, before = await every_point("memory", tmp_path, what, "/refunds")
    assert 0 < before < points
    figure("S5", "revoked at every suspension point of a call", points=points, late_sends=0)


async def test_control_a_look_before_the_commit_only_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PLANTS["revoked_until_commit"](monkeypatch.setattr)  # type: ignore[operator]
    with pytest.raises(AssertionError, match="sent after the revocation") as found:
        await every_point("memory", tmp_path, "run", "/payouts")
    control("S5", "revocation looked at before the commit only", str(found.value).splitlines()[0])
