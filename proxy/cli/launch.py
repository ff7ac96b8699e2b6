"""Finding the proxy of a state directory, or starting one for as long as a command runs."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from proxy.cli.client import NotRunning, Refused, Serving, ask, serving
from proxy.cli.common import LEDGER, PORT
from proxy.config import Config
from proxy.configload import Loaded

START_SECONDS = 30.0  # a start takes one second; a loaded machine or a long recovery takes more
POLL_SECONDS = 0.05
STOP_SECONDS = 40.0  # the default of limits.drain and some more


class CannotStart(Exception):
    """The proxy did not come up; ``code`` is its exit code."""

    def __init__(self, code: int, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.code = code
        self.lines = tuple(lines)


@contextlib.contextmanager
def proxy_for(loaded: Loaded, arguments: Sequence[str]) -> Iterator[Serving]:
    """The proxy that runs with this state directory; without one, one that is started with these
    arguments of ``serve`` and stopped again at the end. Raises CannotStart."""
    found = running(loaded.config)
    if found is not None:
        yield found
        return
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as told:
        process, found = _start(loaded, arguments, told)
        try:
            yield found
        finally:
            if process is not None:
                _stop(process)


def running(config: Config) -> Serving | None:
    """The proxy of this state directory if it answers."""
    found = serving(config)
    if found is None:
        return None
    try:
        ask(found.control, "/readyz")
    except (NotRunning, Refused):
        return None
    return found


def calls_seen(found: Serving) -> float:
    """How many calls and connections a proxy has had, as its metrics count them."""
    try:
        text = str(_metrics(found))
    except (NotRunning, Refused):
        return 0.0
    counted = re.findall(
        r"^onceproxy_(?:calls|tunnels|unprotected)_total(?:\{[^}]*\})? ([0-9.e+]+)$", text, re.M
    )
    return sum(float(number) for number in counted)


def _metrics(found: Serving) -> str:
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{found.control}/metrics", timeout=10) as response:
            return str(response.read().decode())
    except OSError as error:
        raise NotRunning(str(error)) from error


def _start(
    loaded: Loaded, arguments: Sequence[str], told: IO[str]
) -> tuple[subprocess.Popen[str] | None, Serving]:
    """Another command may be starting one at this moment: the ledger lets only one of them win, and
    the other uses that one. Where the default ports are taken by a proxy with another state
    directory, free ones are used."""
    for ports in ((), _free_ports(loaded)):
        process = _spawn([*arguments, *ports], told)
        found = _wait(process, loaded.config)
        if found is not None:
            return process, found
        code = process.wait()
        if code == LEDGER and (other := _wait_for_other(loaded.config)) is not None:
            return None, other
        if code != PORT or not _free_ports(loaded):
            break
    told.seek(0)
    raise CannotStart(code if code > 0 else PORT, told.read().strip().splitlines()[-20:])


def _free_ports(loaded: Loaded) -> list[str]:
    names = {"listen": "--listen", "control.listen": "--control"}
    chosen = [name for name in names if name in loaded.origins]
    if chosen:
        return []  # the user wants those and no others
    return [part for flag in names.values() for part in (flag, "127.0.0.1:0")]


def _spawn(arguments: Sequence[str], told: IO[str]) -> subprocess.Popen[str]:
    # -P: a proxy.py in the user's working directory must not be taken for this package.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "proxy", "serve", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=told,
        stderr=told,
        text=True,
        env=_plain_environment(),
        start_new_session=True,  # Ctrl-C is for the command; the proxy is stopped after it
    )


def _plain_environment() -> dict[str, str]:
    package = str(Path(__file__).parent.parent.parent)
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path}


def _wait(process: subprocess.Popen[str], config: Config) -> Serving | None:
    """Until it takes calls; None once it has ended."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            return None
        found = serving(config)
        if found is not None and found.pid == process.pid and running(config) is not None:
            return found
        time.sleep(POLL_SECONDS)
    process.kill()
    return None


def _wait_for_other(config: Config) -> Serving | None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if (found := running(config)) is not None:
            return found
        time.sleep(POLL_SECONDS)
    return None


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
