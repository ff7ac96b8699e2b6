"""YAML, strictly: only what YAML 1.1 and 1.2 read alike, and nothing read silently.

Editors read YAML 1.2 and Python's reader 1.1: ``on``, ``017``, ``12:30`` and ``2026-11-30`` are
text to one and something else to the other. Here they must be quoted. A key given twice, a bare
``{key}`` (which YAML reads as a mapping), tags, merge keys, deep or huge files are errors. Values
keep their place, so that every later message can name line and column. Numbers with a point are
Decimal.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.resolver import Resolver

from proxy.rulefile.problems import Problems, Where

FILE_SIZE = 1_000_000  # bytes: a hundred times the longest rule file
DEPTH = 30  # levels of nesting; the schema needs about ten
ALIASES = 50  # uses of *alias in a file: some repeat a block, a bomb repeats thousands
NODES = 100_000  # values in a file with its aliases written out

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+([eE][-+]?[0-9]+)?")
_AMBIGUOUS = re.compile(
    r"""
      y | n | yes | no | on | off | true | false | null     # in other cases than true and null
    | [-+]? \.? [0-9][0-9_]* (\.[0-9_]*)? (e[-+]?[0-9]+)?   # 017, 1_000, +1, .5, 1e3
    | [-+]? 0 [xob] [0-9a-f_]+                              # 0x1F, 0o17
    | [-+]? [0-9][0-9_]* (:[0-5]?[0-9])+ (\.[0-9_]*)?       # 12:30:45
    | [0-9]{4}-[0-9]{1,2}-[0-9]{1,2} ([Tt\ ].*)?            # 2026-11-30
    | [-+]? \.(inf|nan)
    | = | <<
    """,
    re.VERBOSE | re.IGNORECASE,
)
_TAGS = {
    "tag:yaml.org,2002:" + name
    for name in (
        "str", "int", "float", "bool", "null", "map", "seq", "timestamp", "value", "merge"
    )
}  # fmt: skip


class _Refused(yaml.YAMLError):
    def __init__(self, event: yaml.Event, message: str) -> None:
        super().__init__(message)
        self.line = event.start_mark.line + 1 if event.start_mark else 1
        self.column = event.start_mark.column + 1 if event.start_mark else 1


class _Bounded(Composer):
    """The composer with bounds. Nothing is ever constructed from it."""

    depth = 0
    aliases = 0

    def compose_node(self: Any, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()
        if self.check_event(yaml.AliasEvent):
            self.aliases += 1
            if self.aliases > ALIASES:
                raise _Refused(event, f"more than {ALIASES} aliases; write it out")
        self.depth += 1
        if self.depth > DEPTH:
            raise _Refused(event, f"nested deeper than {DEPTH} levels")
        try:
            return Composer.compose_node(self, parent, index)
        finally:
            self.depth -= 1


class _Composer(_Bounded, yaml.SafeLoader):
    """With Python's parser, whose messages can be told to people."""


QUICK: Any = None  # the same with libyaml's parser, in a seventh of the time, where there is one
if yaml.__with_libyaml__:
    from yaml.cyaml import CParser  # type: ignore[attr-defined]

    class _Quick(_Bounded, CParser, Resolver):
        def __init__(self, text: str) -> None:
            CParser.__init__(self, text)
            Composer.__init__(self)
            Resolver.__init__(self)

    QUICK = _Quick


def compose(text: str) -> yaml.Node | None:
    """The one document of a text. Raises YAMLError."""
    if QUICK is not None:
        with contextlib.suppress(yaml.YAMLError):  # it is read again for the message
            return QUICK(text).get_single_node()  # type: ignore[no-any-return]
    return _Composer(text).get_single_node()


def read(text: str, problems: Problems) -> Any:
    """The value of one document, its places put into ``problems.marks``. What is wrong goes into
    ``problems``; None where nothing could be read."""
    if len(text.encode("utf-8", "surrogatepass")) > FILE_SIZE:
        problems.at(1, 1, f"the file is larger than {FILE_SIZE} bytes")
        return None
    try:
        node = compose(text)
    except _Refused as error:
        problems.at(error.line, error.column, str(error))
        return None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        problems.at(line, column, f"not YAML: {error.problem or error.context}{_hint(error)}")
        return None
    except yaml.YAMLError as error:
        problems.at(1, 1, f"not YAML: {' '.join(str(error).split())}")
        return None
    if node is None:
        problems.at(1, 1, "the file is empty")
        return None
    reader = _Reader(problems)
    value = reader.value(node, ())
    problems.marks = reader.marks
    return value


def _hint(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or ""
    if "another document" in problem or "single document" in (error.context or ""):
        return "; one service per file"
    if "mapping values are not allowed" in problem:
        return '; a text with ": " in it needs quotes'
    if "but got '{'" in problem:
        return "; a text with a brace in it needs quotes here"
    if "'\\t'" in problem:
        return "; indent with spaces, not with tabs"
    if "cannot start any token" in problem:
        return "; a text that starts with this character needs quotes"
    return ""


class _Reader:
    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.marks: dict[Where, tuple[int, int]] = {}
        self.nodes = 0

    def value(self, node: yaml.Node, where: Where) -> Any:
        self.nodes += 1
        self.marks.setdefault(where, _place(node))
        if self.nodes > NODES:
            if self.nodes == NODES + 1:
                self.error(node, f"more than {NODES} values; write fewer aliases")
            return None
        if node.tag not in _TAGS:
            self.error(node, f"the tag {node.tag.removeprefix('tag:yaml.org,2002:')} is not used")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, where)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(each, (*where, index)) for index, each in enumerate(node.value)]
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, where: Where) -> Mapping[str, Any] | None:
        if node.flow_style and any(_empty(value) for _, value in node.value):
            inside = ", ".join(str(key.value) for key, _ in node.value)
            self.error(
                node,
                f'YAML reads a bare {{{inside}}} as a mapping; write it in quotes: "{{{inside}}}"',
            )
            return None
        members: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                self.error(key_node, f"a key must be text; write {key_node.value!r} in quotes")
                continue
            if key in members:
                self.error(key_node, f'"{key}" is given twice')
                continue
            place = (*where, key)
            self.marks[place] = _place(key_node)
            members[key] = self.value(value_node, place)
        return members

    def _scalar(self, node: yaml.Node) -> Any:
        text = str(node.value)
        if not isinstance(node, yaml.ScalarNode) or node.style:
            return text
        if text in ("", "~", "null"):
            return None
        if text in ("true", "false"):
            return text == "true"
        if _INTEGER.fullmatch(text):
            return int(text)
        if _DECIMAL.fullmatch(text):
            return Decimal(text)
        if _AMBIGUOUS.fullmatch(text):
            self.error(node, f"YAML 1.1 and 1.2 read {text} differently; write it in quotes")
        return text

    def error(self, node: yaml.Node, message: str) -> None:
        self.problems.at(*_place(node), message)


def _place(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and not node.style and node.value == ""
