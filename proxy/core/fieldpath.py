"""Paths of fields as steps: ``body.lines[].sku`` is ``("body", "lines", None, "sku")``.

A step is a member name, an index, or None for every item. Form names with brackets,
``lines[][sku]``, are the same steps in another spelling.
"""

from __future__ import annotations

import json
import re
from typing import Final

Steps = tuple[str | int | None, ...]

SHOWN: Final = 120  # characters of a path in a refusal, whose whole text is at most 2 kB

_STEP: Final = re.compile(r'\.?(?:\[([^\]]*)\]|("(?:[^"\\]|\\.)*")|([^.\[]+))')
_PLAIN: Final = re.compile(r"[^\W\d][\w$@:-]*")  # a member name that needs no quotes


def path_steps(path: str) -> Steps:
    """The steps of a path as rules write it. A name with dots or brackets stands in quotes."""
    return tuple(
        json.loads(quoted) if quoted else name if name else _bracket(bracket)
        for bracket, quoted, name in _STEP.findall(path)
    )


def form_steps(name: str) -> Steps:
    """The steps of a form or query name: ``metadata[case]``, ``lines[0][sku]``, ``tags[]``."""
    head, bracket, rest = name.partition("[")
    if not bracket or not head or not rest.endswith("]"):
        return (name,)
    return (head, *(_bracket(inner) for inner in rest[:-1].split("][")))


def path_text(root: str, steps: Steps) -> str:
    """The path of these steps below ``root``; other steps give another text."""
    return root + "".join(_step_text(step) for step in steps)


def shown(path: str) -> str:
    """A path for people: one made of very long or very many names is cut."""
    return path if len(path) <= SHOWN else f"{path[: SHOWN - 3]}..."


def starts_with(steps: Steps, start: Steps) -> bool:
    """Whether ``steps`` lie at or below ``start``, in which None stands for every item."""
    return len(steps) >= len(start) and all(
        step == wanted or (wanted is None and not isinstance(step, str))
        for step, wanted in zip(steps, start, strict=False)
    )


def _bracket(inner: str) -> str | int | None:
    if inner in ("", "*"):
        return None
    return int(inner) if inner.isascii() and inner.isdigit() else inner.strip("\"'")


def _step_text(step: str | int | None) -> str:
    match step:
        case None:
            return "[]"
        case int():
            return f"[{step}]"
    return f".{step}" if _PLAIN.fullmatch(step) else f".{json.dumps(step)}"
