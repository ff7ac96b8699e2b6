"""Which endpoint of which rule a request belongs to.

Services are found by host through an index, so that the number of rule files costs nothing: the
exact name first, then ``*.name`` and names with ``{x}`` by the longest ending, then ``*``. In a
service the first endpoint in file order wins.

The path is matched on a copy that is percent-decoded once; what is forwarded is never touched. A
spelling that servers read in two ways must not slip past a rule: doubled and encoded slashes are
tried in both readings, and dot segments, backslashes and NUL on a ruled host are a BadPath. A body
that cannot be read matches no endpoint that looks into it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any
from urllib.parse import unquote

from proxy.core import graphql, jsonrpc
from proxy.core.conditions import Condition
from proxy.core.model import Request, frozen
from proxy.core.paths import MISSING, Path
from proxy.core.rules import Endpoint, Service
from proxy.core.templates import ValueMissing
from proxy.core.views import BodyMissing, RequestView

READS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that read unless a rule says otherwise; every other one writes."""

OVERRIDES = ("x-http-method-override", "x-http-method", "x-method-override")
_OVERRIDES = frozenset(OVERRIDES)
DEFAULT_PORTS = (80, 443)


class BadPath(Exception):
    """A path on a ruled host that servers read in two ways; str() is the detail of a 400."""


class BadBatch(BadPath):
    """Calls of JSON-RPC in one request that can only be protected one by one."""


def effective_method(request: Request) -> str:
    """The method, or the one an override header names. An override that would make a read of a
    write is not believed, because a server that ignores it writes."""
    fields = request.fields
    if _OVERRIDES.isdisjoint(fields):
        return request.method.upper()
    for name in OVERRIDES:
        override = fields.get(name)
        if override is not None:
            override = override.strip().upper()
            if override and override not in READS:
                return override
    return request.method.upper()


# Hosts


@dataclass(frozen=True, slots=True)
class HostPattern:
    """``name``, ``name:port``, ``*.name``, ``{bucket}.s3.amazonaws.com`` or ``*``. ``labels``: the
    name split at its dots; None stands for ``*`` in front, a pair for ``{x}``."""

    text: str
    labels: tuple[str | tuple[str] | None, ...]
    port: int | None = None  # None: 80 and 443; of ``*`` any

    @property
    def everywhere(self) -> bool:
        return self.labels == (None,)

    @property
    def ending(self) -> tuple[str, ...]:
        """The labels behind the last variable one: what the index knows it by."""
        labels: list[str] = []
        for label in reversed(self.labels):
            if not isinstance(label, str):
                break
            labels.insert(0, label)
        return tuple(labels)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(label[0] for label in self.labels if isinstance(label, tuple))

    def params(self, labels: Sequence[str], port: int) -> dict[str, str] | None:
        """The values of ``{x}`` if it is this host, else None."""
        if self.everywhere:
            return {}
        if port != self.port if self.port is not None else port not in DEFAULT_PORTS:
            return None
        pattern = self.labels
        if pattern[0] is None:
            pattern = pattern[1:]
            if len(labels) <= len(pattern):
                return None
            labels = labels[-len(pattern) :]
        if len(labels) != len(pattern):
            return None
        found: dict[str, str] = {}
        for wanted, label in zip(pattern, labels, strict=True):
            if isinstance(wanted, tuple):
                found[wanted[0]] = label
            elif wanted != label:
                return None
        return found


# Paths


@dataclass(frozen=True, slots=True)
class Segment:
    """``refunds`` or ``{id}`` or ``{sheet}:append``: text around at most one parameter."""

    prefix: str
    name: str | None = None
    suffix: str = ""

    def read(self, text: str, params: dict[str, str]) -> bool:
        if self.name is None:
            return text == self.prefix
        end = len(text) - len(self.suffix)
        if end <= len(self.prefix):
            return False
        if not (text.startswith(self.prefix) and text.endswith(self.suffix)):
            return False
        params[self.name] = text[len(self.prefix) : end]
        return True


@dataclass(frozen=True, slots=True)
class JsonRpc:
    """Names may end with ``*``."""

    methods: tuple[str, ...]
    tools: tuple[str, ...] = ()
    trusts: bool = False  # that a tool only reads, or may be called again, where its server says so

    @property
    def tells_tool(self) -> bool:
        """Whether the tool is told by the endpoint alone."""
        return len(self.tools) == 1 and not self.tools[0].endswith("*")


