"""``{...}`` in rule files: text with the values of a request, and nothing that could compute.

A placeholder is a name or a path, then pipes from a closed list. What is in braces and not of that
form is an error when the rule is loaded; ``{{`` and ``}}`` write a brace. A value that is missing,
null or no scalar is never written as empty text: the whole text is MISSING, and whoever asked
decides what that means (``UrlTemplate`` drops the query parameter).
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from proxy.core.paths import (
    MISSING,
    REQUEST_ROOTS,
    Missing,
    Path,
    PathError,
    Step,
    parse_steps,
    request_path,
    walk,
)
from proxy.core.values import MILLISECONDS, iso, text_of, time_of, utf8
from proxy.core.views import View

UNITS: Mapping[str, float] = {
    "ms": 0.001,
    "s": 1,
    "m": 60,
    "h": 3600,
    "d": 86_400,
    "w": 604_800,
}
"""Seconds per unit of a duration."""

PIPES = ("minus", "unix", "iso", "date", "digest", "hex")
MOMENTS = ("minus", "unix", "iso", "date")  # pipes that need a moment in time


class TemplateError(ValueError):
    """The text is no template; the message says why and, where it can, what was meant."""


class ValueMissing(Exception):
    """A template needs a value that the request does not have; str() names it."""


def duration(text: str) -> float | None:
    """``90s``, ``24h``, ``500ms`` in seconds; None where it is no duration."""
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = UNITS.get(text[len(digits) :])
    return (
        int(digits) * unit if unit is not None and digits.isascii() and digits.isdigit() else None
    )


@dataclass(frozen=True, slots=True)
class Pipe:
    name: str
    number: float = 0  # seconds for minus, digits for hex

    def apply(self, value: Any) -> Any:
        if self.name in MOMENTS:
            return self._of_moment(time_of(value))
        text = text_of(value)
        if text is None:
            return MISSING
        digest = hashlib.sha256(utf8(text)).hexdigest()
        return digest if self.name == "digest" else digest[: int(self.number)]

    def _of_moment(self, moment: float | None) -> Any:
        if moment is None or not 0 <= moment < MILLISECONDS:
            return MISSING
        match self.name:
            case "minus":
                return moment - self.number
            case "unix":
                return int(moment // 1)
            case "date":
                return iso(moment)[:10]
        return iso(moment)


@dataclass(frozen=True, slots=True)
class Placeholder:
    source: str
    root: str
    steps: tuple[Step, ...] = ()
    path: Path | None = None  # of a value of the request
    pipes: tuple[Pipe, ...] = ()
    rest: bool = False  # {path.x+}: slashes of the value stay slashes

    def value(self, view: View | None, names: Mapping[str, Any]) -> Any:
        if self.path is None:
            value = walk(names.get(self.root, MISSING), self.steps)
        else:
            value = MISSING if view is None else view.get(self.path)
        for pipe in self.pipes:
            value = MISSING if value is MISSING else pipe.apply(value)
        return MISSING if value is None else value

    def text(self, view: View | None, names: Mapping[str, Any]) -> str | Missing:
        value = self.value(view, names)
        if isinstance(value, float):
            value = iso(value)
        text = text_of(value)
        return MISSING if text is None else text


@dataclass(frozen=True, slots=True)
class Template:
    source: str
    parts: tuple[str | Placeholder, ...]

    @property
    def placeholders(self) -> tuple[Placeholder, ...]:
        return tuple(part for part in self.parts if isinstance(part, Placeholder))

    def value(self, view: View | None, names: Mapping[str, Any]) -> Any:
        """Of ``"{item}"`` the object itself, of ``"{sent_at}"`` seconds (float), else the text."""
        if len(self.parts) == 1 and isinstance(self.parts[0], Placeholder):
            return self.parts[0].value(view, names)
        return self.render(view, names)

    def render(self, view: View | None, names: Mapping[str, Any]) -> str | Missing:
        """The text, or MISSING where a value of it is. Raises BodyMissing as the view does."""
        texts: list[str] = []
        for part in self.parts:
            text = part if isinstance(part, str) else part.text(view, names)
            if isinstance(text, Missing):
                return MISSING
            texts.append(text)
        return "".join(texts)

    def absent(self, view: View | None, names: Mapping[str, Any]) -> str:
        """The first placeholder without a value, for a message."""
        for part in self.placeholders:
            if part.text(view, names) is MISSING:
                return part.source
        return self.source


def parse_template(text: str, names: Sequence[str] = ()) -> Template:
    """``names``: what may stand in braces besides paths about the request. Raises TemplateError."""
    parts: list[str | Placeholder] = []
    literal: list[str] = []
    at = 0
    while at < len(text):
        if text[at : at + 2] in ("{{", "}}"):
            literal.append(text[at])
            at += 2
        elif text[at] == "{":
            end = text.find("}", at)
            if end < 0:
                raise TemplateError(f"{text!r} has a '{{' without '}}'; write '{{{{' for a brace")
            if literal:
                parts.append("".join(literal))
                literal = []
            parts.append(_placeholder(text[at + 1 : end], names))
            at = end + 1
        else:
            literal.append(text[at])
            at += 1
    if literal or not parts:
        parts.append("".join(literal))
    return Template(text, tuple(parts))


def _placeholder(source: str, names: Sequence[str]) -> Placeholder:
    expression, *pipes = (piece.strip() for piece in source.split("|"))
    shown = "{" + source + "}"
    rest = expression.endswith("+")
    expression = expression.removesuffix("+")
    root = expression.split(".")[0].split("[")[0]
    applied = tuple(_pipe(text, shown) for text in pipes)
    try:
        if root in names:
            steps = parse_steps(expression[len(root) :].removeprefix("."))
            return Placeholder(shown, root, steps, None, applied, rest)
        if root in REQUEST_ROOTS:
            path = request_path(expression)
            return Placeholder(shown, root, (), path, applied, rest)
    except PathError as error:
        raise TemplateError(f"{shown}: {error}") from None
    known = [*names, *(f"{root}.NAME" for root in REQUEST_ROOTS)]
    guess = difflib.get_close_matches(root, [*names, *REQUEST_ROOTS], 1)
    hint = f"; did you mean {guess[0]}?" if guess else ""
    raise TemplateError(f"{shown} is not known here ({', '.join(known)}){hint}")


def _pipe(text: str, shown: str) -> Pipe:
    if text in ("unix", "iso", "date", "digest"):
        return Pipe(text)
    if text.startswith("minus "):
        seconds = duration(text.removeprefix("minus ").strip())
        if seconds is not None:
            return Pipe("minus", seconds)
    if text.startswith("hex:"):
        digits = text.removeprefix("hex:")
        # fewer than 8 digits name nothing, and SHA-256 has 64
        if digits.isdecimal() and 8 <= int(digits) <= 64:
            return Pipe("hex", int(digits))
    raise TemplateError(
        f"{shown}: {text!r} is no pipe; there are: minus 60s, unix, iso, date, digest, hex:40"
    )


# URLs

PATH_SAFE = "/:@!$&'()*+,;=-._~%"
QUERY_SAFE = "/:@!$'()*+,;-._~%?[]"


@dataclass(frozen=True, slots=True)
class UrlTemplate:
    """A path and query. Values are percent-encoded; a query parameter whose value is missing or
    empty is dropped, since an empty filter could hide what a lookup is for."""

    source: str
    path: Template
    query: tuple[tuple[str, Template], ...]

    @property
    def placeholders(self) -> tuple[Placeholder, ...]:
        inside = (part for _, value in self.query for part in value.placeholders)
        return (*self.path.placeholders, *inside)

    def render(self, view: View | None, names: Mapping[str, Any]) -> str | Missing:
        """Path and query, or MISSING where the path lacks a value."""
        path: list[str] = []
        for part in self.path.parts:
            text = quote(part, PATH_SAFE) if isinstance(part, str) else _segment(part, view, names)
            if isinstance(text, Missing):
                return MISSING
            path.append(text)
        pairs: list[str] = []
        for name, template in self.query:
            value = template.render(view, names)
            if value:
                safe = "" if template.placeholders else QUERY_SAFE
                pairs.append(f"{quote(name, QUERY_SAFE)}={_quote(str(value), safe)}")
            elif not template.placeholders:
                pairs.append(f"{quote(name, QUERY_SAFE)}=")
        return "".join(path) + ("?" + "&".join(pairs) if pairs else "")


def _quote(text: str, safe: str) -> str:
    """Raises ValueMissing for what no address can hold: JSON may have half a surrogate pair."""
    try:
        return quote(text, safe, errors="surrogateescape")
    except UnicodeEncodeError:
        raise ValueMissing("a value that can be written in UTF-8") from None


def _segment(part: Placeholder, view: View | None, names: Mapping[str, Any]) -> str | Missing:
    text = part.text(view, names)
    if isinstance(text, Missing) or not text:
        return MISSING
    if any(piece in (".", "..") for piece in text.split("/")):
        return MISSING  # it would name another path than the rule's
    return _quote(text, "/" if part.rest else "")


def parse_url(text: str, names: Sequence[str] = ()) -> UrlTemplate:
    """``/v1/refunds?charge={body.charge}&limit=100``. Raises TemplateError."""
    path, _, query = text.partition("?")
    if not path.startswith("/"):
        raise TemplateError(f"{text!r} must be a path that starts with '/'")
    pairs: list[tuple[str, Template]] = []
    for pair in query.split("&") if query else ():
        name, _, value = pair.partition("=")
        if "{" in name:
            raise TemplateError(f"{pair!r}: a placeholder may not name a query parameter")
        pairs.append((name, parse_template(value, names)))
    return UrlTemplate(text, parse_template(path, names), tuple(pairs))


# Structures: the bodies that rules write


def parse_structure(value: Any, names: Sequence[str] = ()) -> Any:
    """The same structure with its texts as templates where they hold a brace. A member ``query``
    beside ``variables`` is GraphQL and stays as it is. Raises TemplateError."""
    if isinstance(value, dict):
        graphql = "query" in value and "variables" in value
        return {
            key: inner if graphql and key == "query" else parse_structure(inner, names)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [parse_structure(inner, names) for inner in value]
    if isinstance(value, str) and ("{" in value or "}}" in value):
        return parse_template(value, names)
    return value


def render_structure(
    structure: Any, view: View | None, names: Mapping[str, Any], *, strict: bool = True
) -> Any:
    """The structure with its values. A missing one raises ValueMissing, or, not ``strict``, leaves
    out its member or element; a structure that is missing altogether is MISSING."""
    if isinstance(structure, Template):
        value = structure.value(view, names)
        if isinstance(value, float):
            value = iso(value)
        if value is MISSING and strict:
            raise ValueMissing(structure.absent(view, names))
        return value
    if isinstance(structure, dict):
        members = {
            key: render_structure(inner, view, names, strict=strict)
            for key, inner in structure.items()
        }
        return {key: value for key, value in members.items() if value is not MISSING}
    if isinstance(structure, list):
        elements = [render_structure(inner, view, names, strict=strict) for inner in structure]
        return [value for value in elements if value is not MISSING]
    return structure


def placeholders_of(structure: Any) -> tuple[Placeholder, ...]:
    if isinstance(structure, Template | UrlTemplate):
        return structure.placeholders
    inner: Sequence[Any] = ()
    if isinstance(structure, dict):
        inner = list(structure.values())
    elif isinstance(structure, list):
        inner = structure
    return tuple(part for each in inner for part in placeholders_of(each))
