"""What HTTP libraries do by themselves, seen at the API's own socket."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.rawclient import RawClient
from tests.fakes.rawserver import Connection, RawServer, Received, close_without_answer
from tests.fakes.whole import Door, assert_refused, outcome, post, whole
from tests.reports.service import KEYED, endpoint, rule


def at(server: RawServer, rules: str) -> str:
    return rules.replace("[api.world.test]", f'["127.0.0.1:{server.port}"]')


async def send(door: Door, server: RawServer, method: str, path: str, step: str) -> int:
    url = f"http://127.0.0.1:{server.port}{path}"
    async with RawClient(door.port) as client:
        got = await client.ask(
            post(url, {"op": "inc"}, "R", step).replace(b"POST", method.encode(), 1)
        )
    return got.status


@pytest.mark.report(
    "R64",
    "https://github.com/aio-libs/aiohttp/issues/10790",
    "A client library re-sent PUT and DELETE by itself when a connection dropped, and "
    "could not be told not to.",
    "The API's socket sees one request per attempt in the history; a PUT that is said not "
    "to be idempotent is seen once.",
)
async def test_r64_the_socket_sees_as_many_requests_as_the_history_has_attempts(
    tmp_path: Path,
) -> None:
    rules = rule(
        endpoint("items.delete", "DELETE /items/{id}"),
        endpoint("counter.put", "PUT /counter", "idempotent: false"),
    )
    async with (
        RawServer(close_without_answer) as server,
        whole(tmp_path, at(server, rules), patience="2s") as door,
    ):
        assert await send(door, server, "DELETE", "/items/1", "one") in (409, 424)
        assert await send(door, server, "PUT", "/counter", "two") == 424
        _, listed = await door.ask("GET", "/v1/operations")
        attempts = {each["step"]: each["attempts"] for each in listed["operations"]}
        seen = [received.method for received in server.requests]
        assert attempts == {"one": seen.count("DELETE"), "two": seen.count("PUT")}
        assert seen.count("PUT") == 1


@pytest.mark.report(
    "R65",
    "https://github.com/oven-sh/bun/pull/28708",
    "A reset in the middle of an answer made a runtime run the POST again and splice the "
    "second answer into the first.",
    "One request; no half or spliced body is passed off as whole, and the success without "
    "its body stays one.",
)
async def test_r65_an_answer_reset_in_the_middle_is_neither_spliced_nor_repeated(
    tmp_path: Path,
) -> None:
    async def half(received: Received, connection: Connection) -> None:
        head = (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
        )
        await connection.send(head + b'\r\n11\r\n{"id": "ob_1", "n\r\n')
        connection.close()  # a reset might take along bytes that were not read yet

    rules = rule(endpoint("made", "POST /x"), top=KEYED)
    async with RawServer(half) as server, whole(tmp_path, at(server, rules)) as door:
        url = f"http://127.0.0.1:{server.port}/x"
        for _ in range(2):
            got = await door.call(url, {"n": 1}, "R", "S")
            assert_refused(got, 409, "outcome-not-kept", "Already done")
            assert outcome(got) == "refused"
        assert len(server.requests) == 1
        assert door.durable_state("R/S/world.made/v1") == "succeeded"
