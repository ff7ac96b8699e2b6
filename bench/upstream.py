"""The API behind the proxies: answers every POST with a new thing and counts what reached it.

``GET /count`` gives ``{"hits": n, "keys": m}``: the POSTs, and the different X-Bench-Key values
among them. Both must equal the number of keys that the load generator used, whatever it repeated.
"""

from __future__ import annotations

import asyncio
import json
import sys

from bench import http1, loop


class Api(asyncio.Protocol):
    hits = 0
    keys: set[bytes] = set()  # noqa: RUF012 - one server per process: the class is its state
    padding = "x" * 240  # makes the answer about 330 bytes, as small API answers are

    def __init__(self) -> None:
        self.buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := http1.message_end(self.buffer)) > 0:
            message = bytes(self.buffer[:end])
            del self.buffer[:end]
            self.answer(message)

    def answer(self, message: bytes) -> None:
        if message.startswith(b"POST "):
            head = message[: http1.head_end(message)].lower()
            Api.hits += 1
            Api.keys.add(http1.field(head, b"x-bench-key") or b"")
            body = {"id": f"thing_{Api.hits:012d}", "object": "thing", "note": self.padding}
        else:
            body = {"hits": Api.hits, "keys": len(Api.keys)}
        data = json.dumps(body).encode()
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (len(data), data)
        )


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Api, "127.0.0.1", port, backlog=1024)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    loop.run(main(int(sys.argv[1])))
