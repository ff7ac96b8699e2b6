"""Putting one value into a body or a query without touching any other byte of it.

JSON is edited as text: the place of the member is found, and only its value is written. Numbers,
order, spacing and escapes of everything else stay as the caller wrote them.
"""

from __future__ import annotations

from collections.abc import Sequence
from json.decoder import JSONDecoder, scanstring  # type: ignore[attr-defined]
from typing import Any
from urllib.parse import quote, unquote_plus

from proxy.core.bodies import json_text

SPACE = " \t\n\r"
FORM_SAFE = "-._~[]"  # brackets travel as they are in the forms that rules name


class CannotSplice(ValueError):
    """The place is not there or holds something else; str() says what."""


# JSON


Steps = Sequence[str | int]
"""Names of members; a number is an element that a list already has."""


def read_member(text: str, steps: Steps) -> Any:
    """The value at the steps, or None. Raises CannotSplice where the text is no JSON object."""
    span = _find(text, steps)[0]
    if span is None:
        return None
    value, _ = _decode(text, span[0])
    return value


def write_member(text: str, steps: Steps, value: Any) -> str:
    """The text with that member set; objects on the way are made where they are missing or null.
    Raises CannotSplice where something else is in the way or a member is given twice."""
    return write_text(text, steps, json_text(value))


def write_text(text: str, steps: Sequence[str | int], new: str) -> str:
    """The same with a value that is JSON already."""
    span, missing, at, empty = _find(text, steps)
    if span is not None:
        return text[: span[0]] + new + text[span[1] :]
    for name in reversed(missing[1:]):
        new = "{" + json_text(name) + ":" + new + "}"
    if not missing[0]:  # a null on the way becomes the object
        end = _decode(text, at)[1]
        return text[:at] + new + text[end:]
    member = json_text(missing[0]) + ":" + new
    return text[:at] + ("" if empty else ",") + member + text[at:]


def write_element(text: str, steps: Steps, element: Any) -> str:
    """The text with the element at the end of the list at the steps, which is made where it is
    missing or null; as it is where the list has it. Raises CannotSplice as ``write_member``
    does."""
    span = _find(text, steps)[0]
    present = None if span is None else _decode(text, span[0])[0]
    if span is None or present is None:
        return write_member(text, steps, [element])
    if not isinstance(present, list):
        raise CannotSplice(f"{_dotted(steps)} is no list")
    if element in present:
        return text
    end = span[1] - 1
    new = ("," if present else "") + json_text(element)
    return text[:end] + new + text[end:]


def read_each(text: str, steps: Steps, inside: Steps) -> list[Any]:
    """Of every element of the list at ``steps`` the value at ``inside``, or None. Raises
    CannotSplice where there is no list, or an element is no object."""
    elements = _elements(text, steps)
    return [read_member(text[start:end], inside) for start, end in elements]


def write_each(text: str, steps: Steps, inside: Steps, values: Sequence[Any]) -> str:
    """The text with that member set in every element of the list; a value of None leaves its
    element as it is. Raises CannotSplice as ``read_each`` and ``write_member`` do."""
    elements = _elements(text, steps)
    parts, at = [], 0
    for (start, end), value in zip(elements, values, strict=True):
        if value is not None:
            parts += [text[at:start], write_member(text[start:end], inside, value)]
            at = end
    return "".join([*parts, text[at:]])


def _elements(text: str, steps: Steps) -> list[Span]:
    """The spans of a list's elements."""
    span = _find(text, steps)[0] if steps else (_skip(text, 0), len(text))
    if span is None or text[span[0] : span[0] + 1] != "[":
        raise CannotSplice(f"{_dotted(steps) or 'the body'} is no list")
    found: list[Span] = []
    at = _skip(text, span[0] + 1)
    while text[at : at + 1] != "]":
        if found:
            at = _skip(text, _expect(text, at, ","))
        end = _decode(text, at)[1]
        found.append((at, end))
        at = _skip(text, end)
    return found


Span = tuple[int, int]


def _dotted(steps: Steps) -> str:
    return ".".join(map(str, steps))


