"""What rules see of a request or an answer: values behind paths, read lazily and only once.

A view never changes a message. Where the body cannot be told (not kept, broken off, compressed in a
way nobody here reads, a member given twice), asking for something in it raises BodyMissing, so that
no caller mistakes "cannot tell" for "is not there".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import parse_qsl

from proxy.core import graphql
from proxy.core.bodies import BodyMissing, content, nested, read_answer, read_request
from proxy.core.model import Answer, Headers, Request, header
from proxy.core.paths import MISSING, Missing, Path, answer_path, request_path, walk

__all__ = [
    "MISSING",
    "AnswerView",
    "BodyMissing",
    "ItemView",
    "Missing",
    "RequestView",
    "View",
]


class View(Protocol):
    def get(self, path: str | Path) -> Any:
        """The value, or MISSING. Raises BodyMissing where the body is needed and cannot be read."""
        ...


class _Lazy:
    """A body that is parsed at most once; also its failure is kept."""

    __slots__ = ("_error", "_value")

    def __init__(self, value: Any = MISSING) -> None:
        self._value: Any = value
        self._error: BodyMissing | None = None

    def of(self, request: Request) -> Any:
        if self._error is not None:
            raise self._error
        if self._value is MISSING:
            try:
                data = content(request.body, request.headers)
                self._value = read_request(data, request.headers)
            except BodyMissing as error:
                self._error = error
                raise
        return self._value


class RequestView:
    """``body.a.b[0]``, ``path.x`` and ``host.x`` (parameters of the match), ``query.x``,
    ``header.X``, and ``graphql.x``: an argument of the one field that a GraphQL request calls. An
    empty body has no members; text that is neither JSON nor a form is ``body`` itself."""

    __slots__ = ("_body", "_query", "params", "request")

    def __init__(
        self, request: Request, params: Mapping[str, str] | None = None, body: _Lazy | None = None
    ) -> None:
        self.request = request
        self.params: Mapping[str, str] = params or {}
        self._body = body or _Lazy()
        self._query: dict[str, Any] | None = None

    def with_params(self, params: Mapping[str, str]) -> RequestView:
        """The same request under another match; the parsed body is shared."""
        return RequestView(self.request, params, self._body)

    def with_body(self, value: Any) -> RequestView:
        """The same request as if this were its body: one call of a batch."""
        return RequestView(self.request, self.params, _Lazy(value))

    def get(self, path: str | Path) -> Any:
        if isinstance(path, str):
            path = request_path(path)
        match path.root:
            case "body":
                return walk(self._body.of(self.request), path.steps)
            case "query":
                return walk(self.query, path.steps)
            case "header":
                return _header(self.request.headers, path)
            case "path":
                return walk(self.params, path.steps) if path.steps else self.request.path
            case "host":
                return walk(self.params, path.steps) if path.steps else self.request.host
            case "graphql":
                body = self._body.of(self.request)
                return walk(graphql.arguments(body, self.request.query), path.steps)
        return MISSING

    @property
    def query(self) -> dict[str, Any]:
        if self._query is None:
            pairs = parse_qsl(self.request.query, keep_blank_values=True, errors="surrogateescape")
            self._query = nested(pairs)
        return self._query


class AnswerView:
    """``id``, ``error.type``, ``errors[].code`` from the top of the body; ``header.X``; and, for a
    rule's ``status``, the path with that root. ``complete`` False: the body broke off. ``alias``:
    of the GraphQL field that was called, which paths call by its own name."""

    __slots__ = ("_alias", "_body", "_error", "answer", "answer_format", "complete")

    def __init__(
        self,
        answer: Answer,
        answer_format: str = "json",
        complete: bool = True,
        alias: graphql.Alias | None = None,
    ) -> None:
        self.answer = answer
        self._alias = alias
        self.answer_format = answer_format
        self.complete = complete
        self._body: Any = MISSING
        self._error: BodyMissing | None = None

    def get(self, path: str | Path) -> Any:
        if isinstance(path, str):
            path = answer_path(path)
        match path.root:
            case "status":
                return self.answer.status
            case "header":
                return _header(self.answer.headers, path)
        return walk(self.body, path.steps)

    @property
    def body(self) -> Any:
        """The whole body as a value. Raises BodyMissing."""
        if self._error is not None:
            raise self._error
        if self._body is MISSING:
            try:
                self._body = self._read()
            except BodyMissing as error:
                self._error = error
                raise
        return self._body

    def _read(self) -> Any:
        if not self.complete:
            raise BodyMissing("the body of the answer broke off")
        data = content(self.answer.body, self.answer.headers)
        body = read_answer(data, self.answer.headers, self.answer_format)
        return body if self._alias is None else self._alias.plain(body)


class ItemView:
    """One object of a lookup's answer: paths from its own top; ``header.X`` is the answer's."""

    __slots__ = ("headers", "item")

    def __init__(self, item: Any, headers: Headers = ()) -> None:
        self.item = item
        self.headers = headers

    def get(self, path: str | Path) -> Any:
        if isinstance(path, str):
            path = answer_path(path)
        if path.root == "header":
            return _header(self.headers, path)
        return walk(self.item, path.steps)


def _header(headers: Headers, path: Path) -> Any:
    value = header(headers, str(path.steps[0])) if path.steps else None
    return MISSING if value is None else value
