"""Paths into a request or an answer: ``body.items[].id``, ``header.ETag``, ``error.type``.

A path is read once, when a rule is loaded, and walked many times. The language is small on purpose:
members by name (quoted where they hold a dot), ``[0]`` for one element, ``[]`` for all of them.
``a[b]`` is ``a.b``, so that a form field can be written the way it travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final


class Missing:
    """The type of MISSING, the value of a path that leads nowhere. Falsy; there is one instance."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()

REQUEST_ROOTS = ("body", "path", "query", "header", "host", "graphql")


class PathError(ValueError):
    """The text is no path; the message says why."""


class _All:
    """The step ``[]``: every element."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "[]"


ALL: Final = _All()
Step = str | int | _All


@dataclass(frozen=True, slots=True)
class Path:
    """``root``: body, path, query, header, host, graphql or status; an answer's own members have
    root ``body``. Of a header the only step is its name, in lower case."""

    text: str
    root: str
    steps: tuple[Step, ...]

    @property
    def many(self) -> bool:
        """It yields a list, whatever it leads to."""
        return ALL in self.steps


@lru_cache(maxsize=2048)  # far above the number of paths in a rule set
def request_path(text: str) -> Path:
    """A path about the request; its first name is one of REQUEST_ROOTS. Raises PathError."""
    root, rest = _root(text)
    if root not in REQUEST_ROOTS:
        raise PathError(f"{text!r} must start with one of {', '.join(REQUEST_ROOTS)}")
    if root == "header":
        return _header(text, rest)
    return Path(text, root, parse_steps(rest.removeprefix(".")) if rest else ())


@lru_cache(maxsize=2048)  # as above
def answer_path(text: str) -> Path:
    """A path about an answer, from the top of its body; ``header.X`` is a header field."""
    if text.startswith("header."):
        return _header(text, text.removeprefix("header"))
    return Path(text, "body", parse_steps(text))


def _root(text: str) -> tuple[str, str]:
    for index, char in enumerate(text):
        if char in ".[":
            return text[:index], text[index:]
    return text, ""


def _header(text: str, rest: str) -> Path:
    name = rest.removeprefix(".").strip('"').lower()
    if not name:
        raise PathError(f"{text!r} names no header field")
    return Path(text, "header", (name,))


def parse_steps(text: str) -> tuple[Step, ...]:
    """``a.b[0]."x.y"[]`` as steps. Raises PathError."""
    steps: list[Step] = []
    at = 0
    while at < len(text):
        if text[at] == "[":
            at = _bracket(text, at, steps)
        else:
            if steps and text[at] == ".":
                at += 1
            at = _member(text, at, steps)
    return tuple(steps)


def _bracket(text: str, at: int, steps: list[Step]) -> int:
    end = text.find("]", at)
    if end < 0:
        raise PathError(f"{text!r} has a '[' without ']'")
    inside = text[at + 1 : end]
    steps.append(ALL if not inside else int(inside) if inside.isdecimal() else inside.strip("\"'"))
    return end + 1


def _member(text: str, at: int, steps: list[Step]) -> int:
    if text[at : at + 1] == '"':
        end = text.find('"', at + 1)
        if end < 0:
            raise PathError(f"{text!r} has a quote without its end")
        steps.append(text[at + 1 : end])
        return end + 1
    end = at
    while end < len(text) and text[end] not in ".[":
        end += 1
    name = text[at:end]
    if not name or any(char in name for char in " \"'{}|()*"):
        raise PathError(f"{text!r} is no path: names joined by dots, [0], [] or a quoted name")
    steps.append(name)
    return end


def walk(value: Any, steps: Sequence[Step]) -> Any:
    """What the steps lead to, or MISSING."""
    for index, step in enumerate(steps):
        if isinstance(step, _All):
            return _walk_all(value, steps[index + 1 :])
        if isinstance(value, dict):
            value = value.get(str(step), MISSING)
        elif isinstance(value, list) and isinstance(step, int):
            value = value[step] if step < len(value) else MISSING
        else:
            return MISSING
    return value


def _walk_all(value: Any, rest: Sequence[Step]) -> Any:
    if isinstance(value, dict) and value and all(key.isdecimal() for key in value):
        value = list(value.values())  # a form's items[0], items[1]
    if not isinstance(value, list):
        return MISSING
    found = (walk(element, rest) for element in value)
    if ALL in rest:
        return [inner for each in found if isinstance(each, list) for inner in each]
    return [each for each in found if each is not MISSING]
