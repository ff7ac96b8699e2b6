"""Figures of the reliability bars; `make test-all` writes docs/reliability.md from its own.

    reliability.figure("R1", "SIGKILL at random moments", kills=500, duplicates=0, lost=0)
    reliability.control("R1", "outcome written before the send", "12 of 40 callers told wrong")

Call them after a test's assertions: what stands in the table has held. Both may be called often and
from any process: whole numbers of the same bar and text add up, other values are replaced; ``part``
puts a bar under another heading. Outside of ``make test-all`` they do nothing.
"""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path

DOCUMENT = Path(__file__).parent.parent / "docs" / "reliability.md"
FILE_VARIABLE = "RELIABILITY_FIGURES"  # where this run keeps them; set by `make test-all`
PART = "Faults of the machine and the process"

Value = int | float | str
HEAD = """\
# Reliability

What is done to onceproxy before a release, and what came of it. This page is written by
`make test-all` from its own run; whoever doubts a figure can repeat it. Every bar has a control:
the same test over a proxy with one thing broken on purpose, which must come out red. A bar whose
control stays green measures nothing.

The counts that must be 0: `duplicates` (more than one effect for one operation), `lost` (a caller
was told of a success that the API never had, or an acknowledged record is gone), `wrong_status`
(ledger or answer tell something else than the API), `budget_resets`, and `stuck` (no end, and no
honest `unknown`).
"""


def figure(bar: str, what: str, /, *, part: str = PART, **figures: Value) -> None:
    """What was done for a bar, and what was counted."""
    _note({"bar": bar, "what": what, "part": part, "figures": figures})


def control(bar: str, planted: str, seen: str, /, *, part: str = PART) -> None:
    """What was broken on purpose, and how the same test came out red over it."""
    _note({"bar": bar, "planted": planted, "seen": seen, "part": part})


def _note(line: dict[str, object]) -> None:
    file = os.environ.get(FILE_VARIABLE)
    if file is None:
        return
    # One write to a file opened for appending: workers do not mix their lines.
    with open(file, "ab", buffering=0) as out:
        out.write(json.dumps(line).encode() + b"\n")


class Bar:
    """One row per thing done, and the controls of all."""

    def __init__(self) -> None:
        self.done: dict[str, dict[str, Value]] = {}
        self.controls: dict[str, str] = {}

    def add(self, line: dict[str, object]) -> None:
        if "planted" in line:
            self.controls[str(line["planted"])] = str(line["seen"])
            return
        figures = self.done.setdefault(str(line["what"]), {})
        given = line["figures"]
        assert isinstance(given, dict)
        for name, value in given.items():
            before = figures.get(name)
            whole = type(value) is int and type(before) is int
            figures[name] = before + value if whole else value


def gather(lines: Iterator[str]) -> dict[str, dict[str, Bar]]:
    """part -> bar -> what was done for it."""
    parts: dict[str, dict[str, Bar]] = {}
    for text in lines:
        line = json.loads(text)
        parts.setdefault(line["part"], {}).setdefault(line["bar"], Bar()).add(line)
    return parts


def document(parts: dict[str, dict[str, Bar]], where: str) -> str:
    text = [HEAD, where]
    for part in sorted(parts, key=lambda name: (name != PART, name)):
        text.append(f"\n## {part}\n")
        text.append("| bar | what is done | figures | control, and how it came out |")
        text.append("|---|---|---|---|")
        for name in sorted(parts[part], key=_natural):
            text.extend(_rows(name, parts[part][name]))
    return "\n".join(text) + "\n"


def _natural(name: str) -> tuple[str, int, str]:
    """R2 before R10."""
    letters = name.rstrip("0123456789")
    return letters, int(name[len(letters) :] or 0), name


def _rows(name: str, bar: Bar) -> Iterator[str]:
    controls = "; ".join(f"{planted}: **red**, {seen}" for planted, seen in bar.controls.items())
    for number, (what, figures) in enumerate(sorted(bar.done.items())):
        told = ", ".join(f"{_shown(value)} {words}" for words, value in _worded(figures))
        yield f"| {name} | {_cell(what)} | {_cell(told)} | {'' if number else _cell(controls)} |"


def _worded(figures: dict[str, Value]) -> Iterator[tuple[str, Value]]:
    for name, value in figures.items():
        yield name.replace("_", " "), value


def _shown(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else value


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _where() -> str:
    day = time.strftime("%Y-%m-%d", time.gmtime())
    python, sqlite = platform.python_version(), sqlite3.sqlite_version
    return (
        f"Last run: {day}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {python}, SQLite {sqlite}."
    )


def main(file: str) -> None:
    with open(file, encoding="utf-8") as lines:
        DOCUMENT.write_text(document(gather(iter(lines)), _where()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
