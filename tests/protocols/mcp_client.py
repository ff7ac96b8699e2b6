"""A call of a tool with the official Python SDK: mcp_client.py URL MODE TOOL ARGUMENTS [META]"""

from __future__ import annotations

import asyncio
import json
import sys

from mcp import Client, MCPError
from mcp_types import ElicitResult


async def main() -> None:
    url, mode, tool, arguments, *meta = sys.argv[1:]

    async def person(context: object, params: object) -> ElicitResult:
        print(json.dumps({"asked": True}), flush=True)
        return ElicitResult(action="accept", content={"sure": True})

    async def progress(done: float, of: float | None, message: str | None) -> None:
        print(json.dumps({"progress": message}), flush=True)

    async with Client(url, mode=mode, elicitation_callback=person) as client:
        await client.list_tools()
        try:
            result = await client.call_tool(
                tool,
                json.loads(arguments),
                progress_callback=progress,
                meta=json.loads(meta[0]) if meta else None,
            )
            text = getattr(result.content[0], "text", None)
            print(json.dumps({"text": text, "error": result.is_error}), flush=True)
        except MCPError as refused:
            print(json.dumps({"refused": refused.message, "data": refused.data}), flush=True)


asyncio.run(main())
