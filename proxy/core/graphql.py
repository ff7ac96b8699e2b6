"""What a GraphQL request executes, where the arguments of its one field stand, and its answers.

The only file that needs graphql-core, and only once a rule matches by ``graphql:``; it is imported
on first use, because nobody else should pay for it.

A request is told by its document, never by its address: a batch is a list of requests, a stored
document that is named by a hash tells nothing (``unknown``), and a document of several fields is
none of them. The arguments of the field are the same whether variables or literals give them:
``graphql.input.title`` in a path is that value, and a key or marker ``in: graphql`` is written
where the value stands.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, DecimalException
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl

from proxy.core.bodies import json_text

if TYPE_CHECKING:
    from graphql import DocumentNode, FieldNode, OperationDefinitionNode, ValueNode

KINDS: Final = ("query", "mutation", "subscription", "unknown")
"""What a request may do; the first three are the document's own words."""

TOKENS = 10_000  # of a document: far above any tool's
DOCUMENTS = 64  # parsed ones that are kept, some 100 kB each
KEPT_LENGTH = 10_000  # characters; of longer ones few are kept, lest they fill memory
LENGTH_MAX = 100_000  # characters of all documents in one request; a word takes 10 us to parse
DIGITS = 4000  # of a number; Python reads no longer ones as whole numbers
REQUESTS_MAX = 1000  # in one batch


class NoPlace(ValueError):
    """An argument of the field has no place in this request; str() says why."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field at the top. ``node``: where it stands in the document."""

    name: str
    alias: str  # the name of its member in the answer; its own where none was given
    node: FieldNode = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Executed:
    """What one request executes. ``fields``: those at the top, fragments opened."""

    kind: str
    fields: tuple[Field, ...]
    text: str = field(repr=False)
    variables: Mapping[str, Any] = field(repr=False)
    defaults: Mapping[str, Any] = field(repr=False)

    @property
    def only(self) -> Field | None:
        """The one field; a rule for one of several would not speak for the others."""
        return self.fields[0] if len(self.fields) == 1 else None


# What a request carries


def kind_of(body: Any, query: str = "") -> str:
    """What the request may do. Of a batch the strongest: one that cannot be told, then one that
    writes. ``query``: the query of its address, for a request without a body."""
    found = [one.kind if one else "unknown" for one in _all_executed(body, query)]
    for kind in ("unknown", "mutation", "subscription", "query"):
        if kind in found:
            return kind
    return "unknown"


def executed(body: Any, query: str = "") -> Executed | None:
    """What a single request executes; None for a batch, and where it cannot be told."""
    if isinstance(body, list):
        return None
    return _all_executed(body, query)[0]


def calls(body: Any, wanted: Sequence[str], query: str = "") -> bool:
    """Whether it is of one of the kinds in ``wanted``, or calls one field, one of those."""
    kinds = [word for word in wanted if word in KINDS]
    if kinds and kind_of(body, query) in kinds:
        return True
    found = executed(body, query) if len(kinds) < len(wanted) else None
    return found is not None and found.only is not None and found.only.name in wanted


def arguments(body: Any, query: str = "") -> dict[str, Any]:
    """The arguments of the one field, with the values of variables in them; none where there is
    not one field. What a variable does not say and has no default is left out."""
    found = executed(body, query)
    if found is None or found.only is None:
        return {}
    return _arguments(found, found.only.node.arguments)


def alias_of(body: Any, query: str = "") -> Alias | None:
    """How the one field is named, and how in the answer."""
    found = executed(body, query)
    only = found.only if found is not None else None
    return Alias(only.name, only.alias) if only is not None else None


class Alias(NamedTuple):
    name: str
    alias: str

    def plain(self, body: Any) -> Any:
        """An answer as if the request had named no alias."""
        return _moved(body, self.alias, self.name)

    def named(self, body: Any) -> Any:
        """The opposite: an answer as the request wants it."""
        return _moved(body, self.name, self.alias)


def _moved(body: Any, old: str, new: str) -> Any:
    data = body.get("data") if isinstance(body, dict) else None
    if old == new or not isinstance(data, dict) or old not in data:
        return body
    return {**body, "data": {new if name == old else name: it for name, it in data.items()}}


def _all_executed(body: Any, query: str) -> Sequence[Executed | None]:
    """Every rule of a service asks this of the same body, one after the other."""
    global _latest
    latest = _latest
    if latest is None or latest[0] is not body or latest[1] != query:
        latest = _latest = (body, query, tuple(_read(body, query)))
    return latest[2]


_latest: tuple[Any, str, tuple[Executed | None, ...]] | None = None


