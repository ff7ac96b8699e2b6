"""Large bodies both ways through a proxy of its own process, whose memory does not grow with them.

`make test` moves 16 MiB each time, `make test-all` 100 MiB.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests import reliability
from tests.fakes.rawclient import RawClient
from tests.fakes.served import served

MIB = 1 << 20
PIECE = bytes(range(256)) * 256  # 64 KiB
GROWTH = 20_000_000  # bytes
SIZES = [16, pytest.param(100, marks=pytest.mark.slow)]
PAUSE = 0.2  # seconds in which a slow side takes nothing


@asynccontextmanager
async def service() -> AsyncIterator[tuple[int, dict[str, str]]]:
    """``GET /N`` answers N MiB, sized, or chunked with ``/N/chunked``; a POST is digested, after a
    rest. Gives its port and the digests by target."""
    digests: dict[str, str] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, target, _ = head.split("\r\n")[0].split(" ")
        if method == "GET":
            pieces = int(target.split("/")[1]) * MIB // len(PIECE)
            chunked = target.endswith("/chunked")
            size = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {pieces << 16}"
            writer.write(f"HTTP/1.1 200 OK\r\n{size}\r\n\r\n".encode())
            for _ in range(pieces):
                writer.write(b"10000\r\n" + PIECE + b"\r\n" if chunked else PIECE)
                await writer.drain()
            writer.write(b"0\r\n\r\n" if chunked else b"")
        else:
            await asyncio.sleep(PAUSE)
            digest = hashlib.sha256()
            if "transfer-encoding" in head.lower():
                while size := int(await reader.readuntil(b"\r\n"), 16):
                    digest.update((await reader.readexactly(size + 2))[:-2])
                await reader.readexactly(2)
            else:
                left = int(head.lower().partition("content-length:")[2].split("\r\n")[0])
                while left:
                    data = await reader.read(min(left, 1 << 16))
                    digest.update(data)
                    left -= len(data)
            digests[target] = digest.hexdigest()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], digests


class Memory:
    """A process's resident memory, and the most of it since the last look."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")
        if not self._folder.exists():
            pytest.skip("needs /proc")

    def begin(self) -> int:
        (self._folder / "clear_refs").write_text("5")  # forgets the peak
        return self._of("VmRSS")

    def peak(self) -> int:
        return self._of("VmHWM")

    def _of(self, name: str) -> int:
        lines = (self._folder / "status").read_text().splitlines()
        [line] = [line for line in lines if line.startswith(name)]
        return int(line.split()[1]) * 1024


async def down(client: RawClient, head: str) -> str:
    await client.send(head)
    await asyncio.sleep(PAUSE)  # a slow caller: what it does not take must not pile up
    got = (await client.reader.readuntil(b"\r\n\r\n")).decode().lower()
    assert got.startswith("http/1.1 200"), got
    digest = hashlib.sha256()
    if "transfer-encoding: chunked" in got:
        while size := int(await client.reader.readuntil(b"\r\n"), 16):
            digest.update((await client.reader.readexactly(size + 2))[:-2])
    else:
        left = int(got.partition("content-length:")[2].split("\r\n")[0])
        while left:
            data = await client.reader.read(min(left, 1 << 16))
            assert data
            digest.update(data)
            left -= len(data)
    return digest.hexdigest()


async def up(client: RawClient, head: str, pieces: int, chunked: bool) -> None:
    await client.send(head)
    for _ in range(pieces):
        await client.send(b"10000\r\n" + PIECE + b"\r\n" if chunked else PIECE)
    await client.send(b"0\r\n\r\n" if chunked else b"")
    got = await client.answer()
    assert (got.status, got.body) == (200, b"ok"), got.body


@pytest.mark.duty("A-30")
@pytest.mark.parametrize("size", SIZES)
async def test_memory_does_not_grow_with_the_bodies(size: int, tmp_path: Path) -> None:
    limits = {"ONCEPROXY_LIMITS_REQUEST_BODY": "200MB", "ONCEPROXY_EGRESS_ALLOW": "127.0.0.1"}
    identity = "X-Run-Id: large\r\nX-Step-Id: {}\r\n"
    async with service() as (port, digests):
        with served(tmp_path / "state", **limits) as proxy:
            at = int(proxy.listen.rpartition(":")[2])
            memory = Memory(proxy.process.pid)
            url = f"http://127.0.0.1:{port}"
            pieces = size * MIB // len(PIECE)
            whole = hashlib.sha256()
            for _ in range(pieces):
                whole.update(PIECE)
            expected = whole.hexdigest()
            host = f"Host: 127.0.0.1:{port}\r\n"
            sized, chunks = f"Content-Length: {size * MIB}\r\n", "Transfer-Encoding: chunked\r\n"
            ups = {
                "passed on, sized": sized,
                "passed on, chunked": chunks,
                "recorded, sized": sized + identity.format("a"),
                "recorded, chunked": chunks + identity.format("b"),
            }
            growth = {}
            async with RawClient(at) as client:  # what everything needs once
                await down(client, f"GET {url}/1 HTTP/1.1\r\n{host}\r\n")
            for name, target in {"sized": f"/{size}", "chunked": f"/{size}/chunked"}.items():
                before = memory.begin()
                async with RawClient(at) as client, asyncio.timeout(100):
                    got = await down(client, f"GET {url}{target} HTTP/1.1\r\n{host}\r\n")
                assert got == expected
                growth[f"down, {name}"] = memory.peak() - before
            for name, fields in ups.items():
                before = memory.begin()
                target = "/" + name.replace(", ", "-").replace(" ", "-")
                async with RawClient(at) as client, asyncio.timeout(100):
                    head = f"POST {url}{target} HTTP/1.1\r\n{host}{fields}\r\n"
                    await up(client, head, pieces, "chunked" in name)
                assert digests[target] == expected
                growth[f"up, {name}"] = memory.peak() - before
    assert max(growth.values()) < GROWTH, growth
    for name, grown in growth.items():
        reliability.figure(
            "100 MiB",
            f"{size} MiB {name}",
            part="HTTP",
            MB_of_memory_at_most=round(grown / 1e6, 1),
        )
