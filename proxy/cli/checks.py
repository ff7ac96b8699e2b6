"""What ``doctor`` looks at: one function per question, each with a line that mends what it finds.

None of them changes anything. A check that cannot be made says so instead of passing.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import socket
import sqlite3
import ssl
import stat
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from proxy.cli.client import NotRunning, Refused, Serving, ask, reachable, serving
from proxy.config import Address, Config
from proxy.configload import Loaded

State = Literal["ok", "warning", "failed"]

PYTHON_MIN = (3, 11)
AIOHTTP_MIN = (3, 14, 3)  # below it parses what has to be refused
SQLITE_FIXED = (3, 51, 3)  # below it two writers of one WAL can corrupt it
SYNC_SLOW = 0.03  # seconds; two of them are added to every write
SYNC_UNBELIEVABLE = 0.00002  # no disk is that fast: it does not wait for one
SPACE_FAILED, SPACE_WARNING = 100_000_000, 1_000_000_000  # bytes
FILES_FAILED, FILES_WARNING = 256, 4096  # each call takes two
CA_DAYS = 30
CLOCK_MIN = 1_735_689_600  # 2025-01-01: a clock before that was never set
NODE_MIN = (18,)  # fetch and AsyncLocalStorage as the preload needs them
CONNECT_SECONDS = 5.0
VOLATILE = frozenset({"tmpfs", "ramfs", "overlay"})
SYNCS = 8


@dataclass(frozen=True, slots=True)
class Found:
    name: str
    state: State
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the checks are about. ``running``: the proxy of this state directory, if it answers."""

    config: Config
    warnings: tuple[str, ...]
    environ: Mapping[str, str]
    running: Serving | None
    online: bool

    @property
    def place(self) -> Path:
        """The state directory, or the nearest one above it that is there."""
        path = self.config.state_dir.absolute()
        while not path.is_dir() and path != path.parent:
            path = path.parent
        return path


def examine(
    loaded: Loaded, environ: Mapping[str, str], *, online: bool, only: str | None = None
) -> list[Found]:
    """What all checks found, or one of them."""
    machine = Machine(
        loaded.config, tuple(loaded.warnings), environ, _running(loaded.config), online
    )
    found: list[Found] = []
    for name, check in CHECKS.items():
        if only not in (None, name):
            continue
        try:
            found += [Found(name, *result) for result in check(machine)]
        except Exception as error:  # one that breaks must not hide the others
            found.append(Found(name, "failed", f"could not be checked: {error!r}", "report this"))
    return found


Result = tuple[State, str, str]
"""State, what was found, and the line that mends it."""


def ok(found: str) -> Result:
    return ("ok", found, "")


# This machine


def python(_: Machine) -> Iterator[Result]:
    text = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < PYTHON_MIN:
        yield "failed", text, "use Python 3.11 or later"
    else:
        yield ok(text)


def http_parser(_: Machine) -> Iterator[Result]:
    import aiohttp

    from proxy.net import parsing

    try:
        parsing.check()
    except parsing.ParserMissing as error:
        yield "failed", f"aiohttp {aiohttp.__version__}", str(error)
        return
    if _numbers(aiohttp.__version__) < AIOHTTP_MIN:
        yield "failed", f"aiohttp {aiohttp.__version__}", "pip install 'aiohttp>=3.14.3'"
    else:
        yield ok(f"aiohttp {aiohttp.__version__} with its C parser")


def sqlite(_: Machine) -> Iterator[Result]:
    text = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info < SQLITE_FIXED:
        yield ok(f"{text}: has the WAL fault with two writers, which this proxy never has")
    else:
        yield ok(text)


def files(_: Machine) -> Iterator[Result]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= FILES_WARNING:
        yield ok(f"{soft} open files allowed")
        return
    state: State = "failed" if soft < FILES_FAILED else "warning"
    yield (
        state,
        f"{soft} open files allowed, a call takes two",
        f"ulimit -n {min(65536, hard) if hard > 0 else 65536} (systemd: LimitNOFILE=65536)",
    )


