"""One process per ledger file: a lock file that names its holder.

The kernel drops the lock when the holder dies, so a crash leaves nothing to clean up; the text in
the file only serves the message. Locks and SQLite's own promises do not hold on network file
systems, so those are told apart here too.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
from pathlib import Path

from proxy.ledger.base import LedgerError, Locked

NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre"}
)
NETWORK_FUSE = ("fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse")
MOUNTS = Path("/proc/self/mountinfo")


class LockFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Raises Locked, naming the holder, at once; LedgerError when the file cannot be made."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LedgerError(
                f"cannot write {self.path}: {error.strerror}; "
                "give this user the directory, or choose another with state_dir or ledger.url"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 500, 0).decode("utf-8", "replace").strip()
            os.close(descriptor)
            raise Locked(
                f"the ledger beside {self.path} is open in {holder or 'another process'}: "
                "stop that one, or give this one its own state_dir"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, _me().encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


def network_file_system(path: Path) -> str | None:
    """The type of the file system a path is on, if it is a network one; None also if not known."""
    found = file_system(path)
    return found if found in NETWORK or found.startswith(NETWORK_FUSE) else None


def file_system(path: Path) -> str:
    """The type of the file system a path is on; empty if it is not known."""
    try:
        lines = MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    best, found = -1, ""
    resolved = path.resolve()
    for line in lines:
        before, _, after = line.partition(" - ")
        mount = Path(before.split(" ")[4].replace("\\040", " "))
        if len(mount.parts) >= best and resolved.is_relative_to(mount):
            best, found = len(mount.parts), after.split(" ")[0]
    return found


def _me() -> str:
    """Process and command; only the command's first word, since the rest may hold secrets."""
    words = [Path(sys.argv[0]).name or "python", *sys.argv[1:2]]
    return f"process {os.getpid()} on {socket.gethostname()} ({' '.join(words)[:80]})\n"
