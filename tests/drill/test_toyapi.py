"""The toy API is the judge of every drill, so it is judged first."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fakes.clock import FakeClock
from tests.fakes.upstream import ToyApi


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    # One connection a request: the client sends nothing again by itself when one is cut.
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield session


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def api(clock: FakeClock, tmp_path: Path) -> AsyncIterator[ToyApi]:
    api = ToyApi(file=tmp_path / "effects.jsonl", clock=clock)
    await api.start()
    yield api
    await api.close()


async def post(
    session: aiohttp.ClientSession, api: ToyApi, path: str, body: Any, key: str | None = None
) -> tuple[int, dict[str, str], Any]:
    headers = {"Idempotency-Key": key} if key else {}
    async with session.post(api.url + path, json=body, headers=headers) as response:
        return response.status, dict(response.headers), await response.json()


REFUND = {"reference": "case/refund", "amount": 4200}


async def test_a_key_makes_one_effect_and_the_second_answer_says_replayed(session, api) -> None:
    first = await post(session, api, "/refunds", REFUND, "k")
    second = await post(session, api, "/refunds", REFUND, "k")
    assert api.effects.of("case/refund") == 1
    assert (first[0], first[2]) == (second[0], second[2]) == (201, first[2])
    assert "Idempotent-Replayed" not in first[1]
    assert second[1]["Idempotent-Replayed"] == "true"


async def test_a_key_with_another_body_is_a_mismatch(session, api) -> None:
    await post(session, api, "/refunds", REFUND, "k")
    status, _, body = await post(session, api, "/refunds", {**REFUND, "amount": 1}, "k")
    assert (status, body["error"]["type"]) == (422, "idempotency_error")
    assert api.effects.of("case/refund") == 1


async def test_a_key_is_forgotten_after_its_window(session, api, clock) -> None:
    await post(session, api, "/refunds", REFUND, "k")
    clock.advance(86_401)
    await post(session, api, "/refunds", REFUND, "k")
    assert api.effects.of("case/refund") == 2


async def test_a_twin_of_a_request_in_progress_is_told_so(session, api) -> None:
    gate = api.troubles.gate("case/refund", "received")
    first = asyncio.create_task(post(session, api, "/refunds", REFUND, "k"))
    await gate.reached.wait()
    assert (await post(session, api, "/refunds", REFUND, "k"))[0] == 409
    gate.opened.set()
    assert (await first)[0] == 201
    assert api.effects.of("case/refund") == 1


@pytest.mark.parametrize("path", ["/refunds", "/invoices", "/messages"])
async def test_without_a_key_every_request_is_an_effect(session, api, path) -> None:
    for _ in range(2):
        await post(session, api, path, {"reference": "case/x"})
    assert api.effects.of("case/x") == 2


async def test_the_keyless_kinds_ignore_a_key(session, api) -> None:
    for _ in range(2):
        await post(session, api, "/invoices", {"reference": "case/x"}, "k")
    assert api.effects.of("case/x") == 2


async def test_the_list_is_paged_newest_first_and_lags(session, api, clock) -> None:
    api.lag = 2.0
    for number in range(3):
        await post(session, api, "/invoices", {"reference": "case/x", "number": number})
    await post(session, api, "/invoices", {"reference": "case/other"})

    async def page(query: str) -> Any:
        async with session.get(f"{api.url}/invoices?reference=case/x&limit=2{query}") as response:
            return await response.json()

    assert (await page(""))["data"] == []
    clock.advance(2.0)
    first = await page("")
    rest = await page(f"&starting_after={first['data'][-1]['id']}")
    assert [item["number"] for item in first["data"] + rest["data"]] == [2, 1, 0]
    assert (first["has_more"], rest["has_more"]) == (True, False)


@pytest.mark.parametrize(
    ("fault", "effects", "status"),
    [
        ("drop_before", 0, None),
        ("drop_after", 1, None),
        ("error_before", 0, 503),
        ("error_after", 1, 500),
        ("cut", 1, None),
        ("delay", 1, 201),
        ("reject", 0, 402),
    ],
)
async def test_each_fault_does_what_it_says_once(session, api, fault, effects, status) -> None:
    api.troubles.fault("case/*", fault)
    if status is None:
        with pytest.raises(aiohttp.ClientError):
            await post(session, api, "/refunds", REFUND, "k")
    else:
        assert (await post(session, api, "/refunds", REFUND, "k"))[0] == status
    assert api.effects.of("case/refund") == effects
    assert (await post(session, api, "/refunds", REFUND, "k"))[0] == 201
    assert api.effects.of("case/refund") == 1


async def test_a_gate_tells_the_moment_of_the_effect(session, api) -> None:
    async with session.post(
        f"{api.url}/_gates", json={"match": "case/*", "moment": "effect"}
    ) as response:
        gate = (await response.json())["gate"]
    first = asyncio.create_task(post(session, api, "/messages", {"reference": "case/x"}))
    async with session.get(f"{api.url}/_gates/{gate}"):
        assert api.effects.of("case/x") == 1
        assert not first.done()
    async with session.post(f"{api.url}/_gates/{gate}/open"):
        pass
    assert (await first)[0] == 201


async def test_a_late_effect_comes_right_after_somebody_looked(session, api) -> None:
    gate = api.troubles.gate("case/*", "received", "next_call")
    first = asyncio.create_task(post(session, api, "/invoices", {"reference": "case/x"}))
    await gate.reached.wait()
    async with session.get(f"{api.url}/invoices") as response:
        assert (await response.json())["data"] == []
    assert (await first)[0] == 201
    assert api.effects.of("case/x") == 1


async def test_refused_connections_come_back(session, api) -> None:
    await api.refuse()
    with pytest.raises(aiohttp.ClientConnectorError):
        await post(session, api, "/messages", {"reference": "case/x"})
    await api.listen()
    assert (await post(session, api, "/messages", {"reference": "case/x"}))[0] == 201


async def test_a_request_without_reference_is_rejected(session, api) -> None:
    assert (await post(session, api, "/messages", [1]))[0] == 400


def test_effects_and_keys_outlive_the_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "proxy.drill.toyapi", "--file", str(tmp_path / "effects")]
    for expected_requests in (1, 1):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            refund = urllib.request.Request(
                f"{url}/refunds",
                data=json.dumps(REFUND).encode(),
                headers={"Idempotency-Key": "k"},
            )
            urllib.request.urlopen(refund).close()
            with urllib.request.urlopen(f"{url}/_effects") as response:
                shown = json.load(response)
            process.kill()
        assert shown["counts"] == {"case/refund": 1}
        assert shown["requests"] == {"case/refund": expected_requests}