def clock(machine: Machine) -> Iterator[Result]:
    now = time.time()
    if now < CLOCK_MIN:
        yield "failed", f"the clock says {_moment(now)}", "set the clock (timedatectl set-ntp true)"
        return
    newest = _newest_event(machine.config)
    if newest is not None and newest > now + 60:
        yield (
            "failed",
            f"the clock says {_moment(now)}, the ledger's newest event is of {_moment(newest)}",
            "set the clock (timedatectl set-ntp true): keys would be trusted for too long",
        )
        return
    yield ok(_moment(now))


def node(machine: Machine) -> Iterator[Result]:
    found = shutil.which("node", path=machine.environ.get("PATH"))
    if found is None:
        yield ok("none: only agents in Node need it")
        return
    done = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=10)
    text = done.stdout.strip()
    if _numbers(text) < NODE_MIN:
        yield "warning", f"Node {text}", "use Node 18 or later for agents in Node"
    else:
        yield ok(f"Node {text}")


# Where the state is


def disk(machine: Machine) -> Iterator[Result]:
    try:
        seconds = _sync_seconds(machine.place)
    except OSError as error:
        yield (
            "failed",
            f"{machine.place}: {error.strerror}",
            f"give {_user()} the directory, or choose another with state_dir",
        )
        return
    text = f"one durable write takes {seconds * 1000:.2f} ms in {machine.place}"
    if seconds > SYNC_SLOW:
        yield "warning", text, "put state_dir on a local solid-state disk: a call waits for two"
    elif seconds < SYNC_UNBELIEVABLE:
        yield (
            "warning",
            f"{text}: nothing waits for a disk there",
            "put state_dir on a disk that survives a power cut",
        )
    else:
        yield ok(text)


def file_system(machine: Machine) -> Iterator[Result]:
    from proxy.ledger.lock import file_system as type_of
    from proxy.ledger.lock import network_file_system

    found = type_of(machine.place)
    if network_file_system(machine.place):
        yield (
            "failed",
            f"{machine.place} is on {found}, where locks and syncs may not hold",
            "put state_dir on a local disk",
        )
    elif found in VOLATILE:
        yield (
            "warning",
            f"{machine.place} is on {found}, which is gone with the machine or container",
            "mount a volume there, or choose another state_dir",
        )
    else:
        yield ok(found or "not known on this system")


def space(machine: Machine) -> Iterator[Result]:
    free = shutil.disk_usage(machine.place).free
    text = f"{free / 1e9:.1f} GB free in {machine.place}"
    fix = "free some space: without any nothing is sent"
    if free < SPACE_FAILED:
        yield "failed", text, fix
    elif free < SPACE_WARNING:
        yield "warning", text, fix
    else:
        yield ok(text)


def state_directory(machine: Machine) -> Iterator[Result]:
    path = machine.config.state_dir
    if not path.exists():
        yield ok(f"{path} will be made at the first start")
        return
    mode = stat.S_IMODE(path.stat().st_mode)
    if not path.is_dir():
        yield "failed", f"{path} is no directory", "choose another state_dir"
    elif path.stat().st_uid != os.getuid():
        yield (
            "warning",
            f"{path} belongs to another user than the one asking",
            f"run doctor as that user: sudo -u '#{path.stat().st_uid}' onceproxy doctor",
        )
    elif mode & 0o077:
        yield "failed", f"{path} is open to others ({mode:03o})", f"chmod 700 {path}"
    else:
        yield ok(f"{path}, for its owner only")


