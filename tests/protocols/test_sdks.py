"""MCP and A2A with the official SDKs on both sides of the proxy: the agent dies in the call, or the
proxy does after the effect; what comes again is one effect, in an answer that the SDK takes."""

from __future__ import annotations

import importlib.util
import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clients.fleet import NODE_CLIENTS
from tests.clients.world import NODE, Proxied
from tests.fakes.served import FREE_PORTS, environment, served, until
from tests.sdks.support import needs_node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
HERE = Path(__file__).parent
RUN, STEP = "case-7", "pay-1"
RULE = """
service: till
hosts: ["127.0.0.1:{port}"]
source: tests/protocols/mcp_server.py
confidence: documented
key: {{in: json, name: params._meta.idempotencyKey, valid_for: 24h, keeps: success}}
answer_format: jsonrpc
endpoints:
  call: {{match: {{request: POST /mcp, jsonrpc: {{method: tools/call}}}}}}
"""
PAID = {"text": "paid 5", "error": False}


def needs(*modules: str) -> pytest.MarkDecorator:
    missing = [one for one in modules if importlib.util.find_spec(one) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not here: {missing} (make clients)")


def python(mode: str) -> Any:
    command = [sys.executable, str(HERE / "mcp_client.py")]
    return pytest.param((command, mode), id=f"python-{mode}", marks=needs("mcp"))


def node(mode: str, package: str) -> Any:
    command = [str(NODE), str(NODE_CLIENTS / "mcp_client.mjs")]
    return pytest.param(
        (command, mode), id=f"node-{mode}", marks=[needs("mcp"), needs_node(package)]
    )


CLIENTS = [
    python("legacy"),
    python("2026-07-28"),
    node("v1", "@modelcontextprotocol/sdk"),
    node("v2", "@modelcontextprotocol/client"),
]


@dataclass
class World:
    """A server with its own folder, and one proxy after another in front of it."""

    folder: Path
    port: int
    config: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def lines(self, name: str) -> list[str]:
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []

    @property
    def effects(self) -> list[str]:
        return self.lines("effects")

    def go(self) -> None:
        (self.folder / "go").touch()

    @contextmanager
    def proxy(self) -> Iterator[Proxied]:
        state = self.folder / "state"
        with served(state, "--config", str(self.config), *FREE_PORTS) as proxy:
            yield Proxied(proxy, state / "ca" / "ca.pem")


@contextmanager
def world(folder: Path, script: str, path: str, config: str) -> Iterator[World]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "rules").mkdir()
    (folder / "config.yaml").write_text(config.format(port=port, rules=folder / "rules"))
    (folder / "rules" / "till.yaml").write_text(RULE.format(port=port))
    with (folder / "server.log").open("w") as log:
        command = [sys.executable, str(HERE / script), str(port), str(folder)]
        server = subprocess.Popen(command, env=environment(), stdout=log, stderr=log)
    try:
        until(lambda: _listens(f"http://127.0.0.1:{port}{path}"), seconds=90)
        yield World(folder, port, folder / "config.yaml")
    finally:
        server.kill()
        server.wait()


