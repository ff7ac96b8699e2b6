"""What the operating system knows: flush times of a disk, CPU time and memory of a process."""

from __future__ import annotations

import os
import platform
import socket
import statistics
import time
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
FLUSHES = 400  # enough for a median, a fraction of a second on any disk that is worth testing


def flush_p50(folder: Path) -> float:
    """Median seconds of one 4 KiB append and its fdatasync in that folder's file system."""
    path = folder / "flush-probe"
    block = os.urandom(4096)
    times = []
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        for _ in range(FLUSHES):
            start = time.perf_counter()
            os.write(file, block)
            os.fdatasync(file)
            times.append(time.perf_counter() - start)
    finally:
        os.close(file)
        path.unlink()
    return statistics.median(times)


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def describe() -> str:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    python = platform.python_version()
    return f"{os.cpu_count()} x {model}, Linux {platform.release()}, Python {python}"