def secrets(machine: Machine) -> Iterator[Result]:
    """The ledger's key and the tokens; the CA has a check of its own."""
    from proxy.control.tokens import TokensUnusable, read

    config = machine.config
    for path in (config.ledger_key_path, config.tokens_path):
        if path.exists() and path.stat().st_mode & 0o077:
            yield "failed", f"{path} can be read by others", f"chmod 600 {path}"
            return
    if config.ledger_path.exists() and not config.ledger_key_path.exists():
        yield (
            "failed",
            f"{config.ledger_key_path} is missing",
            "put the key file back: the ledger cannot be opened without it",
        )
        return
    try:
        read(config.tokens_path)
    except FileNotFoundError:
        yield ok("will be made at the first start")
    except (TokensUnusable, OSError) as error:
        yield "failed", str(error), f"see {config.tokens_path}"
    else:
        if config.identity.tokens == "required" and config.control.operator_token is None:
            # Whoever takes runs at no word of their own means agents that may lie.
            yield (
                "warning",
                f"{config.tokens_path} has the operator's token, and an agent that runs as "
                f"{_user()} can read it: it could approve what it asks for",
                "run the agent as another user than the proxy, or keep the operator's token "
                "elsewhere: control.operator_token_file",
            )
            return
        yield ok("ledger key and tokens can be read by their owner only")


def authority(machine: Machine) -> Iterator[Result]:
    from proxy.net.tls import CERT_FILE, KEY_FILE, CaError, CertificateAuthority

    config = machine.config
    if config.tls.intercept == "none":
        yield ok("not used: tls.intercept is none")
        return
    certificate = config.tls.ca_cert_file or config.ca_dir / CERT_FILE
    key = config.tls.ca_key_file or config.ca_dir / KEY_FILE
    if config.tls.ca_cert_file is None and not certificate.exists():
        yield ok("will be made at the first start")
        return
    try:
        found = CertificateAuthority.load(certificate, key)
    except CaError as error:
        yield "failed", str(error), "mend the files, or have a new CA made: onceproxy ca rotate"
        return
    ends = _moment(found.certificate.not_valid_after_utc.timestamp())
    if not found.lasts(0):
        yield "failed", f"{certificate} ended {ends}", "make a new one: onceproxy ca rotate"
    elif not found.lasts(CA_DAYS):
        yield "warning", f"{certificate} ends {ends}", "make a new one: onceproxy ca rotate"
    else:
        yield ok(f"{certificate} until {ends}")


def ledger(machine: Machine) -> Iterator[Result]:
    from proxy.ledger.base import LedgerError
    from proxy.ledger.schema import check_ours, reader
    from proxy.ledger.seal import Sealer, load_keys

    config = machine.config
    path = config.ledger_path
    if not path.exists():
        if path.with_name(path.name + ".head").exists():
            yield (
                "failed",
                f"{path} is gone, but its head file is there",
                "put the ledger back: onceproxy restore FILE",
            )
        else:
            yield ok(f"{path} will be made at the first start")
        return
    try:
        with contextlib.closing(reader(path)) as db:
            check_ours(db)
            canary = db.execute("SELECT value FROM meta WHERE name = 'canary'").fetchone()
            number = db.execute("SELECT coalesce(sum(number), 0) FROM tallies").fetchone()[0]
        if canary and not Sealer(load_keys(config.ledger_key_path, create=False)).opens(canary[0]):
            yield (
                "failed",
                f"{config.ledger_key_path} does not open {path}",
                "put the key file back that this ledger was made with",
            )
            return
    except LedgerError as error:
        yield "failed", str(error), "see docs/operating.md, Backup"
    except sqlite3.Error as error:
        yield "failed", f"{path}: {error}", "restore it: onceproxy restore FILE"
    else:
        yield ok(f"{path}, {number} operations")


# This configuration


def configuration(machine: Machine) -> Iterator[Result]:
    yield from list(_risks(machine)) or [ok("no warnings")]


