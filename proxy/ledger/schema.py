"""How a SQLite ledger file is opened: settings, numbered migrations, who made it.

A file of a newer onceproxy, or of another program, is refused and left as it is.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any

from proxy.ledger.base import LedgerError
from proxy.ledger.seal import sync_directory

MIGRATIONS = Path(__file__).parent / "migrations"
APPLICATION_ID = 0x6F6E6365  # "once" in ASCII: tells our files from other SQLite files

WRITER = (
    "PRAGMA synchronous = FULL",  # with NORMAL a power cut loses acknowledged commits
    "PRAGMA fullfsync = ON",  # macOS: fsync alone does not reach the disk
    "PRAGMA checkpoint_fullfsync = ON",
    # 16 MB: checkpoints rare enough not to show in the commit latency, a WAL small enough to be
    # read at the start. This connection is the only one that checkpoints.
    "PRAGMA wal_autocheckpoint = 4000",
    "PRAGMA journal_size_limit = 67108864",  # a WAL that grew beyond 64 MB is cut again
    "PRAGMA cache_size = -8192",  # 8 MB: what is written together lies together; RSS stays small
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cell_size_check = ON",  # notice damaged pages early
    "PRAGMA mmap_size = 0",  # a memory-mapped file turns a disk error into a crash
    "PRAGMA trusted_schema = OFF",
)
READER = (
    "PRAGMA query_only = ON",
    "PRAGMA wal_autocheckpoint = 0",
    "PRAGMA cache_size = -4096",  # 4 MB
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cell_size_check = ON",
    "PRAGMA mmap_size = 0",
    "PRAGMA trusted_schema = OFF",
)


def create_file(path: Path) -> bool:
    """Make an empty file for its owner only; False if there is one. Raises LedgerError."""
    if not path.parent.is_dir():
        raise LedgerError(
            f"there is no directory {path.parent}: make it, or correct state_dir or ledger.url"
        )
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        sync_directory(path.parent)
    except FileExistsError:
        if not os.access(path, os.R_OK | os.W_OK):
            raise LedgerError(
                f"cannot write {path}: give it to the user that runs onceproxy"
            ) from None
        return False
    except OSError as error:
        raise LedgerError(f"cannot write {path}: {error.strerror}") from error
    return True


def prepare(db: sqlite3.Connection) -> None:
    """Set up the writing connection and bring the file to the newest schema. Raises LedgerError."""
    check_ours(db)
    if db.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        raise LedgerError("this file system cannot hold a SQLite WAL: use a local disk")
    for pragma in WRITER:
        db.execute(pragma)
    migrate(db)


def reader(path: Path) -> sqlite3.Connection:
    """A connection that never writes, never checkpoints; the writer must be open already."""
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=1.0
    )
    for pragma in READER:
        db.execute(pragma)
    return db


def migrate(db: sqlite3.Connection) -> None:
    """Run the numbered files that this database has not seen, each in its own transaction."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    for number, script in migrations():
        if number > version:
            try:
                db.executescript(
                    f"BEGIN IMMEDIATE;\n{script}\n"
                    f"PRAGMA user_version = {number};\n"
                    f"PRAGMA application_id = {APPLICATION_ID};\n"
                    "COMMIT;"
                )
            except sqlite3.Error:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise


def migrations() -> list[tuple[int, str]]:
    """The numbered files, in order."""
    return sorted((int(file.stem), file.read_text()) for file in MIGRATIONS.glob("[0-9]*.sql"))


def check_ours(db: sqlite3.Connection) -> None:
    """Refuse the file of another program, or of a newer onceproxy. Raises LedgerError."""
    application = db.execute("PRAGMA application_id").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    empty = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    if application != APPLICATION_ID and not empty:
        raise LedgerError("this file is not a onceproxy ledger: choose another ledger.url")
    newest = migrations()[-1][0]
    if version > newest:
        raise LedgerError(
            f"this ledger was written by a newer onceproxy (schema {version}, this one knows "
            f"{newest}): install that version or a later one"
        )


def remember(db: sqlite3.Connection, *, forget: str = "", **values: Any) -> None:
    """Write what the ledger knows of itself, in a transaction of its own."""
    db.execute("BEGIN IMMEDIATE")
    try:
        db.execute("DELETE FROM meta WHERE name = ?", (forget,))
        db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
        raise
