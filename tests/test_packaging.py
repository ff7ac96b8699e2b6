"""What a fresh machine gets: locked requirements, verbs that set themselves up, rules."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


def lines(path: Path) -> list[str]:
    texts = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return [text for text in texts if text]


def test_the_locked_list_is_the_published_one() -> None:
    assert sorted(lines(ROOT / "requirements/runtime.in")) == sorted(
        PROJECT["project"]["dependencies"]
    )


def test_the_build_backend_is_locked_too() -> None:
    assert set(PROJECT["build-system"]["requires"]) <= set(lines(ROOT / "requirements/build.in"))


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_every_locked_package_has_hashes_and_no_lock_names_an_index(path: Path) -> None:
    text = path.read_text()
    entries = re.findall(r"^[A-Za-z0-9].*?(?=^[A-Za-z0-9#]|\Z)", text, re.MULTILINE | re.DOTALL)
    assert entries
    for entry in entries:
        assert re.match(r"[A-Za-z0-9._-]+==\S+", entry), entry
        assert "--hash=sha256:" in entry, entry
    assert not re.search(r"--(?!hash)|://|file:[./]", text)


def test_the_locks_agree_with_each_other() -> None:
    pins: dict[str, set[str]] = {}
    for path in LOCKS:
        for package, version in re.findall(r"^(\S+?)==(\S+)", path.read_text(), re.MULTILINE):
            pins.setdefault(package, set()).add(version)
    assert {package: found for package, found in pins.items() if len(found) > 1} == {}


@pytest.mark.parametrize("verb", ["demo", "run", "test", "test-all", "check", "bench"])
def test_every_verb_sets_itself_up(verb: str) -> None:
    plan = subprocess.run(
        ["make", "--dry-run", "--always-make", verb],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},  # not the flags of a make that runs this very test
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "tools/venv.sh" in plan
    assert "--require-hashes" in plan
    assert "--no-build-isolation -e ." in plan


def test_a_python_that_is_too_old_is_told_so_in_one_sentence(tmp_path: Path) -> None:
    old = tmp_path / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    result = subprocess.run(
        ["/bin/sh", str(ROOT / "tools/venv.sh"), str(tmp_path / "venv"), str(old)],
        capture_output=True,
        text=True,
        env={"PATH": "/nonexistent"},
        check=False,
    )
    assert result.returncode == 1
    assert "Python 3.11 or newer is needed" in result.stderr
    assert not (tmp_path / "venv").exists()


def test_a_wheel_carries_the_rule_files() -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"rules": "proxy/_rules"}
    assert list((ROOT / "rules").glob("*.yaml"))


def test_a_wheel_carries_what_the_package_reads_at_run_time(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as held:
        packed = set(held.namelist())
    read = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "proxy").rglob("*")
        if path.suffix in (".html", ".css", ".js", ".svg", ".json", ".sql", ".yaml", ".cjs")
    ]
    assert len(read) > 15
    assert set(read) <= packed


def test_the_bill_of_materials_lists_what_is_locked() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/sbom.py")], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found["bomFormat"] == "CycloneDX"
    locked = re.findall(r"^(\S+?)==(\S+)", (ROOT / "requirements/runtime.txt").read_text(), re.M)
    assert [(c["name"], c["version"]) for c in found["components"]] == locked
    assert all(component["hashes"] for component in found["components"])
