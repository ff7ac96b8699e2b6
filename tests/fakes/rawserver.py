"""A recording service on plain sockets: writes down the bytes it gets, answers with given ones.

HTTP libraries on the other side would hide most of what these tests are about.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass
class Received:
    """One request as it came."""

    head: bytes
    raw_body: bytes
    connection: int  # counted from 1

    @property
    def line(self) -> str:
        return self.head.split(b"\r\n", 1)[0].decode("latin-1")

    @property
    def method(self) -> str:
        return self.line.split(" ")[0]

    @property
    def target(self) -> str:
        return self.line.split(" ")[1]

    @property
    def fields(self) -> list[tuple[str, str]]:
        lines = self.head.decode("utf-8", "surrogateescape").split("\r\n")[1:]
        return [(name, value) for name, _, value in (line.partition(": ") for line in lines)]

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.fields if key.lower() == name.lower()]

    @property
    def body(self) -> bytes:
        if self.all("transfer-encoding"):
            return dechunk(self.raw_body)
        return self.raw_body


@dataclass
class Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    number: int

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """A TCP RST instead of an orderly end."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Script = Callable[[Received, Connection], Awaitable[None]]


async def answer_ok(received: Received, connection: Connection) -> None:
    await connection.send(OK)


def answering(data: bytes) -> Script:
    async def script(received: Received, connection: Connection) -> None:
        await connection.send(data)

    return script


async def close_without_answer(received: Received, connection: Connection) -> None:
    connection.close()


@dataclass
class RawServer:
    """``async with RawServer(script) as server``: ``server.port``, ``server.requests``."""

    script: Script = answer_ok
    tls: ssl.SSLContext | None = None
    requests: list[Received] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    host: str = "127.0.0.1"
    at: int = 0  # the port to take; 0: a free one
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def __aenter__(self) -> RawServer:
        self._server = await asyncio.start_server(self._accept, self.host, self.at, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def received(self, count: int) -> list[Received]:
        """Waits until that many requests have come."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) >= count)
        return self.requests

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.ensure_future(self._serve(Connection(reader, writer, self.connections)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: Connection) -> None:
        try:
            while not connection.writer.is_closing():
                received = await _receive(connection)
                async with self._arrived:
                    self.requests.append(received)
                    self._arrived.notify_all()
                await self.script(received, connection)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            connection.writer.close()


async def _receive(connection: Connection) -> Received:
    head = (await connection.reader.readuntil(b"\r\n\r\n")).removesuffix(b"\r\n\r\n")
    received = Received(head, b"", connection.number)
    if lengths := received.all("content-length"):
        received.raw_body = await connection.reader.readexactly(int(lengths[0]))
    elif received.all("transfer-encoding"):
        while not received.raw_body.endswith(b"0\r\n\r\n"):
            size = await connection.reader.readuntil(b"\r\n")
            rest = await connection.reader.readexactly(int(size, 16) + 2)
            received.raw_body += size + rest
    return received


def dechunk(data: bytes) -> bytes:
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        body += data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]
    return body
