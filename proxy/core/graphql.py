"""Which operation a GraphQL request executes: its kind and the one field it calls.

The only file that needs graphql-core, and only once a rule matches by ``graphql:``; it is imported
on first use, because nobody else should pay for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

KINDS = ("query", "mutation", "subscription")


@dataclass(frozen=True, slots=True)
class Executed:
    """``field``: the name of the only field at the top, None where there are several or fragments,
    since a rule for one of them would not speak for the others."""

    kind: str
    field: str | None


def executed(body: Any) -> Executed | None:
    """What ``{"query": ..., "operationName": ...}`` executes. None where it cannot be told: a
    batch, a stored query named by its hash, a document that does not parse."""
    if not isinstance(body, dict) or not isinstance(body.get("query"), str):
        return None
    from graphql import GraphQLError, OperationDefinitionNode, parse

    try:
        document = parse(body["query"], no_location=True, max_tokens=10_000)  # far above any tool's
    except (GraphQLError, RecursionError):
        return None
    operations = [d for d in document.definitions if isinstance(d, OperationDefinitionNode)]
    name = body.get("operationName")
    if name:
        operations = [o for o in operations if o.name is not None and o.name.value == name]
    if len(operations) != 1:
        return None
    return Executed(operations[0].operation.value, _only_field(operations[0]))


def _only_field(operation: Any) -> str | None:
    from graphql import FieldNode

    fields = operation.selection_set.selections
    if len(fields) != 1 or not isinstance(fields[0], FieldNode):
        return None
    return str(fields[0].name.value)


def calls(body: Any, wanted: str) -> bool:
    """Whether it is of the kind ``query`` or ``mutation``, or calls the field of that name."""
    found = executed(body)
    if found is None:
        return False
    return found.kind == wanted if wanted in KINDS else found.field == wanted
