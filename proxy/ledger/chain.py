"""Hash chains over the history, and the head file that tells when a ledger went back in time.

Each event is chained to its run's previous one, so that an edited, removed or swapped event shows.
Each batch is chained to the one before, so that a removed run shows. A cut tail shows against the
head file: it lies outside the database and is written in place, unsynced, after each durable batch,
so it can only ever be behind; a ledger behind *it* is not the one that ran here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from proxy.ledger.base import LedgerError

START = bytes(32)  # what the first event of a run, and the first batch, are chained to
MAGIC = "onceproxy-head"


def link(
    previous: bytes,
    seq: int,
    run: str,
    key: str,
    kind: str,
    at: float,
    data: str,
    row: bytes | None,
) -> bytes:
    """The hash of an event, given the hash of the run's previous one."""
    bound = None if row is None else row.hex()
    return hashlib.sha256(previous + orjson.dumps((seq, run, key, kind, at, data, bound))).digest()


def batch_head(previous: bytes, links: Sequence[bytes]) -> bytes:
    """The hash of a batch, given that of the batch before and the hashes of its events."""
    return hashlib.sha256(previous + b"".join(links)).digest()


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a ledger: its generation, the last event's number, the last batch's hash."""

    generation: str
    seq: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """A ledger is not the one that the head file saw. ``earlier``: it is the same one at an earlier
    moment, so that nothing older than its newest event is missing."""

    reason: str
    earlier: bool = False


def went_back(seen: Head | None, now: Head, head_at: Callable[[int], bytes | None]) -> Lost | None:
    """Why a ledger is not the one that the head file saw, or None if it is.

    ``head_at`` gives the batch hash stored with an event, by its number."""
    if seen is None or seen.seq == 0:
        return None
    if now.seq == 0:
        return Lost(f"the ledger that ran here, up to event {seen.seq}, is gone")
    if seen.generation != now.generation:
        return Lost(
            f"the head file belongs to another generation of this ledger ({seen.generation}, up to "
            f"event {seen.seq}; this one is {now.generation}, up to event {now.seq})"
        )
    if seen.seq > now.seq:
        return Lost(
            f"the ledger ends at event {now.seq}, but had event {seen.seq} when it last ran",
            earlier=True,
        )
    if head_at(seen.seq) != seen.hash:
        return Lost(
            f"event {seen.seq} of the ledger is not the one that was written when it last ran"
        )
    return None


class HeadFile:
    """One line: magic, generation, event number, batch hash, checksum."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def open(self) -> None:
        """Raises LedgerError."""
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LedgerError(f"cannot write {self.path}: {error.strerror}") from error

    def read(self) -> Head | None:
        """What it holds; None when it is empty or does not fit its checksum."""
        if self._descriptor is None:
            return None
        return _parsed(os.pread(self._descriptor, 1000, 0))

    def empty(self) -> bool:
        return self._descriptor is None or os.fstat(self._descriptor).st_size == 0

    def begin(self, head: Head) -> None:
        """Write the file anew, durably. Raises LedgerError."""
        if self._descriptor is None:
            return
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, _line(head), 0)
            os.fsync(self._descriptor)
        except OSError as error:
            raise LedgerError(f"cannot write {self.path}: {error.strerror}") from error

    def write(self, head: Head) -> None:
        """Write in place, without syncing. A failure only leaves the file behind, which is safe."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._descriptor, _line(head), 0)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read_head(path: Path) -> Head | None:
    """What the head file of a ledger holds, for others than its proxy; None where there is none or
    it does not fit its checksum."""
    try:
        return _parsed(path.read_bytes()[:1000])
    except OSError:
        return None


def _parsed(data: bytes) -> Head | None:
    content, _, check = data.decode("ascii", "replace").rstrip("\n").rpartition(" ")
    words = content.split(" ")
    if len(words) != 4 or words[0] != MAGIC or check != _check(content):
        return None
    return Head(words[1], int(words[2]), bytes.fromhex(words[3]))


def _line(head: Head) -> bytes:
    # The number has a fixed width: within a generation each line covers the one before it.
    content = f"{MAGIC} {head.generation} {head.seq:020d} {head.hash.hex()}"
    return f"{content} {_check(content)}\n".encode()


def _check(content: str) -> str:
    return f"{zlib.crc32(content.encode()):08x}"
