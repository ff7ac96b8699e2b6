"""Conditions of rules: a path and what its value must be. Closed list, no code.

``{a: 1, b: {over: 2, under: 5}}`` holds when every part holds; a list of conditions when one does.
A value that is missing fails every test but ``not`` and ``exists: false``. What cannot be told (an
amount that is no number, a template without its value) raises ValueMissing and an unreadable body
BodyMissing: the caller knows which way is safe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from proxy.core.paths import MISSING, Path
from proxy.core.templates import Template, ValueMissing
from proxy.core.values import number_of, same, time_of
from proxy.core.views import BodyMissing, View

OPERATORS = ("in", "not", "has", "contains", "ends", "over", "under", "after", "exists")


@dataclass(frozen=True, slots=True)
class Check:
    path: Path
    op: str  # "is" or one of OPERATORS
    operand: Any  # a scalar or Template; of `in` and `not` also a tuple of them

    def holds(self, view: View, names: Mapping[str, Any], request: View | None) -> bool:
        value = view.get(self.path)
        if self.op == "exists":
            return (value is not MISSING and value is not None) is self.operand
        if value is MISSING:
            return self.op == "not"
        operand = _operand(self.operand, names, request)
        match self.op:
            case "is":
                return same(value, operand)
            case "in":
                return any(same(value, each) for each in operand)
            case "not":
                values = operand if isinstance(operand, tuple) else (operand,)
                return not any(same(value, each) for each in values)
            case "has":
                return any(same(each, operand) for each in _elements(value))
            case "contains":
                return any(str(operand) in each for each in _texts(value))
            case "ends":
                return any(each.endswith(str(operand)) for each in _texts(value))
        return self._ordered(value, operand)

    def _ordered(self, value: Any, operand: Any) -> bool:
        read: Any = time_of if self.op == "after" else number_of
        left, right = read(value), read(operand)
        if left is None or right is None:
            what = "time" if self.op == "after" else "number"
            raise ValueMissing(f"{self.path.text} is no {what}")
        return bool(left < right if self.op == "under" else left > right)


@dataclass(frozen=True, slots=True)
class Condition:
    """``alternatives``: one of them must hold, each with all its checks."""

    alternatives: tuple[tuple[Check, ...], ...]

    def holds(
        self, view: View, names: Mapping[str, Any] | None = None, request: View | None = None
    ) -> bool:
        """``names`` and ``request`` give the values of templates inside the condition."""
        return any(
            all(check.holds(view, names or {}, request) for check in checks)
            for checks in self.alternatives
        )

    def may_hold(
        self, view: View, names: Mapping[str, Any] | None = None, request: View | None = None
    ) -> bool:
        """True also where it cannot be told: for questions whose careful answer is yes."""
        try:
            return self.holds(view, names, request)
        except (BodyMissing, ValueMissing):
            return True

    @property
    def checks(self) -> tuple[Check, ...]:
        return tuple(check for checks in self.alternatives for check in checks)

    @property
    def needs_body(self) -> bool:
        return any(check.path.root == "body" for check in self.checks)


def _operand(operand: Any, names: Mapping[str, Any], request: View | None) -> Any:
    if isinstance(operand, tuple):
        return tuple(_operand(each, names, request) for each in operand)
    if not isinstance(operand, Template):
        return operand
    value = operand.value(request, names)
    if value is MISSING:
        raise ValueMissing(operand.absent(request, names))
    return value


def _elements(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _texts(value: Any) -> list[str]:
    return [each for each in _elements(value) if isinstance(each, str)]
