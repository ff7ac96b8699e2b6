"""Who may have anything sent: asked at every send and replay, and before the first byte."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from proxy.authority import Rights
from proxy.core.authority import Line, Lists
from proxy.core.model import Lost, NotSent, Request
from proxy.core.operation import State
from proxy.core.runs import next_epoch
from proxy.errors import ServiceError
from tests.fakes.scripted import answer, code, fields
from tests.fakes.world import Opened, outcome
from tests.runs.support import IMPATIENT, SHOP, call, get, refund, world

pytestmark = pytest.mark.parametrize("store", ["memory", "sqlite"])
OK = answer(200, {"id": "re_1"})
NAME = "run-1/step-1/shop.refunds.create"


def listed(*, allow: Any = (), deny: Any = ()) -> Rights:
    return Rights(lists=Lists(tuple(map(Line.parse, allow)), tuple(map(Line.parse, deny))))


async def test_a_revoked_run_sends_nothing_and_is_told_nothing_but_what_has_happened(
    store: str, tmp_path: Path
) -> None:
    async with world(store, tmp_path, [OK]) as proxy:
        await proxy.call(refund("a"))
        told = await proxy.runs.revoke("run-1", {"reason": "wrong customer"}, "ann")
        assert (told["status"], told["in_flight"]) == ("revoked", [])
        assert told["revoked"]["reason"] == "wrong customer"
        refused = await proxy.call(refund("a"))
        assert (refused.status, code(refused)) == (403, "authority-revoked")
        known = fields(refused)
        assert (known["state"], known["external_id"]) == ("succeeded", "re_1")
        for arrival in (refund("b"), get()):
            assert code(await proxy.call(arrival)) == "authority-revoked"
        assert len(proxy.api.on_wire) == 1
        await proxy.runs.restore("run-1", {}, "ann")
        assert outcome(await proxy.call(refund("a"))) == "replayed"


async def test_an_unknown_one_is_still_asked_about(store: str, tmp_path: Path) -> None:
    name = "run-1/step-1/shop.notes.create"
    rules = _unapproved()

    def found(request: Request) -> Opened:
        mark = _json(proxy.api.writes[0])["mark"]
        return answer(200, {"data": [{"id": "n1", "mark": mark}]})

    async with world(
        store,
        tmp_path,
        [Lost("reset")],
        lookups=[answer(500, {}), found],
        rules=rules,
        settings=IMPATIENT,
    ) as proxy:
        await proxy.through(call("/notes"))
        await proxy.runs.revoke("run-1", {}, "ann")
        assert proxy.operation(name).state is State.UNKNOWN
        refused = await proxy.call(call("/notes"))
        assert (code(refused), fields(refused)["state"]) == ("authority-revoked", "unknown")
        proxy.clock.advance(600)
        await proxy.recovery.settle_all()
        assert proxy.operation(name).state is State.SUCCEEDED


async def test_a_revoked_parent_stops_its_children(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path) as proxy:
        await proxy.runs.begin({"run": "top"}, "ann")
        await proxy.runs.begin({"run": "middle", "parent": "top"}, "ann")
        await proxy.runs.begin({"run": "run-1", "parent": "middle"}, "ann")
        await proxy.runs.revoke("top", {}, "ann")
        assert code(await proxy.call(refund())) == "authority-revoked"
        assert proxy.api.on_wire == []


async def test_a_closed_run_is_closed(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path, [OK]) as proxy:
        await proxy.call(refund("a"))
        assert (await proxy.runs.close("run-1", {}, "ann"))["status"] == "completed"
        refused = await proxy.call(refund("a"))
        assert (code(refused), fields(refused)["external_id"]) == ("run-closed", "re_1")
        assert code(await proxy.call(refund("b"))) == "run-closed"
        await proxy.runs.restore("run-1", {}, "ann")
        assert outcome(await proxy.call(refund("a"))) == "replayed"


async def test_the_status_of_a_closed_run_is_true(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path, [Lost("reset")], settings=IMPATIENT) as proxy:
        await proxy.runs.begin({"run": "given-up"}, "ann")
        assert (await proxy.runs.one("given-up"))["status"] == "open"
        closed = await proxy.runs.close("given-up", {"outcome": "failed"}, "ann")
        assert closed["status"] == "failed"
        await proxy.through(refund())
        assert (await proxy.runs.one("run-1"))["operations"] == {"unknown": 1}
        closed = await proxy.runs.close("run-1", {}, "ann")
        assert closed["status"] == "completed_with_unknown"


@pytest.mark.parametrize(
    ("rights", "sent"),
    [
        (listed(deny=[{"endpoint": "refunds.*"}]), False),
        (listed(deny=[{"run": "run-*", "service": "shop", "method": "post"}]), False),
        (listed(deny=[{"run": "other-*"}]), True),
        (listed(allow=[{"run": "run-1"}]), True),
        (listed(allow=[{"run": "run-2"}]), False),
        (listed(allow=[{"service": "shop"}], deny=[{"method": "POST"}]), False),
    ],
)
async def test_lists_say_who_may_call_what(
    store: str, tmp_path: Path, rights: Rights, sent: bool
) -> None:
    async with world(store, tmp_path, [OK] if sent else [], rights=rights) as proxy:
        reply = await proxy.call(refund())
        assert reply.status == (200 if sent else 403)
        assert len(proxy.api.on_wire) == sent


async def test_a_deny_list_stops_sends_and_not_replays(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path, [OK]) as proxy:
        await proxy.call(refund("a"))
        proxy.rights = listed(deny=[{"service": "shop"}])
        await proxy.restart()
        assert outcome(await proxy.call(refund("a"))) == "replayed"
        assert code(await proxy.call(refund("b"))) == "authority-revoked"


async def test_what_is_denied_by_now_is_not_sent_again(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path, [Lost("reset")], settings=IMPATIENT) as proxy:
        await proxy.through(refund())
        proxy.rights = listed(deny=[{"service": "shop"}])
        await proxy.restart(seconds=30)
        refused = await proxy.call(refund())
        assert (code(refused), fields(refused)["state"]) == ("authority-revoked", "unknown")
        await proxy.recovery.settle_all()
        assert len(proxy.api.writes) == 1


# Tokens


async def test_a_token_proves_whose_call_it_is(store: str, tmp_path: Path) -> None:
    rights = Rights(tokens_required=True)
    async with world(store, tmp_path, [OK], rights=rights) as proxy:
        token = (await proxy.runs.begin({"run": "run-1"}, "ann"))["token"]
        other = (await proxy.runs.begin({"run": "run-2"}, "ann"))["token"]
        assert code(await proxy.call(call("/refunds"))) == "missing-identity"
        for wrong in (other, "once_" + "x" * 43):
            assert code(await proxy.call(call("/refunds", token=wrong))) == "authority-revoked"
        assert (await proxy.call(call("/refunds", token=token))).status == 200
        assert len(proxy.api.on_wire) == 1
        shown = (await proxy.runs.one("run-1"))["tokens"][0]["token"]
        assert token not in str(await proxy.runs.one("run-1"))
        told = await proxy.runs.revoke("run-1", {"token": shown}, "ann")
        assert told["status"] == "open"
        refused = await proxy.call(call("/refunds", token=token))
        assert (code(refused), fields(refused)["external_id"]) == ("authority-revoked", "re_1")


async def test_a_wrong_token_is_refused_where_none_is_required(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path, [OK]) as proxy:
        wrong = "once_" + "x" * 43
        assert code(await proxy.call(call("/refunds", token=wrong))) == "authority-revoked"
        assert (await proxy.call(call("/refunds"))).status == 200


async def test_a_call_belongs_to_the_epoch_of_its_token_and_an_old_one_is_fenced(
    store: str, tmp_path: Path
) -> None:
    async with world(store, tmp_path, [OK], rights=Rights(fence=True)) as proxy:
        old = (await proxy.runs.begin({"run": "run-1"}, "ann"))["token"]
        await proxy.call(call("/refunds", step="a", token=old))
        await proxy.ledger.amend("run-1", next_epoch(proxy.clock.time()))
        new = (await proxy.runs.begin({"run": "run-1"}, "ann"))["token"]
        refused = await proxy.call(call("/refunds", step="b", token=old))
        assert (refused.status, code(refused)) == (409, "superseded")
        assert outcome(await proxy.call(call("/refunds", step="a", token=old))) == "replayed"
        proxy.api.sends.append(OK)
        assert (await proxy.call(call("/refunds", step="b", token=new))).status == 200


async def test_a_run_id_is_bound_to_its_input(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path) as proxy:
        await proxy.runs.begin({"run": "nightly", "input_digest": "invoice-1"}, "ann")
        await proxy.runs.begin({"run": "nightly", "input_digest": "invoice-1"}, "ann")
        with pytest.raises(ServiceError) as refused:
            await proxy.runs.begin({"run": "nightly", "input_digest": "invoice-2"}, "ann")
        assert refused.value.code == "run-reused"


# Between the intent and the first byte


async def test_nothing_leaves_after_an_acknowledged_revoke(store: str, tmp_path: Path) -> None:
    """The upstream is being connected to while the run is revoked."""
    async with world(store, tmp_path) as proxy:
        connecting, connected = asyncio.Event(), asyncio.Event()
        left: list[Request] = []

        async def open_(request: Request, **options: Any) -> Any:
            connecting.set()
            await connected.wait()
            objection = options["gate"]()
            if objection is not None:
                return NotSent(objection)
            left.append(request)
            return answer(200, {"id": "re_1"})

        proxy.api.open = open_  # type: ignore[method-assign]
        sending = asyncio.create_task(proxy.call(refund()))
        await connecting.wait()
        told = await proxy.runs.revoke("run-1", {"reason": "stop"}, "ann")
        assert told["in_flight"] == [f"{NAME}/v1"]
        connected.set()
        reply = await sending
        assert code(reply) == "authority-revoked"
        assert left == []
        assert proxy.operation(NAME).state is State.NOT_APPLIED
        assert await proxy.ledger.verify() == []


def _unapproved() -> str:
    head, tail = SHOP.split("  notes.create:")
    return head + "  notes.create:" + tail.replace("    approval: {required: true}\n", "")


def _json(request: Request) -> Any:
    return json.loads(request.body.data or b"")
