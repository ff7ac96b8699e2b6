"""Checkpoints and the resume over a real socket: bodies, tags, conditions, sizes."""

from __future__ import annotations

import asyncio
import io
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import aiohttp
import pytest

from proxy.core.identity import encode_part
from proxy.core.operation import Event, Kind
from proxy.core.transitions import evolve
from proxy.drill.toyapi import ToyApi
from proxy.ledger.base import Change
from tests.fakes.whole import Door, toy_rules, whole
from tests.integration.test_control import AGENT, World
from tests.integration.test_control import world as _world
from tests.ledger.support import first, operation

PATH = "/v1/runs/case-1/checkpoint"
STATE = {"step": "refund", "messages": [{"role": "user", "content": "hi"}], "state": {"n": 1}}
AT = 1_700_000_000.0


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async for made in _world.__wrapped__():  # type: ignore[attr-defined]
        yield made


async def put(
    world: World, body: object = STATE, path: str = PATH, **fields: str
) -> tuple[int, Any, str | None]:
    """``fields``: if_match, if_none_match. Status, answer and tag."""
    data = body if isinstance(body, (bytes, str)) else json.dumps(body)
    named = {name.replace("_", "-"): value for name, value in fields.items()}
    async with world.session.put(world._at(path), data=data, headers=AGENT | named) as response:
        return response.status, await response.json(), response.headers.get("ETag")


async def get(world: World, path: str = PATH, **fields: str) -> tuple[int, bytes, str | None]:
    named = {name.replace("_", "-"): value for name, value in fields.items()}
    async with world.session.get(world._at(path), headers=AGENT | named) as response:
        return response.status, await response.read(), response.headers.get("ETag")


async def test_every_accepted_put_is_a_200_with_its_version_and_tag(world: World) -> None:
    assert await put(world, if_none_match="*") == (200, {"version": 1}, '"1"')
    assert await put(world, if_match='"1"') == (200, {"version": 2}, '"2"')
    assert await put(world) == (200, {"version": 3}, '"3"'), "without a condition it is taken"


async def test_what_was_saved_comes_back_as_it_was_written(world: World) -> None:
    """Numbers, order, escapes and spaces: other programs than ours read them."""
    raw = (
        '  {"state" : {"b": 1.0, "a": 12345678901234567890123, "a": [1e400, -0.0, "\\ud800"],'
        ' "ключ": "\u2028😀"},\r\n "messages": [ ], "step":"käse/1"}\t\n'
    )
    assert (await put(world, raw.encode()))[0] == 200
    status, body, tag = await get(world)
    assert (status, tag) == (200, '"1"')
    assert raw.strip().removeprefix("{") in body.decode()
    read = json.loads(body)
    assert read["version"] == 1
    assert read["step"] == "käse/1"
    assert read["state"]["ключ"] == "\u2028😀"
    assert set(read) == {"version", "saved_at", "step", "messages", "state"}
    (entry,) = (await world.get(PATH + "s"))[1]["checkpoints"]
    assert entry["step"] == "k%C3%A4se%2F1", "as it stands in operation keys"


@pytest.mark.parametrize(
    "body",
    [
        {"step": 3, "messages": [], "state": None},
        {"step": None},
        {"messages": [1, "two", None]},
        {"state": "text"},
        {"step": ""},
        {"step": -(2**63)},
    ],
)
async def test_any_of_the_members_is_enough(world: World, body: dict[str, Any]) -> None:
    assert (await put(world, body))[0] == 200
    read = json.loads((await get(world))[1])
    assert {name: read[name] for name in body} == body


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"{step: 1}", "not JSON"),
        (b'{"step": "a"} {}', "not JSON"),
        (b'{"state": "\xff"}', "byte 11 is not UTF-8"),
        ('{"state": 1}'.encode("utf-16"), "not UTF-8"),
        (b'\xef\xbb\xbf{"state": 1}', "BOM"),
        (b'{"state": NaN}', "NaN is no JSON"),
        (b'{"state": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deeply"),
        ([STATE], "Send a JSON object"),
        ("text", "not JSON"),
        ({}, "there is nothing in it"),
        ({"stat": {}}, "'stat': unknown member"),
        ({"version": 3, "state": {}}, 'goes into If-Match: "3"'),
        ({"messages": {"role": "user"}}, "messages: must be an array"),
        ({"messages": None}, "messages: must be an array"),
        ({"step": ["a"]}, "step: must be text"),
        ({"step": 1.5}, "step: must be text"),
        ({"step": 10**30}, "step: must be text"),
        ({"step": True}, "step: must be text"),
        ({"step": "x" * 1001}, "step: must be text"),
        (b'{"step": "\\ud800"}', "step: must be text"),
    ],
)
async def test_a_body_that_is_no_checkpoint_is_told_why_and_changes_nothing(
    world: World, body: object, says: str
) -> None:
    await put(world)
    world.checkpointing.size_max = 1_000_000
    status, problem, tag = await put(world, body)
    assert (status, problem["code"], tag) == (400, "bad-request", None)
    assert says in problem["detail"]
    assert (await get(world))[2] == '"1"'


