"""The test's side of ``shim.c``: building it, telling it what to do, and whether it is there."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
ACTIONS = {"fail": 1, "short": 2, "kill": 3}
FOR_EVER = 1 << 40


@cache
def build() -> Path | None:
    """The shared object; None where there is no C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    made = Path(tempfile.gettempdir()) / f"onceproxy-shim-{os.getuid()}-{digest}.so"
    if not made.exists():
        draft = made.with_suffix(f".{os.getpid()}")
        command = [compiler, "-O2", "-shared", "-fPIC", "-w", "-o", str(draft), str(SOURCE)]
        subprocess.run([*command, "-ldl", "-pthread"], check=True)
        draft.replace(made)
    return made


def environment(watch: str = "", trace: Path | None = None, clock: float = 0) -> dict[str, str]:
    """What a process needs in its environment to have the shim; call only where it was built."""
    made = build()
    assert made is not None
    found = {"LD_PRELOAD": str(made)}
    if watch:
        found["FAULT_WATCH"] = watch
    if trace is not None:
        found["FAULT_TRACE"] = str(trace)
    if clock:
        found["FAULT_CLOCK"] = repr(clock)
    return found


@cache
def _loaded() -> ctypes.CDLL | None:
    """The shim of this process, if it has one."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "fault_arm"):
        return None
    library.fault_count.restype = ctypes.c_long
    library.fault_clock.argtypes = [ctypes.c_double]
    library.fault_arm.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_int, ctypes.c_int]
    return library


def arm(at: int, action: str = "fail", error: str = "ENOSPC", times: int = FOR_EVER) -> None:
    """From the ``at``-th change of a watched file on, counted from now, ``times`` of them meet
    the fault. ``at`` 0: none does any more."""
    library = _loaded()
    assert library is not None, "LD_PRELOAD"
    library.fault_arm(at, times if at else 0, ACTIONS[action], getattr(errno, error))


def count() -> int:
    """Changes of watched files since the last ``arm``."""
    library = _loaded()
    return library.fault_count() if library is not None else 0


def mark(text: str) -> None:
    library = _loaded()
    if library is not None:
        library.fault_mark(text.encode())


def step_clock(seconds: float) -> None:
    """The wall clock of this process is ahead by so much."""
    library = _loaded()
    assert library is not None, "LD_PRELOAD"
    library.fault_clock(seconds)
