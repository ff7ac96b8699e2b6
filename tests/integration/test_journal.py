"""The journal over real sockets: agents and proxies that are killed within a model's stream."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.fakes.rawclient import Got, RawClient
from tests.fakes.rawserver import Connection, RawServer, Received
from tests.fakes.served import served
from tests.fakes.whole import Door, configure, door_of, post, whole
from tests.runs.models import ANTHROPIC, MODELS

PROMPT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 500, "stream": True}
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"request-id: req_%d\r\n\r\n"
)


class Model:
    """A model that streams; with ``go`` cleared it stops after its first event."""

    def __init__(self) -> None:
        self.calls = 0
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self, received: Received, connection: Connection) -> None:
        self.calls += 1
        call = self.calls
        await connection.send(HEAD % call)
        for number, event in enumerate(self.events(call)):
            if number == 2:
                await self.go.wait()
            await connection.send(b"%x\r\n%b\r\n" % (len(event), event))
        await connection.send(b"0\r\n\r\n")

    @staticmethod
    def events(call: int) -> list[bytes]:
        said = b'event: content_block_delta\ndata: {"text":"call %d"}\n\n' % call
        return [ANTHROPIC[0], said, *ANTHROPIC[1:]]


@asynccontextmanager
async def model() -> AsyncIterator[tuple[Model, str, str]]:
    """A model, the URL of its calls, and its rules, under which its answers are kept."""
    script = Model()
    async with RawServer(script) as server:
        at = f"127.0.0.1:{server.port}"
        rules = MODELS.replace("hosts: [model.test]", f'hosts: ["{at}"]')
        rules = rules.replace(
            "    match: POST /v1/messages\n", "    match: POST /v1/messages\n    journal: true\n"
        )
        yield script, f"http://{at}/v1/messages", rules


async def leave_after_one_event(door: Door, url: str) -> bytes:
    """An agent that dies within its answer; what it had got of it."""
    async with RawClient(door.port) as client:
        await client.send(post(url, PROMPT))
        return await client.reader.readuntil(b"message_start")


async def used(door: Door) -> dict[str, Any]:
    _, told = await door.ask("GET", "/v1/runs/run-1/budget")
    return {unit: told["budget"][unit]["used"] for unit in ("turns", "tokens")}


async def resume(door: Door) -> None:
    status, _ = await door.ask("POST", "/v1/runs/run-1/resume")
    assert status == 200


def pieces(got: Got) -> list[bytes]:
    """The chunks in which an answer came."""
    found, rest = [], got.raw_body
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        found.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return found[:-1]


async def test_an_agent_killed_within_a_stream_resumes_and_gets_it_whole(tmp_path: Path) -> None:
    async with (
        model() as (script, url, rules),
        whole(tmp_path, rules, budget={"tokens": 10_000}) as door,
    ):
        script.go.clear()
        await leave_after_one_event(door, url)
        assert await used(door) == {"turns": 1, "tokens": 500}
        await resume(door)
        again = asyncio.create_task(door.call(url, PROMPT))
        await asyncio.sleep(0.1)
        script.go.set()
        got = await again
        assert got.body == b"".join(script.events(1)), "byte-equal"
        assert pieces(got) == script.events(1), "with the borders of its events"
        assert got.all("onceproxy-outcome") == ["replayed"]
        assert got.all("request-id") == ["req_1"]
        assert script.calls == 1, "the model was asked a second time"
        assert await used(door) == {"turns": 1, "tokens": 40}
        more = await door.call(url, PROMPT)
        assert (script.calls, more.body) == (2, b"".join(script.events(2))), "one more sample"
        assert await used(door) == {"turns": 2, "tokens": 80}


async def test_a_proxy_killed_within_a_stream_keeps_the_reservation_and_asks_again(
    tmp_path: Path,
) -> None:
    async with model() as (script, url, rules):
        file = configure(tmp_path, rules, budget={"tokens": 10_000})
        script.go.clear()
        state = tmp_path / "state"
        with served(state, "--config", str(file)) as proxy:
            await leave_after_one_event(door_of(proxy), url)
            await asyncio.to_thread(proxy.stop, signal.SIGKILL)
        script.go.set()
        with served(state, "--config", str(file)) as proxy:
            door = door_of(proxy)
            assert await used(door) == {"turns": 1, "tokens": 500}
            await resume(door)
            got = await door.call(url, PROMPT)
            assert got.body == b"".join(script.events(2)), "what broke off is not recorded"
            assert await used(door) == {"turns": 2, "tokens": 540}
            await asyncio.to_thread(proxy.stop, signal.SIGKILL)
        with served(state, "--config", str(file)) as proxy:
            door = door_of(proxy)
            await resume(door)
            got = await door.call(url, PROMPT)
            assert (got.body, script.calls) == (b"".join(script.events(2)), 2)
            assert await used(door) == {"turns": 2, "tokens": 540}


async def test_an_answer_that_came_while_nobody_listened_is_in_the_ledger_when_the_proxy_stops(
    tmp_path: Path,
) -> None:
    async with model() as (script, url, rules):
        async with whole(tmp_path, rules) as door:
            script.go.clear()
            await leave_after_one_event(door, url)
            asyncio.get_running_loop().call_later(0.2, script.go.set)
        async with whole(tmp_path, rules) as door:
            got = await door.call(url, PROMPT)
            assert (got.body, script.calls) == (b"".join(script.events(1)), 1)


async def test_nothing_of_an_answer_is_readable_in_the_ledger(tmp_path: Path) -> None:
    async with model() as (_, url, rules), whole(tmp_path, rules) as door:
        await door.call(url, PROMPT)
        files = [path for path in door.state_dir.rglob("ledger.db*") if path.is_file()]
        assert files
        assert not any(b"call 1" in path.read_bytes() for path in files)
