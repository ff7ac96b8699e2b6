"""A real ``onceproxy serve`` process and a small real API, for tests of whole programs."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).parent.parent.parent
START_SECONDS = 40.0


@dataclass
class Api:
    """What arrived. ``/lost...`` is taken and never answered, ``/slow...`` takes a second,
    ``/declined...`` is a 402."""

    url: str
    arrived: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)

    def writes(self) -> list[tuple[str, str]]:
        return [(method, path) for method, path, _, _ in self.arrived if method == "POST"]


@contextmanager
def api() -> Iterator[Api]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        api: ClassVar[Api]

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.api.arrived.append((self.command, self.path, dict(self.headers), body))
            if self.path.startswith("/lost"):
                self.close_connection = True
                return
            if self.path.startswith("/slow"):
                time.sleep(1.0)
            answer = json.dumps({"id": f"made-{len(self.api.arrived)}"}).encode()
            self.send_response(402 if self.path.startswith("/declined") else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = _serve

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Handler.api = Api(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield Handler.api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def environment(**more: str) -> dict[str, str]:
    """This one without what would configure a proxy or a client."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("ONCEPROXY_") and not name.lower().endswith("_proxy")
    }
    return kept | {"PYTHONPATH": str(ROOT)} | more


def onceproxy(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "proxy", *arguments],
        env=options.pop("env", environment()),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        **options,
    )


def limited(open_files: int) -> list[str]:
    """What to put before a command that may have only so many files open."""
    return ["sh", "-c", f'ulimit -n {open_files}; exec "$@"', "sh"]


@dataclass
class Served:
    """A running proxy."""

    process: subprocess.Popen[str]
    state_dir: Path
    listen: str
    control: str
    log: Path

    def call(self, url: str, body: bytes | None, credential: str = "") -> tuple[int, bytes]:
        """One call through it; status and body."""
        at = f"{credential}@" if credential else ""
        proxy = urllib.request.ProxyHandler({"http": f"http://{at}{self.listen}"})
        opener = urllib.request.build_opener(proxy)
        try:
            with opener.open(urllib.request.Request(url, body), timeout=60) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def served(
    state_dir: Path, *arguments: str, open_files: int | None = None, **environ: str
) -> Iterator[Served]:
    log = state_dir.with_suffix(".log")
    command = [sys.executable, "-m", "proxy", "serve", "--json", "--state-dir", str(state_dir)]
    if open_files is not None:
        command = [*limited(open_files), *command]
    with log.open("w") as err:
        process = subprocess.Popen(
            [*command, *(arguments or FREE_PORTS)],
            env=environment(**environ),
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        )
    assert process.stdout is not None
    try:
        started = json.loads(_first_object(process.stdout, log))
        yield Served(process, state_dir, started["listen"], started["control"], log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


FREE_PORTS = ("--listen", "127.0.0.1:0", "--control", "127.0.0.1:0")


def _first_object(lines: Any, log: Path) -> str:
    text = ""
    for line in lines:
        text += line
        if line.rstrip() == "}":
            return text
    raise AssertionError(f"the proxy did not start:\n{log.read_text()}")


def until(true: Any, seconds: float = START_SECONDS) -> None:
    """Wait for something another process does."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