@dataclass(frozen=True, slots=True)
class Match:
    """``method`` may be ``*``. ``rest`` is the parameter of a last ``{x+}``, which takes one or
    more segments. ``head`` looks at query and headers, ``body`` into the body."""

    text: str
    method: str
    segments: tuple[Segment, ...]
    rest: str | None = None
    head: Condition | None = None
    body: Condition | None = None
    graphql: tuple[str, ...] = ()  # kinds, or names of the one field
    jsonrpc: JsonRpc | None = None

    @property
    def needs_body(self) -> bool:
        return bool(self.body or self.graphql or self.jsonrpc)

    @property
    def names(self) -> tuple[str, ...]:
        inside = tuple(s.name for s in self.segments if s.name is not None)
        return inside if self.rest is None else (*inside, self.rest)

    def read(self, request: Request) -> dict[str, str] | None:
        """The parameters in the path if it fits, in any reading of it; else None."""
        for segments in readings(request.path):
            params = self.params(segments)
            if params is not None:
                return params
        return None

    def params(self, segments: Sequence[str]) -> dict[str, str] | None:
        count = len(self.segments)
        if len(segments) != count if self.rest is None else len(segments) <= count:
            return None
        params: dict[str, str] = {}
        for pattern, text in zip(self.segments, segments, strict=False):
            if not pattern.read(text, params):
                return None
        if self.rest is not None:
            params[self.rest] = "/".join(segments[count:])
            if not params[self.rest]:
                return None
        return params

    def fits_head(self, view: RequestView) -> bool:
        return self.head is None or _holds(self.head, view)

    def fits_body(self, view: RequestView) -> bool:
        try:
            if self.body is not None and not _body_holds(self.body, view):
                return False
            if self.graphql and not _executes(view, self.graphql):
                return False
            return self.jsonrpc is None or _calls(view, self.jsonrpc)
        except BodyMissing:
            return False


def _body_holds(condition: Condition, view: RequestView) -> bool:
    """A batch (a list of calls) or plain text has no members: a rule that says what a member is
    not would take it for harmless, so only one that looks for a list's elements sees it."""
    if isinstance(view.get("body"), dict):
        return _holds(condition, view)
    steps = [check.path.steps[:1] for check in condition.checks]
    return not any(step and isinstance(step[0], str) for step in steps) and _holds(condition, view)


def _holds(condition: Condition, view: RequestView) -> bool:
    try:
        return condition.holds(view)
    except (BodyMissing, ValueMissing):
        return False


def _executes(view: RequestView, wanted: tuple[str, ...]) -> bool:
    try:
        body = view.get("body")
    except BodyMissing:
        return "unknown" in wanted
    return graphql.calls(body, wanted, view.request.query)


def _calls(view: RequestView, wanted: JsonRpc) -> bool:
    if not _named(view.get("body.method"), wanted.methods):
        return False
    return not wanted.tools or _named(view.get("body.params.name"), wanted.tools)


def _says_so(view: RequestView) -> bool:
    """Where nobody has named the host: other APIs have a member ``method`` too, and an ``id`` in
    which their calls differ. A server of JSON-RPC that is named may take less."""
    try:
        return bool(view.get("body.jsonrpc") == "2.0")
    except BodyMissing:
        return False


def _named(name: Any, wanted: tuple[str, ...]) -> bool:
    if not isinstance(name, str):
        return False
    return any(
        name.startswith(each[:-1]) if each.endswith("*") else name == each for each in wanted
    )


def readings(path: str) -> Iterator[list[str]]:
    """The decoded segments of a path; then, where they differ, as a server reads it that decodes
    slashes and merges doubled ones."""
    segments = path.removeprefix("/").split("/") if path.startswith("/") else [path]
    if "%" in path:
        segments = [unquote(each, errors="surrogateescape") for each in segments]
    if segments == [""]:
        segments = []
    yield segments
    merged = [piece for each in segments for piece in each.split("/") if piece]
    if merged != segments:
        yield merged


def _check_path(path: str) -> None:
    for segments in readings(path):
        for segment in segments:
            if segment.partition(";")[0] in (".", ".."):
                raise BadPath("the path has a dot segment; write the path it leads to")
            if "\\" in segment or "\0" in segment:
                raise BadPath("the path has a backslash or a NUL; this host has rules by path")


# The set


@frozen
class Matched:
    """``params``: of host and path. ``view``: the request under them, its body parsed if it was.
    ``anywhere``: by a rule for any host, so that nobody has named this one."""

    endpoint: Endpoint
    params: Mapping[str, str]
    view: RequestView
    anywhere: bool = False


_Entry = tuple[int, Endpoint, Match]  # the number is the place in file order


