"""Where only calls with a run token are taken: `onceproxy run` gives each start one, and every
client carries it without knowing of it.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.senders import by_httpx
from tests.clients.world import AGENTS, NODE, World, world
from tests.fakes.served import onceproxy

CURL = shutil.which("curl")
IDENTITY = {"x-run-token", "x-run-id", "x-step-id", "proxy-authorization"}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("tokens"), more="identity: {tokens: required}\n") as made:
        yield made
        for arrival in made.upstream.arrivals:
            assert not IDENTITY & {name.lower() for name, _ in arrival.headers}
            assert "once_" not in str(arrival)


def begun(w: World, **body: Any) -> str:
    """The token of a run's new start."""
    tokens = json.loads((w.proxy.state_dir / "tokens.json").read_text())
    request = urllib.request.Request(
        f"http://{w.proxy.control}/v1/runs/{body.pop('run')}/resume",
        json.dumps({"token": True, **body}).encode(),
        {"Authorization": f"Bearer {tokens['operator']}"},
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as response:
        return str(json.loads(response.read())["token"])


def test_unchanged_python_clients_carry_it(strict: World) -> None:
    things, shop = strict.upstream["things"].https, strict.upstream["stripe"].https
    command = (sys.executable, str(AGENTS / "unchanged.py"), things + "/v1/things/py", shop)
    first, second = (strict.run("python", "auto", *command) for _ in "12")
    assert [line["Onceproxy-Outcome"] for line in first] == ["sent"] * 5, first
    assert [line["Onceproxy-Outcome"] for line in second] == ["replayed"] * 5, second
    assert {line["client"] for line in first} == {
        "requests",
        "httpx",
        "urllib",
        "aiohttp",
        "stripe",
    }


@pytest.mark.skipif(NODE is None, reason="Node is not installed")
def test_node_carries_it(strict: World) -> None:
    at = strict.upstream["things"]
    urls = [f"{url}/v1/things/js" for url in (at.http, at.https)]
    first, second = (
        strict.run("node", "auto", str(NODE), str(AGENTS / "twice.mjs"), *urls) for _ in "12"
    )
    assert [line["client"] for line in first] == ["fetch-http", "fetch-https", "http", "https"]
    assert [line["onceproxy-outcome"] for line in first] == ["sent"] * 4
    assert [line["onceproxy-outcome"] for line in second] == ["replayed"] * 4


@pytest.mark.skipif(NODE is None, reason="Node is not installed")
@pytest.mark.slow
@pytest.mark.parametrize("client", ["fetch", "https"])
def test_tool_calls_in_node_keep_it_beside_their_step(strict: World, client: str) -> None:
    url = strict.upstream["things"].https + f"/v1/things/steps-{client}"
    done = strict.run(
        f"node-{client}", None, str(NODE), str(AGENTS / "steps.mjs"), client, url
    )  # fmt: skip
    assert {line["step"] for line in done} == {"call_a", "call_b", "call_c"}
    assert all(f"/{line['step']}/" in line["Onceproxy-Operation"] for line in done)
    assert len(strict.upstream.done(f"/v1/things/steps-{client}")) == 3


STEPS = """
    import asyncio, json, sys
    import aiohttp, httpx, requests
    from onceproxy_step import step

    url = sys.argv[1]
    name = "Onceproxy-Operation"

    async def main():
        with step("by aiohttp"):
            async with aiohttp.ClientSession(trust_env=True) as session:
                async with session.post(url + "/aiohttp", data=b"1") as answer:
                    print(json.dumps([answer.status, answer.headers[name]]))

    with step("by:requests"):
        answer = requests.post(url + "/requests", data=b"1")
        print(json.dumps([answer.status_code, answer.headers[name]]))
    with step("by/httpx"):
        answer = httpx.post(url + "/httpx", content=b"1")
        print(json.dumps([answer.status_code, answer.headers[name]]))
    asyncio.run(main())
"""


def test_tool_calls_in_python_keep_it_beside_their_step(strict: World) -> None:
    url = strict.upstream["things"].https + "/v1/things/tools"
    done = strict.run("tools", None, sys.executable, "-c", textwrap.dedent(STEPS), url)
    steps = ("by:requests", "by%2Fhttpx", "by%20aiohttp")
    assert done == [[201, f"tools/{step}/things.create/v1"] for step in steps]


@pytest.mark.skipif(CURL is None, reason="curl is not installed")
@pytest.mark.parametrize(
    ("way", "step"),
    [("http", "pay:now 1"), pytest.param("https", "auto", marks=pytest.mark.slow)],
)
def test_curl_carries_it(strict: World, way: str, step: str) -> None:
    target = f"/v1/things/curl/{way}/{step[:3]}"
    url = getattr(strict.upstream["things"], way) + target
    command = (str(CURL), "-sS", "-d", "amount=5", "-w", "\n[%{http_code}]", url)
    for _ in "12":
        *_, status = strict.run(f"curl:{way}", step, *command)
        assert status == [201]
    assert len(strict.upstream.came(target)) == 1


def test_the_gateway_path_carries_it(strict: World) -> None:
    target, token = "/v1/things/path", begun(strict, run="path")
    site = strict.upstream["things"].https.replace("://", "/")
    for step, sep in (("plain", ":"), ("encoded", "%3A")):
        url = f"http://{strict.proxy.listen}/as/path/{step}{sep}{token}/via/{site}{target}/{step}"
        first, second = by_httpx(url), by_httpx(url)
        assert first.headers["onceproxy-operation"] == f"path/{step}/things.create/v1"
        assert [first.outcome, second.outcome] == ["sent", "replayed"]
        assert len(strict.upstream.came(f"{target}/{step}")) == 1
        assert "once_" not in str(dict(first.headers))


def test_without_it_or_with_that_of_another_run_nothing_is_sent(strict: World) -> None:
    target, other = "/v1/things/nobodys", begun(strict, run="other")
    site = strict.upstream["things"].https.replace("://", "/")
    begun(strict, run="mine")
    invented = "once_" + "x" * 43
    for who, status in (
        ("mine/pay", 400),
        (f"mine/pay:{other}", 403),
        (f"mine/pay:{invented}", 403),
        (f"never-begun/pay:{other}", 403),
    ):
        refused = by_httpx(f"http://{strict.proxy.listen}/as/{who}/via/{site}{target}")
        assert refused.status == status, (who, refused)
        assert b"once_" not in refused.body
    assert strict.upstream.came(target) == []


def test_a_start_has_a_token_of_its_own_and_a_run_is_bound_to_its_input(
    strict: World, tmp_path: Path
) -> None:
    first, second = begun(strict, run="starts"), begun(strict, run="starts")
    assert first != second
    found = _as_operator(strict, "/v1/runs/starts")
    assert [one["epoch"] for one in found["tokens"]] == [1, 2]
    invoice = tmp_path / "invoice.json"
    invoice.write_text('{"amount": 5}')
    mark = tmp_path / "ran"

    def start(about: str) -> Any:
        state = ["--state-dir", str(strict.proxy.state_dir), "--run-id", "bound"]
        return onceproxy("run", *state, "--input", about, "--", "touch", str(mark))

    assert start(str(invoice)).returncode == 0
    mark.unlink()
    same = start('{"amount": 5}')
    assert same.returncode == 0, "the same content, however it is given"
    mark.unlink()
    refused = start('{"amount": 6}')
    assert refused.returncode == 1
    assert "another input" in refused.stderr
    assert "--run-id" in refused.stderr
    assert not mark.exists(), "the command was not run"
    assert _as_operator(strict, "/v1/runs/bound")["epoch"] == 2, "nor was a start begun"
    assert start("@" + str(tmp_path / "missing")).returncode == 2


def _as_operator(w: World, path: str) -> Any:
    tokens = json.loads((w.proxy.state_dir / "tokens.json").read_text())
    request = urllib.request.Request(
        f"http://{w.proxy.control}{path}", headers={"Authorization": f"Bearer {tokens['operator']}"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as response:
        return json.loads(response.read())