def _risks(machine: Machine) -> Iterator[Result]:
    config = machine.config
    if config.faults:
        yield "warning", "failpoints are on", "take faults: out of the configuration"
    for warning in machine.warnings:
        yield "warning", warning, "see onceproxy check"
    if not config.control.listen.loopback:
        yield (
            "warning",
            f"the control port listens on {config.control.listen}, in clear text",
            "use control.listen: 127.0.0.1:8902, and probe: for monitoring",
        )
    if not config.listen.loopback and config.identity.tokens != "required":
        yield (
            "warning",
            f"whoever reaches {config.listen} can make calls, and be answered, as any run",
            "let only the agents reach it, or give each run a token: identity.tokens: required",
        )


def rules(machine: Machine) -> Iterator[Result]:
    from proxy.rulefile import RuleErrors, load

    try:
        found = load(machine.config.rule_dirs, machine.config.models, machine.config.mcp)
    except RuleErrors as error:
        first, *more = error.problems
        others = f" (and {len(more)} more)" if more else ""
        yield "failed", f"{first}{others}", "mend the rule file; onceproxy check lists all"
        return
    for warning in found.warnings:
        yield "warning", warning, "see rules/README.md"
    yield ok(f"{len(found.services)} services")


def ports(machine: Machine) -> Iterator[Result]:
    config = machine.config
    wanted = {"listen": config.listen, "control.listen": config.control.listen}
    if config.probe is not None:
        wanted["probe"] = config.probe
    wanted |= {f"gateway[{n}].listen": g.listen for n, g in enumerate(config.gateway)}
    ours = machine.running is not None
    taken = [(name, at) for name, at in wanted.items() if at.port and not _free(at)]
    if ours:
        assert machine.running is not None
        yield ok(f"process {machine.running.pid} serves {machine.running.listen}")
        return
    for name, at in taken:
        yield (
            "failed",
            f"{at} ({name}) is taken by another program",
            f"stop that program, or choose another address with {name}",
        )
    if not taken:
        yield ok("free: " + ", ".join(str(at) for at in wanted.values()))


def control(machine: Machine) -> Iterator[Result]:
    from proxy.control.tokens import TokensUnusable, read

    if machine.running is None:
        yield ok("no proxy runs with this state directory")
        return
    address = machine.running.control
    try:
        ask(address, "/readyz")
        token = read(machine.config.tokens_path)["agent"]
        life = ask(address, "/v1/ledger", token)
    except (NotRunning, Refused, TokensUnusable, OSError, KeyError) as error:
        yield "failed", f"{address}: {error}", "see its log"
        return
    if life["gap"] is not None:
        yield (
            "warning",
            "the ledger may lack calls that a lost one has sent",
            "see onceproxy gap",
        )
    else:
        yield ok(f"{address} is ready")


def proxy_variables(machine: Machine) -> Iterator[Result]:
    """Of the environment asked in: that of the agents, where doctor is run like them."""
    environ = machine.environ
    faults = False
    for lower in ("http_proxy", "https_proxy", "no_proxy"):
        one, other = environ.get(lower), environ.get(lower.upper())
        if one is not None and other is not None and one != other:
            faults = True
            yield (
                "warning",
                f"{lower} and {lower.upper()} differ: clients disagree on which counts",
                f"set both alike, or unset {lower}",
            )
    entries = {
        entry.strip().lower()
        for name in ("no_proxy", "NO_PROXY")
        for entry in environ.get(name, "").split(",")
    }
    bare = sorted(entries & {"localhost", "127.0.0.1", "::1", "*", ".localhost", "127.0.0.0/8"})
    if bare:
        faults = True
        yield (
            "warning",
            f"NO_PROXY has {', '.join(bare)}: calls there pass the proxy by",
            f"write {reachable(machine.config.control.listen)} instead",
        )
    inherited = environ.get("https_proxy") or environ.get("HTTPS_PROXY")
    if inherited and machine.config.upstream.proxy is None and not _is_ours(machine, inherited):
        faults = True
        yield (
            "warning",
            "HTTPS_PROXY names another proxy, which onceproxy does not use by itself",
            "set upstream.proxy to it, if services are reached only through it",
        )
    if not faults:
        yield ok("nothing leads past the proxy")