class _Table:
    """The endpoints of a service for one method, by what can be looked up at once: fixed paths by
    themselves, paths with ``{x}`` by their length, first and last segment, those with ``{x+}`` by
    their first. A segment that is not fixed is None there."""

    __slots__ = ("_fixed", "_rests", "_shapes")

    def __init__(self, entries: Iterable[_Entry]) -> None:
        self._fixed: dict[tuple[str, ...], list[_Entry]] = {}
        self._shapes: dict[tuple[int, str | None, str | None], list[_Entry]] = {}
        self._rests: dict[str | None, list[_Entry]] = {}
        for entry in entries:
            match = entry[2]
            texts = [s.prefix if s.name is None else None for s in match.segments]
            first = texts[0] if texts else None
            if match.rest is not None:
                self._rests.setdefault(first, []).append(entry)
            elif match.names:
                shape = (len(texts), first, texts[-1])
                self._shapes.setdefault(shape, []).append(entry)
            else:
                path = tuple(segment.prefix for segment in match.segments)
                self._fixed.setdefault(path, []).append(entry)

    def candidates(self, segments: Sequence[str]) -> Sequence[_Entry]:
        """In file order."""
        found: list[_Entry] = []
        fixed = self._fixed.get(tuple(segments))
        if fixed is not None:
            found += fixed
        if segments:
            count, first, last = len(segments), segments[0], segments[-1]
            if self._shapes:
                for shape in (
                    (count, first, last),
                    (count, first, None),
                    (count, None, last),
                    (count, None, None),
                ):
                    entries = self._shapes.get(shape)
                    if entries is not None:
                        found += entries
            if self._rests:
                found += self._rests.get(first, ())
                found += self._rests.get(None, ())
        if len(found) > 1:
            found.sort(key=itemgetter(0))
        return found


class _Methods:
    """A table for each method, made when the first call comes; an endpoint for any method stands in
    every one."""

    __slots__ = ("_endpoints", "_tables")

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._endpoints = endpoints
        self._tables: Mapping[str, _Table] | None = None

    def table(self, method: str) -> _Table:
        if self._tables is None:
            self._tables = _by_method(self._endpoints)
        return self._tables.get(method) or self._tables["*"]


@dataclass(frozen=True, slots=True)
class _Index:
    """One host pattern and its service's endpoints by method."""

    pattern: HostPattern
    methods: _Methods

    def candidates(self, method: str, segments: Sequence[str]) -> Sequence[_Entry]:
        return self.methods.table(method).candidates(segments)


_Route = tuple[Endpoint, Match, dict[str, str], bool]
"""The parameters are of host and path; the last says that the rule is for any host."""


SWITCH_FROM = 8  # routes at one address; below, trying them one by one is as fast


@dataclass(frozen=True, slots=True)
class _Switch:
    """What most of the routes at one address are told apart by (the operation's name in a header
    or in the body), and which value each of them wants there."""

    path: Path
    wanted: Mapping[int, str]  # by the match's id; no value that could be written in another way

    @staticmethod
    def of(routes: Sequence[_Route], *, body: bool) -> _Switch | None:
        if len(routes) < SWITCH_FROM:
            return None
        found: dict[Path, dict[int, str]] = {}
        for _, match, *_ in routes:
            condition = match.body if body else match.head
            if condition is None or len(condition.alternatives) != 1:
                continue
            for check in condition.checks:
                text = check.operand
                if check.op == "is" and isinstance(text, str) and text[:1].isalpha():
                    found.setdefault(check.path, {})[id(match)] = text
        if not found:
            return None
        path = max(found, key=lambda each: len(found[each]))
        return _Switch(path, found[path])

    def left(self, routes: Sequence[_Route], view: RequestView) -> Sequence[_Route]:
        """The routes that may still fit."""
        try:
            value = view.get(self.path)
        except BodyMissing:
            return routes
        if not isinstance(value, str) and value is not MISSING:
            return routes
        wanted = self.wanted
        return [route for route in routes if wanted.get(id(route[1]), value) == value]


@dataclass(frozen=True, slots=True)
class _Fan:
    """The routes at one address."""

    routes: tuple[_Route, ...]
    head: _Switch | None = None
    body: _Switch | None = None


