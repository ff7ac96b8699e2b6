"""Conditions, paths and templates of a rule file, read into the core's; mistakes are collected.

Each function returns None where the text is wrong, after it has put the mistake into ``Problems``;
the caller goes on, so that everything wrong in a file is reported at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from proxy.core.conditions import OPERATORS, Check, Condition
from proxy.core.paths import Path, PathError, answer_path, request_path
from proxy.core.templates import (
    Placeholder,
    Template,
    TemplateError,
    UrlTemplate,
    parse_structure,
    parse_template,
    parse_url,
    placeholders_of,
)
from proxy.core.values import number_of
from proxy.rulefile.problems import Problems, Where, did_you_mean

READ_PATH = Callable[[str], Path]
NUMBERS = ("over", "under")
TEXTS = ("contains", "ends")


class Reader:
    """``names``: what may stand in braces besides paths about the request; empty: no templates.
    ``params``: the parameters of the endpoint's host and path."""

    def __init__(
        self, problems: Problems, names: Sequence[str] = (), params: Iterable[str] = ()
    ) -> None:
        self.problems = problems
        self.names = tuple(names)
        self.params = frozenset(params)

    # conditions

    def condition(
        self, raw: Any, where: Where, read: READ_PATH, *, templates: bool = False
    ) -> Condition | None:
        """Of ``{path: value}`` or a list of them; None where there is nothing to hold."""
        if not raw:
            return None
        alternatives = []
        for index, each in enumerate(raw if isinstance(raw, list) else [raw]):
            inside = (*where, index) if isinstance(raw, list) else where
            alternatives.append(self.checks(each, inside, read, templates=templates))
        return Condition(tuple(alternatives))

    def checks(
        self, raw: Mapping[str, Any], where: Where, read: READ_PATH, *, templates: bool = False
    ) -> tuple[Check, ...]:
        checks: list[Check] = []
        for text, value in raw.items():
            place = (*where, text)
            path = self.path(text, place, read)
            if path is not None:
                checks += self.value(value, place, path, templates=templates)
        return tuple(checks)

    def value(self, raw: Any, where: Where, path: Path, *, templates: bool = False) -> list[Check]:
        """The checks of one path: a value, or operators with theirs."""
        if isinstance(raw, list):
            self.problems.error(where, "a list is no value here; write {in: [...]}")
            return []
        if not isinstance(raw, dict):
            raw = {"is": raw}
        checks = [
            Check(path, op, self._operand(op, value, where, templates))
            for op, value in raw.items()
            if self._known(op, raw, where)
        ]
        for check in checks:
            if path.many and check.op in ("is", "in", "not", *NUMBERS, "after"):
                self.problems.error(where, "a path with [] gives a list; write {has: value}")
        return checks

    def _known(self, op: str, raw: Mapping[str, Any], where: Where) -> bool:
        if op in OPERATORS or (op == "is" and len(raw) == 1):
            return True
        hint = did_you_mean(op, OPERATORS)
        self.problems.error(
            where, f'no condition "{op}"; there are {", ".join(OPERATORS)}, or a plain value{hint}'
        )
        return False

    def _operand(self, op: str, raw: Any, where: Where, templates: bool) -> Any:
        if op == "exists" and not isinstance(raw, bool):
            self.problems.error(where, "exists: must be true or false")
        elif op == "in" and not isinstance(raw, list):
            self.problems.error(where, "in: must be a list")
        elif isinstance(raw, dict) or (isinstance(raw, list) and op not in ("in", "not")):
            self.problems.error(where, f"{op}: must be a single value")
        elif op in NUMBERS and number_of(raw) is None and not _braced(raw):
            self.problems.error(where, f"{op}: must be a number")
        elif op in TEXTS and not isinstance(raw, str):
            self.problems.error(where, f"{op}: must be text")
        if isinstance(raw, list):
            return tuple(self._operand("is", each, where, templates) for each in raw)
        if templates and isinstance(raw, str) and _braced(raw):
            return self.template(raw, where) or raw
        return raw

    # paths

    def path(self, text: str, where: Where, read: READ_PATH) -> Path | None:
        try:
            path = read(text)
        except PathError as error:
            self.problems.error(where, str(error))
            return None
        self._known_param(path, where)
        return path

    def request_paths(self, texts: Sequence[str], where: Where) -> tuple[str, ...]:
        for index, text in enumerate(texts):
            self.path(text, (*where, index), request_path)
        return tuple(texts)

    def answer_text(self, text: str | None, where: Where) -> str | None:
        if text is not None:
            self.path(text, where, answer_path)
        return text

    def _known_param(self, path: Path, where: Where) -> None:
        if path.root not in ("path", "host") or not path.steps:
            return
        name = str(path.steps[0])
        if name not in self.params:
            known = ", ".join(sorted(self.params)) or "none"
            self.problems.error(
                where,
                f"{path.text}: the match has no {{{name}}} (it has: {known})"
                f"{did_you_mean(name, self.params)}",
            )

    # templates

    def template(self, text: str | None, where: Where) -> Template | None:
        if text is None:
            return None
        try:
            template = parse_template(text, self.names)
        except TemplateError as error:
            self.problems.error(where, str(error))
            return None
        self._check(template.placeholders, where)
        return template

    def url(self, text: str, where: Where) -> UrlTemplate | None:
        try:
            url = parse_url(text, self.names)
        except TemplateError as error:
            self.problems.error(where, str(error))
            return None
        self._check(url.placeholders, where)
        for placeholder in url.placeholders:
            if placeholder.root == "sent_at" and not _written(placeholder):
                self.problems.error(
                    where, f"{placeholder.source}: a time in a URL ends in | unix, iso or date"
                )
        return url

    def structure(self, value: Any, where: Where) -> Any:
        try:
            structure = parse_structure(value, self.names)
        except TemplateError as error:
            self.problems.error(where, str(error))
            return None
        self._check(placeholders_of(structure), where)
        return structure

    def _check(self, placeholders: Iterable[Placeholder], where: Where) -> None:
        for placeholder in placeholders:
            if placeholder.path is not None:
                self._known_param(placeholder.path, where)


def _braced(value: Any) -> bool:
    return isinstance(value, str) and ("{" in value or "}}" in value)


def _written(placeholder: Placeholder) -> bool:
    return bool(placeholder.pipes) and placeholder.pipes[-1].name in ("unix", "iso", "date")


def literal(value: Any) -> Any:
    """A value of the file as JSON text can hold it, for digests."""
    return str(value) if isinstance(value, Decimal) else value
