"""An agent of the OpenAI Agents SDK that can be killed.

The SDK writes its session down after a turn, tools included: too late for the id of a tool call. So
``Remembering`` keeps each answer of the model before the tools run, and gives a resumed run the
answers it had. ``agents_tool`` makes each tool call a step.
"""

import asyncio
import os
from pathlib import Path

import httpx
from agents import (
    Agent,
    Model,
    ModelResponse,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from onceproxy_step import agents_tool
from openai import AsyncOpenAI
from pydantic import TypeAdapter

SHOP, NOTES = os.environ["SHOP_URL"], Path(os.environ["NOTES"])
ANSWERS = TypeAdapter(list[ModelResponse])


class Remembering(Model):
    def __init__(self, model):
        self.model, self.next, self.answers = model, 0, []
        if NOTES.exists():
            self.answers = ANSWERS.validate_json(NOTES.read_bytes())
            print(f"agent: I have {len(self.answers)} answer of the model in my notes")

    async def get_response(self, *args, **kwargs):
        if self.next == len(self.answers):
            self.answers.append(await self.model.get_response(*args, **kwargs))
            remember(ANSWERS.dump_json(self.answers))
        self.next += 1
        return self.answers[self.next - 1]

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError


def remember(answers):
    beside = NOTES.with_suffix(".new")
    with beside.open("wb") as file:
        file.write(answers)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(NOTES)


@function_tool
async def refund(charge: str, amount: int) -> str:
    """Pay money back."""
    print(f"agent: refund {amount} for {charge}", flush=True)
    async with httpx.AsyncClient(timeout=60) as http:
        while True:
            wanted = {"charge": charge, "amount": amount}
            answer = await http.post(f"{SHOP}/v1/refunds", json=wanted)
            if answer.headers.get("X-Should-Retry") != "true":
                return answer.text  # a refusal too: it says what the model may do
            await asyncio.sleep(int(answer.headers["Retry-After"]))


async def main():
    set_tracing_disabled(True)  # nothing here for OpenAI's own service
    agent = Agent(
        name="support",
        model=Remembering(OpenAIChatCompletionsModel("scripted", AsyncOpenAI())),
        tools=[agents_tool(refund)],
    )
    done = await Runner.run(agent, "Please refund ch_1842")
    print(f"agent: {done.final_output}")


asyncio.run(main())
