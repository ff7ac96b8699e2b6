"""The texts of a rule file that name hosts, paths and durations, read into the core's patterns."""

from __future__ import annotations

import math

from proxy.core.matching import HostPattern, Segment
from proxy.core.templates import duration

FOREVER = math.inf
METHOD_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ-")
NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


class PatternError(ValueError):
    """The text is no such pattern; the message says why."""


def seconds(text: str, words: tuple[str, ...] = ()) -> float | None:
    """``24h``; of the words allowed, ``forever`` is math.inf, ``never`` and ``unstated`` None."""
    if text in words:
        return FOREVER if text == "forever" else None
    value = duration(text)
    if value is None:
        also = "".join(f" or {word}" for word in words)
        raise PatternError(f"{text!r} is no duration; write a number and ms, s, m, h, d or w{also}")
    return value


def host_pattern(text: str) -> HostPattern:
    if "/" in text or "@" in text:
        raise PatternError(f"{text!r} is no host; write it without scheme and path")
    name, port = _split_port(text.strip())
    if name == "*":
        if port is not None:
            raise PatternError("'*' is any host at any port; leave the port out")
        return HostPattern(text, (None,))
    if ":" in name:
        return HostPattern(text, (name.lower(),), port)
    labels: list[str | tuple[str] | None] = []
    for position, label in enumerate(name.removesuffix(".").split(".")):
        if label == "*":
            if position:
                raise PatternError(f"{text!r}: '*' may stand only in front")
            labels.append(None)
        elif label.startswith("{") and label.endswith("}"):
            labels.append((_name(label[1:-1]),))
        else:
            labels.append(_label(label, text))
    if not isinstance(labels[-1], str):
        raise PatternError(f"{text!r} must end in a fixed name")
    return HostPattern(text, tuple(labels), port)


def _split_port(text: str) -> tuple[str, int | None]:
    if text.startswith("["):
        name, bracket, port = text[1:].partition("]")
        if not bracket:
            raise PatternError(f"{text!r} has a '[' without ']'")
        port = port.removeprefix(":")
    elif text.count(":") == 1:
        name, _, port = text.partition(":")
    else:
        name, port = text, ""
    if not port:
        return name, None
    if not port.isdecimal() or not 0 < int(port) < 65_536:
        raise PatternError(f"{text!r}: {port!r} is no port")
    return name, int(port)


def _label(label: str, text: str) -> str:
    if not label or any(char in label for char in "*{}() "):
        raise PatternError(
            f"{text!r}: {label!r} is no part of a host name; write name, *.name or {{x}}.name"
        )
    try:
        return label.lower() if label.isascii() else label.encode("idna").decode("ascii")
    except UnicodeError:
        raise PatternError(f"{text!r}: {label!r} is no part of a host name") from None


def request_line(text: str) -> tuple[str, tuple[Segment, ...], str | None]:
    """``PUT /files/{path+}`` as method, segments, name of the rest."""
    method, _, path = text.strip().partition(" ")
    path = path.strip()
    if not path.startswith("/"):
        raise PatternError(f"{text!r} must be a method, a space and a path, as in POST /v1/things")
    if method != "*" and (not method or not METHOD_CHARACTERS.issuperset(method)):
        raise PatternError(f"{method!r} is no method; write it in upper case, or * for any")
    if "?" in path:
        raise PatternError("a path has no '?'; put query parameters under `query:`")
    rest: str | None = None
    pieces = path[1:].split("/") if path != "/" else []
    if pieces and pieces[-1].startswith("{") and pieces[-1].endswith("+}"):
        rest = _name(pieces.pop()[1:-2])
    segments = tuple(_segment(piece) for piece in pieces)
    names = [s.name for s in segments if s.name] + ([rest] if rest else [])
    for name in names:
        if names.count(name) > 1:
            raise PatternError(f"{{{name}}} stands twice in {path}")
    return method, segments, rest


def _segment(text: str) -> Segment:
    prefix, brace, after = text.partition("{")
    if not brace:
        if "}" in text:
            raise PatternError(f"{text!r} has a '}}' without '{{'")
        return Segment(text)
    name, brace, suffix = after.partition("}")
    if not brace:
        raise PatternError(f"{text!r} has a '{{' without '}}'")
    if name.endswith("+"):
        raise PatternError(f"{{{name}}} takes the rest of the path and must be its whole last part")
    if "{" in suffix:
        raise PatternError(f"{text!r}: one {{x}} between two slashes is all that is read")
    return Segment(prefix, _name(name), suffix)


def _name(text: str) -> str:
    if not text or not NAME_CHARACTERS.issuperset(text):
        raise PatternError(f"{{{text}}}: a parameter is named by letters, digits, _ and -")
    return text
