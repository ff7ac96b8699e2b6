"""The gateway: paths instead of a proxy setting, and who may not use them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from proxy.net.frontend import FrontDoor
from proxy.net.target import BadTarget
from tests.fakes.door import Echo, open_door, open_passing_door
from tests.fakes.rawclient import Got, RawClient
from tests.fakes.rawserver import RawServer


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
async def door(echo: Echo) -> AsyncIterator[FrontDoor]:
    gateways = [
        ("127.0.0.1", 0, "https://api.stripe.test"),
        ("127.0.0.1", 0, "http://Api.Test:8080/base/"),
    ]
    async with open_door(echo, gateways=gateways, own_names=["Sidecar"]) as door:
        yield door


async def get(port: int, target: str, *fields: str, host: str | None = None) -> Got:
    lines = [f"GET {target} HTTP/1.1", f"Host: {host or f'127.0.0.1:{port}'}", *fields, "\r\n"]
    async with RawClient(port) as client:
        return await client.ask("\r\n".join(lines))


def said(got: Got) -> dict[str, Any]:
    assert got.status == 200, got.body
    parsed = json.loads(got.body)
    assert isinstance(parsed, dict)
    return parsed


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("/via/https/api.test/v1/x?q=1", "https://api.test/v1/x?q=1"),
        ("/via/HTTPS/API.test./v1", "https://api.test/v1"),
        ("/via/http/api.test:8080/v1", "http://api.test:8080/v1"),
        ("/via/http/[::1]:8080/v1", "http://[::1]:8080/v1"),
        ("/via/http/%5B::1%5D%3A8080/v1", "http://[::1]:8080/v1"),
        ("/via/https/api.test", "https://api.test/"),
        ("/via/https/api.test?q=1", "https://api.test/?q=1"),
        ("/via/https/api.test/%2F..%2f./a//b?x=%20&", "https://api.test/%2F..%2f./a//b?x=%20&"),
        ("/via/https/api.test/via/http/b.test/", "https://api.test/via/http/b.test/"),
    ],
)
async def test_the_path_names_the_destination(door: FrontDoor, path: str, url: str) -> None:
    assert said(await get(door.port, path))["url"] == url


@pytest.mark.parametrize(
    ("path", "run", "step"),
    [
        ("/as/r/s/via/https/api.test/x", "r", "s"),
        ("/as/r%2F1/s%20t/via/https/api.test/x", "r/1", "s t"),
        ("/as/r/-/via/https/api.test/x", "r", None),
    ],
)
async def test_the_path_names_run_and_step(
    door: FrontDoor, path: str, run: str, step: str | None
) -> None:
    got = said(await get(door.port, path))
    assert (got["run"], got["step"], got["url"]) == (run, step, "https://api.test/x")


async def test_a_path_and_a_header_that_name_two_runs_are_a_400(door: FrontDoor) -> None:
    got = await get(door.port, "/as/r/s/via/https/api.test/x", "X-Run-Id: other")
    assert got.status == 400


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/via",
        "/via/",
        "/via/https",
        "/via/https/",
        "/via/ftp/api.test/",
        "/via/https/u@api.test/",
        "/via/https/u%40api.test/",
        "/via/https/a%2Fb/",
        "/via/https/api.test:0/",
        "/as/r/via/https/api.test/",
        "/as//s/via/https/api.test/",
        "/as/r/s/to/https/api.test/",
        "/metrics",
        "/x/via/https/api.test/",
    ],
)
async def test_a_path_that_names_no_destination_is_a_400(
    door: FrontDoor, echo: Echo, path: str
) -> None:
    assert (await get(door.port, path)).status == 400
    assert echo.arrivals == []


@pytest.mark.parametrize("where", ["via", "fixed"])
@pytest.mark.parametrize(
    ("host", "field", "status"),
    [
        (None, "X: 1", 200),
        ("localhost:1234", "X: 1", 200),
        ("[::1]:8901", "X: 1", 200),
        ("sidecar:8901", "X: 1", 200),
        ("SIDECAR", "X: 1", 200),
        (None, "Sec-Fetch-Mode: cors", 200),  # Node's fetch says so
        ("evil.test", "X: 1", 403),
        ("evil.test:8901", "X: 1", 403),
        ("127.0.0.1.evil.test", "X: 1", 403),
        ("127.0.0.1@evil.test", "X: 1", 403),
        (" ", "X: 1", 403),
        (None, "Origin: https://evil.test", 403),
        (None, "origin: null", 403),
        (None, "Origin: http://127.0.0.1:8901", 403),
        (None, "Sec-Fetch-Site: cross-site", 403),
        (None, "Sec-Fetch-Site: none", 403),
    ],
)
async def test_h6f_web_pages_and_foreign_hosts_are_refused(
    door: FrontDoor, echo: Echo, where: str, host: str | None, field: str, status: int
) -> None:
    port, path = (
        (door.port, "/via/https/api.test/") if where == "via" else (door.gateway_ports[0], "/")
    )
    assert (await get(port, path, field, host=host)).status == status
    assert len(echo.arrivals) == (1 if status == 200 else 0)


@pytest.mark.parametrize(
    ("number", "path", "url"),
    [
        (0, "/v1/refunds?limit=1", "https://api.stripe.test/v1/refunds?limit=1"),
        (0, "/via/https/api.test/", "https://api.stripe.test/via/https/api.test/"),
        (0, "//a%2F", "https://api.stripe.test//a%2F"),
        (1, "/x", "http://api.test:8080/base/x"),
    ],
)
async def test_a_fixed_gateway_sends_everything_to_its_address(
    door: FrontDoor, number: int, path: str, url: str
) -> None:
    assert said(await get(door.gateway_ports[number], path))["url"] == url


@pytest.mark.parametrize("target", ["http://api.test/", "*"])
async def test_a_fixed_gateway_is_no_proxy(door: FrontDoor, echo: Echo, target: str) -> None:
    got = await get(door.gateway_ports[0], target)
    assert got.status == 400
    async with RawClient(door.gateway_ports[0]) as client:
        got = await client.ask("CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\n\r\n")
        assert got.status == 400
    assert echo.arrivals == []


@pytest.mark.parametrize("to", ["api.test", "ftp://api.test", "https://u@api.test", "https://a/?x"])
def test_a_gateway_to_no_address_is_an_error(to: str) -> None:
    with pytest.raises(BadTarget):
        FrontDoor(Echo(), gateways=[("127.0.0.1", 0, to)])


async def test_a_gateway_call_reaches_the_service_as_if_made_directly() -> None:
    async with RawServer() as server, open_passing_door() as door:
        got = await get(door.port, f"/as/r/s/via/http/127.0.0.1:{server.port}/a?b", "Accept: x/y")
        assert got.body == b"ok"
        received = server.requests[0]
        assert received.line == "GET /a?b HTTP/1.1"
        assert received.fields == [
            ("Host", f"127.0.0.1:{server.port}"),
            ("Accept", "x/y"),
            ("Via", "1.1 onceproxy"),
        ]
