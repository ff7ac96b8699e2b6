"""What a request means, as named fields and one digest.

Two requests have the same fingerprint if an API would be asked for the same thing: method, address,
path, query, the counted headers and the body (see ``content``). Credentials never count, and fields
a rule calls noise do not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from itertools import groupby
from typing import Final
from urllib.parse import unquote

import orjson

from proxy.core.content import (
    Content,
    DuplicateMember,
    Pairs,
    content_fields,
    content_without,
    dump,
    pair_fields,
    pairs_without,
    query_pairs,
    read_content,
    sorted_pairs,
)
from proxy.core.credentials import is_secret_header, is_secret_parameter
from proxy.core.fieldpath import Steps, path_steps, shown
from proxy.core.model import Headers, Request, frozen

__all__ = ["Canonical", "DuplicateMember", "canonical", "content_digest", "differences"]

NAME_DIGITS: Final = 32  # of a content digest in an operation's name: 128 bits


@frozen
class Canonical:
    """A request in canonical form. Holds the body's values: not for storing or logging."""

    method: str
    host: str  # scheme and authority
    path: str  # raw
    query: Pairs
    headers: Pairs
    body: Content = field(repr=False)
    params: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def fields(self) -> dict[str, str]:
        """Path (``body.a.b[0]``, ``query.x``, ``header.h``, ``method``, ``host``, ``path``) to
        canonical text. Worked out anew each time: for naming what differs."""
        found = {"method": self.method, "host": self.host, "path": self.path}
        found |= pair_fields("query", self.query)
        for name, group in groupby(self.headers, key=lambda pair: pair[0]):
            found[f"header.{name}"] = dump([value for _, value in group]).decode()
        return found | content_fields(self.body)

    def digest(self, without: Sequence[str] = ()) -> str:
        """64 hex digits over everything but the fields in ``without``."""
        it = self.without(without) if without else self
        body = orjson.Fragment(it.body.text)
        whole = [it.method, it.host, it.path, it.query, it.headers, it.body.kind, body]
        return hashlib.sha256(dump(whole)).hexdigest()

    def without(self, names: Iterable[str]) -> Canonical:
        """The same without these fields (``body.a[].b``, ``query.x``, ``header.h``, ``path.x``)
        and what is below them. A name that leads nowhere takes nothing away."""
        it = self
        for name in names:
            root, *steps = path_steps(name)
            it = _without(it, root, tuple(steps))
        return it


def canonical(
    request: Request,
    *,
    noise: Sequence[str] = (),
    headers: Sequence[str] = (),
    params: Mapping[str, str] | None = None,
) -> Canonical:
    """The canonical form of a request, whole or bare: credentials are left out either way.

    ``headers``: names of fields that count; ``noise``: paths of fields that do not; ``params``: of
    the endpoint's path, needed only where a path is named like ``path.x``. Raises DuplicateMember.
    """
    found = Canonical(
        method=request.method,
        host=f"{request.scheme}://{request.authority}",
        path=request.path,
        query=_counted_query(request.query) if request.query else (),
        headers=_counted_headers(request.headers, headers) if headers else (),
        body=read_content(request),
        params=params or {},
    )
    return found.without(noise) if noise else found


def differences(a: Canonical, b: Canonical) -> tuple[str, ...]:
    """Names of the fields in which two requests differ, sorted, each at most 120 characters."""
    left, right = a.fields, b.fields
    return tuple(sorted(shown(n) for n in left | right if left.get(n) != right.get(n)))


def content_digest(request: Request | Canonical) -> str:
    """32 hex digits that tell one call from another where nothing else does: in the name of an
    operation without a rule, and for step ``~``. Raises DuplicateMember."""
    found = request if isinstance(request, Canonical) else canonical(request)
    return found.digest()[:NAME_DIGITS]


def _counted_query(query: str) -> Pairs:
    return sorted_pairs(pair for pair in query_pairs(query) if not is_secret_parameter(*pair))


def _counted_headers(headers: Headers, counted: Sequence[str]) -> Pairs:
    names = {name.lower() for name in counted if not is_secret_header(name)}
    return sorted_pairs((k.lower(), v) for k, v in headers if k.lower() in names)


def _without(it: Canonical, root: str | int | None, steps: Steps) -> Canonical:
    match root:
        case "body":
            return replace(it, body=content_without(it.body, steps))
        case "query":
            return replace(it, query=pairs_without(it.query, steps))
        case "header" if steps:
            name = str(steps[0]).lower()
            return replace(it, headers=tuple(pair for pair in it.headers if pair[0] != name))
        case "path" if steps:
            return replace(it, path=_path_without(it.path, it.params.get(str(steps[0]))))
    return it


def _path_without(path: str, value: str | None) -> str:
    """The decoded path with ``*`` for the parameter's segment or segments."""
    decoded = unquote(path) + "/"
    at = decoded.find(f"/{value}/") if value else -1
    return path if at < 0 else f"{decoded[:at]}/*{decoded[at + len(value or '') + 1 : -1]}"