def _find(text: str, steps: Steps) -> tuple[Span | None, list[str], int, bool]:
    """(span of the value, names still missing, where to insert, whether that object is empty). A
    first missing name of "" says that the value at the place is null."""
    at = _skip(text, 0)
    for index, name in enumerate(steps):
        if isinstance(name, int):
            at = _element(text, at, name, steps[:index])
            if index == len(steps) - 1:
                return (at, _decode(text, at)[1]), [], 0, False
            continue
        if text[at : at + 1] != "{":
            if index and text[at : at + 4] == "null":
                return None, ["", *_names(steps[index:])], at, True
            raise CannotSplice(f"{_dotted(steps[:index]) or 'the body'} is no JSON object")
        span, end, empty = _member(text, at, name)
        if span is None:
            return None, _names(steps[index:]), end, empty
        if index == len(steps) - 1:
            return span, [], 0, False
        at = span[0]
    raise CannotSplice("the rule names no member")


def _names(steps: Steps) -> list[str]:
    """Steps that are to be made. A list is never made: its first element would be a new object."""
    if any(isinstance(step, int) for step in steps):
        raise CannotSplice(f"there is no {_dotted(steps)}")
    return [str(step) for step in steps]


def _element(text: str, at: int, number: int, steps: Steps) -> int:
    """Where the element of the list at ``at`` begins. Raises CannotSplice if it has none."""
    if text[at : at + 1] != "[":
        raise CannotSplice(f"{_dotted(steps) or 'the body'} is no list")
    at = _skip(text, at + 1)
    for _ in range(number):
        if text[at : at + 1] == "]":
            break
        at = _skip(text, _decode(text, at)[1])
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
    if text[at : at + 1] == "]":
        raise CannotSplice(f"{_dotted(steps) or 'the body'} has no element {number}")
    return at


def _member(text: str, at: int, name: str) -> tuple[Span | None, int, bool]:
    """Of the object at ``at``: the span of a member's value, where a new one goes, if it is
    empty."""
    found: Span | None = None
    at = _skip(text, at + 1)
    empty = True
    end = at
    while text[at : at + 1] != "}":
        if not empty:
            at = _skip(text, _expect(text, at, ","))
        key, at = _string(text, at)
        start = _skip(text, _expect(text, _skip(text, at), ":"))
        end = _decode(text, start)[1]
        if key == name:
            if found is not None:
                raise CannotSplice(f"{name!r} is given twice")
            found = (start, end)
        empty = False
        at = _skip(text, end)
    return found, end, empty


def _skip(text: str, at: int) -> int:
    while text[at : at + 1] and text[at] in SPACE:
        at += 1
    return at


def _expect(text: str, at: int, char: str) -> int:
    if text[at : at + 1] != char:
        raise CannotSplice("the body is not JSON")
    return at + 1


def _string(text: str, at: int) -> tuple[str, int]:
    start = _expect(text, at, '"')
    try:
        value, end = scanstring(text, start, True)
    except ValueError:
        raise CannotSplice("the body is not JSON") from None
    return str(value), int(end)


_DECODER = JSONDecoder()


def _decode(text: str, at: int) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        raise CannotSplice("the body is not JSON") from None


# Forms and queries: name=value pairs joined by &


def read_pair(text: str, name: str) -> str | None:
    """The first value of that name, decoded."""
    for pair in text.split("&"):
        raw, _, value = pair.partition("=")
        if raw and unquote_plus(raw) == name:
            return unquote_plus(value)
    return None


def write_pair(text: str, name: str, value: str) -> str:
    """The pairs with that one set: in the place of the first of its name, else at the end."""
    new = f"{quote(name, FORM_SAFE)}={quote(value, '-._~')}"
    pairs = text.split("&") if text else []
    places = [i for i, pair in enumerate(pairs) if unquote_plus(pair.partition("=")[0]) == name]
    if not places:
        return "&".join([*pairs, new])
    kept = [p for i, p in enumerate(pairs) if i == places[0] or i not in places]
    kept[places[0]] = new
    return "&".join(kept)
