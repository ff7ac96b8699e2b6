"""An agent whose tools are on an MCP server, reached over streamable HTTP.

Each ``tools/call`` is a POST and goes through the proxy; ``step(id)`` around it names it. That a
session opens anew, and looks around anew, is nothing to protect: ../../rules/mcp.yaml says so.
"""

import asyncio
import json
import os
from pathlib import Path

from mcp import Client, MCPError
from onceproxy_step import step
from openai import AsyncOpenAI

NOTES = Path(os.environ["NOTES"])


async def main():
    messages = [{"role": "user", "content": "Please refund ch_1842"}]
    if NOTES.exists():
        messages = json.loads(NOTES.read_text())
        print("agent: going on from my notes")
    async with Client(os.environ["MCP_URL"]) as mcp, AsyncOpenAI() as model:
        tools = [described(tool) for tool in (await mcp.list_tools()).tools]
        while messages[-1]["role"] != "assistant" or messages[-1].get("tool_calls"):
            if calls := messages[-1].get("tool_calls"):
                [call] = calls
                name, arguments = call["function"]["name"], call["function"]["arguments"]
                print(f"agent: {name} {arguments}", flush=True)
                with step(call["id"]):
                    text = await result_of(mcp, name, json.loads(arguments))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
            else:
                answer = await model.chat.completions.create(
                    model="scripted", messages=messages, tools=tools
                )
                messages.append(answer.choices[0].message.model_dump(exclude_none=True))
            remember(messages)
    print(f"agent: {messages[-1]['content']}")


async def result_of(mcp, name, arguments):
    while True:
        try:
            return (await mcp.call_tool(name, arguments)).content[0].text
        except MCPError as refused:
            if not (refused.data or {}).get("retryable"):
                return refused.message  # it says what the model may do
            await asyncio.sleep(5)


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