async def test_every_fault_of_a_body_is_told_at_once(world: World) -> None:
    _, problem, _ = await put(world, {"step": [], "messages": 1, "other": 2})
    assert len(problem["problems"]) == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"if_match": '"2"'},
        {"if_match": '"2", "1"'},
        {"if_match": 'W/"3"'},  # weak tags never match strongly
        {"if_match": '"03"'},
        {"if_match": '"x"'},
        {"if_match": '"3 "'.replace(" ", "0")},
        {"if_none_match": "*"},
        {"if_none_match": '"3"'},
        {"if_none_match": 'W/"3", "9"'},
        {"if_match": '"3"', "if_none_match": "*"},
    ],
)
async def test_a_stale_writer_gets_412_with_the_newest_version(
    world: World, fields: dict[str, str]
) -> None:
    for _ in range(3):
        await put(world)
    status, problem, tag = await put(world, {"state": "stale"}, **fields)
    assert (status, problem["code"], problem["version"], tag) == (412, "stale-checkpoint", 3, '"3"')
    assert "another writer" in problem["detail"]
    assert json.loads((await get(world))[1])["state"] == STATE["state"]


@pytest.mark.parametrize(
    "fields",
    [
        {"if_match": '"3"'},
        {"if_match": '"1" ,, "3"'.replace(",,", ",")},
        {"if_match": ' "x","3"'},
        {"if_match": "*"},
        {"if_none_match": '"2"'},
        {"if_none_match": '"03"'},
        {"if_match": "*", "if_none_match": '"2"'},
    ],
)
async def test_a_writer_that_saw_the_newest_is_taken(world: World, fields: dict[str, str]) -> None:
    for _ in range(3):
        await put(world)
    assert (await put(world, **fields))[1:] == ({"version": 4}, '"4"')


@pytest.mark.parametrize("fields", [{"if_match": '"1"'}, {"if_match": "*"}])
async def test_a_condition_on_a_run_without_one_says_what_to_send(
    world: World, fields: dict[str, str]
) -> None:
    status, problem, tag = await put(world, **fields)
    assert (status, problem["version"], tag) == (412, 0, None)
    assert "If-None-Match: *" in problem["detail"]
    assert (await get(world))[0] == 404


@pytest.mark.parametrize("text", ["3", '"3', "", '"3" "4"', 'w/"3"', '*, "3"', "None"])
@pytest.mark.parametrize("field", ["if_match", "if_none_match"])
async def test_a_condition_that_cannot_be_read_never_passes_for_none(
    world: World, field: str, text: str
) -> None:
    status, problem, _ = await put(world, **{field: text})
    assert (status, problem["code"]) == (400, "bad-request")
    assert "with its quotes" in problem["detail"]
    assert (await get(world))[0] == 404


async def test_of_two_writers_one_wins(world: World) -> None:
    for number in range(50):
        seen = {"if_match": f'"{number}"'} if number else {"if_none_match": "*"}
        ends = await asyncio.gather(*(put(world, {"state": who}, **seen) for who in range(2)))
        assert sorted(status for status, *_ in ends) == [200, 412]
        winner = [status for status, *_ in ends].index(200)
        assert json.loads((await get(world))[1])["state"] == winner


