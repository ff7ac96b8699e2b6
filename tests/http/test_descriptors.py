"""File descriptors at their limit (bar R16): callers are told, people can look, nothing floods.

The proxy is a process of its own with 64 descriptors; 200 callers come at once and stay. The
control is a plain aiohttp server under the same load.
"""

from __future__ import annotations

import selectors
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tests import reliability
from tests.fakes.served import api, environment, limited, served

LIMIT = 64
CALLERS = 200
SECONDS = 3.0  # that the callers stay
LINES_PER_SECOND = 10
RECOVERY = 2.0  # seconds

PLAIN = """
import asyncio
from aiohttp import web
async def slow(request):
    await asyncio.sleep(1)
    return web.Response(text="hello")
app = web.Application()
app.router.add_route("*", "/{path:.*}", slow)
async def main():
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


def crowd(port: int, request: bytes) -> tuple[list[socket.socket], dict[int, bytes]]:
    """All callers, connected and with their request sent; and what each of them hears by the end of
    their stay."""
    callers = [socket.create_connection(("127.0.0.1", port)) for _ in range(CALLERS)]
    heard = {caller.fileno(): b"" for caller in callers}
    with selectors.DefaultSelector() as selector:
        for caller in callers:
            try:
                caller.sendall(request)
            except OSError:
                pass  # it was turned away before it spoke: its answer is there to be read
            selector.register(caller, selectors.EVENT_READ)
        end = time.monotonic() + SECONDS
        while (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                caller = key.fileobj
                assert isinstance(caller, socket.socket)
                try:
                    data = caller.recv(1 << 16)
                except OSError:
                    data = b""
                heard[key.fd] += data
                if not data:
                    selector.unregister(caller)
    return callers, heard


def status_of(answer: bytes) -> int:
    return int(answer[9:12]) if answer else 0


def test_callers_at_the_limit_of_descriptors_are_told_and_nothing_floods(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with (
        api() as service,
        served(state, open_files=LIMIT, ONCEPROXY_EGRESS_ALLOW="127.0.0.1") as proxy,
    ):
        host = service.url.removeprefix("http://")
        control = f"http://{proxy.control}"
        ask = f"GET {service.url}/slow HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
        port = int(proxy.listen.rpartition(":")[2])
        before = proxy.log.read_text()
        assert f"the limit of open files is {LIMIT}" in before
        began = time.monotonic()
        callers, heard = crowd(port, ask)
        for path in ("/metrics", "/readyz", "/healthz"):
            with urllib.request.urlopen(control + path, timeout=5) as response:
                assert response.status == 200
                if path == "/metrics":
                    counted = response.read().decode()
        seconds = time.monotonic() - began
        lines = proxy.log.read_text()[len(before) :].count("\n")
        for caller in callers:
            caller.close()
        left = time.monotonic()
        while status_of(_once(port, ask.replace(b"/slow", b"/quick"))) != 200:
            assert time.monotonic() - left < RECOVERY
            time.sleep(0.02)
        recovered = time.monotonic() - left
    told = [status_of(answer) for answer in heard.values()]
    assert set(told) == {200, 503}, told
    assert told.count(503) > CALLERS / 2
    assert f'onceproxy_turned_away_total{{reason="connections"}} {told.count(503)}.0' in counted
    assert lines / seconds < LINES_PER_SECOND
    reliability.figure(
        "R16",
        f"{CALLERS} callers, {LIMIT} file descriptors",
        part="HTTP",
        answered=told.count(200),
        told_503=told.count(503),
        without_an_answer=told.count(0),
        log_lines_per_second=lines / seconds,
        seconds_to_recover=recovered,
    )


def _once(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as caller:
        caller.sendall(request)
        return caller.recv(1 << 16)


def test_control_a_plain_server_floods_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as err:
        process = subprocess.Popen(
            [*limited(LIMIT), sys.executable, "-c", PLAIN],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        )
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        callers, heard = crowd(port, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        lines = log.read_text().count("\n")
        for caller in callers:
            caller.close()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    without = sum(not answer for answer in heard.values())
    assert lines / SECONDS > LINES_PER_SECOND
    assert without > 0
    reliability.control(
        "R16",
        "a plain aiohttp server",
        f"{lines:,} log lines, {without} of {CALLERS} callers without an answer",
        part="HTTP",
    )