def _listens(url: str) -> bool:
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def begin(proxied: Proxied, *command: str, step: str = STEP) -> subprocess.Popen[str]:
    environ = environment(**proxied.environ(RUN, step))
    return subprocess.Popen(
        command,
        env=environ,
        cwd=NODE_CLIENTS,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def end(client: subprocess.Popen[str]) -> Any:
    """The last line that it printed."""
    out, err = client.communicate(timeout=120)
    assert client.returncode == 0, out + err
    return json.loads(out.splitlines()[-1])


def killed(client: subprocess.Popen[str]) -> None:
    client.send_signal(signal.SIGKILL)
    client.communicate()


def pay(w: World, client: tuple[list[str], str], tool: str = "pay") -> list[str]:
    command, mode = client
    return [*command, f"{w.url}/mcp", mode, tool, '{"amount": 5}']


NAMED = 'mcp: {{till: {{url: "http://127.0.0.1:{port}/mcp"}}}}\n'
KEYED = 'rules: ["{rules}"]\n'
ANYWHERE = "egress: {{allow: [127.0.0.1]}}\n"


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("config", [NAMED, ANYWHERE], ids=["named", "anywhere"])
def test_an_agent_that_dies_in_the_call_of_a_tool_finds_its_answer(
    tmp_path: Path, client: Any, config: str
) -> None:
    """The server would take the end of the stream for a cancellation (2026-07-28): it is kept."""
    with world(tmp_path, "mcp_server.py", "/mcp", config) as w, w.proxy() as proxied:
        first = begin(proxied, *pay(w, client))
        until(lambda: w.effects, seconds=90)
        killed(first)
        w.go()
        until(lambda: [o["state"] for o in proxied.operations(RUN)] == ["succeeded"], seconds=30)
        for _ in range(2):
            assert end(begin(proxied, *pay(w, client))) == PAID
        assert w.effects == ["paid 5"]
        assert end(begin(proxied, *pay(w, client), step="pay-2")) == PAID
        assert w.effects == ["paid 5"] * 2, "another step is another payment"


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("config", [KEYED, NAMED], ids=["keyed", "blind"])
def test_a_proxy_that_dies_after_the_effect_makes_no_second_one(
    tmp_path: Path, client: Any, config: str
) -> None:
    with world(tmp_path, "mcp_server.py", "/mcp", config) as w:
        with w.proxy() as proxied:
            first = begin(proxied, *pay(w, client))
            until(lambda: w.effects, seconds=90)
            proxied.proxy.stop(signal.SIGKILL)
            killed(first)
        w.go()
        with w.proxy() as proxied:
            said = end(begin(proxied, *pay(w, client)))
            if config is KEYED:
                assert said == PAID
                calls = [json.loads(line) for line in w.lines("calls")]
                assert len({call["meta"]["idempotencyKey"] for call in calls}) == 1
            else:
                assert "may have taken effect" in said["refused"]
                # Node's older SDK has the whole body in its message, the others have it as data.
                assert "urn:onceproxy:outcome-unresolved" in json.dumps(said)
        assert w.effects == ["paid 5"]


@needs("mcp")
def test_a_server_that_asks_a_person_in_the_middle_of_a_call_gets_its_answer(
    tmp_path: Path,
) -> None:
    client = ([sys.executable, str(HERE / "mcp_client.py")], "legacy")
    with world(tmp_path, "mcp_server.py", "/mcp", NAMED) as w, w.proxy() as proxied:
        for _ in range(2):
            said = end(begin(proxied, *pay(w, client, "ask")))
            assert said == {"text": "asked and paid 5", "error": False}
        assert w.effects == ["asked and paid 5"]


@needs("a2a", "uvicorn")
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize("streaming", ["plain", "stream"])
def test_a_message_to_another_agent_arrives_once(
    tmp_path: Path, binding: str, streaming: str
) -> None:
    """After the death of the proxy it is found in the history of its task."""
    script = [sys.executable, str(HERE / "a2a_client.py")]
    with world(tmp_path, "a2a_server.py", "/.well-known/agent-card.json", ANYWHERE) as w:
        command = [*script, w.url, binding, streaming]
        with w.proxy() as proxied:
            first = begin(proxied, *command)
            until(lambda: w.effects, seconds=90)
            proxied.proxy.stop(signal.SIGKILL)
            killed(first)
        w.go()
        with w.proxy() as proxied:
            said = [end(begin(proxied, *command)) for _ in range(2)]
            assert said[0] == said[1]
            [operation] = proxied.operations(RUN)
            assert (operation["state"], operation["attempts"]) == ("succeeded", 1)
            assert said[0]["task"]["id"] == operation["external_id"]
            history = [event["event"] for event in proxied.history(operation["key"])]
            assert "EffectFound" in history
        assert len(w.effects) == 1
