"""A few values picked out of JSON that arrives in pieces, in memory that does not grow with it.

What a rule asks for is a handful of paths; everything else is passed over without being kept, so
that an answer of any length can be looked into while it flows. JSON is read as a sequence of
values: one object, objects one per line, or the objects of one list, each its own document.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, Final

import orjson

from proxy.core.bodies import BodyMissing, parse_json
from proxy.core.paths import MISSING, Step, walk

TEXT_KEPT: Final = 1000  # bytes of a text; a longer one is cut
NAME_KEPT: Final = 200  # bytes of a member's name; no rule names a longer one
LINE_PARSED: Final = 64 * 1024  # bytes of a line that a parser may make a value of
SCALAR_KEPT: Final = 100  # bytes of a number; a longer one is none that anybody counts to

Steps = tuple[Step, ...]
Seen = dict[Steps, Any]
"""The values of one document by the steps that lead to them. Of an object or a list only that it is
there is known, and it is shown empty."""

_PASSED: Final = re.compile(rb'(?:[^"{}\[\]]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
"""Scalars and whole texts, up to where an object or list begins or ends, or a text is cut off."""
_TEXT: Final = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_SPACE: Final = re.compile(rb"[ \t\r\n,:]*")
_SCALAR: Final = re.compile(rb'[^ \t\r\n,:"{}\[\]]*')
_QUOTE, _BACKSLASH = b'"'[0], b"\\"[0]
_OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_LIST, _CLOSE_LIST = b"{"[0], b"}"[0], b"["[0], b"]"[0]


class Tree:
    """Paths, without ``[]``, as a tree of steps. ``path``: one that is asked for ends here."""

    __slots__ = ("children", "path")

    def __init__(self, paths: Iterable[Steps] = ()) -> None:
        self.children: dict[Step, Tree] = {}
        self.path: Steps | None = None
        for path in paths:
            node = self
            for step in path:
                node = node.children.setdefault(step, Tree())
            node.path = path


class _Level:
    """An object or list that is looked into. ``node`` None: a list of documents."""

    __slots__ = ("index", "is_list", "member", "named", "node")

    def __init__(self, node: Tree | None, is_list: bool) -> None:
        self.node = node
        self.is_list = is_list
        self.index = 0
        self.member: Tree | None = None  # of an object: where the value that follows belongs
        self.named = False  # of an object: a name was read, its value follows


class Scanner:
    """``document`` is called with what was seen in each object at the top, or in a list there."""

    def __init__(self, tree: Tree, document: Callable[[Seen], None]) -> None:
        self._tree = tree
        self._document = document
        self.reset()

    def reset(self) -> None:
        """What follows begins anew, whatever was left open."""
        self._levels: list[_Level] = []
        self._seen: Seen = {}
        self._skipped = 0  # containers open within the one that is passed over
        self._token: bytearray | None = None  # of a text or scalar that is being read
        self._room = 0  # bytes that the token may still keep
        self._in_text = False
        self._escaped = False
        self._target: Tree | None = None  # where the token's value belongs
        self._is_name = False

    @property
    def at_rest(self) -> bool:
        """Whatever began has ended."""
        return not (self._levels or self._skipped or self._in_text or self._token is not None)

    def feed(self, data: bytes) -> None:
        at, end = 0, len(data)
        while at < end:
            if self._in_text:
                at = self._text(data, at)
            elif self._token is not None:
                at = self._scalar(data, at)
            elif self._skipped:
                at = self._skip(data, at)
            else:
                at = self._structure(data, at)

    def line(self, data: bytes) -> None:
        """The same as ``feed``, and quicker where ``data`` is one whole document, not too long."""
        if len(data) <= LINE_PARSED and self.at_rest:
            try:
                value = orjson.loads(data)
            except orjson.JSONDecodeError:  # also what is JSON to others: huge numbers
                value = None
            if isinstance(value, dict):
                seen: Seen = {}
                _pick(value, self._tree, seen)
                if seen:
                    self._document(seen)
                return
        self.feed(data)

    # pieces of a document

    def _text(self, data: bytes, at: int) -> int:
        if self._escaped:
            self._escaped = False
            self._keep(data, at, at + 1)
            return at + 1
        stop = _TEXT.match(data, at).end()  # type: ignore[union-attr]  # it fits everywhere
        self._keep(data, at, stop)
        if stop == len(data):
            return stop
        if data[stop] == _BACKSLASH:
            self._keep(data, stop, stop + 1)
            self._escaped = True
        else:
            self._in_text = False
            self._text_ended()
        return stop + 1

    def _keep(self, data: bytes, at: int, stop: int) -> None:
        if self._token is not None:
            if self._room > 0:
                self._token += data[at : min(stop, at + self._room)]
            self._room -= stop - at  # below 0: it was cut

    def _text_ended(self) -> None:
        token, self._token = self._token, None
        if token is None:
            return
        if self._is_name:
            level = self._levels[-1]
            node = level.node
            level.named = True
            whole = self._room >= 0
            level.member = node.children.get(_unquoted(token)) if node and whole else None
        elif self._target is not None and self._target.path is not None:
            self._seen[self._target.path] = _unquoted(token)

    def _scalar(self, data: bytes, at: int) -> int:
        stop = _SCALAR.match(data, at).end()  # type: ignore[union-attr]  # it fits everywhere
        self._keep(data, at, stop)
        if stop < len(data):
            token, self._token = self._token, None
            if token is not None and self._target is not None and self._target.path is not None:
                value = _value_of(token) if self._room >= 0 else None
                self._seen[self._target.path] = value
        return stop

    def _skip(self, data: bytes, at: int) -> int:
        at = _PASSED.match(data, at).end()  # type: ignore[union-attr]  # it fits everywhere
        if at == len(data):
            return at
        char = data[at]
        if char == _QUOTE:
            self._in_text = True
        elif char in (_OPEN_OBJECT, _OPEN_LIST):
            self._skipped += 1
        else:
            self._skipped -= 1
            if not self._skipped:
                self._value_ended()
        return at + 1

    def _structure(self, data: bytes, at: int) -> int:
        at = _SPACE.match(data, at).end()  # type: ignore[union-attr]  # it fits everywhere
        if at == len(data):
            return at
        char = data[at]
        level = self._levels[-1] if self._levels else None
        if char in (_CLOSE_OBJECT, _CLOSE_LIST):
            if level is not None:
                self._levels.pop()
                self._value_ended()
            return at + 1
        if level is not None and not level.is_list and not level.named:
            return self._name(char, at)
        target = self._target_in(level)
        if char in (_OPEN_OBJECT, _OPEN_LIST):
            self._opened(char == _OPEN_LIST, level, target)
            return at + 1
        self._begin(target, SCALAR_KEPT if char != _QUOTE else TEXT_KEPT, is_name=False)
        if char == _QUOTE:
            self._in_text = True
            at += 1
        if level is not None:
            level.named = False
            level.index += 1
        return at

    def _name(self, char: int, at: int) -> int:
        """Where a name belongs. Anything else is no JSON, and passed over."""
        self._begin(None, NAME_KEPT, is_name=char == _QUOTE)
        if char != _QUOTE:
            if char in (_OPEN_OBJECT, _OPEN_LIST):
                self._token = None
                self._skipped = 1
                return at + 1
            return at
        self._in_text = True
        return at + 1

    def _begin(self, target: Tree | None, room: int, *, is_name: bool) -> None:
        self._token = bytearray()
        self._room = room
        self._target = target
        self._is_name = is_name

    def _target_in(self, level: _Level | None) -> Tree | None:
        if level is None or level.node is None:
            return None
        if level.is_list:
            return level.node.children.get(level.index)
        return level.member

    def _opened(self, is_list: bool, level: _Level | None, target: Tree | None) -> None:
        if level is None and is_list:
            self._levels.append(_Level(None, True))
        elif level is None or (level.node is None and not is_list):
            self._seen = {}
            self._levels.append(_Level(self._tree, False))
        elif target is not None:
            if target.path is not None:
                self._seen[target.path] = [] if is_list else {}
            self._levels.append(_Level(target, is_list))
        else:
            self._skipped = 1

    def _value_ended(self) -> None:
        """An object or list has ended; at the top or in a list there, it was a document."""
        level = self._levels[-1] if self._levels else None
        if (level is None or level.node is None) and self._seen:
            seen, self._seen = self._seen, {}
            self._document(seen)
        if level is not None:
            level.named = False
            level.index += 1


def _pick(value: Any, node: Tree, seen: Seen) -> None:
    if node.path is not None:
        if isinstance(value, float):
            value = Decimal(repr(value))
        elif isinstance(value, str):
            value = value.encode()[:TEXT_KEPT].decode("utf-8", "replace")
        seen[node.path] = type(value)() if isinstance(value, dict | list) else value
    if not isinstance(value, dict | list):
        return
    for step, child in node.children.items():
        if isinstance(step, str) if isinstance(value, dict) else isinstance(step, int):
            inner = walk(value, (step,))
            if inner is not MISSING:
                _pick(inner, child, seen)


def _unquoted(token: bytearray) -> str:
    text = token.decode("utf-8", "replace")
    if "\\" not in text:
        return text
    try:
        return str(parse_json(f'"{text}"', strict=False))
    except BodyMissing:  # cut in the middle of an escape
        return text


def _value_of(token: bytearray) -> Any:
    """None for what is no JSON."""
    try:
        return parse_json(token.decode("utf-8", "replace"), strict=False)
    except BodyMissing:
        return None
