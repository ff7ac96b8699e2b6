"""Hosts of one's own at which the rules for models hold: the option ``models``."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.configload import load as load_config
from proxy.core.matching import RuleSet
from proxy.core.model import Body, Request
from proxy.rulefile.loader import load
from proxy.rulefile.modelhosts import MODEL_SERVICES

RULES = Path(__file__).parents[2] / "rules"
HOSTS = (
    "llm.internal",
    "vllm.internal:8000",
    "*.models.example",
    "10.20.0.7:11434",
    "[fd00::7]:80",
)


@pytest.fixture(scope="module")
def rules() -> RuleSet:
    return load([RULES], HOSTS)


def title(rules: RuleSet, host: str, port: int, path: str) -> str | None:
    body = Body.of(b'{"model": "m", "input": "x", "messages": []}')
    kind = (("Content-Type", "application/json"),)
    matched = rules.match(Request("POST", "http", host, port, path, kind, body))
    if matched is None:
        return None
    return matched.endpoint.title if matched.endpoint.meter else f"{matched.endpoint.title}, free"


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("llm.internal", 443),
        ("vllm.internal", 8000),
        ("eu.models.example", 80),
        ("10.20.0.7", 11434),
        ("fd00::7", 80),
    ],
)
def test_every_kind_of_model_call_is_known_there(rules: RuleSet, host: str, port: int) -> None:
    assert rules.knows_host(host, port)
    for path, wanted in {
        "/v1/chat/completions": "models.openai.chat",
        "/v1/responses": "models.openai.responses",
        "/v1/completions": "models.openai.completions",
        "/v1/messages": "models.anthropic.messages",
        "/v1beta/models/m:streamGenerateContent": "models.gemini.stream",
        "/api/chat": "ollama.chat",
        "/v1/messages/count_tokens": "models.anthropic.count, free",
        "/v1/refunds": None,
    }.items():
        assert title(rules, host, port, path) == wanted, path


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("llm.internal", 8000),
        ("vllm.internal", 443),
        ("other.internal", 80),
        ("models.example", 80),
    ],
)
def test_elsewhere_only_what_no_other_api_would_use_is_known(
    rules: RuleSet, host: str, port: int
) -> None:
    assert not rules.knows_host(host, port)
    assert title(rules, host, port, "/v1/chat/completions") == "models-compatible.chat"
    assert title(rules, host, port, "/v1/embeddings") == "models-compatible.embeddings"
    for path in ("/v1/messages", "/v1/responses", "/api/chat"):
        assert title(rules, host, port, path) is None


def test_the_services_and_their_own_hosts_stay_as_they_are(rules: RuleSet) -> None:
    plain = load([RULES])
    assert title(rules, "api.openai.com", 443, "/v1/responses") == "models.openai.responses"
    assert rules.digest == plain.digest
    for service, before in zip(rules.services, plain.services, strict=True):
        added = len(service.hosts) - len(before.hosts)
        assert added == (len(HOSTS) if service.name in MODEL_SERVICES else 0)
    assert set(MODEL_SERVICES) <= {service.name for service in rules.services}


def test_the_option_reads_hosts_as_rules_write_them(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        'models: [LLM.internal, "vllm.internal:8000", "[FD00::7]:80", "fd00::8", "*.m.example"]\n'
    )
    config = load_config(file, environ={}).config
    assert config.models == (
        "llm.internal",
        "vllm.internal:8000",
        "[fd00::7]:80",
        "fd00::8",
        "*.m.example",
    )
    known = load([RULES], config.models)
    for host, port in (
        ("llm.internal", 80),
        ("fd00::7", 80),
        ("fd00::8", 443),
        ("a.m.example", 443),
    ):
        assert title(known, host, port, "/v1/responses") == "models.openai.responses", host