def _read(body: Any, query: str) -> Iterator[Executed | None]:
    batch = isinstance(body, list)
    requests = body if batch else [_carried(body, query)]
    documents = [each.get("query") for each in requests if isinstance(each, Mapping)]
    length = sum(len(text) for text in documents if isinstance(text, str))
    if not 0 < len(requests) <= REQUESTS_MAX or length > LENGTH_MAX:
        yield None
        return
    for each in requests:
        yield _of(each) if isinstance(each, Mapping) else None


def _carried(body: Any, query: str) -> Mapping[str, Any]:
    """Document, variables and name of a request, in the forms in which they travel."""
    if isinstance(body, str):  # application/graphql
        return {"query": body, **_pairs(query)}
    if not isinstance(body, dict):
        return {}
    if not body:
        return _pairs(query)
    if "query" not in body and isinstance(body.get("operations"), str):  # with files
        return _object(body["operations"])
    return body


def _pairs(query: str) -> dict[str, Any]:
    found = parse_qsl(query, keep_blank_values=True, errors="surrogateescape")
    known = dict(found)
    return known if len(known) == len(found) else {}  # given twice: nobody knows which counts


def _object(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, Mapping) else {}


def _of(request: Mapping[str, Any]) -> Executed | None:
    text, name = request.get("query"), request.get("operationName")
    if not isinstance(text, str) or not (name is None or isinstance(name, str)):
        return None
    told = (_told if len(text) <= KEPT_LENGTH else _told_of_long)(text, name)
    if told is None:
        return None
    kind, fields, defaults = told
    return Executed(kind, fields, text, _object(request.get("variables")), defaults)


# Documents


@lru_cache(maxsize=DOCUMENTS)
def _told(text: str, name: str | None) -> tuple[str, tuple[Field, ...], dict[str, Any]] | None:
    """What the document says: kind, fields at the top, default values of variables."""
    document = _document(text)
    operation = _operation(document, name) if document is not None else None
    if document is None or operation is None:
        return None
    found = _top(document, operation)
    return None if found is None else (operation.operation.value, found, _defaults(operation))


_told_of_long = lru_cache(maxsize=2)(_told.__wrapped__)


def _document(text: str) -> DocumentNode | None:
    from graphql import GraphQLError, parse

    try:
        return parse(text, max_tokens=TOKENS)
    except (GraphQLError, RecursionError):
        return None


def _operation(document: DocumentNode, name: str | None) -> OperationDefinitionNode | None:
    from graphql import OperationDefinitionNode

    found = [d for d in document.definitions if isinstance(d, OperationDefinitionNode)]
    if name:
        found = [one for one in found if one.name is not None and one.name.value == name]
    return found[0] if len(found) == 1 else None


def _defaults(operation: OperationDefinitionNode) -> dict[str, Any]:
    return {
        each.variable.name.value: _value(each.default_value, {}, {})
        for each in operation.variable_definitions or ()
        if each.default_value is not None
    }


def _top(document: DocumentNode, operation: OperationDefinitionNode) -> tuple[Field, ...] | None:
    """The fields at the top of the operation; None where a fragment is not there."""
    from graphql import FieldNode, FragmentDefinitionNode, FragmentSpreadNode

    fragments = {
        d.name.value: d for d in document.definitions if isinstance(d, FragmentDefinitionNode)
    }
    found: list[Field] = []
    opened: set[str] = set()
    waiting = list(reversed(operation.selection_set.selections))
    while waiting:
        node: Any = waiting.pop()
        if isinstance(node, FieldNode):
            alias = node.alias.value if node.alias else node.name.value
            found.append(Field(node.name.value, alias, node))
            continue
        if isinstance(node, FragmentSpreadNode):
            name = node.name.value
            if name not in fragments:
                return None
            if name in opened:
                continue
            opened.add(name)
            node = fragments[name]
        waiting += reversed(node.selection_set.selections)
    return tuple(found)


def _arguments(found: Executed, nodes: Sequence[Any] | None) -> dict[str, Any]:
    values = {}
    for each in nodes or ():
        value = _value(each.value, found.variables, found.defaults)
        if value is not _UNSET:
            values[each.name.value] = value
    return values


_UNSET: Final = object()


def _value(
    node: ValueNode | None, variables: Mapping[str, Any], defaults: Mapping[str, Any]
) -> Any:
    """The value of a literal, with those of variables in it."""
    import graphql as g

    match node:
        case g.VariableNode():
            name = node.name.value
            return variables[name] if name in variables else defaults.get(name, _UNSET)
        case g.ObjectValueNode():
            members = {f.name.value: _value(f.value, variables, defaults) for f in node.fields}
            return {name: value for name, value in members.items() if value is not _UNSET}
        case g.ListValueNode():
            elements = [_value(each, variables, defaults) for each in node.values]
            return [None if value is _UNSET else value for value in elements]
        case g.IntValueNode() if len(node.value) <= DIGITS:
            return int(node.value)
        case g.IntValueNode() | g.FloatValueNode():
            return _number(node.value)
        case g.StringValueNode() | g.BooleanValueNode() | g.EnumValueNode():
            return node.value
    return None


