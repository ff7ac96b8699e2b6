"""A parent proxy as a process of its own: absolute form and CONNECT, with a credential if it wants
one. ``python parent.py [USER:PASSWORD]`` prints its port, then one line for each request it got.

It resolves every name that ends in ``.test`` to this machine, as a company's name server would know
names that nobody else does.
"""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Parent:
    port: int
    process: subprocess.Popen[str]

    def requests(self) -> list[str]:
        """``METHOD TARGET STATUS`` of everything it was asked; ends the process."""
        self.process.terminate()
        assert self.process.stdout is not None
        with self.process.stdout as out:
            found = out.read().splitlines()
        self.process.wait()
        return found


@contextmanager
def parent(credential: str = "") -> Iterator[Parent]:
    process = subprocess.Popen(
        [sys.executable, "-u", str(Path(__file__)), *([credential] if credential else [])],
        stdout=subprocess.PIPE,
        text=True,
        env={k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")},
    )
    assert process.stdout is not None
    try:
        yield Parent(int(process.stdout.readline()), process)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def serve(credential: str) -> None:
    wanted = "Basic " + base64.b64encode(credential.encode()).decode()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await one(reader, writer, wanted if credential else "")
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wanted: str) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *fields = head.rstrip("\r\n").split("\r\n")
    method, target, _ = line.split(" ")
    given = [f.partition(": ")[2] for f in fields if f.lower().startswith("proxy-authorization:")]
    if wanted and given != [wanted]:
        print(f"{method} {target} 407")
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        return
    print(f"{method} {target} 200")
    where = target if method == "CONNECT" else target.split("/", 3)[2]
    host, _, port = where.rpartition(":")
    onward = await asyncio.open_connection("127.0.0.1" if host.endswith(".test") else host, port)
    if method == "CONNECT":
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    else:
        path = "/" + target.split("/", 3)[3]
        kept = [f for f in fields if not f.lower().startswith("proxy-")]
        onward[1].write("\r\n".join([f"{method} {path} HTTP/1.1", *kept, "", ""]).encode())
    await asyncio.gather(pour(reader, onward[1]), pour(onward[0], writer))


async def pour(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    except OSError:
        pass
    sink.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1] if len(sys.argv) > 1 else ""))
