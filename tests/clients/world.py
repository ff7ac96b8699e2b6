"""A real proxy process before a counting upstream, and the ways into it."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from proxy.cli.environ import child_environment
from proxy.config import parse_address
from tests.clients.certificates import make
from tests.clients.upstream import Upstream, upstream
from tests.fakes.served import FREE_PORTS, ROOT, Served, environment, onceproxy, served

WAYS = ("absolute", "tunnel", "gateway")
RULED = {"stripe": "stripe", "openai": "models", "slack": "slack", "github": "github"}
RULED |= {"google-calendar": "google-calendar"}
SITES = ["things", *RULED, "aws", "resend", "twilio"]
HELPERS = ROOT / "proxy" / "helpers"
NODE = shutil.which("node")
AGENTS = Path(__file__).parent / "agents"

THINGS = """
service: things
hosts: [{hosts}]
source: https://api.example.test/docs
confidence: documented
key: {{in: header, name: Idempotency-Key, valid_for: 24h, keeps: all, minted: [uuid4]}}
endpoints:
  create:
    match: "POST /v1/things/{{name+}}"
    external_id: id
"""

PLAIN = """
service: {service}
hosts: [{hosts}]
source: https://api.example.test/docs
confidence: documented
key: none
signed: sigv4
endpoints:
  root: {{match: POST /}}
  any: {{match: "POST /{{path+}}"}}
