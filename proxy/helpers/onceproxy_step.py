"""Puts the id of the tool call that is running on every HTTP request it makes.

    from onceproxy_step import step

    with step(tool_call_id):
        requests.post(...)

The id goes into the header X-Step-Id, which the proxy takes off again. A process that serves many
runs is started with ``onceproxy run --run-id - -- ...``, and names them too: ``with run(case_id):``
around all that is done for one (X-Run-Id). Importing this module arms http.client (with requests,
urllib3, botocore and others), httpx and aiohttp. Adapters:

    ToolNode(tools, wrap_tool_call=langgraph_tool_call, awrap_tool_call=langgraph_tool_call_async)
    Agent(tools=[agents_tool(tool) for tool in tools])  # OpenAI Agents SDK

One file without dependencies: copy it where you need it.
"""

import contextlib
import contextvars
import copy
import functools
import http.client
import importlib
import urllib.parse
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

HEADER, RUN_HEADER = "X-Step-Id", "X-Run-Id"
_named: contextvars.ContextVar[dict[str, str]] = contextvars.ContextVar("onceproxy_step")


def step(tool_call_id: object) -> contextlib.AbstractContextManager[None]:
    """All that is sent inside belongs to this tool call, in tasks and threads that inherit it."""
    return _naming(HEADER, tool_call_id)


def run(run_id: object) -> contextlib.AbstractContextManager[None]:
    """All that is sent inside belongs to this run."""
    return _naming(RUN_HEADER, run_id)


@contextlib.contextmanager
def _naming(header: str, name: object) -> Iterator[None]:
    text = urllib.parse.quote(str(name), safe="")
    token = _named.set({**_named.get({}), header: text})
    try:
        yield
    finally:
        _named.reset(token)


def langgraph_tool_call(request: Any, execute: Callable[[Any], Any]) -> Any:
    with step(request.tool_call["id"]):
        return execute(request)


async def langgraph_tool_call_async(request: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
    with step(request.tool_call["id"]):
        return await execute(request)


def agents_tool(tool: Any) -> Any:
    """A copy of a FunctionTool whose calls are steps."""
    stepped, invoke = copy.copy(tool), tool.on_invoke_tool

    async def on_invoke_tool(context: Any, arguments: str) -> Any:
        with step(context.tool_call_id):
            return await invoke(context, arguments)

    stepped.on_invoke_tool = on_invoke_tool
    return stepped


def _wrap(owner: Any, name: str, before: Callable[[Any, Any, Any], None]) -> None:
    """Let ``before`` see the arguments of each call of a method made inside a step or run."""
    method = getattr(owner, name)
    if hasattr(method, "onceproxy_step"):
        return

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _named.get(None):
            before(self, args, kwargs)
        return method(self, *args, **kwargs)

    wrapped.onceproxy_step = True  # type: ignore[attr-defined]
    setattr(owner, name, wrapped)


def _http_client(connection: Any, args: Any, kwargs: Any) -> None:
    for header, name in _named.get().items():
        start = f"{header}:".lower().encode()
        if not any(line.lower().startswith(start) for line in connection._buffer):
            connection.putheader(header, name)


def _httpx(client: Any, args: Any, kwargs: Any) -> None:
    request = args[0] if args else kwargs["request"]
    for header, name in _named.get().items():
        request.headers.setdefault(header, name)


def _aiohttp(session: Any, args: Any, kwargs: Any) -> None:
    headers = importlib.import_module("multidict").CIMultiDict(kwargs.get("headers") or ())
    for header, name in _named.get().items():
        headers.setdefault(header, name)
    kwargs["headers"] = headers


_wrap(http.client.HTTPConnection, "endheaders", _http_client)
for _module, _owners, _method, _before in (
    ("httpx", ("Client", "AsyncClient"), "send", _httpx),
    ("httpx2", ("Client", "AsyncClient"), "send", _httpx),
    ("aiohttp", ("ClientSession",), "_request", _aiohttp),
):
    with contextlib.suppress(ImportError):
        for _owner in _owners:
            _wrap(getattr(importlib.import_module(_module), _owner), _method, _before)
