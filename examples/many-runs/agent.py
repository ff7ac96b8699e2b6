"""One process that serves 20 runs at once, each a case of its own, on one pool of connections.

``with run(case)`` names the run and ``with step(id)`` the tool call, for all that is sent inside:
the calls of 20 tasks mix on the wire, and none is taken for another's.
"""

import asyncio
import json
import os
from pathlib import Path

import httpx
from onceproxy_step import run, step

MODEL, SHOP = os.environ["OPENAI_BASE_URL"], os.environ["SHOP_URL"]
NOTES = Path(os.environ["NOTES"])
CASES = [f"case-{number}" for number in range(1, 21)]
TOOL = {
    "type": "function",
    "function": {
        "name": "refund",
        "parameters": {
            "type": "object",
            "properties": {"charge": {"type": "string"}, "amount": {"type": "integer"}},
        },
    },
}


async def handle(http, case):
    """One run, from its notes or from the beginning."""
    notes = NOTES / f"{case}.json"
    if notes.exists():
        messages = json.loads(notes.read_text())
    else:
        messages = [{"role": "user", "content": f"Please refund ch_{case}"}]
    while messages[-1]["role"] != "assistant" or messages[-1].get("tool_calls"):
        if calls := messages[-1].get("tool_calls"):
            [call] = calls
            with step(call["id"]):
                text = await refund(http, json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
        else:
            body = {"model": "scripted", "messages": messages, "tools": [TOOL]}
            answer = await http.post(f"{MODEL}/chat/completions", json=body)
            messages.append(answer.json()["choices"][0]["message"])
        remember(notes, messages)
    print(f"{case}: {messages[-1]['content']}")


async def refund(http, wanted):
    while True:
        answer = await http.post(f"{SHOP}/v1/refunds", json=wanted)
        if answer.headers.get("X-Should-Retry") != "true":
            return answer.text  # a refusal too: it says what the model may do
        await asyncio.sleep(int(answer.headers["Retry-After"]))


def remember(notes, messages):
    beside = notes.with_suffix(".new")
    with beside.open("w") as file:
        json.dump(messages, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(notes)


async def main():
    NOTES.mkdir(exist_ok=True)
    async with httpx.AsyncClient(timeout=60) as http, asyncio.TaskGroup() as tasks:
        for case in CASES:
            with run(case):  # a task keeps what was named where it was made
                tasks.create_task(handle(http, case))


asyncio.run(main())
