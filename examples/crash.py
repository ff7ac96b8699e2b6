"""Plays one example: the agent is killed right after the shop has refunded, and started again.

    $ python -m examples.crash plain-loop
    $ python -m examples.crash plain-loop --proxy-too     the proxy is killed in the same moment
    $ python -m examples.crash plain-loop --without       no proxy: what would have happened

It starts everything by itself (the model and the shop of world.py, the proxy, the agent), on free
ports and in a directory that is gone afterwards. Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from examples.world import MODEL_PORT, SHOP_PORT, Refund, World

HERE = Path(__file__).parent
PORTS = {MODEL_PORT: "OPENAI_BASE_URL", SHOP_PORT: "SHOP_URL", 8904: "MCP_URL"}
SECONDS = 60  # an agent that takes longer hangs


@dataclass(frozen=True)
class Example:
    """``folder`` and ``command`` (words after the interpreter); ``server``: a program of the far
    side, MCP_URL leads to it; ``run``: its name, - if the agent names its runs; ``kill_at``: the
    refund after which it is killed."""

    folder: str
    command: tuple[str, ...] = ("agent.py",)
    node: bool = False
    server: str = ""
    run: str = "case-1842"
    kill_at: int = 1

    def missing(self) -> str:
        """What to do before it can run; empty if nothing."""
        if self.node and shutil.which("node") is None:
            return "this example needs Node (18 or newer) on the PATH"
        needs = HERE / self.folder / "requirements.txt"
        try:
            for line in needs.read_text().splitlines() if needs.exists() else ():
                importlib.metadata.version(line.partition("==")[0])
        except importlib.metadata.PackageNotFoundError as error:
            return (
                f"it needs {error.name}, which is not installed: make clients, or "
                f"{sys.executable} -m pip install -r {needs.relative_to(HERE.parent)}"
            )
        return ""

    def line(self) -> list[str]:
        file, *words = self.command
        interpreter = str(shutil.which("node")) if self.node else sys.executable
        return [interpreter, str(HERE / self.folder / file), *words]


EXAMPLES = {
    "plain-loop": Example("plain-loop"),
    "langgraph-sync": Example("langgraph", ("agent.py", "sync")),
    "langgraph-async": Example("langgraph", ("agent.py", "async")),
    "openai-agents": Example("openai-agents"),
    "node": Example("node", ("agent.mjs",), node=True),
    "mcp-http": Example("mcp-http", server="server.py"),
    "mcp-stdio": Example("mcp-stdio"),
    "many-runs": Example("many-runs", run="-", kill_at=10),
}


@dataclass
class Story:
    """What happened. ``said``: the agent's lines, a list for each start. ``asked``: calls of the
    model, by what they are about."""

    said: list[list[str]] = field(default_factory=list)
    refunds: list[Refund] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    operations: list[dict[str, Any]] = field(default_factory=list)


def play(
    name: str,
    folder: Path,
    *,
    without: bool = False,
    kill: bool = True,
    proxy_too: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Story:
    """``folder``: an empty directory for all that is written."""
    example, story = EXAMPLES[name], Story()
    with World() as world, contextlib.ExitStack() as stack:
        environment = _environment(world, folder)
        if example.server:
            port = stack.enter_context(_server(HERE / example.folder / example.server, environment))
            environment["MCP_URL"] = f"http://127.0.0.1:{port}/mcp"
        proxy = None if without else stack.enter_context(Proxy(folder, environment))
        worker, over = Worker(example, environment, proxy, tell), threading.Event()

        def refunded(made: Refund) -> None:
            tell(f"  shop: refunded {made.amount} for {made.charge}")
            if kill and made.id == f"re_{example.kill_at}":
                worker.kill()
                tell("  the agent is killed (SIGKILL) before it hears of it")
                if proxy_too and proxy is not None:
                    proxy.kill()
                    tell("  and so is the proxy")
                over.set()

        world.after_refund = refunded
        story.said.append(worker.work())
        if kill:
            if not over.wait(SECONDS):
                raise SystemExit("the agent was to be killed, and made no refund")
            if proxy_too and proxy is not None:
                proxy.start()
            tell("")
            story.said.append(worker.work())
        if proxy is not None:
            story.operations = proxy.operations()
        story.refunds, story.asked = list(world.refunds), world.asked.copy()
    return story


class Worker:
    """The process around an agent. It leads a group, so that all of it can be killed at once."""

    def __init__(
        self,
        example: Example,
        environment: Mapping[str, str],
        proxy: Proxy | None,
        tell: Callable[[str], None],
    ) -> None:
        self.line, self.environment = example.line(), dict(environment)
        self.log = Path(environment["NOTES"]).with_name("agent.log")
        self.killed, self.tell = False, tell
        if proxy is not None:
            self.line = [*proxy.run, "--run-id", example.run, "--", *self.line]
        self.process: subprocess.Popen[str] | None = None

    def work(self) -> list[str]:
        """Until it ends or is killed; its lines. An agent that fails ends the play."""
        self.killed = False
        self.tell("$ " + _shown(self.line))
        said = []
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                self.line,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        with self.process:
            assert self.process.stdout is not None
            for line in self.process.stdout:
                said.append(line.rstrip())
                self.tell("  " + said[-1])
            code = self.process.wait(SECONDS)
        if code != 0 and not self.killed:
            raise SystemExit(f"{self.log.read_text()}\nthe agent ended with {code}")
        return said

    def kill(self) -> None:
        assert self.process is not None
        self.killed = True
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Proxy:
    """``onceproxy serve`` with the examples' rules, moved to the ports that the world has."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        rules = folder / "rules"
        rules.mkdir()
        hosts = {
            f"127.0.0.1:{port}": urlsplit(environment[name]).netloc
            for port, name in PORTS.items()
            if name in environment
        }
        for file in (HERE / "rules").glob("*.yaml"):
            text = file.read_text()
            for host, now in hosts.items():
                text = text.replace(host, now)
            (rules / file.name).write_text(text)
        self.log = folder / "proxy.log"
        self.config = folder / "onceproxy.yaml"
        config = {
            "state_dir": str(folder / "state"),
            "listen": "127.0.0.1:0",
            "control": {"listen": "127.0.0.1:0"},
            "rules": [str(rules)],
            "models": [urlsplit(environment["OPENAI_BASE_URL"]).netloc],
        }
        self.config.write_text(json.dumps(config))  # JSON is YAML
        self.onceproxy = [sys.executable, "-m", "proxy"]
        self.run = [*self.onceproxy, "run", "--config", str(self.config)]

    def __enter__(self) -> Proxy:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(SECONDS)

    def start(self) -> None:
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*self.onceproxy, "serve", "--json", "--config", str(self.config)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=_without_proxies(),
            )
        assert self.process.stdout is not None
        said = ""
        for line in self.process.stdout:
            said += line
            if line.rstrip() == "}":
                self.control = json.loads(said)["control"]
                self.process.stdout.close()
                return
        raise SystemExit(f"the proxy did not start:\n{self.log.read_text()}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def operations(self) -> list[dict[str, Any]]:
        """As ``onceproxy ops`` lists them, oldest first."""
        tokens = json.loads((self.config.parent / "state" / "tokens.json").read_text())
        asked = urllib.request.Request(
            f"http://{self.control}/v1/operations",
            headers={"Authorization": f"Bearer {tokens['operator']}"},
        )
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(asked, timeout=SECONDS) as answer:
            return list(reversed(json.load(answer)["operations"]))


def _environment(world: World, folder: Path) -> dict[str, str]:
    """An agent's. Off the proxy the helper must be in reach too."""
    helpers = HERE.parent / "proxy" / "helpers"
    path = os.pathsep.join(filter(None, [str(helpers), os.environ.get("PYTHONPATH")]))
    return _without_proxies() | {
        "PYTHONPATH": path,
        "NODE_OPTIONS": f'--require "{helpers / "preload.cjs"}"',
        "PYTHONUNBUFFERED": "1",
        "OPENAI_BASE_URL": world.model_url,
        "OPENAI_API_KEY": "sk-none-is-needed",
        "SHOP_URL": world.shop_url,
        "NOTES": str(folder / "notes"),
    }


def _without_proxies() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}