"""

CONFIG = """
rules: [rules]
upstream: {{ca_file: {ca}}}
egress: {{allow: [{hosts}]}}
gateway: [{{listen: "{gateway}", to: "{to}"}}]
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """An answer as a client shows it. Header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def outcome(self) -> str:
        return self.headers["onceproxy-outcome"]


def seen(status: int, headers: Any, body: bytes) -> Seen:
    """``headers``: a mapping or pairs."""
    pairs = headers.items() if hasattr(headers, "items") else headers
    return Seen(status, {name.lower(): value for name, value in pairs}, body)


@dataclass(frozen=True, slots=True)
class Way:
    """Where a client sends its call, and what it finds in its environment."""

    base: str
    environ: Mapping[str, str] = field(repr=False)


@dataclass
class Proxied:
    """A proxy process, the ways into it, and what it knows."""

    proxy: Served
    ca: Path = field(repr=False)  # the certificate of the proxy's own CA

    def environ(self, run: str, step: str | None) -> dict[str, str]:
        """The variables that ``onceproxy run`` sets, and no others; the CA without the machine's
        roots, which take clients long to read."""
        return child_environment(
            {},
            listen=parse_address(self.proxy.listen),
            control=parse_address(self.proxy.control),
            run=run,
            step=step,
            bundle=self.ca,
            helpers=HELPERS,
        )

    def run(self, run: str, step: str | None, *command: str) -> list[Any]:
        """The JSON lines that a command prints under ``onceproxy run``."""
        named = ["--step", step] if step else []
        state = ["--state-dir", str(self.proxy.state_dir)]
        done = onceproxy("run", *state, "--run-id", run, *named, "--", *command)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "no call came through" not in done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def start(self, run: str, step: str | None, *command: str) -> list[Any]:
        """The same in the same environment, sooner: without the command ``onceproxy run``."""
        return lines(self.environ(run, step), *command)

    def operations(self, run: str) -> list[dict[str, Any]]:
        """Oldest first."""
        found = self.control(f"/v1/operations?run={quote(run, safe='')}")["operations"]
        return list(reversed(found))

    def history(self, key: str) -> list[dict[str, Any]]:
        events = self.control(f"/v1/operations/{quote(key, safe='')}/history")["events"]
        assert isinstance(events, list)
        return events

    def refusals(self) -> float:
        """How many calls were refused since the start."""
        counted = re.findall(
            r'^onceproxy_calls_total\{[^}]*outcome="refused"[^}]*\} (\S+)$',
            self._get("/metrics").decode(),
            re.MULTILINE,
        )
        return sum(map(float, counted))

    def control(self, path: str) -> Any:
        return json.loads(self._get(path))

    def _get(self, path: str) -> bytes:
        tokens = json.loads((self.proxy.state_dir / "tokens.json").read_text())
        request = urllib.request.Request(
            f"http://{self.proxy.control}{path}",
            headers={"Authorization": f"Bearer {tokens['agent']}"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as response:
            body = response.read()
        assert isinstance(body, bytes)
        return body


@dataclass
class World(Proxied):
    upstream: Upstream
    gateway: str  # HOST:PORT of the listener that leads to things over https

    def way(self, name: str, run: str, step: str | None, site: str = "things") -> Way:
        """``absolute``: proxy variables, http. ``tunnel``: proxy variables, https. ``gateway``: a
        base URL that names run and step, and no proxy variables."""
        at = self.upstream[site]
        if name == "gateway":
            who = f"/as/{quote(run, safe='')}/{quote(step, safe='')}" if step else ""
            return Way(f"http://{self.proxy.listen}{who}/via/{at.https.replace('://', '/')}", {})
        base = {"absolute": at.http, "tunnel": at.https}[name]
        return Way(base, self.environ(run, step))

    def assert_once(self, first: Seen, second: Seen, *, key: str, target: str) -> None:
        """Two calls, one effect: the second is the recorded answer of the first."""
        assert first.status in (200, 201), first
        assert (second.status, second.body) == (first.status, first.body)
        assert first.outcome == "sent"
        assert second.outcome == "replayed"
        assert second.headers["idempotent-replayed"] == "true"
        assert "idempotent-replayed" not in first.headers
        assert "set-cookie" not in second.headers
        for name in ("content-type", "content-encoding", "location"):
            assert second.headers.get(name) == first.headers.get(name)
        assert first.headers["onceproxy-operation"] == key
        assert second.headers["onceproxy-operation"] == key
        assert len(self.upstream.came(target)) == len(self.upstream.done(target)) == 1
        [operation] = self.operations(key.split("/")[0])
        assert (operation["key"], operation["state"]) == (key, "succeeded")
        assert operation["attempts"] == 1


def shipped(service: str, hosts: list[str]) -> str:
    """A shipped rule file, for the API at these hosts."""
    text = (ROOT / "rules" / f"{service}.yaml").read_text()
    quoted = ", ".join(f'"{host}"' for host in hosts)
    moved, count = re.subn(
        r"^hosts:(?: \[.*\]|(?:\n  - .*)+)$", f"hosts: [{quoted}]", text, flags=re.MULTILINE
    )
    assert count == 1
    return moved


@contextmanager
def world(folder: Path, *, all_ruled: bool = False, more: str = "") -> Iterator[World]:
    """``more``: of the configuration. ``all_ruled``: no host without a rule, which one client
    without the CA would have tunnelled unopened for all."""
    ca_file, certificate = make(folder)
    with upstream(SITES, certificate) as api:
        rules = folder / "rules"
        rules.mkdir()
        quoted = ", ".join(f'"{host}"' for host in api["things"].hosts)
        (rules / "things.yaml").write_text(THINGS.format(hosts=quoted))
        for site, service in RULED.items():
            (rules / f"{service}.yaml").write_text(shipped(service, api[site].hosts))
        for site in set(SITES) - {"things", *RULED} if all_ruled else ():
            hosts = ", ".join(f'"{host}"' for host in api[site].hosts)
            (rules / f"{site}.yaml").write_text(PLAIN.format(service=site, hosts=hosts))
        gateway = f"127.0.0.1:{free_port()}"
        allowed = ", ".join(f'"{host}"' for site in SITES for host in api[site].hosts)
        config = folder / "config.yaml"
        config.write_text(
            CONFIG.format(ca=ca_file, hosts=allowed, gateway=gateway, to=api["things"].https) + more
        )
        with served(folder / "state", "--config", str(config), *FREE_PORTS) as proxy:
            yield World(proxy, folder / "state" / "ca" / "ca.pem", api, gateway)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port


def lines(environ: Mapping[str, str], *command: str) -> list[Any]:
    """The JSON lines that a command prints in this environment."""
    return [json.loads(line) for line in output(list(command), environ).splitlines()]


def output(command: list[str], environ: Mapping[str, str], cwd: Path | None = None) -> bytes:
    """What a command prints; a failure is the test's."""
    named = {**environment(), **environ}
    done = subprocess.run(
        command, env=named, cwd=cwd, capture_output=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout
