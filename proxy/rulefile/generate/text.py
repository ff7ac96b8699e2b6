"""What both generators share: the choice of operations, how a key is rendered, and YAML as text."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from html import unescape
from typing import Any, Final

from proxy.core import keys

WIDTH: Final = 150
SAMPLE: Final = "support-case-1842/issue-refund/service.operation/v1"
PLAIN: Final = re.compile(r"[A-Za-z_/](?:[A-Za-z0-9_./+-]|:(?! )| (?![#:]))*(?<![ :])")
NO_TEXT: Final = frozenset(["true", "false", "yes", "no", "on", "off", "null", "y", "n"])
RENDERINGS: Final = ("raw", "digest", "uuid4", "hex", "base32hex")
TOKEN_NAME: Final = re.compile(r"(token|request_?id|reference)$", re.IGNORECASE)
"""Members that are marked as tokens but name an object would make two objects one operation."""

_WINDOW: Final = re.compile(
    r"(?:for (?:at least |up to )?|within (?:the last )?|after |expires? (?:after|in) )"
    r"(\d+|one|seven|eight|ten|twenty-four)[ -](minute|hour|day)s?\b",
    re.IGNORECASE,
)
_NUMBERS: Final = {"one": 1, "seven": 7, "eight": 8, "ten": 10, "twenty-four": 24}


class CannotGenerate(Exception):
    """The model is not there or holds nothing of use; str() says what to do."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which operations: those that fit one of ``only`` (all without any) and none of ``without``;
    both are names with ``*``."""

    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def takes(self, name: str) -> bool:
        wanted = not self.only or any(fnmatchcase(name, each) for each in self.only)
        return wanted and not any(fnmatchcase(name, each) for each in self.without)


@dataclass(frozen=True, slots=True)
class Pack:
    service: str
    text: str
    operations: int


def rendering(minimum: int, maximum: int, pattern: str | None) -> str | None:
    """How an operation key can be written within these limits; None if in no way. Patterns that
    cannot be read here are taken at their lengths."""
    try:
        allowed = re.compile(pattern) if pattern else None
    except re.error:
        allowed = None
    for way in RENDERINGS:
        try:
            text = keys.render(SAMPLE, way, min_length=minimum, max_length=maximum)
        except keys.UnfitKey:
            continue
        if allowed is None or allowed.fullmatch(text):
            return way
    return None


def window(documentation: str) -> str | None:
    """How long a token is known, where its description says so in words that can be read."""
    text = plain_words(documentation)
    found = _WINDOW.search(text)
    if found is None or not re.search("idempoten|token|request id", text, re.IGNORECASE):
        return None
    number = _NUMBERS.get(found[1].lower()) or int(found[1])
    return f"{number}{found[2][0].lower()}"


def plain_words(documentation: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", "", documentation)).split())


def flow(value: Any) -> str:
    """A value as YAML on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{flow(k)}: {flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, str):
        plain = PLAIN.fullmatch(value) and value.lower() not in NO_TEXT
        return value if plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Iterable):
        return "[" + ", ".join(map(flow, value)) + "]"
    return str(value)


def vouched(endpoints: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """How far the file is to be trusted: a model that does not state how long a token is known
    leaves it to us to conclude that it is known as long as a call is held."""
    stated = all("valid_for" in endpoint["key"] for endpoint in endpoints.values())
    return {"confidence": "sdk"} if stated else {"confidence": "inferred", "mode": "enforce"}


WHY_ENFORCED: Final = (
    "Inferred, where there is no `valid_for`: that a token is known at least as long as a call is "
    "held; nothing is sent again later than that. Enforced all the same: that a call which comes "
    "again with another token is the same call, and is answered from the ledger, needs no more "
    "than the model."
)


def comment(paragraphs: Iterable[str]) -> list[str]:
    lines: list[str] = []
    for paragraph in paragraphs:
        lines += ["#"] * bool(lines)
        lines += textwrap.wrap(
            paragraph, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
        )
    return lines


def document(
    head: Iterable[str], top: Mapping[str, Any], endpoints: Mapping[str, Mapping[str, Any]]
) -> str:
    lines = comment(head)
    for name, value in top.items():
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            lines += [f"{name}:", *(f"  - {flow(each)}" for each in value)]
        else:
            lines.append(f"{name}: {flow(value)}")
    lines += ["", "endpoints:"]
    for name, endpoint in endpoints.items():
        lines.append(f"  {name}:")
        for key, value in endpoint.items():
            if key == "examples":
                lines += ["    examples:", *(f"      - {flow(each)}" for each in value)]
            else:
                lines.append(f"    {key}: {flow(value)}")
    return "\n".join(lines) + "\n"


def left_out(reasons: Mapping[str, list[str]]) -> list[str]:
    return [
        f"Left out, {reason}: {', '.join(sorted(names))}."
        for reason, names in sorted(reasons.items())
    ]
