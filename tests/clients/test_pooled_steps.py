"""Three tool calls at once on pooled connections: none is taken for a call of another step."""

from __future__ import annotations

import sys

import pytest

from tests.clients.world import AGENTS, NODE, World

STEPS = ["call_a", "call_b", "call_c"]
PYTHON = [sys.executable, str(AGENTS / "pooled.py")]
SCRIPT = [str(NODE), str(AGENTS / "steps.mjs")]
needs_node = pytest.mark.skipif(NODE is None, reason="Node is not installed")


@pytest.mark.parametrize(
    ("language", "client", "scheme"),
    [
        ("python", "httpx", "https"),
        ("python", "aiohttp", "https"),
        ("python", "requests", "https"),
        ("python", "httpx2", "http"),
        pytest.param("node", "fetch", "https", marks=needs_node),
        pytest.param("node", "https", "https", marks=needs_node),
    ],
)
def test_steps_at_once_keep_their_own_calls(
    w: World, language: str, client: str, scheme: str
) -> None:
    run = f"{language}-{client}-{scheme}"
    target = f"/v1/things/{run}/together"  # the API answers none before all three are there
    at = w.upstream["things"]
    url = (at.https if scheme == "https" else at.http) + target
    program = PYTHON if language == "python" else SCRIPT
    calls = w.start(run, None, *program, client, url)

    assert len(calls) == 9
    for call in calls:
        assert call["said"] == call["step"], "a step got another step's answer"
        assert call["Onceproxy-Operation"] == f"{run}/{call['step']}/things.create/v1"
    assert sorted(call["step"] for call in calls[:3]) == STEPS
    assert {call["Onceproxy-Outcome"] for call in calls[:3]} == {"sent"}
    assert {call["Onceproxy-Outcome"] for call in calls[3:]} == {"replayed"}
    assert len({call["id"] for call in calls}) == 3

    effects = w.upstream.done(target)
    assert sorted(effect.body.decode() for effect in effects) == sorted(
        effect.body.decode() for effect in w.upstream.came(target)
    )
    assert len(effects) == 3
    for effect in effects:
        [key] = effect.values("Idempotency-Key")
        assert key.split("/")[1] in effect.body.decode()
    assert sorted(operation["step"] for operation in w.operations(run)) == STEPS