def _shown(line: list[str]) -> str:
    """A command as a reader would type it."""
    words = []
    for word in " ".join(line).replace(f"{sys.executable} -m proxy", "onceproxy").split():
        path = Path(word)
        inside = path.is_absolute() and path.is_relative_to(HERE.parent)
        words.append(
            str(path.relative_to(HERE.parent))
            if inside and HERE in path.parents
            else path.name
            if path.is_absolute()
            else word
        )
    return " ".join(words)


@contextlib.contextmanager
def _server(file: Path, environment: Mapping[str, str]) -> Iterator[int]:
    """A server of the far side; its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    process = subprocess.Popen(
        [sys.executable, str(file), str(port)],
        env=dict(environment),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(SECONDS * 10):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            if process.poll() is not None:
                raise SystemExit(f"{file} ended with {process.returncode}")
            time.sleep(0.1)
        yield port
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="onceproxy-example-") as name:
        yield Path(name)


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")  # in one piece: the shop has many threads
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m examples.crash",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("example", choices=EXAMPLES)
    parser.add_argument("--without", action="store_true", help="no proxy")
    parser.add_argument("--proxy-too", action="store_true", help="kill the proxy as well")
    asked = parser.parse_args()
    if missing := EXAMPLES[asked.example].missing():
        sys.exit(missing)
    with _folder() as folder:
        story = play(
            asked.example, folder, without=asked.without, proxy_too=asked.proxy_too, tell=_print
        )
    print(f"\nrefunds made: {len(story.refunds)}     calls of the model: {story.asked.total()}")
    for one in story.operations:
        print(f"{one['key']}  {one['state']}")


if __name__ == "__main__":
    main()
