"""A client on a plain socket: sends given bytes, and reads answers without making them nicer."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass

from tests.fakes.rawserver import dechunk


@dataclass
class Got:
    status: int
    reason: str
    fields: list[tuple[str, str]]
    body: bytes
    raw_body: bytes

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.fields if key.lower() == name.lower()]


class RawClient:
    """``async with RawClient(port) as client``."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def __aenter__(self) -> RawClient:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except (OSError, ssl.SSLError):
            pass

    async def send(self, data: bytes | str) -> None:
        self.writer.write(data.encode() if isinstance(data, str) else data)
        await self.writer.drain()

    async def ask(self, data: bytes | str, *, method: str = "GET") -> Got:
        await self.send(data)
        return await self.answer(method=method)

    async def answer(self, *, method: str = "GET") -> Got:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("utf-8", "surrogateescape")
        first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
        _, status, reason = (first + " ").split(" ", 2)
        got = Got(int(status), reason.strip(), [], b"", b"")
        got.fields = [(name, value) for name, _, value in (x.partition(": ") for x in lines)]
        if method == "HEAD" or got.status in (204, 304) or got.status < 200:
            return got
        if got.all("transfer-encoding"):
            while not got.raw_body.endswith(b"0\r\n\r\n"):
                size = await self.reader.readuntil(b"\r\n")
                got.raw_body += size + await self.reader.readexactly(int(size, 16) + 2)
            got.body = dechunk(got.raw_body)
        elif lengths := got.all("content-length"):
            got.body = got.raw_body = await self.reader.readexactly(int(lengths[0]))
        else:
            got.body = got.raw_body = await self.reader.read()
        return got

    async def closed(self) -> bytes:
        """Whatever still comes until the other side ends the connection."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""

    async def start_tls(self, context: ssl.SSLContext, name: str) -> None:
        await self.writer.start_tls(context, server_hostname=name)
