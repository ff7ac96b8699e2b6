"""From a rule file's models to the core's rules: defaults folded in, texts read, sense checked.

An endpoint's digest covers all that the file says about it, its service's part included; examples
and comments do not count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.core import graphql, keys, rules
from proxy.core.conditions import Check, Condition
from proxy.core.intent import OBTAINED
from proxy.core.matching import READS, HostPattern, JsonRpc, Match
from proxy.core.paths import ALL, Path, answer_path, parse_steps, request_path
from proxy.core.placement import each
from proxy.core.templates import placeholders_of
from proxy.rulefile import schema
from proxy.rulefile.patterns import (
    NAME_CHARACTERS,
    PatternError,
    host_pattern,
    request_line,
    seconds,
)
from proxy.rulefile.problems import Problems, Where, did_you_mean
from proxy.rulefile.wording import Reader, literal

LOOKUP_NAMES = ("key", "sent_at")
ANSWER_NAMES = ("key", "sent_at", "item")
REFUSAL_NAMES = ("code", "detail", "next", "operation", "state", "external_id", "retry_after")
STATUS = Path("status", "status", ())
PAGE_KINDS = ("link", "cursor", "after_id", "offset", "page", "next")
COUNTED = ("offset", "page")  # kinds that skip an object when an earlier one goes away meanwhile


def compile_service(
    raw: Mapping[str, Any], model: schema.Service, problems: Problems
) -> rules.Service | None:
    """None where something is wrong; ``problems`` says what."""
    before = len(problems.errors)
    if not model.service or not NAME_CHARACTERS.issuperset(model.service):
        problems.error(("service",), "must be a name of letters, digits, - and _ (no dot)")
    hosts = tuple(_hosts(model.hosts, problems))
    _names_once(model, problems)
    endpoints = tuple(
        _Compiler(raw, model, hosts, name, problems).endpoint() for name in model.endpoints
    )
    _reachable(endpoints, problems)
    if len(problems.errors) > before:
        return None
    return rules.Service(
        name=model.service,
        hosts=hosts,
        endpoints=endpoints,
        source=model.source,
        confidence=model.confidence,
        checked=model.checked,
        path=problems.file,
        refusal=_shape(model.refusal),
    )


def _shape(refusal: schema.RefusalOrProblem | None) -> Mapping[str, Any] | None:
    if not isinstance(refusal, schema.Refusal):
        return None
    shape = {"body": refusal.body}
    return shape if refusal.status is None else {"status": refusal.status, **shape}


def _hosts(texts: Sequence[str], problems: Problems) -> list[HostPattern]:
    patterns: list[HostPattern] = []
    for index, text in enumerate(texts):
        try:
            patterns.append(host_pattern(text))
        except PatternError as error:
            problems.error(("hosts", index), str(error))
    return patterns


def _names_once(model: schema.Service, problems: Problems) -> None:
    allowed = NAME_CHARACTERS | {"."}
    seen: set[str] = set(model.endpoints)
    for name, endpoint in model.endpoints.items():
        if not name or not allowed.issuperset(name):
            problems.error(("endpoints", name), "must be a name of letters, digits, dots, - and _")
        for index, old in enumerate(endpoint.was):
            if old in seen:
                problems.error(
                    ("endpoints", name, "was", index), f'"{old}" is already another endpoint\'s'
                )
            seen.add(old)


def _reachable(endpoints: Sequence[rules.Endpoint], problems: Problems) -> None:
    seen: dict[Any, str] = {}
    for endpoint in endpoints:
        match = endpoint.match
        if match is None:
            continue
        shape = (
            match.method,
            tuple((s.prefix, s.name is None, s.suffix) for s in match.segments),
            match.rest is None,
        )
        if shape in seen:
            problems.error(
                ("endpoints", endpoint.name, "match"),
                f'never reached: "{seen[shape]}" above takes every such request',
            )
        elif not (match.head or match.needs_body):
            seen[shape] = endpoint.name


@dataclass(slots=True)
class _Compiler:
    """One endpoint of a file."""

    raw: Mapping[str, Any]
    service: schema.Service
    hosts: tuple[HostPattern, ...]
    name: str
    problems: Problems

    def endpoint(self) -> rules.Endpoint:
        model, service = self.model, self.service
        match = self._match()
        reader = self._reader(match)
        effect = model.effect or ("read" if match and match.method in READS else "write")
        answers = self._answers()
        key = self._key(effect, match)
        marker = self._marker(reader)
        shared = answers[len(model.answers) :]
        lookups = self._lookups(reader, key, marker, shared)
        self._obtained_is_used(key, lookups)
        self._advise(effect, answers)
        if model.journal and model.meter is None:
            self.problems.error(
                (*self.at, "journal"), "is for calls of a model; say with `meter:` that it is one"
            )
        idempotent = bool(match and match.method in ("PUT", "DELETE"))
        return rules.Endpoint(
            service=service.service,
            name=self.name,
            match=match,
            digest=self._digest(),
            effect=effect,
            mode=self._mode(),
            confidence=service.confidence,
            signed=model.signed or service.signed or "none",
            account=self._account(),
            auth=self._auth(),
            redact=self._redact(),
            answer_format=self._format(),
            refusal=self._refusal(),
            key=key,
            obtain=self._obtain(reader, key),
            answers=answers,
            was=tuple(model.was),
            store=model.store,
            idempotent=idempotent if model.idempotent is None else model.idempotent,
            distinguish=reader.request_paths(model.distinguish, (*self.at, "distinguish")),
            noise=reader.request_paths(model.noise, (*self.at, "noise")),
            wording=reader.request_paths(model.wording, (*self.at, "wording")),
            headers=tuple(model.headers),
            external_id=reader.answer_text(model.external_id, (*self.at, "external_id")),
            marker=marker,
            reconcile=lookups,
            poll=self._poll(reader, key, marker, shared, answers),
            approval=self._approval(match),
            meter=self._meter(reader, effect),
            journal=model.journal,
            counted=self._counted(effect),
        )

    def _counted(self, effect: str) -> bool:
        """Whether a call is one of the run's tool calls."""
        stated = self.model.counted if self.model.counted is not None else self.service.counted
        if stated is False and effect == "write":
            self.problems.error(self._stated("counted"), "every write counts: leave it out")
        return stated is not False

    @property
    def model(self) -> schema.Endpoint:
        return self.service.endpoints[self.name]

    @property
    def at(self) -> Where:
        return ("endpoints", self.name)

    def _reader(self, match: Match | None, names: Sequence[str] = ()) -> Reader:
        params = [name for host in self.hosts for name in host.names]
        return Reader(self.problems, names, [*params, *(match.names if match else ())])

    def _stated(self, key: str) -> Where:
        """Where a value that the endpoint or its service may give was given."""
        return (*self.at, key) if key in self.model.model_fields_set else (key,)

    def _seconds(self, text: str, where: Where, words: tuple[str, ...] = ()) -> float | None:
        try:
            return seconds(text, words)
        except PatternError as error:
            self.problems.error(where, str(error))
            return 0.0

    def _digest(self) -> str:
        service = {k: v for k, v in self.raw.items() if k not in ("endpoints", "checked")}
        endpoint = {k: v for k, v in self.raw["endpoints"][self.name].items() if k != "examples"}
        text = json.dumps([service, self.name, endpoint], sort_keys=True, default=literal)
        return hashlib.sha256(text.encode()).hexdigest()

    # matching

    def _match(self) -> Match | None:
        raw = self.model.match
        where = (*self.at, "match")
        model = raw if isinstance(raw, schema.Match) else schema.Match(request=raw)
        try:
            method, segments, rest = request_line(model.request)
        except PatternError as error:
            self.problems.error(where, str(error))
            return None
        if method == "*" and self.model.effect is None:
            self.problems.error(where, "with * as method say `effect: read` or `effect: write`")
        reader = Reader(self.problems)
        head = (
            *reader.checks(model.query, (*where, "query"), _under("query")),
            *reader.checks(model.header, (*where, "header"), _under("header")),
        )
        body = (
            *reader.checks(model.body, (*where, "body"), _under("body")),
            *reader.checks(model.arguments, (*where, "arguments"), _under("graphql")),
        )
        if model.arguments and not model.graphql:
            self.problems.error((*where, "arguments"), "`arguments:` belongs to `graphql:`")
        return Match(
            text=model.request,
            method=method,
            segments=segments,
            rest=rest,
            head=Condition((head,)) if head else None,
            body=Condition((body,)) if body else None,
            graphql=self._graphql(model.graphql, (*where, "graphql")),
            jsonrpc=_jsonrpc(model.jsonrpc),
        )

    def _graphql(self, words: str | Sequence[str] | None, where: Where) -> tuple[str, ...]:
        given = (words,) if isinstance(words, str) else tuple(words or ())
        for word in given:
            if not word.isascii() or not word.isidentifier():
                kinds = ", ".join(graphql.KINDS)
                self.problems.error(where, f'"{word}" is no name of a field, nor one of {kinds}')
        return given

    # values that the service may give

    def _mode(self) -> str:
        started = "observe" if self.service.confidence == "inferred" else "enforce"
        return self.model.mode or self.service.mode or started

    def _format(self) -> str:
        return self.model.answer_format or self.service.answer_format or "json"

    def _account(self) -> tuple[str, str] | None:
        account = self.model.account or self.service.account
        if account is None:
            return None
        given = [(k, v) for k, v in account.model_dump().items() if v is not None]
        if len(given) != 1:
            self.problems.error(
                self._stated("account"), "one of {header: NAME}, {basic: user}, {jwt: CLAIM}"
            )
            return None
        return given[0]

    def _auth(self) -> rules.Auth | None:
        auth = self.service.auth
        if auth is None:
            return None
        if auth.sigv4 is not None:
            return self._signer(auth, auth.sigv4)
        if auth.value is None:
            self.problems.error(("auth",), "needs value, or sigv4 where AWS signs")
            return None
        if "{secret}" not in auth.value:
            self.problems.error(("auth", "value"), "must contain {secret}")
        if (auth.secret_env is None) == (auth.secret_file is None):
            self.problems.error(("auth",), "needs secret_env or secret_file, one of them")
        return rules.Auth(auth.header, auth.value, auth.secret_env, auth.secret_file)

    def _signer(self, auth: schema.Auth, name: str) -> rules.Auth | None:
        if auth.value is not None or auth.secret_env is not None or self.service.signed != "sigv4":
            self.problems.error(
                ("auth",),
                "sigv4 goes with `signed: sigv4`, and with secret_file or nothing: then the "
                "environment has AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            )
            return None
        return rules.Auth("Authorization", "{secret}", None, auth.secret_file, name)

    def _redact(self) -> tuple[str, ...]:
        for index, text in enumerate(self.service.redact):
            where = ("redact", index)
            if text.startswith("answer."):
                Reader(self.problems).path(text.removeprefix("answer."), where, answer_path)
            elif not text.startswith(("path.", "host.")):
                Reader(self.problems).path(text, where, request_path)
        return tuple(self.service.redact)

    def _refusal(self) -> Mapping[str, Any] | None:
        refusal = self.model.refusal or self.service.refusal
        if not isinstance(refusal, schema.Refusal):
            return None
        where = (*self._stated("refusal"), "body")
        structure = Reader(self.problems, REFUSAL_NAMES).structure(refusal.body, where)
        for placeholder in placeholders_of(structure):
            if placeholder.root not in REFUSAL_NAMES:
                self.problems.error(
                    where, f"{placeholder.source}: a refusal knows {', '.join(REFUSAL_NAMES)}"
                )
        return _shape(refusal)

    def _answers(self) -> tuple[rules.AnswerLine, ...]:
        lines: list[rules.AnswerLine] = []
        for place, models in (
            ((*self.at, "answers"), self.model.answers),
            (("answers",), self.service.answers),
        ):
            for index, model in enumerate(models):
                lines.append(self._line(model, (*place, index)))
        return tuple(lines)

    def _line(self, model: schema.Line, where: Where) -> rules.AnswerLine:
        reader = Reader(self.problems)
        checks: list[Check] = []
        if model.status is not None:
            checks += reader.value(model.status, (*where, "status"), STATUS)
        checks += reader.checks(model.header, (*where, "header"), _answer_header)
        checks += reader.checks(model.body, (*where, "body"), answer_path)
        if model.means is None and not model.replayed:
            self.problems.error(where, "a line says `means:` or `replayed: true`")
        if not checks:
            self.problems.error(where, "a line needs a condition: status, header or body")
        return rules.AnswerLine(Condition((tuple(checks),)), model.means, model.replayed)

    # key and marker

    def _key(self, effect: str, match: Match | None) -> rules.KeySpec | None:
        key = self.model.key or self.service.key
        where = self._stated("key")
        if key is None and effect == "write":
            self.problems.error(
                self.at, "`key` is required, here or at the service; `key: none` if it has none"
            )
        if not isinstance(key, schema.Key):
            return None
        self._place(key.in_, key.name, (*where, "name"), match)
        for name in key.also:
            self._place(key.in_, name, (*where, "also", name), match)
        if key.as_ == OBTAINED:
            self._obtained_key(key, where)
        try:
            keys.verify(
                "raw" if key.as_ == OBTAINED else key.as_,
                max_length=key.max_length,
                min_length=key.min_length,
                alphabet=key.alphabet,
                prefix=key.prefix,
            )
        except keys.UnfitKey as error:
            self.problems.error(where, str(error))
        valid = self._seconds(key.valid_for, (*where, "valid_for"), ("forever", "unstated"))
        return rules.KeySpec(
            place=key.in_,
            name=key.name,
            rendering=key.as_,
            max_length=key.max_length,
            min_length=key.min_length,
            alphabet=key.alphabet,
            prefix=key.prefix,
            valid_for=valid,
            keeps=key.keeps,
            minted=tuple(key.minted),
            existing=key.existing,
            also=dict(key.also),
        )

    def _obtained_key(self, key: schema.Key, where: Where) -> None:
        if self.model.obtain is None:
            self.problems.error(where, "`as: obtained` needs `obtain:` in the endpoint")
        if each(key.name):
            self.problems.error((*where, "name"), "one value is obtained, not one for each item")
        if key.prefix or key.alphabet is not None:
            self.problems.error(where, "an obtained key goes out as it came: no prefix or alphabet")

    def _obtain(self, reader: Reader, key: rules.KeySpec | None) -> rules.Obtain | None:
        obtain = self.model.obtain
        if obtain is None:
            return None
        where = (*self.at, "obtain")
        asking = Reader(self.problems, (), reader.params)
        method, _, target = obtain.request.strip().partition(" ")
        if method not in ("GET", "HEAD", "POST"):
            self.problems.error((*where, "request"), "must start with GET, HEAD or POST")
        if obtain.json_ is not None and method != "POST":
            self.problems.error((*where, "json"), "a question with a body is a POST")
        url = asking.url(target.strip(), (*where, "request"))
        take = self._single_paths(reader, obtain.take, (*where, "take"))
        if not take or url is None:
            return None
        return rules.Obtain(
            method=method,
            target=url,
            take=take[0],
            json=asking.structure(obtain.json_, (*where, "json")),
            when=reader.condition(obtain.when, (*where, "when"), request_path),
            key_header=key.name if key and key.place == "header" else None,
        )

    def _obtained_is_used(self, key: rules.KeySpec | None, lookups: Sequence[rules.Lookup]) -> None:
        used = any(lookup.by_obtained for lookup in lookups)
        used = used or (key is not None and key.rendering == OBTAINED)
        if self.model.obtain is not None and not used:
            self.problems.error(
                (*self.at, "obtain"),
                "nothing uses it: a key `as: obtained`, or {obtained} in a lookup",
            )

    def _marker(self, reader: Reader) -> rules.Marker | None:
        marker = self.model.marker
        if marker is None:
            return None
        where = (*self.at, "marker")
        self._place(marker.in_, marker.name, (*where, "name"), None)
        try:
            keys.verify(marker.as_, max_length=marker.max_length)
        except keys.UnfitKey as error:
            self.problems.error(where, str(error))
        append = Reader(self.problems, ("key",), reader.params).template(
            marker.append, (*where, "append")
        )
        if marker.append is not None and "{key}" not in marker.append:
            self.problems.error((*where, "append"), "must contain {key}, for a lookup to find")
        element = self._element(marker, reader, where)
        for name in marker.also:
            self._place(marker.in_, name, (*where, "also", name), None)
        return rules.Marker(
            place=marker.in_,
            name=marker.name,
            rendering=marker.as_,
            max_length=marker.max_length,
            append=append,
            element=element,
            message=marker.message,
            existing=marker.existing,
            also=dict(marker.also),
        )

    def _element(self, marker: schema.Marker, reader: Reader, where: Where) -> Any:
        """What is added to a list, and whether the words of this marker go together."""
        if (marker.in_ == "mime") != (marker.message is not None):
            self.problems.error(where, "`in: mime` and `message:` need each other")
        if marker.message is not None:
            self._place("json", marker.message, (*where, "message"), None)
        if marker.append is not None and marker.in_ == "mime":
            self.problems.error(where, "a header field is written whole, without `append`")
        if marker.element is None:
            return None
        if each(marker.name):
            self.problems.error(where, "`element` is added to one list, not to one of each item")
        if marker.in_ not in ("json", "body", "graphql") or marker.append is not None:
            self.problems.error(where, "`element` is added to a list in JSON, without `append`")
        element = Reader(self.problems, ("key",), reader.params).structure(
            marker.element, (*where, "element")
        )
        if not any(p.root == "key" for p in placeholders_of(element)):
            self.problems.error((*where, "element"), "must contain {key}, for a lookup to find")
        return element

    def _place(self, place: str, name: str, where: Where, match: Match | None) -> None:
        if place in ("json", "body", "graphql"):
            try:
                steps = parse_steps(name)
            except ValueError as error:
                self.problems.error(where, str(error))
                return
            lists = [step for step in steps if step is ALL]
            if not steps or steps[-1] is ALL or len(lists) > 1:
                self.problems.error(
                    where, "must lead to one member, or with one [] to one of each item"
                )
        elif "[]" in name and place in ("header", "query", "path", "mime"):
            self.problems.error(where, "[] leads into the items of a JSON body")
        if place == "path" and match is not None and name not in match.names:
            self.problems.error(
                where, f"the match has no {{{name}}}{did_you_mean(name, match.names)}"
            )

    # lookups

    def _lookups(
        self,
        reader: Reader,
        key: rules.KeySpec | None,
        marker: rules.Marker | None,
        shared: tuple[rules.AnswerLine, ...],
    ) -> tuple[rules.Lookup, ...]:
        """``shared``: the service's answer lines, which hold for its lookups too."""
        raw = self.model.reconcile
        if raw is None:
            return ()
        where = (*self.at, "reconcile")
        if not isinstance(raw, list):
            return (self._lookup(raw, where, reader, key, marker, shared),)
        for index, model in enumerate(raw[:-1]):
            if model.when is None:
                self.problems.error(
                    (*where, index), "only the last lookup of a list may be without `when:`"
                )
        return tuple(
            self._lookup(model, (*where, index), reader, key, marker, shared)
            for index, model in enumerate(raw)
        )

    def _poll(
        self,
        reader: Reader,
        key: rules.KeySpec | None,
        marker: rules.Marker | None,
        shared: tuple[rules.AnswerLine, ...],
        answers: Sequence[rules.AnswerLine],
    ) -> rules.Lookup | None:
        poll = self.model.poll
        if poll is None:
            return None
        where = (*self.at, "poll")
        if poll.found.succeeded is None or poll.found.failed is None:
            self.problems.error(
                (*where, "found"), "say both, `succeeded:` and `failed:`; else it still runs"
            )
        if not any(line.means == "accepted" for line in answers):
            self.problems.error(where, "needs an answer line with `means: accepted`")
        given = poll.model_dump(by_alias=True, exclude_unset=True)
        lookup = schema.Lookup.model_validate(given)
        return self._lookup(lookup, where, reader, key, marker, shared, after=True)

    def _lookup(
        self,
        model: schema.Lookup,
        where: Where,
        reader: Reader,
        key: rules.KeySpec | None,
        marker: rules.Marker | None,
        shared: tuple[rules.AnswerLine, ...],
        *,
        after: bool = False,
    ) -> rules.Lookup:
        """``after``: the call has been answered."""
        of_items = model.each is not None
        before = ["obtained"] if self.model.obtain is not None else []
        before += ["answer", "location"] if after else []
        asking = Reader(
            self.problems, (*LOOKUP_NAMES, *before, *(["each"] if of_items else [])), reader.params
        )
        answering = Reader(
            self.problems, (*ANSWER_NAMES, *before, *(["items"] if of_items else [])), reader.params
        )
        method, _, target = model.request.strip().partition(" ")
        if method not in ("GET", "HEAD", "POST"):
            self.problems.error((*where, "request"), "must start with GET, HEAD or POST")
        at_location = after and target.strip() == "{location}"
        url = asking.url("/{location}" if at_location else target.strip(), (*where, "request"))
        body = asking.structure(model.json_, (*where, "json"))
        wanted = asking.condition(model.where, (*where, "where"), answer_path, templates=True)
        if model.json_ is not None and method != "POST":
            self.problems.error((*where, "json"), "a lookup with a body is a POST")
        names = {p.root for p in (*placeholders_of(url), *placeholders_of(body))} | _names_in(
            wanted
        )
        if "key" in names and key is None and marker is None:
            self.problems.error(where, "{key} needs a `marker` or a `key` that wrote it")
        if not names and wanted is None:
            self.problems.error(where, "nothing ties this lookup to the call; add `where:`")
        pages = self._pages(model.pages, (*where, "pages"))
        looks = self._looks(model, pages, where)
        answer = model.answer or schema.LookupAnswer()
        by_content = model.by == "content"
        if of_items and by_content:
            self.problems.error(
                (*where, "each"), "items are known by marks of their own, not by content"
            )
        if of_items and not {"key", "each"} & names:
            self.problems.error(
                (*where, "each"), "nothing tells one item from another: use {key} or {each.NAME}"
            )
        found_at = (*where, "found")
        found_by = asking.answer_text(model.external_id, (*where, "external_id"))
        if by_content and model.items is not None and not (found_by or self.model.external_id):
            self.problems.warn(
                where, "objects without `external_id` cannot be told apart: it never settles"
            )
        return rules.Lookup(
            method=method,
            target=url,  # type: ignore[arg-type]  # None only beside a problem
            header=tuple(model.header.items()),
            json=body,
            when=reader.condition(model.when, (*where, "when"), request_path),
            each=reader.path(model.each, (*where, "each"), request_path) if model.each else None,
            items=asking.answer_text(model.items, (*where, "items")),
            where=wanted,
            by=model.by,
            succeeded=asking.condition(
                model.found.succeeded, (*found_at, "succeeded"), answer_path, templates=True
            ),
            failed=asking.condition(
                model.found.failed, (*found_at, "failed"), answer_path, templates=True
            ),
            pages=pages,
            running=self._seconds(model.running, (*where, "running")) or 0.0,
            settle=self._seconds(model.settle, (*where, "settle"), ("never",)),
            looks=looks,
            remembers=(
                self._seconds(model.remembers, (*where, "remembers"))
                if model.remembers is not None
                else None
            ),
            absent=model.absent or ("ask" if by_content else "resend"),
            answer_status=answer.status,
            answer_body=answering.structure(answer.body, (*where, "answer", "body")),
            external_id=found_by or self.model.external_id,
            answer_format=self._format(),
            answers=shared,
            key_header=key.name if key and key.place == "header" else None,
            at_location=at_location,
            by_obtained="obtained" in names,
            graphql=isinstance(self.model.match, schema.Match) and bool(self.model.match.graphql),
        )

    def _pages(self, model: schema.Pages | None, where: Where) -> rules.Pages | None:
        if model is None:
            return None
        given = [kind for kind in PAGE_KINDS if getattr(model, kind) is not None]
        if len(given) != 1:
            self.problems.error(where, f"needs one of {', '.join(PAGE_KINDS)}")
            return None
        kind = given[0]
        if (model.into is None) == (kind == "cursor"):
            self.problems.error(where, "`into:` belongs to `cursor:`, which needs it")
        if model.until is not None and kind not in ("cursor", "next"):
            self.problems.error(where, "`until:` belongs to `cursor:` or `next:`")
        text: str = getattr(model, kind)
        if kind in ("cursor", "next"):
            Reader(self.problems).path(text, (*where, kind), answer_path)
            return rules.Pages(kind, text, model.into, model.max, model.until == "empty")
        if kind == "link":
            return rules.Pages(kind, text, None, model.max)
        return rules.Pages(kind, None, text, model.max)

    def _looks(self, model: schema.Lookup, pages: rules.Pages | None, where: Where) -> int:
        if pages is not None and pages.kind in COUNTED and model.looks < 2:
            self.problems.warn(
                (*where, "looks"), "raised to 2: one look over counted pages can skip an object"
            )
            return 2
        if model.looks == 1:
            self.problems.warn((*where, "looks"), "one look is trusted to prove absence")
        if model.running == "0s":
            self.problems.warn(
                (*where, "running"), "0s says that the API never works on after a lost connection"
            )
        return model.looks

    # approvals

    def _approval(self, match: Match | None) -> rules.Approval | None:
        approval = self.model.approval
        if approval is None:
            return None
        where = (*self.at, "approval")
        reader = self._reader(match)
        if not approval.required and approval.when is None:
            self.problems.error(where, "needs `required: true` or `when:`")
        return rules.Approval(
            required=approval.required,
            when=reader.condition(approval.when, (*where, "when"), request_path),
            summary=reader.template(approval.summary, (*where, "summary")),
            expires=self._seconds(approval.expires, (*where, "expires")) or 0.0,
        )

    # model calls

    def _meter(self, reader: Reader, effect: str) -> rules.Meter | None:
        meter = self.model.meter
        if meter is None:
            return None
        where = (*self.at, "meter")
        if effect != "read":
            self.problems.error(where, "a call of a model is a read; say `effect: read`")
        complete = reader.condition(meter.complete, (*where, "complete"), answer_path)
        for check in complete.checks if complete else ():
            self._single(check.path, (*where, "complete"))
        envelope = self._single_paths(reader, meter.envelope or [], (*where, "envelope"))
        return rules.Meter(
            max_tokens=self._single_paths(
                reader, meter.max_tokens, (*where, "max_tokens"), request_path
            ),
            choices=self._single_paths(reader, meter.choices, (*where, "choices"), request_path),
            default=meter.default,
            usage=self._single_paths(reader, meter.usage, (*where, "usage")),
            envelope=envelope[0] if envelope else None,
            complete=complete,
        )

    def _single_paths(
        self,
        reader: Reader,
        texts: str | Sequence[str],
        where: Where,
        read: Callable[[str], Path] = answer_path,
    ) -> tuple[Path, ...]:
        paths = []
        for index, text in enumerate([texts] if isinstance(texts, str) else texts):
            inside = where if isinstance(texts, str) else (*where, index)
            path = reader.path(text, inside, read)
            if path is not None:
                self._single(path, inside)
                paths.append(path)
        return tuple(paths)

    def _single(self, path: Path, where: Where) -> None:
        if path.many or not path.steps:
            self.problems.error(where, f"{path.text} must lead to one value, without []")

    def _advise(self, effect: str, answers: tuple[rules.AnswerLine, ...]) -> None:
        if effect == "write" and not answers:
            self.problems.warn(
                self.at, "no `answers`: errors are told by their status alone (built-in table)"
            )


def _under(root: str) -> Any:
    return lambda text: request_path(f"{root}.{text}")


def _answer_header(text: str) -> Path:
    return answer_path(f"header.{text}")


def _jsonrpc(model: schema.JsonRpc | None) -> JsonRpc | None:
    if model is None:
        return None
    return JsonRpc(_names(model.method), _names(model.tool), model.trust_annotations)


def _names(stated: str | list[str] | None) -> tuple[str, ...]:
    return (stated,) if isinstance(stated, str) else tuple(stated or ())


def _names_in(condition: Condition | None) -> set[str]:
    if condition is None:
        return set()
    operands = [check.operand for check in condition.checks]
    flat = [each for o in operands for each in (o if isinstance(o, tuple) else (o,))]
    return {p.root for each in flat for p in placeholders_of(each)}