@frozen
class Examined:
    """The endpoints that fit a request's head, in the order in which they are asked; all but the
    last look into the body."""

    routes: tuple[_Route, ...]
    switch: _Switch | None = None

    @property
    def needs_body(self) -> bool:
        return bool(self.routes) and self.routes[0][1].needs_body

    def choose(self, request: Request) -> Matched | None:
        """The endpoint of the same request, now with its body."""
        view = RequestView(request)
        if self.needs_body and jsonrpc.is_batch(request.body):
            found = self._choose_batch(view)
            if found is not None:
                return found
        return self._choose(view)

    def _choose(self, view: RequestView) -> Matched | None:
        routes: Sequence[_Route] = self.routes
        if self.switch is not None and self.needs_body:
            routes = self.switch.left(routes, view)
        for endpoint, match, params, anywhere in routes:
            bound = view.with_params(params) if params else view
            if anywhere and match.jsonrpc and not _says_so(view):
                continue
            if not match.needs_body or match.fits_body(bound):
                return Matched(endpoint, params, bound, anywhere)
        return None

    def _choose_batch(self, view: RequestView) -> Matched | None:
        """A batch of reads is a read; one with a write that a rule describes is not let through as
        something that no rule describes. Raises BadBatch."""
        try:
            calls = view.get("body")
        except BodyMissing:
            return None
        if not isinstance(calls, list) or not any(match.jsonrpc for _, match, *_ in self.routes):
            return None
        found = [self._choose(view.with_body(c)) if isinstance(c, dict) else None for c in calls]
        known = [each for each in found if each is not None]
        if any(each.endpoint.effect == "write" for each in known):
            raise BadBatch("a batch cannot be protected call by call: send each call by itself")
        return replace(known[0], view=view) if known and len(known) == len(calls) else None


PATHS_REMEMBERED = 4096  # about 2 MB; most writes of an agent go to few paths
HOSTS_REMEMBERED = 4096  # destinations whose rules are looked up once; callers choose them


class RuleSet:
    """All rules in force. Immutable; a reload makes another. ``warnings`` are for people."""

    def __init__(self, services: Sequence[Service], warnings: Sequence[str] = ()) -> None:
        self.services = tuple(services)
        self.warnings = tuple(warnings)
        self._by_ending: dict[tuple[str, ...], list[_Index]] = {}
        self._of = {service.name: service for service in self.services}
        self._by_name: dict[str, dict[str, Endpoint]] = {}
        self._hosts: dict[str, tuple[HostPattern, ...]] = {}
        self._routes: dict[tuple[str, int, str, str], _Fan] = {}
        self._seen: dict[tuple[str, int], Sequence[tuple[_Index, dict[str, str]]]] = {}
        digest = hashlib.sha256()
        for service in self.services:
            self._add(service)
        self._join_everywhere()
        for service in self.services:
            digest.update(f"{service.name} {service.digest or _digest_of(service)}\n".encode())
        self.digest = digest.hexdigest()

    def _add(self, service: Service) -> None:
        self._hosts[service.name] = tuple(sorted(service.hosts, key=_distance))
        methods = _Methods(service.endpoints)
        for pattern in service.hosts:
            entries = self._by_ending.setdefault(pattern.ending, [])
            entries.append(_Index(pattern, methods))
            entries.sort(key=lambda each: _distance(each.pattern))

    def _join_everywhere(self) -> None:
        """What holds for any host is asked for every host: as one table."""
        joined = [e for e in self._by_ending.get((), ()) if e.pattern.everywhere]
        if len(joined) > 1:
            services = [s for s in self.services if any(h.everywhere for h in s.hosts)]
            methods = _Methods([e for service in services for e in service.endpoints])
            others = [e for e in self._by_ending[()] if not e.pattern.everywhere]
            self._by_ending[()] = [*others, _Index(joined[0].pattern, methods)]

    def match(self, request: Request) -> Matched | None:
        """The endpoint of a request, or None. Raises BadPath."""
        return self.examine(request).choose(request)

    def examine(self, request: Request) -> Examined:
        """What the head of a request says about its endpoint. Raises BadPath."""
        fitting = []
        fan = self._routes_of(request)
        routes: Sequence[_Route] = fan.routes
        view = RequestView(request)  # one for all, so that the query is read once
        if fan.head is not None:
            routes = fan.head.left(routes, view)
        for route in routes:
            _, match, params, _ = route
            if match.head is not None:
                view.params = params
                if not match.fits_head(view):
                    continue
            fitting.append(route)
            if not match.needs_body:
                break  # nothing after it is asked
        return Examined(tuple(fitting), fan.body)

    def params(self, endpoint: Endpoint, request: Request) -> dict[str, str] | None:
        """The parameters of a stored request under an endpoint; None if they no longer fit."""
        if endpoint.match is None:
            return None
        inside = endpoint.match.read(request)
        if inside is None:
            return None
        labels = request.host.split(".")
        for pattern in self._hosts.get(endpoint.service, ()):
            outside = pattern.params(labels, request.port)
            if outside is not None:
                return {**outside, **inside}
        return None

    @property
    def hosts(self) -> frozenset[str]:
        """The hosts of all rules, as they are written."""
        return frozenset(p.text for patterns in self._hosts.values() for p in patterns)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that cover these hosts: each stands for itself and all below it."""
        patterns = (p for patterns in self._hosts.values() for p in patterns)
        return tuple(sorted({".".join(p.ending) for p in patterns if p.ending}))

    def knows_host(self, host: str, port: int) -> bool:
        """Whether a rule names this host; one for any host does not."""
        return any(not index.pattern.everywhere for index, _ in self._hosts_of(host, port))

    def places(self, host: str, port: int) -> Sequence[tuple[str, str]]:
        """Service and name of every endpoint that a call to this host may be of."""
        labels = host.split(".")
        return [
            (service.name, endpoint.name)
            for service in self.services
            if any(
                not pattern.everywhere and pattern.params(labels, port) is not None
                for pattern in service.hosts
            )
            for endpoint in service.endpoints
        ]

    def refusal_at(self, host: str, port: int) -> Mapping[str, Any] | None:
        """The shape that the host's clients need a refusal in, whatever the endpoint. A rule for
        any host does not say what this one's clients are."""
        labels = host.split(".")
        for service in self.services:
            if service.refusal is not None and any(
                not pattern.everywhere and pattern.params(labels, port) is not None
                for pattern in service.hosts
            ):
                return service.refusal
        return None

    def endpoint(self, service: str, name: str) -> Endpoint | None:
        """By its name or an earlier one (``was``)."""
        names = self._by_name.get(service)
        if names is None:
            known = self._of.get(service)
            names = self._by_name[service] = _names(known.endpoints if known is not None else ())
        return names.get(name)

    def _hosts_of(self, host: str, port: int) -> Sequence[tuple[_Index, dict[str, str]]]:
        known = self._seen.get((host, port))
        if known is not None:
            return known
        labels = host.split(".")
        found = []
        for start in range(len(labels) + 1):
            for index in self._by_ending.get(tuple(labels[start:]), ()):
                params = index.pattern.params(labels, port)
                if params is not None:
                    found.append((index, params))
        if len(self._seen) >= HOSTS_REMEMBERED:
            self._seen.clear()
        self._seen[host, port] = found
        return found

    def _routes_of(self, request: Request) -> _Fan:
        """What fits host, method and path, in the order in which it is asked. Raises BadPath."""
        method, path = effective_method(request), request.path
        key = (request.host, request.port, method, path)
        routes = self._routes.get(key)
        if routes is None:
            hosts = self._hosts_of(request.host, request.port)
            if any(not index.pattern.everywhere for index, _ in hosts):
                _check_path(path)
            found = tuple(_routes(hosts, method, path))
            routes = _Fan(found, _Switch.of(found, body=False), _Switch.of(found, body=True))
            if not hosts:
                return routes  # nothing to remember of a host without rules
            if len(self._routes) >= PATHS_REMEMBERED:
                self._routes.clear()
            self._routes[key] = routes
        return routes


