"""How many connections the process has file descriptors for."""

from __future__ import annotations

import os
import resource
from contextlib import suppress

EACH = 2  # descriptors of a caller: its connection, and the one to the service
SPARE = 24  # for the control port, lookups, spooled bodies, name resolution
AT_LEAST = 4  # connections; with fewer the proxy is of no use


def room_for(connections: int) -> tuple[int, str | None]:
    """How many of the wanted connections there can be, and a warning where it is not all of them.
    Raises the soft limit of open files as far as is needed and allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = _open_files()
    wanted = used + SPARE + EACH * connections
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections, None
    possible = max(AT_LEAST, (soft - used - SPARE) // EACH)
    return possible, (
        f"the limit of open files is {soft}, enough for {possible} connections and not for "
        f"{connections} (limits.connections): raise it (ulimit -n)"
    )


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 40  # what a proxy has open that nobody talks to
