"""What MCP servers say of their own tools, overheard in their answers to ``tools/list``.

A server's word is a hint: nothing is protected less for it, unless a rule trusts this server
(``trust_annotations``). It lives in memory: a client that opens a session asks for the tools first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace

import structlog

from proxy.core import jsonrpc
from proxy.core.bodies import BodyMissing
from proxy.core.jsonrpc import Hint
from proxy.core.matching import Matched
from proxy.core.model import Answer, Body, Headers, Request
from proxy.net.exchange import Pipe
from proxy.outbound import Opened

log = structlog.get_logger("onceproxy")

SERVERS_MAX = 256  # whose tools are remembered
LIST_LIMIT = 4 * 1024 * 1024  # bytes of one answer; the longest lists in use have a tenth of it


class Hints:
    def __init__(self) -> None:
        self._tools: OrderedDict[str, dict[str, Hint]] = OrderedDict()

    @property
    def servers(self) -> Mapping[str, Mapping[str, Hint]]:
        """Tools by name, by the address of their server."""
        return self._tools

    def heard(self, request: Request, opened: Opened) -> Opened:
        """The answer of a read, listened to where it lists tools."""
        if jsonrpc.method_of(request.body) != jsonrpc.TOOLS_LIST or opened.status != 200:
            return opened
        return _Overheard(opened, lambda answer: self._learn(_server(request), answer))

    def applied(self, matched: Matched | None, request: Request) -> Matched | None:
        """The endpoint of a call as its server's hints make it, where the rule trusts them."""
        rule = matched.endpoint.match if matched is not None else None
        if matched is None or rule is None or rule.jsonrpc is None or not rule.jsonrpc.trusts:
            return matched
        hint = self._tools.get(_server(request), {}).get(jsonrpc.tool_of(request.body) or "")
        if hint is None:
            return matched
        if hint.reads:
            return replace(matched, endpoint=replace(matched.endpoint, effect="read"))
        if hint.idempotent:
            return replace(matched, endpoint=replace(matched.endpoint, idempotent=True))
        return matched

    def _learn(self, server: str, answer: Answer) -> None:
        try:
            found = jsonrpc.hints_in(answer)
        except BodyMissing as error:
            log.info("tools not learned", server=server, detail=str(error))
            return
        known = self._tools.setdefault(server, {})
        self._tools.move_to_end(server)
        if len(self._tools) > SERVERS_MAX:
            self._tools.popitem(last=False)
        if any(known.get(name) != hint for name, hint in found.items()):
            reads = sorted(name for name, hint in found.items() if hint.reads)
            log.info("tools learned", server=server, tools=len(found), said_to_only_read=reads)
        known.update(found)


class _Overheard:
    """An answer on its way to its caller. ``told`` gets it if it comes to its end."""

    def __init__(self, opened: Opened, told: Callable[[Answer], None]) -> None:
        self._opened = opened
        self._told = told
        self.status: int = opened.status
        self.reason: str = opened.reason
        self.headers: Headers = opened.headers
        self.length: int | None = opened.length
        self.pipe: Pipe | None = opened.pipe

    async def read(self, limit: int) -> tuple[Body | None, bool]:
        body, complete = await self._opened.read(limit)
        if body is not None and complete:
            self._told(Answer(self.status, self.reason, self.headers, body))
        return body, complete

    async def chunks(self) -> AsyncIterator[bytes]:
        parts: list[bytes] = []
        size = 0
        async for chunk in self._opened.chunks():
            size += len(chunk)
            if size <= LIST_LIMIT:
                parts.append(chunk)
            yield chunk
        if size <= LIST_LIMIT:
            body = Body.of(b"".join(parts))
            self._told(Answer(self.status, self.reason, self.headers, body))

    def close(self) -> None:
        self._opened.close()


def _server(request: Request) -> str:
    return f"{request.scheme}://{request.authority}{request.path}"