async def test_an_unchanged_one_is_304_and_has_no_body(world: World) -> None:
    await put(world)
    assert await get(world, if_none_match='W/"1"') == (304, b"", '"1"')
    assert await get(world, if_none_match="*") == (304, b"", '"1"')
    await put(world)
    assert (await get(world, if_none_match='"1"'))[0] == 200
    assert (await get(world, if_match='"1"'))[0] == 412
    assert (await get(world, if_match='"2"', if_none_match='"2"'))[0] == 304


async def test_older_ones_are_listed_fetched_and_saved_again(world: World) -> None:
    for number in range(3):
        await put(world, {"state": number, "step": f"s{number}"})
    _, body = await world.get(PATH + "s")
    assert [(one["version"], one["step"], one["kept"]) for one in body["checkpoints"]] == [
        (3, "s2", True),
        (2, "s1", True),
        (1, "s0", True),
    ]
    status, raw, tag = await get(world, PATH + "?version=2")
    assert (status, json.loads(raw)["state"], tag) == (200, 1, '"2"')
    old = {name: value for name, value in json.loads(raw).items() if name in STATE}
    assert (await put(world, old, if_match='"3"'))[1] == {"version": 4}
    assert json.loads((await get(world))[1])["step"] == "s1"


async def test_what_is_not_there_is_told_apart(world: World) -> None:
    status, problem = await world.get(PATH)
    assert (status, problem["code"]) == (404, "not-found")
    assert "No run has this name" in problem["detail"]
    assert (await world.get(PATH + "s"))[0] == 404
    await world.post("/v1/runs/case-1/resume", {}, AGENT)
    assert "no checkpoint yet" in (await world.get(PATH))[1]["detail"]
    assert (await world.get(PATH + "s"))[1] == {"checkpoints": []}
    for _ in range(12):
        await put(world)
    _, problem = await world.get(PATH + "?version=2")
    assert "There are: 12, 11, 10, 9, 8, 7, 6, 5, 4, 3." in problem["detail"]
    assert (await world.get(PATH + "?version=two"))[0] == 400
    await world.ledger.prune_checkpoints(9e9, 100)
    assert "it was taken" in (await world.get(PATH))[1]["detail"]


async def test_a_large_one_is_413_with_the_limit_and_the_option(world: World) -> None:
    limit = world.checkpointing.size_max
    fits = json.dumps({"state": "x" * (limit - 13)})
    assert len(fits) == limit
    assert (await put(world, fits))[0] == 200
    status, problem, _ = await put(world, fits + " ")
    assert (status, problem["code"]) == (413, "too-large")
    assert f"{limit} bytes" in problem["detail"]
    assert "limits.checkpoint" in problem["detail"]

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"[" * limit

    async with world.session.put(world._at(PATH), data=chunks(), headers=AGENT) as response:
        assert response.status == 413
        assert "limits.checkpoint" in (await response.json())["detail"]
    assert (await get(world))[2] == '"1"'


async def test_eight_megabytes_are_kept_and_calls_go_on_meanwhile(tmp_path: Path) -> None:
    """With the limits as they are by default, through the whole proxy."""
    text = random.Random(1).randbytes(4_000_000).hex()
    raw = json.dumps({"messages": [{"content": text}]}).encode()
    toy = ToyApi()
    await toy.start()
    try:
        async with whole(tmp_path, toy_rules(toy.url), tls={"intercept": "none"}) as door:
            saving = asyncio.create_task(_large(door, raw))
            bodies = [{"reference": f"r{number}", "amount": 1} for number in range(5)]
            for body in bodies:
                got = await door.call(toy.url + "/refunds", body, "run", str(body["reference"]))
                assert got.status == 201
            assert await saving == (200, {"version": 1})
            _, found = await door.ask("GET", "/v1/runs/big/checkpoint")
            assert found["messages"] == [{"content": text}]
            status, problem = await _large(door, raw + b" " * 3_000_000)
            assert (status, problem["code"]) == (413, "too-large")
    finally:
        await toy.close()


