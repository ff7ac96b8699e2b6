"""Durations (``20s``, ``24h``, ``1h30m``) and sizes (``10MB``, ``64KiB``) as people write them."""

from __future__ import annotations

import math
import re

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|[smhdw]))+")
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhdw])")
_BYTES = {
    "": 1,
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KIB": 1024,
    "MIB": 1024**2,
    "GIB": 1024**3,
}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(B|[KMG]I?B)?", re.IGNORECASE)


def duration(text: str) -> float:
    """Seconds. Raises ValueError that says how one is written; a bare number has no unit and is
    refused, except 0."""
    text = text.strip()
    if text == "0":
        return 0.0
    if not _DURATION.fullmatch(text):
        raise ValueError(
            "not a duration: write a number and a unit (ms, s, m, h, d, w), for example 20s or 24h"
        )
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(text))


def retention(text: str) -> float:
    """Seconds; ``forever`` is infinite. Raises ValueError."""
    return math.inf if text.strip() == "forever" else duration(text)


def size(text: str) -> int:
    """Bytes. KB, MB, GB are powers of 1000, KiB, MiB, GiB of 1024. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a size: write a number and a unit, for example 10MB or 64KiB")
    return int(float(match[1]) * _BYTES[(match[2] or "").upper()])


def show_duration(seconds: float) -> str:
    """The shortest exact spelling with one unit."""
    if seconds == math.inf:
        return "forever"
    for unit in ("w", "d", "h", "m", "s"):
        value = seconds / _SECONDS[unit]
        if seconds and value == int(value):
            return f"{int(value)}{unit}"
    return f"{seconds:g}s"


def show_size(count: int) -> str:
    for unit in ("GB", "MB", "KB"):
        if count and count % _BYTES[unit] == 0:
            return f"{count // _BYTES[unit]}{unit}"
    return f"{count}B"
