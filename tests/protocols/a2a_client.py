"""An agent's message to another agent with the official SDK: a2a_client.py URL BINDING STREAMING"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid

import httpx
from a2a.client import ClientConfig, create_client
from a2a.client.errors import A2AClientError
from a2a.types import Message, Part, Role, SendMessageRequest
from google.protobuf.json_format import MessageToDict


async def main() -> None:
    url, binding, streaming = sys.argv[1:]
    async with httpx.AsyncClient(timeout=60) as http:
        config = ClientConfig(
            streaming=streaming == "stream",
            httpx_client=http,
            supported_protocol_bindings=[binding],
        )
        client = await create_client(url, config)
        message = Message(
            message_id=str(uuid.uuid4()), role=Role.ROLE_USER, parts=[Part(text="Book it")]
        )
        last = None
        try:
            async for told in client.send_message(SendMessageRequest(message=message)):
                last = told
            print(json.dumps(MessageToDict(last) if last is not None else None), flush=True)
        except A2AClientError as error:
            print(json.dumps({"refused": str(error)}), flush=True)


asyncio.run(main())
