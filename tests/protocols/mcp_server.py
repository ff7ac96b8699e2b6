"""A real MCP server (the official SDK's) whose tools leave a line in a file: mcp_server.py PORT DIR

``pay`` reports progress, has its effect, and answers only once DIR/go is there; with a key in its
``_meta`` it has its effect once per key. ``ask`` wants a person's word first. ``look`` only reads.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import ToolAnnotations
from pydantic import BaseModel

DIRECTORY = Path(sys.argv[2])
EFFECTS, KEYS = DIRECTORY / "effects", DIRECTORY / "keys"
server = MCPServer("till")


class Sure(BaseModel):
    sure: bool


def happened(what: str) -> str:
    with EFFECTS.open("a") as file:
        file.write(f"{what}\n")
    return what


@server.tool()
async def pay(amount: int, ctx: Context) -> str:
    """Pay money out."""
    meta = ctx.request_context.meta or {}
    with (DIRECTORY / "calls").open("a") as file:
        file.write(json.dumps({"id": ctx.request_id, "meta": meta}) + "\n")
    await ctx.report_progress(0.5, 1.0, "on its way")
    key = meta.get("idempotencyKey")
    kept = json.loads(KEYS.read_text()) if KEYS.exists() else {}
    if key is None or key not in kept:
        kept[key or "-"] = happened(f"paid {amount}")
        KEYS.write_text(json.dumps(kept))
    while not (DIRECTORY / "go").exists():
        await asyncio.sleep(0.02)
    return f"paid {amount}"


@server.tool()
async def fail(amount: int) -> str:
    """Do half of it."""
    happened(f"half of {amount}")
    raise ValueError("the bank said no")


@server.tool()
async def ask(amount: int, ctx: Context) -> str:
    """Pay money out, once a person has said so."""
    answer = await ctx.elicit(f"Pay {amount}?", Sure)
    return happened(f"asked and paid {amount}") if answer.action == "accept" else "not paid"


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def look(what: str) -> str:
    """Look something up."""
    with (DIRECTORY / "looks").open("a") as file:
        file.write(f"{what}\n")
    return f"saw {what}"


if __name__ == "__main__":
    server.run("streamable-http", port=int(sys.argv[1]))
