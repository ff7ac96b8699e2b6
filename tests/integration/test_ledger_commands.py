"""``backup``, ``restore``, ``gap`` and ``audit`` as programs, beside a proxy that runs."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from tests.fakes.served import FREE_PORTS, Served, api, environment, onceproxy, served

RULES = """\
service: raw
hosts: ["{host}"]
source: tests/fakes/served.py
confidence: documented
key: none
endpoints:
  keyed.create:
    match: POST /keyed
    key: {{in: header, name: Idempotency-Key, valid_for: 24h, keeps: all}}
  plain.create:
    match: POST /plain
"""


def arguments(folder: Path, url: str) -> tuple[str, ...]:
    rules = folder / "rules"
    rules.mkdir(exist_ok=True)
    (rules / "raw.yaml").write_text(RULES.format(host=urlsplit(url).netloc))
    return (*FREE_PORTS, "--rules", str(rules))


def run(state: Path, *command: str) -> tuple[int, str, str]:
    done = onceproxy(*command, "--state-dir", str(state), env=environment())
    return done.returncode, done.stdout, done.stderr


def write(proxy: Served, url: str, name: str, path: str = "/plain") -> tuple[int, bytes]:
    return proxy.call(url + path, b"{}", f"{name}:step-1")


def test_h7_a_backup_made_beside_a_running_proxy_is_put_back(tmp_path: Path) -> None:
    state, file = tmp_path / "state", tmp_path / "backup.db"
    with api() as upstream:
        more = arguments(tmp_path, upstream.url)
        with served(state, *more) as proxy:
            assert write(proxy, upstream.url, "before")[0] == 200
            code, out, _ = run(state, "backup", str(file), "--json")
            assert (code, json.loads(out)["operations"]) == (0, 1)
            assert hashlib.sha256(file.read_bytes()).hexdigest() == json.loads(out)["sha256"]
            assert write(proxy, upstream.url, "after")[0] == 200
            code, _, err = run(state, "restore", str(file))
            assert code == 4, "a ledger in use is not replaced"
            assert "is open in process" in err
            proxy.stop()
        code, out, err = run(state, "restore", str(file))
        assert code == 0, err
        assert "kept" in out
        with served(state, *more) as proxy:
            assert write(proxy, upstream.url, "before")[0] == 200  # a replay
            status, body = write(proxy, upstream.url, "after")
            assert (status, json.loads(body)["type"]) == (424, "urn:onceproxy:outcome-unresolved")
            assert len(upstream.writes()) == 2
            code, out, _ = run(state, "gap")
            assert code == 0
            assert "may lack calls from 20" in out
            assert write(proxy, upstream.url, "new")[0] == 424
            code, out, _ = run(state, "gap", "--close", "--json")
            assert json.loads(out)["gap"] is None
            assert write(proxy, upstream.url, "newer")[0] == 200
            assert len(upstream.writes()) == 3


def test_audit_verify_beside_a_running_proxy_and_after_tampering(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with api() as upstream, served(state, *arguments(tmp_path, upstream.url)) as proxy:
        for number in range(3):
            write(proxy, upstream.url, f"run-{number}")
        code, out, _ = run(state, "audit", "verify", "--json")
        assert (code, json.loads(out)["faults"]) == (0, [])
        proxy.stop()
    ledger = state / "ledger.db"
    whole = ledger.read_bytes()
    with closing(sqlite3.connect(ledger, isolation_level=None)) as db:
        db.execute("DROP TRIGGER events_update")
        db.execute("UPDATE events SET data = '{}' WHERE seq = 4")
    code, out, _ = run(state, "audit", "verify")
    assert code == 1
    assert "event 4 of run run-1 does not fit" in out
    assert run(state, "audit", "verify", "--run", "run-0")[0] == 0

    # Another file in its place, a whole one: the head file knows.
    other = tmp_path / "other"
    with served(other, *FREE_PORTS) as proxy:
        proxy.stop()
    shutil.copy(state / "ledger.key", other / "ledger.key")
    ledger.unlink()
    with (  # as it is, also where the stop has left a log beside the file
        closing(sqlite3.connect(other / "ledger.db")) as source,
        closing(sqlite3.connect(ledger)) as copy,
    ):
        source.backup(copy)
    code, _, err = run(state, "audit", "verify")
    assert code == 4, "its bodies are under another key"
    assert "key does not open" in err
    ledger.write_bytes(whole)
    with closing(sqlite3.connect(ledger, isolation_level=None)) as db:
        db.execute("DROP TRIGGER events_delete")
        db.execute("DELETE FROM events WHERE seq > 4")
    code, out, _ = run(state, "audit", "verify")
    assert code == 1
    assert "the head file names event" in out


def test_audit_export_writes_lines_whose_digest_and_chain_can_be_checked(tmp_path: Path) -> None:
    state, file = tmp_path / "state", tmp_path / "history.jsonl"
    with api() as upstream, served(state, *arguments(tmp_path, upstream.url)) as proxy:
        for number in range(2):
            write(proxy, upstream.url, f"run-{number}")
            write(proxy, upstream.url, f"run-{number}", "/keyed")
        code, _, err = run(state, "audit", "export", str(file))
        assert code == 0, err
        code, _, err = run(state, "audit", "export", str(tmp_path / "one.jsonl"), "--run", "run-1")
        assert code == 0, err
        assert run(state, "audit", "export", str(file))[0] == 4, "never over a file"
    digest, name = (tmp_path / "history.jsonl.sha256").read_text().split()
    assert (digest, name) == (hashlib.sha256(file.read_bytes()).hexdigest(), "history.jsonl")
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    last: dict[str, bytes] = {}
    for event in events:  # as docs/operating.md says it
        names = ("seq", "run", "operation", "event", "at")
        data = json.dumps(event["data"], separators=(",", ":"), ensure_ascii=False)
        array = json.dumps(
            [*(event[name] for name in names), data, event["row"]],
            separators=(",", ":"),
            ensure_ascii=False,
        )
        previous = last.get(event["run"], bytes(32))
        assert hashlib.sha256(previous + array.encode()).hexdigest() == event["hash"]
        last[event["run"]] = bytes.fromhex(event["hash"])
    ones = [json.loads(line) for line in (tmp_path / "one.jsonl").read_text().splitlines()]
    assert ones == [event for event in events if event["run"] == "run-1"]


def test_commands_without_a_ledger_say_so(tmp_path: Path) -> None:
    for command in (["backup", str(tmp_path / "x")], ["audit", "verify"]):
        code, _, err = run(tmp_path / "none", *command)
        assert code == 4
        assert "ledger" in err or "key" in err
