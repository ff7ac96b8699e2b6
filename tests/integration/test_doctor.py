"""Each check of ``doctor``, made to find something, and all of them on a machine that is well."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from proxy.cli import checks
from proxy.cli.checks import CHECKS, examine
from proxy.clock import SystemClock
from proxy.configload import load
from proxy.control.tokens import read_or_make
from proxy.ledger import lock
from proxy.ledger.seal import load_keys
from proxy.ledger.sqlite import SqliteLedger
from proxy.net.tls import CertificateAuthority
from tests.fakes.served import FREE_PORTS, environment, onceproxy, served
from tests.ledger.support import first, operation

ANY_PORT = {"listen": "127.0.0.1:0", "control.listen": "127.0.0.1:0"}
CLEAN = {"PATH": "/usr/bin:/bin"}
RULE = """\
service: raw
hosts: ["{host}"]
source: here
confidence: documented
key: none
endpoints:
  plain.create: {{match: POST /plain}}
"""


def look(
    state: Path, name: str, environ: Mapping[str, str] = CLEAN, **flags: Any
) -> list[tuple[str, str, str]]:
    """What one check found: (state, found, fix)."""
    loaded = load(None, flags={"state_dir": str(state), **ANY_PORT, **flags}, environ={})
    found = examine(loaded, environ, online=True, only=name)
    return [(one.state, one.found, one.fix) for one in found]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory as a proxy leaves it."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    CertificateAuthority.open(state / "ca")
    key = load_keys(state / "ledger.key")

    async def write() -> None:
        ledger = SqliteLedger(state / "ledger.db", key=key, clock=SystemClock())
        await ledger.open()
        await ledger.commit(first(operation(at=SystemClock().time())))
        await ledger.close()

    asyncio.run(write())
    return state


def test_a_proxy_that_runs_well_has_no_fault(tmp_path: Path) -> None:
    """The command itself, beside a running proxy; and it changes nothing."""
    with served(tmp_path / "state", *FREE_PORTS) as proxy:
        before = {path: path.stat().st_mtime_ns for path in proxy.state_dir.iterdir()}
        done = onceproxy("doctor", "--json", "--state-dir", str(proxy.state_dir), env=environment())
        after = {path: path.stat().st_mtime_ns for path in proxy.state_dir.iterdir()}
    found = json.loads(done.stdout)
    assert (done.returncode, found["ok"]) == (0, True), found
    assert {one["check"] for one in found["checks"]} == set(CHECKS)
    assert len(CHECKS) >= 12
    by_name = {one["check"]: one for one in found["checks"]}
    assert by_name["control API"]["found"].endswith("is ready")
    assert str(proxy.process.pid) in by_name["ports"]["found"]
    assert set(after) == set(before)
    assert after[proxy.state_dir / "tokens.json"] == before[proxy.state_dir / "tokens.json"]


def test_a_fault_ends_with_1_and_has_a_line_that_mends_it(state: Path) -> None:
    state.chmod(0o755)
    done = onceproxy("doctor", "--state-dir", str(state), env=environment())
    assert done.returncode == 1
    assert f"FAIL  state directory: {state} is open to others (755)" in done.stdout
    assert f"-> chmod 700 {state}" in done.stdout


def test_nothing_is_made_where_nothing_is(tmp_path: Path) -> None:
    assert look(tmp_path / "none", "ledger")[0][0] == "ok"
    assert not (tmp_path / "none").exists()


def old_aiohttp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiohttp.__version__", "3.13.0")


def no_c_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    class HttpRequestParser:
        pass

    monkeypatch.setattr("aiohttp.http_parser.HttpRequestParser", HttpRequestParser)


def old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "PYTHON_MIN", (99,))


def few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (128, 4096))


def some_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))


def unset_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "CLOCK_MIN", 1e11)


def slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "SYNC_SLOW", 0.0)


def untrue_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(checks, "SYNC_UNBELIEVABLE", 10.0)
    monkeypatch.setattr(checks, "SYNC_SLOW", 10.0)


def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "SPACE_FAILED", 1 << 62)


def mounted(kind: str) -> Callable[[pytest.MonkeyPatch], None]:
    def mount(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lock, "file_system", lambda _: kind)

    return mount


@pytest.mark.parametrize(
    ("name", "broken", "state_found", "fix"),
    [
        ("Python", old_python, "failed", "Python 3.11"),
        ("HTTP parser", old_aiohttp, "failed", "aiohttp>=3.14.3"),
        ("HTTP parser", no_c_parser, "failed", "AIOHTTP_NO_EXTENSIONS"),
        ("open files", few_files, "failed", "ulimit -n 4096"),
        ("open files", some_files, "warning", "LimitNOFILE"),
        ("clock", unset_clock, "failed", "set the clock"),
        ("disk", slow_disk, "warning", "solid-state"),
        ("disk", untrue_disk, "warning", "power cut"),
        ("space", full_disk, "failed", "free some space"),
        ("file system", mounted("nfs4"), "failed", "local disk"),
        ("file system", mounted("tmpfs"), "warning", "volume"),
    ],
)
def test_a_machine_that_is_not_well(
    state: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    broken: Callable[[pytest.MonkeyPatch], None],
    state_found: str,
    fix: str,
) -> None:
    broken(monkeypatch)
    found = look(state, name)
    assert [one[0] for one in found] == [state_found]
    assert fix in found[0][2]


def test_keys_and_tokens_that_others_can_read(state: Path) -> None:
    (state / "ledger.key").chmod(0o644)
    assert look(state, "key and tokens")[0][::2] == ("failed", f"chmod 600 {state / 'ledger.key'}")


def test_a_key_that_is_gone_or_another(state: Path) -> None:
    key = state / "ledger.key"
    key.write_text("00" * 32)
    assert "does not open" in look(state, "ledger")[0][1]
    key.unlink()
    assert look(state, "key and tokens")[0][0] == "failed"


def test_a_ledger_that_is_gone_newer_or_damaged(state: Path) -> None:
    file = state / "ledger.db"
    whole = file.read_bytes()
    with closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA user_version = 99")
    assert "newer onceproxy" in look(state, "ledger")[0][1]
    file.write_bytes(b"\0" * 40 + whole[40:])
    assert look(state, "ledger")[0][0] == "failed"
    file.unlink()
    assert look(state, "ledger")[0][::2] == (
        "failed",
        "put the ledger back: onceproxy restore FILE",
    )


def test_a_clock_that_is_behind_the_ledger(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.time, "time", lambda: checks.CLOCK_MIN + 5.0)
    assert "the ledger's newest event is of" in look(state, "clock")[0][1]


def test_a_ca_that_ends_or_is_open_to_others(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "CA_DAYS", 100_000)
    found = look(state, "CA")[0]
    assert (found[0], "ca rotate" in found[2]) == ("warning", True)
    (state / "ca" / "ca-key.pem").chmod(0o644)
    assert look(state, "CA")[0][0] == "failed"


def test_ports_that_another_program_has(state: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        found = look(state, "ports", listen=at)
    assert found[0][0] == "failed"
    assert at in found[0][1]


def test_a_proxy_that_does_not_answer_is_none(state: Path) -> None:
    serving = {"listen": "127.0.0.1:9", "control": "127.0.0.1:9", "pid": 1, "ca_cert": None}
    (state / "serving.json").write_text(json.dumps(serving))
    assert look(state, "control API")[0][1] == "no proxy runs with this state directory"


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"NO_PROXY": "localhost,corp.example"}, "NO_PROXY has localhost"),
        ({"no_proxy": "*", "NO_PROXY": "*"}, "NO_PROXY has *"),
        ({"http_proxy": "http://a:1", "HTTP_PROXY": "http://b:1"}, "http_proxy and HTTP_PROXY"),
        ({"HTTPS_PROXY": "http://corp.example:3128"}, "HTTPS_PROXY names another proxy"),
        ({"HTTPS_PROXY": "http://127.0.0.1:8901", "NO_PROXY": "127.0.0.1:8902"}, "nothing leads"),
    ],
)
def test_variables_that_lead_past_the_proxy(
    state: Path, environ: Mapping[str, str], says: str
) -> None:
    found = look(state, "proxy variables", {**CLEAN, **environ}, listen="127.0.0.1:8901")
    assert says in found[0][1]
    assert found[0][0] == ("ok" if says == "nothing leads" else "warning")


def test_rules_with_errors_and_failpoints(state: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("service: x\nhosts: []\n")
    assert look(state, "rules", rules=[str(tmp_path)])[0][0] == "failed"
    assert look(state, "configuration", faults=[{"after_effect": "kill"}])[0][0] == "warning"


def test_a_door_that_others_reach_is_open_to_them_unless_calls_need_a_token(state: Path) -> None:
    wide = {"listen": "0.0.0.0:8901"}
    [(level, found, fix)] = look(state, "configuration", **wide)
    assert (level, "identity.tokens: required" in fix) == ("warning", True), found
    tokens = {"identity.tokens": "required"}
    assert look(state, "configuration", **wide, **tokens) == [("ok", "no warnings", "")]
    assert look(state, "configuration") == [("ok", "no warnings", "")]


def test_egress_of_the_first_host_that_the_own_rules_name(state: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = f"127.0.0.1:{server.getsockname()[1]}"
        (tmp_path / "raw.yaml").write_text(RULE.format(host=host))
        assert look(state, "egress", rules=[str(tmp_path)])[0][:2] == (
            "ok",
            f"{host} can be reached",
        )
    found = look(state, "egress", rules=[str(tmp_path)])[0]
    assert found[0] == "failed"
    assert "upstream.proxy" in found[2]


@pytest.mark.parametrize(("version", "state_found"), [("v16.20.0", "warning"), ("v20.1.0", "ok")])
def test_an_old_node(state: Path, tmp_path: Path, version: str, state_found: str) -> None:
    node = tmp_path / "bin" / "node"
    node.parent.mkdir()
    node.write_text(f"#!/bin/sh\necho {version}\n")
    node.chmod(0o755)
    assert look(state, "Node", {"PATH": str(node.parent)})[0][0] == state_found


def test_a_check_that_breaks_does_not_hide_the_others(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> list[Any]:
        raise RuntimeError("boom")

    monkeypatch.setitem(CHECKS, "space", broken)
    loaded = load(None, flags={"state_dir": str(state), **ANY_PORT}, environ={})
    found = {one.name: one for one in examine(loaded, CLEAN, online=False)}
    assert set(found) == set(CHECKS)
    assert found["space"].state == "failed"
    assert "boom" in found["space"].found


def test_an_operator_token_that_an_agent_of_the_same_user_can_read(state: Path) -> None:
    """Only where agents are not believed to begin with."""
    key = "key and tokens"
    strict = {"identity.tokens": "required"}
    read_or_make(state / "tokens.json")
    [(found, _, fix)] = look(state, key, **strict)
    assert (found, "another user" in fix) == ("warning", True)
    elsewhere = {"control.operator_token": "o1p2" * 10}
    assert look(state, key, **strict, **elsewhere)[0][0] == "ok"
    assert look(state, key)[0][0] == "ok"
