"""Schedules H10, M4, M6, M7, M12: defaults one can work with, signatures, bodies too large to keep,
objects that two operations meet, and what is seen but not protected.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from proxy.core.call import Policy
from proxy.core.operation import State
from proxy.engine import Settings
from proxy.net.exchange import Arrival, BytesInlet
from proxy.rulefile.loader import load
from tests.crash.support import (
    KEYED,
    OK,
    QUERIED,
    REFUND,
    keyed,
    note,
    page,
    plain,
    queried,
    refund,
    saying,
    settle_often,
)
from tests.fakes.rawclient import RawClient
from tests.fakes.rawserver import Connection, RawServer, Received
from tests.fakes.scripted import LOST, Proxy, Scripted, answer, code
from tests.fakes.whole import whole
from tests.fakes.world import outcome, post

SHIPPED = Path(__file__).parents[2] / "rules"


# -- H10 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "path"),
    [
        ("api.openai.com", "/v1/chat/completions"),
        ("api.anthropic.com", "/v1/messages"),
        ("models.example.test", "/v1/chat/completions"),
        ("api.datadoghq.com", "/api/v2/series"),
    ],
)
async def test_h10_prompts_and_telemetry_of_one_step_are_all_sent_and_never_recorded(
    host: str, path: str
) -> None:
    proxy = Proxy(load([SHIPPED]), Scripted([answer(200, OK), answer(500), answer(200, OK)]))
    said = [await proxy.call(post(path, {"n": n}, host=host)) for n in (1, 2, 1)]
    assert [reply.status for reply in said] == [200, 500, 200]
    assert len(proxy.api.writes) == 3
    assert await proxy.ledger.events(0) == []


async def test_h10_a_second_write_of_a_step_to_a_host_without_a_rule_is_another_operation() -> None:
    proxy = Proxy(load([SHIPPED]), Scripted([answer(200, OK), answer(200, OK)]))
    for number in (1, 2, 2):
        reply = await proxy.call(post("/things", {"n": number}, host="unruled.example.test"))
        assert reply.status == 200
    assert len(proxy.api.writes) == 2
    assert outcome(reply) == "replayed"


@dataclass
class Watched(Scripted):
    """Notes for each send whether it had to go out on a fresh connection."""

    def __post_init__(self) -> None:
        self.fresh: list[bool] = []

    async def open(self, request: Any, **kwargs: Any) -> Any:
        self.fresh.append(kwargs["fresh"])
        return await super().open(request, **kwargs)


@pytest.mark.parametrize(("call", "fresh"), [(plain, True), (note, False)])
async def test_h10_only_what_nothing_could_settle_goes_out_on_a_fresh_connection(
    call: Any, fresh: bool
) -> None:
    proxy = queried()
    proxy.api = api = Watched([answer(201, {"id": "n1"})])
    proxy.start()
    await proxy.call(call())
    assert api.fresh == [fresh]


# -- M4 --------------------------------------------------------------------------------------------

SIGNED = saying(KEYED, "signed: body")


def signed(body: str, signature: str) -> Arrival:
    """A call with a signature that only its caller can make."""
    arrival = refund(headers=[("Idempotency-Key", "mine-1"), ("X-Signature", signature)])
    data = body.encode()
    arrival.content_length, arrival.inlet = len(data), BytesInlet(data)
    return arrival


async def test_m4_what_is_signed_is_sent_again_as_its_caller_signs_it_anew() -> None:
    proxy = keyed(LOST, answer(200, OK), rules=SIGNED, settings=IN_SHORT)
    await proxy.call(signed('{"amount": 500, "to": 1}', "old"))
    await proxy.restart()
    await settle_often(proxy, rounds=5)
    assert len(proxy.api.writes) == 1, "nobody can sign it but its caller"
    other = await proxy.call(signed('{"to": 1, "amount": 500}', "other bytes"))
    assert (other.status, len(proxy.api.writes)) == (424, 1), "the signed bytes differ"
    reply = await proxy.call(signed('{"amount": 500, "to": 1}', "new"))
    assert reply.status == 200
    assert [r.header("X-Signature") for r in proxy.api.writes] == ["old", "new"]
    assert {r.header("Idempotency-Key") for r in proxy.api.writes} == {"mine-1"}


IN_SHORT = Settings(policy=Policy(digest_key=b"d"), patience=0.1)


# -- M6 --------------------------------------------------------------------------------------------

SMALL = Settings(policy=Policy(digest_key=b"d"), patience=0.1, kept_body=100, request_body=1_000)


def large(text: str, spaces: int = 1) -> Arrival:
    data = json.dumps({"amount": 500, "text": text}, separators=("," + " " * spaces, ":")).encode()
    arrival = refund()
    arrival.content_length, arrival.inlet = len(data), BytesInlet(data)
    return arrival


async def test_m6_a_body_too_large_to_keep_is_sent_again_from_its_callers_equal_bytes() -> None:
    proxy = keyed(LOST, answer(200, OK), settings=SMALL)
    await proxy.call(large("x" * 300))
    await proxy.restart()
    await settle_often(proxy, rounds=5)
    assert len(proxy.api.writes) == 1, "there is nothing to send"
    assert (await proxy.call(large("x" * 300, spaces=2))).status == 424
    assert len(proxy.api.writes) == 1, "other bytes than those that may have arrived"
    assert (await proxy.call(large("x" * 300))).status == 200
    first, second = proxy.api.writes
    assert first.body.data == second.body.data
    assert proxy.operation(REFUND).state is State.SUCCEEDED


async def test_m6_a_body_over_the_limit_is_refused_and_nothing_is_sent() -> None:
    proxy = keyed(settings=SMALL)
    reply = await proxy.call(large("x" * 2_000))
    assert (reply.status, code(reply)) == (413, "request-too-large")
    assert proxy.api.on_wire == []
    assert await proxy.ledger.events(0) == []


# -- M7 --------------------------------------------------------------------------------------------


async def test_m7_an_api_may_answer_two_operations_with_one_object() -> None:
    proxy = keyed(answer(200, OK), answer(200, OK))
    for step in ("step-1", "step-2"):
        reply = await proxy.call(refund(step=step))
        assert (reply.status, outcome(reply)) == (200, "sent")


CONTENT = QUERIED.replace("      looks: 2\n", "      looks: 2\n      by: content\n").replace(
    'where: {mark: "{key}"}', 'where: {text: "{body.text}"}'
)


async def test_m7_an_equal_object_that_is_not_there_proves_nothing() -> None:
    proxy = queried(LOST, lookups=[page() for _ in range(60)], rules=CONTENT)
    await proxy.call(note())
    await settle_often(proxy)
    reply = await proxy.call(note())
    assert reply.status == 424
    assert len(proxy.api.writes) == 1


async def test_m7_one_equal_object_is_adopted_by_one_of_two_operations() -> None:
    found = page({"id": "n1", "text": "hello"})
    proxy = queried(LOST, LOST, lookups=[found] * 60, rules=CONTENT)
    ends = [await proxy.call(note(step=step)) for step in ("step-1", "step-2")]
    await settle_often(proxy)
    ends = [await proxy.call(note(step=step)) for step in ("step-1", "step-2")]
    assert len(proxy.api.writes) == 2
    assert sum(reply.status == 201 for reply in ends) <= 1


# -- M12 -------------------------------------------------------------------------------------------


async def test_m12_a_blind_tunnel_is_counted_as_seen_and_not_protected(tmp_path: Path) -> None:
    seen = []

    async def echo(received: Received, connection: Connection) -> None:
        seen.append(received)

    async with RawServer(echo) as service:
        rules = KEYED.replace("api.world.test", f"127.0.0.1:{service.port}")
        async with whole(tmp_path, rules, tls={"intercept": "none"}) as door:
            async with RawClient(door.port) as client:
                at = f"127.0.0.1:{service.port}"
                got = await client.ask(
                    f"CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n\r\n", method="HEAD"
                )
                assert got.status == 200
                await client.send(b"\x16\x03\x01\x00\x05hello")
            async with RawClient(door.control) as client:
                metrics = await client.ask("GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    counted = [line for line in metrics.body.decode().split("\n") if "tunnels_total{" in line]
    assert [line.rpartition(" ")[2] for line in counted] == ["1.0"], counted
