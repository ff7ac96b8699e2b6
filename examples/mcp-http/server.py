"""An MCP server over streamable HTTP with one tool that writes: server.py PORT

It is on the far side of the proxy, as a server of somebody else's would be. What it does for its
callers' safety: it takes a key from the call's ``_meta``, and gives it on to the shop.
"""

import os
import sys

import httpx
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

SHOP = os.environ["SHOP_URL"]
server = MCPServer("refunds")


@server.tool()
async def refund(charge: str, amount: int, context: Context) -> str:
    """Pay money back."""
    key = (context.request_context.meta or {}).get("idempotencyKey")
    headers = {"Idempotency-Key": key} if key else {}
    wanted = {"charge": charge, "amount": amount}
    async with httpx.AsyncClient(timeout=60) as http:
        return (await http.post(f"{SHOP}/v1/refunds", json=wanted, headers=headers)).text


if __name__ == "__main__":
    server.run("streamable-http", port=int(sys.argv[1]))