def egress(machine: Machine) -> Iterator[Result]:
    """A connection to the first service that the own rules name; no request is made."""
    from proxy.rulefile import RuleErrors, load

    if not machine.online:
        yield ok("not tried: --offline")
        return
    config = machine.config
    if config.upstream.proxy is not None:
        host, port, tls = _host_of(config.upstream.proxy.reveal())
    else:
        try:
            found = load(config.rules) if config.rules else None
        except RuleErrors:
            yield ok("not tried: the rules have errors")
            return
        names = [p for s in (found.services if found else ()) for p in s.hosts if _named(p.text)]
        if not names:
            yield ok("not tried: no rule of your own names a host")
            return
        host, _, number = names[0].text.partition(":")
        port = int(number) if number else 443
        tls = port == 443
    try:
        with socket.create_connection((host, port), CONNECT_SECONDS) as plain:
            if tls:
                context = ssl.create_default_context()
                if config.upstream.ca_file is not None:
                    context.load_verify_locations(config.upstream.ca_file)
                with context.wrap_socket(plain, server_hostname=host):
                    pass
    except ssl.SSLCertVerificationError as error:
        yield (
            "failed",
            f"{host}: {error.verify_message}",
            "give the company's roots as upstream.ca_file",
        )
    except OSError as error:
        yield (
            "failed",
            f"{host}:{port} cannot be reached: {error}",
            "check name service and firewall, or set upstream.proxy",
        )
    else:
        yield ok(f"{host}:{port} can be reached")


CHECKS: dict[str, Callable[[Machine], Iterable[Result]]] = {
    "Python": python,
    "HTTP parser": http_parser,
    "SQLite": sqlite,
    "open files": files,
    "clock": clock,
    "state directory": state_directory,
    "file system": file_system,
    "disk": disk,
    "space": space,
    "ledger": ledger,
    "key and tokens": secrets,
    "CA": authority,
    "configuration": configuration,
    "rules": rules,
    "ports": ports,
    "control API": control,
    "proxy variables": proxy_variables,
    "Node": node,
    "egress": egress,
}


def _running(config: Config) -> Serving | None:
    """The proxy that says it serves this state directory, if it does."""
    found = serving(config)
    if found is None:
        return None
    try:
        ask(found.control, "/healthz")
    except (NotRunning, Refused):
        return None
    return found


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))


def _user() -> str:
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):
        return f"user {os.getuid()}"


def _sync_seconds(place: Path) -> float:
    """The median of some durable writes, as the ledger makes them. Raises OSError."""
    with tempfile.TemporaryFile(dir=place) as file:
        times = []
        for _ in range(SYNCS):
            began = time.perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def _newest_event(config: Config) -> float | None:
    from proxy.ledger.schema import reader

    if not config.ledger_path.exists():
        return None
    try:
        with contextlib.closing(reader(config.ledger_path)) as db:
            row = db.execute("SELECT at FROM events ORDER BY seq DESC LIMIT 1").fetchone()
    except sqlite3.Error:
        return None  # the ledger's own check says why
    return float(row[0]) if row else None


def _free(at: Address) -> bool:
    family = socket.AF_INET6 if ":" in at.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((at.host, at.port))
        except OSError:
            return False
    return True


def _is_ours(machine: Machine, url: str) -> bool:
    with contextlib.suppress(ValueError):
        _, port, _ = _host_of(url)
        known = machine.running.listen if machine.running else machine.config.listen
        return port == known.port
    return False


def _host_of(url: str) -> tuple[str, int, bool]:
    from urllib.parse import urlsplit

    parts: Any = urlsplit(url if "//" in url else f"//{url}")
    tls = parts.scheme == "https"
    return parts.hostname or "", parts.port or (443 if tls else 80), tls


def _named(pattern: str) -> bool:
    """Whether a host pattern is the name of one host."""
    return not any(character in pattern for character in "*{[")
