"""An agent as plain as can be: a loop around a model, one tool, and its notes in a file.

What makes it safe to kill: the notes hold the model's answer, with the id of the tool call, before
the tool runs; and the tool runs inside ``step(id)``, repeats of it included. That is all.
"""

import json
import os
import time
from pathlib import Path

import requests
from onceproxy_step import step

MODEL, SHOP = os.environ["OPENAI_BASE_URL"], os.environ["SHOP_URL"]
NOTES = Path(os.environ["NOTES"])
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


def refund(charge, amount):
    while True:
        answer = requests.post(f"{SHOP}/v1/refunds", json={"charge": charge, "amount": amount})
        if answer.headers.get("X-Should-Retry") != "true":
            return answer.text  # a refusal too: it says what the model may do
        time.sleep(int(answer.headers["Retry-After"]))


def ask(messages):
    body = {"model": "scripted", "messages": messages, "tools": [TOOL]}
    answer = requests.post(f"{MODEL}/chat/completions", json=body)
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]


def remember(messages):
    beside = NOTES.with_suffix(".new")
    with beside.open("w") as file:
        json.dump(messages, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(NOTES)


def open_calls(messages):
    """The tool calls that were asked for and have no result yet."""
    done = {one["tool_call_id"] for one in messages if one["role"] == "tool"}
    calls = [call for one in messages for call in one.get("tool_calls") or ()]
    return [call for call in calls if call["id"] not in done]


messages = [{"role": "user", "content": "Please refund ch_1842"}]
if NOTES.exists():
    messages = json.loads(NOTES.read_text())
    print("agent: going on from my notes")

while messages[-1]["role"] != "assistant" or open_calls(messages):
    if not open_calls(messages):
        messages.append(ask(messages))
        remember(messages)  # before the tool runs: a resumed run needs the same id
    for call in open_calls(messages):
        print(f"agent: {call['function']['name']} {call['function']['arguments']}", flush=True)
        with step(call["id"]):
            result = refund(**json.loads(call["function"]["arguments"]))
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        remember(messages)

print(f"agent: {messages[-1]['content']}")
