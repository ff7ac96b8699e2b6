"""Copies of a SQLite ledger that are whole whatever the proxy does meanwhile, and putting one back.

A copy says of itself that it is one, so that the proxy that opens it begins a new generation: it
cannot know what was done after it was made. The key is not part of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from proxy.ledger.base import LedgerError, WrongKey
from proxy.ledger.lock import LockFile
from proxy.ledger.schema import check_ours, reader
from proxy.ledger.seal import Sealer, sync_directory

BACKUP = "backup"  # in meta: when this copy was made, seconds since the epoch
BESIDE = ("-wal", "-shm")  # files of SQLite's that belong to the one they are named after
CHUNK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Copied:
    """What is in a copy."""

    file: Path
    size: int
    sha256: str
    operations: int
    events: int
    generation: str


def copy(path: Path, to: Path, now: float) -> Copied:
    """Copy a ledger, in use or not, into a new file. Raises LedgerError."""
    if not path.is_file():
        raise LedgerError(f"there is no ledger {path}: nothing to copy")
    draft = _draft(to)
    try:
        with contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as target:
            with contextlib.closing(reader(path)) as source:
                check_ours(source)
                # In one step, so in one snapshot: writers go on, only checkpoints wait.
                source.backup(target, pages=-1)
            counted = _finish(target, now)
        _sync(draft)
        with open(draft, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        _publish(draft, to)
    except sqlite3.Error as error:
        raise LedgerError(f"cannot copy {path} to {to}: {error}") from error
    except OSError as error:
        raise LedgerError(f"cannot write {to}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
    return Copied(to, to.stat().st_size, digest, *counted)


def restore(file: Path, path: Path, key: Sequence[bytes] | bytes, now: float) -> list[Path]:
    """Put a copy in the place of a ledger that no proxy uses. What was there is kept beside it
    under another name: those names are returned. Raises LedgerError, Locked, WrongKey."""
    if not file.is_file():
        raise LedgerError(f"there is no file {file}")
    lock = LockFile(path.with_name(path.name + ".lock"))
    lock.acquire()
    draft: Path | None = None
    try:
        draft = _draft(path)
        shutil.copyfile(file, draft)
        with contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as target:
            _check(target, file, key)
            _finish(target, now)
        _sync(draft)
        moved = _set_aside(path, now)
        _publish(draft, path)
        return moved
    except sqlite3.Error as error:
        raise LedgerError(f"{file} cannot be used: {error}") from error
    except OSError as error:
        raise LedgerError(f"cannot write {path}: {error.strerror}") from error
    finally:
        if draft is not None:
            draft.unlink(missing_ok=True)
        lock.release()


def _check(db: sqlite3.Connection, file: Path, key: Sequence[bytes] | bytes) -> None:
    check_ours(db)
    found = db.execute("SELECT value FROM meta WHERE name = 'canary'").fetchone()
    if found is None or not Sealer(key).opens(found[0]):
        raise WrongKey(f"the key does not open {file}: use the key it was made with")


def _finish(db: sqlite3.Connection, now: float) -> tuple[int, int, str]:
    """Make the copy one plain file that says what it is, and check its pages."""
    db.execute("PRAGMA journal_mode = DELETE")
    db.execute(f"INSERT OR IGNORE INTO meta VALUES ('{BACKUP}', ?)", (repr(now).encode(),))
    faults = [row[0] for row in db.execute("PRAGMA quick_check(3)")]
    if faults != ["ok"]:
        raise LedgerError(f"the copy is damaged, as its original may be: {'; '.join(faults)}")
    operations = db.execute("SELECT coalesce(sum(number), 0) FROM tallies").fetchone()[0]
    events = db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0]
    generation = db.execute("SELECT value FROM meta WHERE name = 'generation'").fetchone()
    return operations, events, generation[0] if generation else ""


def _draft(to: Path) -> Path:
    """An empty file of its owner's only, beside where it will be. Raises LedgerError."""
    draft = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileNotFoundError:
        raise LedgerError(f"there is no directory {to.parent}") from None
    except OSError as error:
        raise LedgerError(f"cannot write {draft}: {error.strerror}") from error
    return draft


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _publish(draft: Path, to: Path) -> None:
    """Give the file its name, which nothing else may have. Raises LedgerError."""
    try:
        os.link(draft, to)
    except FileExistsError:
        raise LedgerError(f"{to} is there already: choose another name") from None
    sync_directory(to.parent)


def _set_aside(path: Path, now: float) -> list[Path]:
    """Rename a ledger with all that belongs to it: left behind, its log would be read into the
    one that takes its place."""
    kept = path.with_name(f"{path.name}.replaced-{int(now)}")
    moved = []
    for end in (*BESIDE, ""):
        old, new = path.with_name(path.name + end), kept.with_name(kept.name + end)
        if old.exists():
            if new.exists():
                raise LedgerError(f"{new} is there already: try again in a second")
            old.rename(new)
            moved.append(new)
    return moved