def _routes(
    hosts: Sequence[tuple[_Index, dict[str, str]]], method: str, path: str
) -> Iterator[_Route]:
    """What fits host, method and path."""
    paths = list(readings(path))
    for index, outside in hosts:
        for segments in paths:
            for _, endpoint, match in index.candidates(method, segments):
                inside = match.params(segments)
                if inside is not None:
                    yield endpoint, match, {**outside, **inside}, index.pattern.everywhere


def _distance(pattern: HostPattern) -> tuple[int, bool, int]:
    """How closely a pattern describes a host: the longer its fixed ending the closer, then names
    before ``{x}`` before ``*``."""
    return -len(pattern.ending), None in pattern.labels, len(pattern.names)


def _names(endpoints: Iterable[Endpoint]) -> dict[str, Endpoint]:
    """By their names and, where no other has it now, their earlier ones."""
    named: dict[str, Endpoint] = {}
    for endpoint in endpoints:
        named[endpoint.name] = endpoint
        for name in endpoint.was:
            named.setdefault(name, endpoint)
    return named


def _digest_of(service: Service) -> str:
    texts = (f"{endpoint.title} {endpoint.digest}\n" for endpoint in service.endpoints)
    return hashlib.sha256("".join(texts).encode()).hexdigest()


def _by_method(endpoints: Iterable[Endpoint]) -> dict[str, _Table]:
    entries = [(i, e, e.match) for i, e in enumerate(endpoints) if e.match is not None]
    named = {match.method for _, _, match in entries} | {"*"}
    return {
        method: _Table(entry for entry in entries if entry[2].method in (method, "*"))
        for method in named
    }
