"""An agent whose tools are in an MCP server that it starts as its child, over stdio.

The MCP SDK gives such a child only HOME, PATH and the like. The variables that lead it through the
proxy are passed explicitly; without them its calls would go around it.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from mcp import Client, StdioServerParameters
from openai import AsyncOpenAI

NOTES = Path(os.environ["NOTES"])
THROUGH_THE_PROXY = (
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
    "PYTHONPATH", "NODE_OPTIONS",  # the step helpers
)  # fmt: skip
SERVER = StdioServerParameters(
    command=sys.executable,
    args=[str(Path(__file__).with_name("server.py"))],
    env={name: os.environ[name] for name in (*THROUGH_THE_PROXY, "SHOP_URL") if name in os.environ},
)


async def main():
    messages = [{"role": "user", "content": "Please refund ch_1842"}]
    if NOTES.exists():
        messages = json.loads(NOTES.read_text())
        print("agent: going on from my notes")
    async with Client(SERVER) as mcp, AsyncOpenAI() as model:
        tools = [described(tool) for tool in (await mcp.list_tools()).tools]
        while messages[-1]["role"] != "assistant" or messages[-1].get("tool_calls"):
            if calls := messages[-1].get("tool_calls"):
                [call] = calls
                name, arguments = call["function"]["name"], call["function"]["arguments"]
                print(f"agent: {name} {arguments}", flush=True)
                result = await mcp.call_tool(name, json.loads(arguments), meta={"step": call["id"]})
                text = result.content[0].text
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
            else:
                answer = await model.chat.completions.create(
                    model="scripted", messages=messages, tools=tools
                )
                messages.append(answer.choices[0].message.model_dump(exclude_none=True))
            remember(messages)
    print(f"agent: {messages[-1]['content']}")


def described(tool):
    """A tool of MCP as the model's API wants it."""
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.input_schema,
        },
    }


def remember(messages):
    beside = NOTES.with_suffix(".new")
    with beside.open("w") as file:
        json.dump(messages, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(NOTES)


asyncio.run(main())
