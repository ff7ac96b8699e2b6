"""An MCP server that the agent starts as its child, with one tool that writes.

It is on the agent's side of the proxy: its own calls go through it. The step comes with each call,
in ``_meta``.
"""

import asyncio
import os

import httpx
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from onceproxy_step import step

SHOP = os.environ["SHOP_URL"]
server = MCPServer("refunds")


@server.tool()
async def refund(charge: str, amount: int, context: Context) -> str:
    """Pay money back."""
    wanted = {"charge": charge, "amount": amount}
    with step(context.request_context.meta["step"]):
        async with httpx.AsyncClient(timeout=60) as http:
            while True:
                answer = await http.post(f"{SHOP}/v1/refunds", json=wanted)
                if answer.headers.get("X-Should-Retry") != "true":
                    return answer.text  # a refusal too: it says what the model may do
                await asyncio.sleep(int(answer.headers["Retry-After"]))


if __name__ == "__main__":
    server.run("stdio")
