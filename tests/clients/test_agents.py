"""Whole agents with a streaming model under ``onceproxy run``: streams arrive event by event, and
the tool's write is there once however often the run is started again.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

import pytest

from tests.clients.fleet import NODE_CLIENTS
from tests.clients.upstream import Pause
from tests.clients.world import AGENTS, NODE, World
from tests.fakes.served import environment

CHAT = "/v1/chat/completions"
HERE = {
    "langgraph": importlib.util.find_spec("langgraph") is not None,
    "node": NODE is not None and (NODE_CLIENTS / "node_modules" / "openai").is_dir(),
}
PROGRAMS = {
    "langgraph": (sys.executable, str(AGENTS / "graph.py")),
    "node": (str(NODE), str(NODE_CLIENTS / "agent.mjs")),
}


def follow(w: World, run: str, program: str, target: str) -> tuple[list[Any], Pause]:
    """The agent's lines. A stream of its model goes on only when the agent has shown that it has
    the stream's first event."""
    pause = w.upstream.pauses[CHAT] = Pause()
    model, things = w.upstream["openai"].https + "/v1", w.upstream["things"].https + target
    command = [sys.executable, "-m", "proxy", "run", "--state-dir", str(w.proxy.state_dir)]
    command += ["--run-id", run, "--", *PROGRAMS[program], model, things]
    lines = []
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        for text in agent.stdout:
            lines.append(json.loads(text))
            if str(lines[-1].get("event")).startswith("answer"):
                pause.gate.set()
    del w.upstream.pauses[CHAT]
    assert agent.returncode == 0
    return lines, pause


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_streaming_agent_writes_once_over_two_starts(w: World, program: str) -> None:
    if not HERE[program]:
        pytest.skip(f"what the {program} agent needs is not installed: make clients")
    run, target = f"agent-{program}", f"/v1/things/agent-{program}"
    starts = [follow(w, run, program, target) for _ in range(2)]
    for lines, pause in starts:
        assert pause.ended == [True, True]  # both streams: the first event came before the rest
        assert lines[-1] == {"done": 1}
    [first], [second] = ([line for line in lines if "tool" in line] for lines, _ in starts)
    assert first["outcome"] == "sent"
    assert second == {**first, "outcome": "replayed"}
    assert len(w.upstream.came(target)) == len(w.upstream.done(target)) == 1
    [operation] = w.operations(run)
    assert operation["step"] == "call_1"
