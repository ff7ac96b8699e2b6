"""Starting, killing and asking the processes of a drill: the proxy, the toy API, the agent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import aiohttp
import yaml

import proxy
from proxy.drill.agent import Plan

START_WITHIN = 30.0  # seconds; a start takes about one, a loaded machine many
ANY_PORT = "127.0.0.1:0"
POLL = 0.02  # seconds between two looks whether a proxy is ready


class DrillError(Exception):
    """The drill itself cannot go on; the message says why and shows the process's last words."""


@dataclass(slots=True)
class Child:
    """A process of the drill. ``log`` holds its standard error."""

    process: asyncio.subprocess.Process
    log: Path

    async def lines(self) -> AsyncIterator[dict[str, Any]]:
        """What it tells, line by line, until it ends."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            yield json.loads(line)

    async def kill(self) -> None:
        """SIGKILL, and wait until the process is gone. Nothing if it is gone already."""
        if self.process.returncode is None:
            try:
                # Not process.kill(): it would collect the exit code before asyncio can.
                os.kill(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        await self.ended()

    async def ended(self) -> int:
        return await self.process.wait()

    @property
    def killed(self) -> bool:
        return self.process.returncode == -signal.SIGKILL

    def last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])


async def spawn(arguments: Sequence[str], log: Path, *, tells: bool = False) -> Child:
    """Starts ``python -m ARGUMENTS``. ``tells``: its standard output is read by the drill."""
    with log.open("ab") as err:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE if tells else err,
            stderr=err,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for the drill, which then ends its children
            limit=1 << 20,  # a line holds an answer's body
        )
    return Child(process, log)


def _environment() -> dict[str, str]:
    """The surroundings without what would configure a proxy or send the agent through another."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("ONCEPROXY_") and not name.lower().endswith("_proxy")
    }
    here = str(Path(proxy.__file__).parent.parent)
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, [here, kept.get("PYTHONPATH")]))
    return kept


@dataclass(slots=True)
class ProxyUnderDrill:
    """One proxy with one ledger that is started again and again. ``folder`` is all it has."""

    program: ClassVar[Sequence[str]] = ("proxy",)
    """The module that is started, and its first arguments."""

    folder: Path
    rules: Path
    ledger: str = "sqlite:ledger.db"
    starts: int = 0
    child: Child | None = None
    address: str = ""
    control: str = ""

    async def start(self, faults: Mapping[str, Any] | None = None) -> Child:
        """Returns when it takes calls. Raises DrillError if it does not."""
        self.starts += 1
        config = self.configure(faults)
        log = self.folder / f"proxy-{self.starts}.log"
        self.child = await spawn([*self.program, "serve", "--config", str(config)], log)
        await self._ready(self.child)
        return self.child

    def configure(self, faults: Mapping[str, Any] | None) -> Path:
        """Writes the configuration of the next start. The system chooses free ports."""
        config: dict[str, Any] = {
            "listen": ANY_PORT,
            "control": {"listen": ANY_PORT},
            "state_dir": str(self.folder / "state"),
            "ledger": {"url": self.ledger},
            "rules": [str(self.rules)],
        }
        if faults:
            config["faults"] = dict(faults)
        file = self.folder / "config.yaml"
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        return file

    async def _ready(self, child: Child) -> None:
        """Learns where it listens. It writes that once it takes calls; asking its ports instead
        would use up ports of this machine, one of which may be one that another start gets."""
        file = self.folder / "state" / "serving.json"
        try:
            async with asyncio.timeout(START_WITHIN):
                while child.process.returncode is None:
                    told = json.loads(file.read_text("utf-8")) if file.exists() else {}
                    if told.get("pid") == child.process.pid:
                        self.address, self.control = told["listen"], told["control"]
                        return
                    await asyncio.sleep(POLL)
        except TimeoutError:
            await child.kill()
        raise DrillError(f"The proxy did not start. Its last words:\n{child.last_words()}")

    async def operations(self, run: str) -> list[dict[str, Any]]:
        """The operations of a run, as the control API shows them, first version first."""
        found = (await self.ask("GET", f"/v1/operations?run={quote(run, safe='')}"))["operations"]
        return sorted(found, key=lambda operation: int(operation["version"]))

    async def ask(self, method: str, path: str, body: Any = None, **fields: str) -> Any:
        """One request to the control API, as the operator. Raises DrillError unless it is
        answered with 200."""
        tokens = json.loads((self.folder / "state" / "tokens.json").read_text(encoding="utf-8"))
        headers = {"Authorization": f"Bearer {tokens['operator']}", **fields}
        url = f"http://{self.control}{path}"
        try:
            async with (
                aiohttp.ClientSession(headers=headers) as session,
                session.request(method, url, json=body) as response,
            ):
                status, told = response.status, await response.json()
        except aiohttp.ClientError as error:
            raise DrillError(f"{method} {path.partition('?')[0]}: {error}") from error
        if status != 200:
            raise DrillError(f"{method} {path.partition('?')[0]} answered {status}")
        return told

    async def kill(self) -> None:
        if self.child is not None:
            await self.child.kill()


@asynccontextmanager
async def agent(plan: Plan, folder: Path) -> AsyncIterator[Child]:
    """The scripted agent at work; killed on leaving if it is not done."""
    file = folder / "plan.json"
    file.write_text(plan.as_json(), encoding="utf-8")
    child = await spawn(["proxy.drill.agent", str(file)], folder / "agent.log", tells=True)
    try:
        yield child
    finally:
        await child.kill()
