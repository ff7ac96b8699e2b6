"""Secrets that can be found again: what the tests use as credentials carries this mark, and a scan
looks for it where no secret may be (S9).

The scan at the end of the suite also looks for what each proxy made up itself: the texts of its
tokens, its ledger key and its CA's key.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

MARK = "c4n4ry5ecret"

# Where a proxy writes what is not secret: the ledger with its WAL, head and lock file, logs, where
# it listens, bundles of certificates, figures, and what commands have printed.
WATCHED = ("*.db", "*.db-*", "*.db.*", "*.log", "*.out", "*.err", "serving.json", "ca-bundle.pem")
HEX = re.compile(rb"[0-9a-f]{64}")
LARGEST = 200_000_000  # bytes of one file


def secret(name: str) -> str:
    """A credential with the mark, 40 characters."""
    return f"{MARK}-{name}-".ljust(40, "x")


def spellings(text: str) -> list[bytes]:
    """The bytes by which a text is found: as it is, as hex, and inside base64 at any place."""
    raw = text.encode()
    found = [raw, raw.hex().encode(), text.encode("utf-16-le")]
    for before in range(3):
        # Only the characters that do not depend on the neighbours.
        encoded = base64.b64encode(b"\0" * before + raw)
        found.append(encoded[(before * 4 + 2) // 3 : len(encoded) - 4])
    return found


MARKS = spellings(MARK)


def files_of(folder: Path, *patterns: str) -> list[Path]:
    """Files below that have one of these names; a test may be taking some of them away."""
    found = []
    for base, _, names in os.walk(folder):
        for name in names:
            if any(fnmatchcase(name, pattern) for pattern in patterns):
                found.append(Path(base) / name)
    return found


def watched(folder: Path) -> list[Path]:
    return [file for file in files_of(folder, *WATCHED) if not file.is_symlink()]


def read(file: Path) -> bytes:
    try:
        return file.read_bytes() if file.stat().st_size <= LARGEST else b""
    except OSError:
        return b""  # a test took it away, or made it unreadable


def own_secrets(folder: Path) -> Iterator[tuple[Path, list[bytes]]]:
    """The state directories below, with the secrets that their proxies made up."""
    for key in files_of(folder, "ledger.key"):
        directory = key.parent
        found = [line for line in read(key).split() if HEX.fullmatch(line)]
        found += [bytes.fromhex(line.decode()) for line in found]
        try:
            found += [str(v).encode() for v in json.loads(read(directory / "tokens.json")).values()]
        except (ValueError, AttributeError):
            pass  # none, or a test of broken files
        for ca in files_of(directory / "ca", "*key.pem"):
            found += [line for line in read(ca).splitlines() if len(line) == 64]
        yield directory, [each for each in found if len(each) >= 16]


def leaks(files: Iterable[Path], marks: Iterable[bytes] = MARKS) -> list[str]:
    """The files that hold one of these, and what stands around it."""
    wanted = list(marks)
    found = []
    for file in files:
        data = read(file)
        for mark in wanted:
            at = data.find(mark)
            if at >= 0:
                found.append(f"{file} at {at}: {data[max(0, at - 60) : at + 30]!r}")
                break
    return found


def scan(folder: Path) -> tuple[int, list[str]]:
    """How many files were looked at, and what leaked into them."""
    files = watched(folder)
    found = leaks(files)
    for directory, marks in own_secrets(folder):
        # Its own files and the log beside it.
        near = [f for f in files if f.is_relative_to(directory) or f.parent == directory.parent]
        found += leaks(near, marks)
    return len(files), found
