"""The option `mcp`: servers whose tools are protected by step and tool."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.configload import ConfigErrors
from proxy.configload import load as load_config
from proxy.core.matching import RuleSet
from proxy.core.model import Body, Request
from proxy.options import as_dict
from proxy.rulefile import RuleErrors, load

RULES = Path(__file__).parent.parent.parent / "rules"


def configured(tmp_path: Path, text: str) -> RuleSet:
    file = tmp_path / "c.yaml"
    file.write_text(f"mcp: {text}\n")
    config = load_config(file, environ={}).config
    assert as_dict(config)["mcp"].keys() == dict(config.mcp).keys()
    return load([RULES], (), config.mcp)


def matched(rules: RuleSet, host: str, port: int, path: str, tool: str) -> str | None:
    body = f'{{"jsonrpc": "2.0", "method": "tools/call", "params": {{"name": "{tool}"}}}}'
    headers = (("Content-Type", "application/json"), ("Accept", "text/event-stream"))
    request = Request("POST", "http", host, port, path, headers, Body.of(body.encode()))
    found = rules.match(request)
    return f"{found.endpoint.title} {found.endpoint.effect}" if found else None


def test_a_server_is_a_service_and_its_tools_write_unless_they_are_said_to_read(
    tmp_path: Path,
) -> None:
    rules = configured(
        tmp_path,
        '{till: {url: "HTTP://Till.internal:8904/mcp", reads: [find, "get_*"]},'
        ' desk: {url: "https://desk.example", trust_annotations: true}}',
    )
    for tool, title in (
        ("pay", "till.call write"),
        ("find", "till.reads read"),
        ("find_and_pay", "till.call write"),
        ("get_it", "till.reads read"),
        ("forget_it", "till.call write"),
    ):
        assert matched(rules, "till.internal", 8904, "/mcp", tool) == title
    assert matched(rules, "till.internal", 8905, "/mcp", "pay") is None
    assert matched(rules, "till.internal", 8904, "/other", "pay") is None
    assert matched(rules, "desk.example", 443, "/", "pay") == "desk.call write"
    trusting = {
        e.title: e.match.jsonrpc.trusts
        for s in rules.services
        for e in s.endpoints
        if e.match is not None and e.match.jsonrpc is not None and s.name != "mcp"
    }
    assert (trusting["till.call"], trusting["desk.call"]) == (False, True)
    assert rules.knows_host("till.internal", 8904), "it is open as a host that a rule names"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{till: {url: ftp://x/mcp}}", "not an address of an MCP server"),
        ("{till: {url: 'https://u:p@x/mcp'}}", "without credentials"),
        ("{till: {url: 'https://x/mcp?a=b'}}", "without credentials and query"),
        ("{till: {reads: [a]}}", "url"),
        ("{till: {url: https://x, read: [a]}}", "unknown"),
        ("{stripe: {url: https://x}}", "is the name of a rule file too"),
        ("{a.b: {url: https://x}}", "no dot"),
    ],
)
def test_what_is_wrong_with_a_server_is_told(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises((ConfigErrors, RuleErrors), match=said):
        configured(tmp_path, text)
