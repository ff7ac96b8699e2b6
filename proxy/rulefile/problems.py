"""What is wrong with rule files: collected while reading, reported together with file and line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Where = tuple[str | int, ...]
"""The keys and indexes that lead to a place in a file."""


class RuleErrors(Exception):
    """A rule set that is not usable. ``problems``: lines ``file:line:column: key: what``."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


@dataclass(slots=True)
class Problems:
    """Of one file. ``marks``: line and column (from 1) of what was read there."""

    file: str
    marks: Mapping[Where, tuple[int, int]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def error(self, where: Where, message: str) -> None:
        line = self._line(where, message)
        if line not in self.errors:
            self.errors.append(line)

    def warn(self, where: Where, message: str) -> None:
        self.warnings.append(self._line(where, message))

    def at(self, line: int, column: int, message: str) -> None:
        self.errors.append(f"{self.file}:{line}:{column}: {message}")

    def _line(self, where: Where, message: str) -> str:
        known = where
        while known and known not in self.marks:
            known = known[:-1]
        line, column = self.marks.get(known, (1, 1))
        path = shown(where)
        return f"{self.file}:{line}:{column}: {path + ': ' if path else ''}{message}"


def shown(where: Where) -> str:
    text = ""
    for part in where:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean "limit"?`` or nothing."""
    guess = difflib.get_close_matches(word, list(known), 1)
    return f'; did you mean "{guess[0]}"?' if guess else ""
