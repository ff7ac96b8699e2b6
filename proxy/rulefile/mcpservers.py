"""MCP servers that the configuration names: what a rule file for each of them would say."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol
from urllib.parse import urlsplit


class Server(Protocol):
    @property
    def url(self) -> str: ...
    @property
    def reads(self) -> Sequence[str]: ...
    @property
    def trust_annotations(self) -> bool: ...


RULE = """\
service: {name}
hosts: [{host}]
source: the option mcp.{name}
confidence: documented
key: none
answer_format: jsonrpc
answers:
  - {{body: {{result.isError: true}}, means: succeeded}}
endpoints:
{reads}  call:
    match:
      request: {request}
      jsonrpc: {{method: tools/call, trust_annotations: {trusts}}}
"""
READS = """\
  reads:
    effect: read
    match: {{request: {request}, jsonrpc: {{method: tools/call, tool: {tools}}}}}
"""


def rule_texts(servers: Mapping[str, Server], taken: Collection[str]) -> Iterator[tuple[str, str]]:
    """The name of each server, and its rules as YAML. Raises ValueError where a name is that of a
    rule file."""
    for name, server in servers.items():
        if name in taken:
            raise ValueError(
                f"mcp.{name}: is the name of a rule file too; call the server something else"
            )
        parts = urlsplit(server.url)
        request = json.dumps(f"POST {parts.path or '/'}")
        tools = json.dumps(list(server.reads))
        yield (
            name,
            RULE.format(
                name=name,
                host=json.dumps(parts.netloc),
                request=request,
                reads=READS.format(request=request, tools=tools) if server.reads else "",
                trusts=json.dumps(server.trust_annotations),
            ),
        )
