"""The processes of one measurement: the API, a proxy under test, the load generator."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import machine

START_SECONDS = 30.0  # a cold start takes about one; the rest is for a busy machine
STOP_SECONDS = 15.0

RULE = """\
service: bench
hosts: ["127.0.0.1:{port}"]
source: bench/upstream.py
confidence: documented
key: {{in: header, name: Idempotency-Key, valid_for: 24h, keeps: all}}
endpoints:
  things.create:
    match: POST /v1/things
    external_id: id
"""


class DidNotStart(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy under test. ``metrics`` is the address of its counters, if it keeps any."""

    pid: int
    port: int
    metrics: str | None = None

    def commits(self) -> float:
        """How many transactions its ledger has committed so far."""
        if self.metrics is None:
            return 0.0
        total = 0.0
        for line in _get(self.metrics).splitlines():
            if line.startswith("onceproxy_ledger_commit_seconds_count"):
                total += float(line.rpartition(" ")[2])
        return total


def _get(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as answer:
        return str(answer.read().decode())


@contextmanager
def _process(command: list[str], log: Path) -> Iterator[subprocess.Popen[str]]:
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _wait_for_ready(process: subprocess.Popen[str], log: Path) -> None:
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise DidNotStart(f"{process.args!r}: {log.read_text()[-2000:]}")


@contextmanager
def upstream(folder: Path) -> Iterator[int]:
    port, log = machine.free_port(), folder / "upstream.log"
    with _process([sys.executable, "-m", "bench.upstream", str(port)], log) as process:
        _wait_for_ready(process, log)
        yield port


@contextmanager
def plain(folder: Path, upstream_port: int) -> Iterator[Proxy]:
    port, log = machine.free_port(), folder / "plain.log"
    with _process([sys.executable, "-m", "bench.plain", str(port)], log) as process:
        _wait_for_ready(process, log)
        yield Proxy(process.pid, port)


@contextmanager
def mitmdump(folder: Path, upstream_port: int, program: Path) -> Iterator[Proxy]:
    """The best known proxy in Python, which keeps nothing: flows are neither shown nor stored."""
    port, log = machine.free_port(), folder / "mitmdump.log"
    with tempfile.TemporaryDirectory(dir=folder) as home:
        options = ["--listen-host", "127.0.0.1", "--listen-port", str(port), "--quiet"]
        settings = ["--set", f"confdir={home}", "--set", "flow_detail=0"]
        with _process([str(program), *options, *settings], log) as process:
            end = time.monotonic() + START_SECONDS
            while not _listens(port):
                if time.monotonic() > end or process.poll() is not None:
                    raise DidNotStart(f"{program}: {log.read_text()[-2000:]}")
                time.sleep(0.05)  # it has no way to say so
            yield Proxy(process.pid, port)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@contextmanager
def onceproxy(folder: Path, upstream_port: int, *, slow_ms: float | None = None) -> Iterator[Proxy]:
    """onceproxy with a new ledger and everything durable; ``slow_ms`` plants a slower disk."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        home = Path(name)
        port, control = machine.free_port(), machine.free_port()
        (home / "rules").mkdir()
        (home / "rules" / "bench.yaml").write_text(RULE.format(port=upstream_port))
        config = home / "config.yaml"
        config.write_text(
            f'listen: "127.0.0.1:{port}"\n'
            f'control: {{listen: "127.0.0.1:{control}"}}\n'
            f'state_dir: "{home / "state"}"\n'
            f'rules: ["{home / "rules"}"]\n'
            "tls: {intercept: none}\n"
            "log: {level: warning}\n"
        )
        command = [sys.executable, "-c", "from proxy.cli import main; main()"]
        if slow_ms is not None:
            command = [sys.executable, "-m", "bench.slow_commit", str(slow_ms)]
        log = folder / "onceproxy.log"
        with _process([*command, "serve", "--config", str(config)], log) as process:
            control_url = f"http://127.0.0.1:{control}"
            _wait_until_answering(f"{control_url}/readyz", process, log)
            yield Proxy(process.pid, port, f"{control_url}/metrics")


def _wait_until_answering(url: str, process: subprocess.Popen[str], log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            _get(url)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.05)  # the only way to learn that another process listens
        else:
            return
    raise DidNotStart(f"onceproxy serve: {log.read_text()[-2000:]}")


class Load:
    """The load generator, warmed up and waiting: ``measure`` lets it go."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def measure(self) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        result: dict[str, Any] = json.loads(self._process.stdout.readline())
        return result


@contextmanager
def load(plan: dict[str, Any]) -> Iterator[Load]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.load"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    try:
        process.stdin.write(json.dumps(plan) + "\n")
        process.stdin.flush()
        if process.stdout.readline() != "warm\n":
            raise DidNotStart("the load generator ended while warming up")
        yield Load(process)
    finally:
        process.kill()
        process.communicate()


def count(upstream_port: int) -> dict[str, int]:
    counted: dict[str, int] = json.loads(_get(f"http://127.0.0.1:{upstream_port}/count"))
    return counted
