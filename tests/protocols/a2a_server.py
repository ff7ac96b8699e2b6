"""A real A2A agent (the official SDK's) that leaves a line in a file: a2a_server.py PORT DIR

By JSON-RPC at /rpc and by REST below /rest. It answers only once DIR/go is there.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvicorn
from a2a.helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import (
    create_agent_card_routes,
    create_jsonrpc_routes,
    create_rest_routes,
)
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from starlette.applications import Starlette

PORT, DIRECTORY = int(sys.argv[1]), Path(sys.argv[2])


class Books(AgentExecutor):  # type: ignore[misc]
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task = context.current_task or new_task_from_user_message(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        with (DIRECTORY / "effects").open("a") as file:
            file.write(f"{context.message.message_id}\n")
        while not (DIRECTORY / "go").exists():
            await asyncio.sleep(0.02)
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


def interface(binding: str, path: str) -> AgentInterface:
    url = f"http://127.0.0.1:{PORT}/{path}"
    return AgentInterface(url=url, protocol_binding=binding, protocol_version="1.0")


card = AgentCard(
    name="books",
    description="Books a room",
    version="1",
    supported_interfaces=[interface("JSONRPC", "rpc"), interface("HTTP+JSON", "rest")],
    capabilities=AgentCapabilities(streaming=True),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    skills=[AgentSkill(id="book", name="book", description="books", tags=["book"])],
)
handler = DefaultRequestHandler(Books(), InMemoryTaskStore(), card)
app = Starlette(
    routes=[
        *create_agent_card_routes(card),
        *create_jsonrpc_routes(handler, "/rpc"),
        *create_rest_routes(handler, path_prefix="/rest"),
    ]
)
uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="warning")
