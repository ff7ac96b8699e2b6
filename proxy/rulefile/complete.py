"""Whether an endpoint's examples show what its rule says: ``onceproxy rules test --strict``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from proxy.core.rules import Endpoint
from proxy.rulefile import schema
from proxy.rulefile.loader import RuleFile
from proxy.rulefile.testing import ExampleResult

LINES_MIN = 5  # a call, what is placed, a success, an unknown end, and what settles it


def too_few(files: Sequence[RuleFile]) -> list[ExampleResult]:
    """A problem for each endpoint that writes and whose examples do not show what it does."""
    found = []
    for file in files:
        for endpoint in file.service.endpoints:
            if endpoint.effect != "write":
                continue
            examples = file.model.endpoints[endpoint.name].examples
            problems = tuple(_missing(endpoint, examples))
            if problems:
                title = f"{file.service.name}.{endpoint.name}"
                found.append(ExampleResult(title, problems, missing=True))
    return found


def _missing(endpoint: Endpoint, examples: Sequence[schema.Example]) -> Iterator[str]:
    means = {answer.means for example in examples for answer in example.answers}
    if not means & {"succeeded", "accepted"}:
        yield "no example of an answer that means succeeded"
    if "unknown" not in means:
        yield "no example of an answer that means unknown"
    shown = {lookup.means for example in examples for lookup in example.lookups}
    for result in ("found", "none") if endpoint.reconcile else ():
        if result not in shown:
            yield f"no example of a lookup that means {result}"
    placed = endpoint.key is not None or endpoint.marker is not None
    changed = endpoint.mode == "enforce" and endpoint.signed == "none"
    if placed and changed and not any(map(_placements, examples)):
        yield "no example expects what is placed"
    lines = sum(map(_lines, examples))
    if lines < LINES_MIN:
        yield (
            f"its examples hold {lines} lines (calls, what is placed, answers, lookups); "
            f"{LINES_MIN} are the least"
        )


def _placements(example: schema.Example) -> int:
    expect = example.expect
    places = (expect.header, expect.query, expect.form, expect.json_ or {})
    return sum(map(len, places)) + (expect.target is not None)


def _lines(example: schema.Example) -> int:
    """The endpoint that it matches is one of them."""
    return 1 + _placements(example) + len(example.answers) + len(example.lookups)
