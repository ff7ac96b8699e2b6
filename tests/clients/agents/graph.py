"""A plain LangGraph agent: a streaming model that calls one tool, which writes: MODEL URL.

Nothing here knows of a proxy but the step helper around the tools. Prints each event of the model
as it comes, and what the tool got.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import requests
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from onceproxy_step import langgraph_tool_call  # type: ignore[import-not-found]
from openai import OpenAI

MODEL, URL = sys.argv[1:]
ROLES = {"human": "user", "ai": "assistant", "tool": "tool"}
FUNCTION = {"name": "refund", "parameters": {"type": "object", "properties": {}}}


def show(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def refund(amount: int) -> str:
    """Pay money back."""
    answer = requests.post(URL, json={"amount": amount}, timeout=30)
    show(tool=answer.json()["id"], outcome=answer.headers["Onceproxy-Outcome"])
    return answer.text


def model(state: MessagesState) -> dict[str, Any]:
    messages = [{"role": ROLES[one.type], "content": one.content} for one in state["messages"]]
    calls, said = [], ""
    with OpenAI(api_key="sk-test", base_url=MODEL) as client:
        stream = client.chat.completions.create(
            model="m",
            messages=messages,  # type: ignore[arg-type]
            tools=[{"type": "function", "function": FUNCTION}],  # type: ignore[list-item]
            stream=True,
        )
        for chunk in stream:
            delta = chunk.choices[0].delta
            show(event=delta.content)
            said += delta.content or ""
            for call in delta.tool_calls or ():
                arguments = json.loads(call.function.arguments)  # type: ignore[union-attr, arg-type]
                calls.append({"name": "refund", "args": arguments, "id": call.id})
    return {"messages": [AIMessage(said, tool_calls=calls)]}


graph = StateGraph(MessagesState)
graph.add_node("model", model)
graph.add_node("tools", ToolNode([refund], wrap_tool_call=langgraph_tool_call))
graph.add_edge(START, "model")
graph.add_conditional_edges("model", tools_condition, {"tools": "tools", END: END})
graph.add_edge("tools", "model")
done = graph.compile().invoke({"messages": [HumanMessage("Refund it.")]})
show(done=sum(isinstance(one, ToolMessage) for one in done["messages"]))
