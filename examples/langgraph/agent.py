"""A LangGraph agent with a checkpointer: agent.py sync | async

``sync``: a checkpoint is on disk before the next node runs, so the tool never runs under an id that
a resumed run does not know. ``async``: it is written while the next node runs. If the process dies
in between, the resumed run asks the model again, gets another tool call id, and so another step.
"""

import os
import sqlite3
import sys
import time

import requests
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.messages.utils import convert_to_openai_messages
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from onceproxy_step import langgraph_tool_call
from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel

MODEL, SHOP = OpenAI(), os.environ["SHOP_URL"]
DURABILITY = sys.argv[1]


class Refund(BaseModel):
    charge: str
    amount: int


def refund(charge: str, amount: int) -> str:
    """Pay money back."""
    print(f"agent: refund {amount} for {charge}", flush=True)
    while True:
        answer = requests.post(f"{SHOP}/v1/refunds", json={"charge": charge, "amount": amount})
        if answer.headers.get("X-Should-Retry") != "true":
            return answer.text  # a refusal too: it says what the model may do
        time.sleep(int(answer.headers["Retry-After"]))


def model(state: MessagesState):
    stream = MODEL.chat.completions.stream(
        model="scripted",
        messages=convert_to_openai_messages(state["messages"]),
        tools=[pydantic_function_tool(Refund, name="refund")],
    )
    with stream as events:
        said = events.get_final_completion().choices[0].message
    calls = [
        {
            "name": call.function.name,
            "args": call.function.parsed_arguments.model_dump(),
            "id": call.id,
        }
        for call in said.tool_calls or ()
    ]
    return {"messages": [AIMessage(said.content or "", tool_calls=calls)]}


class SlowSaver(SqliteSaver):
    """As a database across a network may be: the checkpoint with the tool call takes long."""

    def put(self, config, checkpoint, metadata, new_versions):
        if metadata["step"] == 1:
            time.sleep(3)
        return super().put(config, checkpoint, metadata, new_versions)


graph = StateGraph(MessagesState)
graph.add_node("model", model)
graph.add_node("tools", ToolNode([refund], wrap_tool_call=langgraph_tool_call))
graph.add_edge(START, "model")
graph.add_conditional_edges("model", tools_condition, {"tools": "tools", END: END})
graph.add_edge("tools", "model")

notes = SlowSaver(sqlite3.connect(os.environ["NOTES"], check_same_thread=False))
agent = graph.compile(checkpointer=notes)
thread = {"configurable": {"thread_id": "case-1842"}}
begun = agent.get_state(thread).next
if begun:
    print(f"agent: going on from my checkpoint, at {begun[0]}")
done = agent.invoke(
    None if begun else {"messages": [HumanMessage("Please refund ch_1842")]},
    thread,
    durability=DURABILITY,
)
print(f"agent: {done['messages'][-1].content}")
