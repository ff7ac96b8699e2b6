"""Lives of the proxy as processes, made quickly: one process that has everything imported, rules
read and certificates loaded forks a child for each life. ``lives.py`` is its other end.

A life can be told to die by SIGKILL when a task is about to go on for the n-th time, counted over
all tasks of its loop: that is every suspension point of what it does.

    python -m tests.faults.zygote SOCKET      (one JSON object a line on its standard input)
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # not found any more by a life that is another user
import contextlib
import functools
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Generator
from pathlib import Path
from typing import Any

from proxy import app, log
from proxy.config import Config
from proxy.configload import Loaded, load
from proxy.net import upstream
from tests.faults import shim
from tests.faults.plants import PLANTS


class Counter:
    """Counts how often a task went on; ``kill_at`` 0: never dies."""

    def __init__(self) -> None:
        self.armed = False
        self.count = self.kill_at = 0

    def arm(self, kill_at: int) -> None:
        self.armed, self.count, self.kill_at = True, 0, kill_at

    def step(self) -> None:
        if self.armed:
            self.count += 1
            if self.count == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


class Stepped(Coroutine[Any, Any, Any]):
    """A coroutine whose every step is counted before it is taken."""

    def __init__(self, inner: Any, counter: Counter) -> None:
        self._inner, self._counter = inner, counter

    def send(self, value: Any) -> Any:
        self._counter.step()
        return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        self._counter.step()
        return self._inner.throw(*error)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise TypeError("for tasks only")


async def live(config: Path, order: dict[str, Any], parent: socket.socket) -> None:
    counter = Counter()
    loop = asyncio.get_running_loop()
    reader, writer = await asyncio.open_unix_connection(sock=parent)

    def tell(**message: Any) -> None:
        writer.write(json.dumps(message).encode() + b"\n")

    def factory(
        loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> asyncio.Task[Any]:
        return asyncio.Task(Stepped(coroutine, counter), loop=loop, **options)

    listening = loop.create_task(reader.readline())
    if order.get("steps", True):
        loop.set_task_factory(factory)
    if order.get("kill_at"):
        counter.arm(order["kill_at"])
    if order.get("clock"):
        shim.step_clock(order["clock"])
    if order.get("fail"):
        shim.arm(**order["fail"])
    proxy = app.App(loaded(config))
    stopping = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    try:
        started = await proxy.start()
    except Exception as error:
        seconds = time.process_time()  # its own, since it was forked
        tell(failed=f"{type(error).__name__}: {error}", seconds=seconds)
        await writer.drain()
        return
    tell(listen=started.listen.port, control=started.control.port, steps=counter.count)

    async def obey() -> None:
        line = await listening
        while line:
            match json.loads(line):
                case {"arm": int(kill_at)}:
                    counter.arm(kill_at)
                case {"clock": float(seconds)}:
                    shim.step_clock(seconds)
                case {"fail": dict(fault)}:
                    shim.arm(**fault)
            tell(steps=counter.count, writes=shim.count())
            line = await reader.readline()
        os._exit(1)  # the test is gone: no life outlives it

    loop.set_task_factory(None)  # what steers is not counted
    obeying = loop.create_task(obey())
    if order.get("steps", True):
        loop.set_task_factory(factory)
    await stopping.wait()
    await proxy.stop()
    tell(stopped=True)
    await writer.drain()
    obeying.cancel()


@functools.cache
def loaded(config: Path) -> Loaded:
    return load(config, environ={})


def child(order: dict[str, Any], address: str) -> None:
    parent = socket.socket(socket.AF_UNIX)
    parent.connect(address)
    parent.sendall(json.dumps({"life": order["life"], "pid": os.getpid()}).encode() + b"\n")
    with open(order["log"], "ab", buffering=0) as out:  # nothing of it may be lost
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    if order.get("user"):
        os.setresuid(*[order["user"]] * 3)
    for plant in order.get("plants", ()):
        PLANTS[plant]()
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(live(Path(order["config"]), order, parent))


def main(address: str) -> None:
    assert concurrent.futures.thread
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a life
    log.configure("info", "json")
    Config.rule_dirs = property(lambda config: config.rules)  # type: ignore[assignment]
    read = functools.cache(app.load)
    # A life names no servers of its own, so what they are is left out of what is remembered.
    app.load = lambda dirs, models, *_, **__: read(dirs, models)  # type: ignore[assignment]
    upstream._verified = functools.cache(upstream._verified)
    upstream._verified(None)
    for line in sys.stdin:
        order = json.loads(line)
        config = loaded(Path(order["config"])).config
        app.load(config.rule_dirs, config.models)
        if os.fork() == 0:
            try:
                child(order, address)
            finally:
                os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
