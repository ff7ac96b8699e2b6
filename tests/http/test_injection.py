"""No value of a caller becomes a field, a line or a request of its own at the service (bar S17).

Run, step, operation id and the values that a rule's lookup takes from a body are drawn at random
from what breaks lines, quotes and encodings. The judge is what the service received.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
from urllib.parse import quote

import pytest

from tests import reliability
from tests.fakes.rawclient import RawClient
from tests.fakes.rawserver import Connection, RawServer, Received
from tests.fakes.whole import whole
from tests.http.world import PROXY, WAIT, World

pytestmark = pytest.mark.asyncio(loop_scope="module")

SEED = 20261130
ROUNDS = 60
PARTS = [
    *(
        "\r\n",
        "\n",
        "\r",
        "\0",
        "\r\nX-Evil: 1",
        "\n\nGET /evil HTTP/1.1\r\n\r\n",
        "\u2028",
        "\x0b",
    ),
    *("%0d%0aX-Evil: 1", "%00", "%250d%250a", "\x85", "\x7f", "é", "漢", "\U0001f600", " ", "\t"),
    *(",", ";", "=", '"', "'", "\\", "/", "..", "#", "?", "&", "{", "}", ":", "@", "run", "7", "a"),
]
CONTROL = {chr(code) for code in (*range(32), 127)}
EXPECTED = {"host", "content-type", "content-length", "idempotency-key", "via", "x-mine"}


def drawn(source: random.Random) -> str:
    return "".join(source.choices(PARTS, k=source.randint(1, 5)))


def lines(fields: list[str], body: bytes = b"{}", target: str = "{/v1/keyed/x}") -> str:
    size = f"Content-Length: {len(body)}"
    head = [f"POST {target} HTTP/1.1", "Host: {host}", "Content-Type: application/json", size]
    return "\r\n".join([*head, "X-Mine: 1", *fields, "", ""]) + body.decode()


def named(place: str, run: str, step: str, operation: str) -> tuple[list[str], str]:
    """(fields, what comes before the target's ``/via``), with the values as that place writes
    them."""
    run, step, operation = (quote(value, safe="") for value in (run, step, operation))
    match place:
        case "headers":
            return [f"X-Run-Id: {run}", f"X-Step-Id: {step}", f"X-Operation-Id: {operation}"], ""
        case "baggage":
            return [f"baggage: run.id={run},step.id={step},foreign=1"], ""
        case "credential":
            pair = base64.b64encode(f"{run}:{step}".encode()).decode()
            return [f"Proxy-Authorization: Basic {pair}"], ""
    return [], f"/as/{run}/{step}"


@pytest.mark.parametrize("place", ["headers", "baggage", "credential", "path"])
async def test_no_name_becomes_a_field(w: World, place: str) -> None:
    source = random.Random(f"{SEED} {place}")
    refused = 0
    for number in range(ROUNDS):
        values = [drawn(source) for _ in range(3)]
        fields, before = named(place, *values)
        raw = lines(fields)
        if before:
            own, host = f"127.0.0.1:{w.door.port}", w.host(PROXY)
            raw = raw.replace("{/v1", f"{before}/via/http/{host}/v1").replace("x} HTTP", "x HTTP")
            raw = raw.replace("{host}", own)
        w.reset()
        got = await w.ask(PROXY, raw)
        used = values if place == "headers" else values[:2]
        if any(CONTROL & set(value) for value in used):
            assert (got.status, w.arrived) == (400, []), (number, values)
            refused += 1
            continue
        for arrived in w.arrived:
            names = [name.lower() for name, _ in arrived.fields]
            expected = EXPECTED | ({"baggage"} if place == "baggage" else set())
            assert set(names) <= expected, (number, values, arrived.head)
            assert len(names) == len(set(names))
            assert arrived.line == "POST /v1/keyed/x HTTP/1.1"
            assert arrived.head.isascii()
            assert arrived.all("baggage") in ([], ["foreign=1"])
        for name, value in got.fields:
            assert name.lower() != "x-evil"
            assert value.isprintable(), (name, value)
    assert 0 < refused < ROUNDS
    reliability.figure(
        "S17", f"names drawn at random, in {place}", part="HTTP", calls=ROUNDS, injected=0
    )


LOOKUP = """\
service: looked
hosts: ["127.0.0.1:{port}"]
source: tests/http/test_injection.py
confidence: documented
key: none
endpoints:
  make:
    match: POST /v1/things
    external_id: id
    marker: {in: json, name: reference}
    reconcile:
      request: GET /v1/things/{body.name}?q={body.name}
      items: data
      where: {reference: "{key}"}
      running: 0s
      settle: 0s
      looks: 1
"""


async def test_no_value_of_a_body_becomes_a_line_of_a_lookup(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    source = random.Random(SEED)

    async def lost(received: Received, connection: Connection) -> None:
        if received.method == "POST":
            connection.close()
            return
        answer = b'{"data": []}'
        head = f"HTTP/1.1 404 Not Found\r\nContent-Length: {len(answer)}\r\n\r\n"
        await connection.send(head.encode() + answer)

    folder = tmp_path_factory.mktemp("looked")
    async with RawServer(lost) as server:
        rules = LOOKUP.replace("{port}", str(server.port))
        async with whole(folder, rules, patience="0s") as door:
            url = f"http://127.0.0.1:{server.port}/v1/things"
            for number in range(ROUNDS):
                raw = lines(
                    ["X-Run-Id: looked", f"X-Step-Id: {number}"],
                    json.dumps({"name": drawn(source)}).encode(),
                    url,
                )
                async with RawClient(door.port) as client, asyncio.timeout(2 * WAIT):
                    await client.ask(raw.replace("{host}", f"127.0.0.1:{server.port}"))
            looked = [received for received in server.requests if received.method == "GET"]
            for received in looked:
                target = received.target
                assert received.line == f"GET {target} HTTP/1.1"
                assert target.isascii()
                assert target.isprintable()
                assert target.startswith("/v1/things/")
                path, _, query = target.partition("?")
                assert query == "" or query.startswith("q=")
                assert "&" not in query
                assert "/" not in path.removeprefix("/v1/things/")
                assert "#" not in target
                assert received.all("x-evil") == []
            assert len({received.target for received in looked}) > ROUNDS / 4
