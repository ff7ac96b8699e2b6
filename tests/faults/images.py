"""What a disk may hold after the power was cut, made from a trace of ``shim.c``.

What was synced is there. Of what was written since, any part may be: each write whole, not at all,
or some of its sectors; each change of a file's length or name, or not. A name is durable once its
directory was synced after it.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SECTOR = 512  # bytes that a disk writes whole or not at all
HEAD = struct.Struct("<cBqI")


@dataclass(frozen=True, slots=True)
class Step:
    """``kind``: W write, T cut, S sync, C create, U unlink, R rename, L link, M mark."""

    kind: str
    path: str = ""
    at: int = 0
    data: bytes = b""

    @property
    def text(self) -> str:
        return self.data.decode()


def read(trace: Path) -> list[Step]:
    raw, names, steps, at = trace.read_bytes(), {}, [], 0
    while at < len(raw):
        kind, file, offset, size = HEAD.unpack_from(raw, at)
        at += HEAD.size
        data = raw[at : at + size]
        at += size
        if kind == b"N":
            names[file] = data.decode()
        elif kind in b"URL":
            path, _, other = data.decode().partition("\0")
            steps.append(Step(kind.decode(), path, 0, other.encode()))
        else:
            steps.append(Step(kind.decode(), names.get(file, ""), offset, data))
    return steps


@dataclass
class File:
    """``durable``: its synced bytes, then what came after, in order."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Step] = field(default_factory=list)

    def synced(self) -> None:
        for step in self.pending:
            _apply(self.durable, step)
        self.pending.clear()


@dataclass
class Disk:
    names: dict[str, File] = field(default_factory=dict)  # as programs see them
    durable: dict[str, File] = field(default_factory=dict)  # as they are after a power cut
    renamed: list[Step] = field(default_factory=list)  # changes of names since

    def take(self, step: Step) -> None:
        match step.kind:
            case "C":
                self.names[step.path] = File()
                self.renamed.append(step)
            case "W" | "T":
                self.names[step.path].pending.append(step)
            case "S" if step.path in self.names:
                self.names[step.path].synced()
            case "S":  # a directory
                mine = [one for one in self.renamed if os.path.dirname(one.path) == step.path]
                self.renamed = [one for one in self.renamed if one not in mine]
                for path in {p for one in mine for p in (one.path, one.text) if p}:
                    if path in self.names:
                        self.durable[path] = self.names[path]
                    else:
                        self.durable.pop(path, None)
            case "U":
                self.names.pop(step.path, None)
                self.renamed.append(step)
            case "R":
                self.names[step.text] = self.names.pop(step.path)
                self.renamed.append(step)
            case "L":
                self.names[step.text] = self.names[step.path]
                self.renamed.append(step)

    def after_a_cut(self, choice: random.Random) -> dict[str, bytes]:
        """One of the states that a power cut may leave."""
        share = choice.choice([0.0, 0.5, 0.5, 1.0])  # none, any part, all of what was not synced
        found = dict(self.durable)
        for path in {p for one in self.renamed for p in (one.path, one.text) if p}:
            if choice.random() < share:
                if path in self.names:
                    found[path] = self.names[path]
                else:
                    found.pop(path, None)
        return {path: _left(file, share, choice) for path, file in found.items()}


def _left(file: File, share: float, choice: random.Random) -> bytes:
    if not file.pending or share == 0.0:
        return bytes(file.durable)
    left = bytearray(file.durable)
    for step in file.pending:
        if share == 1.0:
            _apply(left, step)
        elif choice.random() < share:
            if step.kind == "W" and choice.random() < 0.5:
                for part in _sectors(step):
                    if choice.random() < 0.5:
                        _apply(left, part)
            else:
                _apply(left, step)
    return bytes(left)


def _sectors(step: Step) -> Iterator[Step]:
    at, end = step.at, step.at + len(step.data)
    while at < end:
        until = min(end, (at // SECTOR + 1) * SECTOR)
        yield Step("W", step.path, at, step.data[at - step.at : until - step.at])
        at = until


def _apply(content: bytearray, step: Step) -> None:
    if step.kind == "T":
        del content[step.at :]
        content.extend(bytes(step.at - len(content)))
        return
    content.extend(bytes(max(0, step.at - len(content))))
    content[step.at : step.at + len(step.data)] = step.data


def cut(
    steps: Sequence[Step], number: int, seed: int
) -> Iterator[tuple[int, dict[str, bytes], list[str]]]:
    """``number`` images at random moments: the moment, what is on disk, the marks before it."""
    choice = random.Random(seed)
    moments = sorted(choice.randrange(1, len(steps) + 1) for _ in range(number))
    disk, marks, at = Disk(), [], 0
    for moment in moments:
        while at < moment:
            step = steps[at]
            if step.kind == "M":
                marks.append(step.text)
            else:
                disk.take(step)
            at += 1
        yield moment, disk.after_a_cut(choice), list(marks)