async def _large(door: Door, raw: bytes) -> tuple[int, Any]:
    tokens = json.loads((door.state_dir / "tokens.json").read_text())
    headers = {"Authorization": f"Bearer {tokens['agent']}"}
    url = f"http://127.0.0.1:{door.control}/v1/runs/big/checkpoint"
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.put(url, data=io.BytesIO(raw)) as response,
    ):
        return response.status, await response.json()


@pytest.mark.parametrize("run", ["a%20b", "a%2Fb", "käse", "x" * 300, "%25", "-%2D"])
async def test_a_run_is_named_as_its_calls_name_it(world: World, run: str) -> None:
    path = f"/v1/runs/{quote(run, safe='%')}/checkpoint"
    assert (await put(world, path=path))[0] == 200
    assert world.ledger.run(encode_part(unquote(run))) is not None
    assert (await get(world, path))[0] == 200
    assert (await world.get(path.replace("checkpoint", "resume")))[1]["checkpoint"]["version"] == 1


@pytest.mark.parametrize("run", ["%FF", "a%0Ab", "-", "%2D"])
async def test_a_run_that_no_call_can_name_is_refused(world: World, run: str) -> None:
    for path in (f"/v1/runs/{run}/checkpoint", f"/v1/runs/{run}/resume"):
        status, problem = await world.get(path)
        assert (status, problem["code"]) == (400, "bad-request")


# The resume


async def test_the_resume_tells_in_one_piece_what_was_saved_and_what_came_after(
    world: World,
) -> None:
    old = await world.add(step="before")
    ended = Event(Kind.OUTCOME_RECORDED, AT, {"attempt": 1, "verdict": "succeeded", "status": 200})
    await world.ledger.commit(Change(evolve(old, ended), (ended,)))
    unknown = await world.lost(step="lost before")
    await put(world)
    after = await world.add(step="after")
    status, bundle = await world.post("/v1/runs/case-1/resume", {}, AGENT)
    assert status == 200
    assert bundle["checkpoint"] == {
        "version": 1,
        **STATE,
        "saved_at": bundle["checkpoint"]["saved_at"],
    }
    assert [one["key"] for one in bundle["operations"]] == [after.key, unknown]
    assert [one["key"] for one in bundle["unresolved"]] == [after.key, unknown]
    assert (bundle["epoch"], bundle["more"]) == (2, False)
    _, bundle = await world.get("/v1/runs/case-1/resume?all=true")
    assert {one["key"] for one in bundle["operations"]} == {old.key, unknown, after.key}
    _, again = await world.post("/v1/runs/case-1/resume?all=1", {}, AGENT)
    assert again["operations"] == bundle["operations"]


async def test_looking_begins_nothing(world: World) -> None:
    assert (await world.get("/v1/runs/case-1/resume"))[0] == 404
    await world.post("/v1/runs/case-1/resume", {}, AGENT)
    for _ in range(3):
        assert (await world.get("/v1/runs/case-1/resume"))[1]["epoch"] == 1
    assert (await world.get("/v1/runs/case-1/resume?all=perhaps"))[0] == 400


async def test_without_a_checkpoint_all_operations_are_told(world: World) -> None:
    key = await world.lost()
    _, bundle = await world.get("/v1/runs/case-1/resume")
    assert bundle["checkpoint"] is None
    assert [one["key"] for one in bundle["operations"]] == [key]


async def test_more_operations_than_an_answer_takes_are_said_to_be_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.service.resume.LIST_MAX", 3)
    for number in range(4):
        await world.ledger.commit(first(operation(f"s-{number}", run="case-1")))
    _, bundle = await world.get("/v1/runs/case-1/resume")
    assert (len(bundle["operations"]), bundle["more"]) == (3, True)


async def test_a_checkpoint_whose_content_was_taken_is_no_missing_one(world: World) -> None:
    await put(world)
    await world.ledger.prune_checkpoints(9e9, 100)
    _, bundle = await world.get("/v1/runs/case-1/resume")
    assert (bundle["checkpoint"]["version"], bundle["checkpoint"]["kept"]) == (1, False)
    assert "messages" not in bundle["checkpoint"]