def _number(text: str) -> Decimal | str:
    try:
        return Decimal(text)
    except DecimalException:  # an exponent beyond 10**18: no service knows such a number
        return text


# Places


@dataclass(frozen=True, slots=True)
class InVariables:
    """The value stands in ``variables`` at these steps."""

    steps: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class InDocument:
    """The value is the literal at ``start:end`` of the document; or (``value`` None) it is missing,
    and stands there between ``before`` and ``after`` once it is written."""

    start: int
    end: int
    value: Any = None
    before: str = ""
    after: str = ""

    def written(self, text: str, value: Any) -> str:
        literal = json_text(value)
        return text[: self.start] + self.before + literal + self.after + text[self.end :]


Place = InVariables | InDocument


def place_of(found: Executed | None, steps: Sequence[Any]) -> Place:
    """Where an argument of the one field stands: ``input.id``, or ``@idempotent.key`` of a
    directive on it. Raises NoPlace."""
    only = found.only if found is not None else None
    if found is None or only is None:
        raise NoPlace("the request does not call one field alone")
    first, *rest = steps
    if isinstance(first, str) and first.startswith("@"):
        return _in_directive(found, only.node, first[1:], rest)
    return _in_arguments(only.node.arguments or (), only.node.name, steps)


def _in_directive(found: Executed, node: FieldNode, name: str, rest: Sequence[Any]) -> Place:
    for each in node.directives or ():
        if each.name.value == name:
            return _in_arguments(each.arguments or (), each.name, rest)
    last: Any = [node.name, *(node.arguments or ()), *(node.directives or ())][-1]
    at = last.loc.end
    if node.arguments and not node.directives:
        at = _after(last)  # behind the bracket
    return InDocument(at, at, None, f" @{name}({_opened(rest)}", f"{_closed(rest)})")


def _in_arguments(nodes: Sequence[Any], owner: Any, steps: Sequence[Any]) -> Place:
    """``owner``: the name that the brackets follow."""
    first, *rest = steps
    for each in nodes:
        if each.name.value == first:
            return _in_value(each.value, rest)
    opened, closed = _opened(steps), _closed(steps)
    if nodes:
        at = nodes[0].loc.start
        return InDocument(at, at, None, opened, f"{closed}, ")
    at = owner.loc.end
    return InDocument(at, at, None, f"({opened}", f"{closed})")


def _in_value(node: Any, steps: Sequence[Any]) -> Place:
    import graphql as g

    if isinstance(node, g.VariableNode):
        return InVariables((node.name.value, *steps))
    assert node.loc is not None  # the document was parsed with places
    start, end = node.loc.start, node.loc.end
    if not steps:
        return InDocument(start, end, _value(node, {}, {}))
    if isinstance(node, g.NullValueNode):
        return InDocument(start, end, None, "{" + _opened(steps), _closed(steps) + "}")
    if not isinstance(node, g.ObjectValueNode):
        raise NoPlace(f"{steps[0]} has no place: the document has no object there")
    first, *rest = steps
    for each in node.fields:
        if each.name.value == first:
            return _in_value(each.value, rest)
    comma = ", " if node.fields else ""
    return InDocument(start + 1, start + 1, None, _opened(steps), _closed(steps) + comma)


def _opened(steps: Sequence[Any]) -> str:
    if not all(isinstance(step, str) for step in steps):
        raise NoPlace("a list that the document writes out has no place for a value of each item")
    return ": {".join(steps) + ": "


def _closed(steps: Sequence[Any]) -> str:
    return "}" * (len(steps) - 1)


def _after(node: Any) -> int:
    """The end of the bracket that closes behind a node."""
    token = node.loc.end_token.next
    while token is not None and token.kind.value != ")":
        token = token.next
    assert token is not None  # the document was parsed
    return int(token.end)


# Answers


def error_of(body: Any) -> str | None:
    """What an answer that names errors says of the effect, by the specification: ``rejected`` where
    nothing was executed (there is no ``data``), ``unknown`` where a field came to nothing; None
    where all have a value, and in answers without errors. Of a batch the worst."""
    if isinstance(body, list):
        found = {error_of(each) for each in body}
        return None if found <= {None} else "rejected" if found == {"rejected"} else "unknown"
    if not isinstance(body, dict):
        return "unknown"
    if not body.get("errors"):
        return None
    if "data" not in body:
        return "rejected"
    data = body["data"]
    if not isinstance(data, dict) or not data:
        return "unknown"
    return "unknown" if any(value is None for value in data.values()) else None
