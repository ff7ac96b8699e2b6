"""Running the examples of rule files: what `onceproxy rules test` does, and the test suite.

An example is a call as an agent would make it. It goes through the same matching, placement,
classifying and lookup reading that a live call goes through; only nothing is sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlencode, urlsplit

from proxy.core import keys
from proxy.core.bodies import BodyMissing, dump_json
from proxy.core.classify import classify
from proxy.core.intent import OBTAINED
from proxy.core.matching import BadPath, Matched, RuleSet
from proxy.core.metering import UsageReader, reserved
from proxy.core.model import EMPTY, Answer, Answered, Body, Headers, Request
from proxy.core.obtaining import NotObtained, asked, taken
from proxy.core.placement import CannotPlace, key_of_caller, put_key, put_marker
from proxy.core.reconcile import (
    Found,
    Inconclusive,
    LookupVerdict,
    NoneFound,
    Partial,
    Several,
    answered,
    choose,
    inquiry_of,
    key_of_item,
)
from proxy.core.rules import Endpoint
from proxy.core.splice import read_pair
from proxy.core.values import same, text_of
from proxy.core.views import MISSING, RequestView
from proxy.rulefile import schema
from proxy.rulefile.loader import RuleFile

_ITEM = re.compile(r"\{key\[(\d+)\]\}")
RUN_AND_STEP = "example-run/example-step"
SENT_AT = 1_700_000_000.0  # a fixed moment (2023-11-14T22:13:20Z), so that examples never age


@dataclass(frozen=True, slots=True)
class ExampleResult:
    """``title``: service.endpoint and the number of the example. No problems: it passed.
    ``missing``: it is about examples that should be there."""

    title: str
    problems: tuple[str, ...] = ()
    missing: bool = False

    @property
    def passed(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request as it would leave, with the texts that were written into it."""

    request: Request
    key: str | None = None
    marker: str | None = None
    notes: tuple[str, ...] = ()

    endpoint: Endpoint | None = None

    def filled(self, text: str, key: str) -> str:
        """The text with this key in it, and with those that items have of it."""

        def of_item(found: re.Match[str]) -> str:
            if self.endpoint is None:
                return found[0]
            spec = self.endpoint
            if key == self.key and spec.marker is not None and spec.key is not None:
                spec = replace(spec, marker=None)
            return key_of_item(spec, key, int(found[1])) or ""

        return _ITEM.sub(of_item, text).replace("{key}", key)

    @property
    def name(self) -> str | None:
        """What ``{key}`` stands for in lookups."""
        return self.marker or self.key


def run_examples(files: Sequence[RuleFile]) -> list[ExampleResult]:
    """All examples of the files, against the files together, as in force."""
    rules = RuleSet([file.service for file in files])
    return [
        ExampleResult(
            f"{file.service.name}.{name} example {number}",
            tuple(_Example(rules, file, name, example).run()),
        )
        for file in files
        for name, endpoint in file.model.endpoints.items()
        for number, example in enumerate(endpoint.examples, 1)
    ]


def prepare(
    matched: Matched, request: Request, operation_key: str, obtained: str | None = None
) -> Prepared:
    """The request with marker and key in it. Nothing signed is changed. ``obtained``: what the API
    gave before the call."""
    endpoint = matched.endpoint
    untouched = _why_untouched(endpoint)
    if untouched is not None:
        own = None
        if endpoint.signed != "none" and endpoint.key is not None:
            own = key_of_caller(request, endpoint.key, endpoint.match)
        return Prepared(request, own, notes=(f"nothing is placed: {untouched}",))
    notes: list[str] = []
    marker = key = None
    if endpoint.marker is not None:
        spec = endpoint.marker
        text = keys.render(operation_key, spec.rendering, max_length=spec.max_length)
        try:
            request = put_marker(request, spec, text, {}, endpoint.match)
            marker = text
        except CannotPlace as error:
            notes.append(f"no marker: {error}")
    if endpoint.key is not None:
        request, key = _with_key(request, endpoint, operation_key, notes, obtained)
    return Prepared(request, key, marker, tuple(notes), endpoint)


def _why_untouched(endpoint: Endpoint) -> str | None:
    if endpoint.effect == "read":
        return "it is a read"
    if endpoint.mode == "observe" and endpoint.confidence == "inferred":
        return "an inferred rule observes, unless it says mode: enforce"
    if endpoint.mode != "enforce":
        return f"mode {endpoint.mode}"
    return "the request is signed" if endpoint.signed != "none" else None


def _with_key(
    request: Request,
    endpoint: Endpoint,
    operation_key: str,
    notes: list[str],
    obtained: str | None,
) -> tuple[Request, str | None]:
    spec = endpoint.key
    assert spec is not None
    given = key_of_caller(request, spec, endpoint.match)
    minted = given is not None and keys.is_minted(given, spec.minted)
    text = given
    fresh = text is None or (minted and spec.existing == "replace")
    if fresh and spec.rendering == OBTAINED:
        text = obtained
    elif fresh:
        text = keys.render(
            operation_key,
            spec.rendering,
            max_length=spec.max_length,
            min_length=spec.min_length,
            alphabet=spec.alphabet,
            prefix=spec.prefix,
        )
    try:
        if text is None:
            raise CannotPlace("the API is asked for it before the call")
        return put_key(request, spec, text, endpoint.match), text
    except CannotPlace as error:
        notes.append(f"no key: {error}")
        return request, None


@dataclass(slots=True)
class _Example:
    rules: RuleSet
    file: RuleFile
    name: str
    example: schema.Example
    problems: list[str] = field(default_factory=list)

    def run(self) -> list[str]:
        request = self._request()
        if request is None:
            return self.problems
        try:
            matched = self.rules.match(request)
        except BadPath as error:
            self.problems.append(str(error))
            return self.problems
        if not self._expected_endpoint(matched) or matched is None:
            return self.problems
        endpoint = matched.endpoint
        key = f"{RUN_AND_STEP}/{endpoint.title}/v1"
        obtained = self._obtained(matched, request)
        prepared = prepare(matched, request, key, obtained)
        self._effect(matched)
        self._reserved(matched)
        self._placed(prepared)
        for number, answer in enumerate(self.example.answers, 1):
            self._answer(number, answer, matched, prepared)
        for number, lookup in enumerate(self.example.lookups, 1):
            self._lookup(number, lookup, matched, prepared, obtained)
        for number, poll in enumerate(self.example.polls, 1):
            self._poll(number, poll, matched, prepared, obtained)
        return self.problems

    def _poll(
        self,
        number: int,
        given: schema.ExamplePoll,
        matched: Matched,
        prepared: Prepared,
        obtained: str | None,
    ) -> None:
        """What is asked about an accepted call, and what the answer means."""
        where, poll = f"polls[{number - 1}]", matched.endpoint.poll
        if poll is None:
            self.problems.append(f"{where}: the endpoint has no poll")
            return
        first = given.answered
        accepted = answer_of(first.status, first.header, first.body, prepared)
        verdict = classify(
            matched.endpoint,
            Answered(accepted),
            keyed=prepared.key is not None,
            request=prepared.request,
        )
        if verdict.means != "accepted":
            self.problems.append(f"{where}: the first answer means {verdict.means}, not accepted")
        names = {
            "key": prepared.name,
            "sent_at": SENT_AT,
            "obtained": obtained,
            **answered(accepted, prepared.request, poll.answer_format),
        }
        inquiry = inquiry_of(matched.endpoint, poll, prepared.request, matched.params, names)
        question = inquiry.next()
        if isinstance(question, Request) and given.asks is not None:
            asked_for = f"{question.method} {question.target}"
            self._equal(f"{where} asks", given.asks, asked_for, prepared)
        inquiry.feed(Answered(answer_of(given.status, given.header, given.body, prepared)))
        end = inquiry.next()
        means = "running"
        if isinstance(end, Found):
            means = "failed" if end.failed else "done"
        if means != given.means:
            reason = f" ({end.reason})" if isinstance(end, Inconclusive) else ""
            self.problems.append(f"{where}: expected {given.means}, it is {means}{reason}")

    def _obtained(self, matched: Matched, request: Request) -> str | None:
        """What the API gives before the call, by the example."""
        given, spec = self.example.obtains, matched.endpoint.obtain
        if given is None:
            return None
        question = asked(spec, request, matched.params) if spec is not None else None
        if spec is None or question is None:
            self.problems.append("obtains: nothing is asked for before this request")
            return None
        nothing = Prepared(request)
        if given.asks is not None:
            self._equal("obtains asks", given.asks, f"{question.method} {question.target}", nothing)
        answer = answer_of(given.status, given.header, given.body, nothing)
        try:
            return taken(spec, matched.endpoint, Answered(answer))
        except NotObtained as error:
            self.problems.append(f"obtains: {error}")
            return None

    def _request(self) -> Request | None:
        given = self.example.request
        try:
            return request_of_example(self.file.model, given)
        except ValueError as error:
            self.problems.append(f"send {given.send!r}: {error}")
            return None

    def _expected_endpoint(self, matched: Matched | None) -> bool:
        wanted = self.example.expect.endpoint or self.name
        service = self.file.service.name
        title = matched.endpoint.title if matched else "none"
        if title in (wanted, f"{service}.{wanted}"):
            return True
        self.problems.append(f"expected endpoint {wanted}, matched {title}")
        return False

    def _effect(self, matched: Matched) -> None:
        expect, endpoint = self.example.expect, matched.endpoint
        if expect.effect not in (None, endpoint.effect):
            self.problems.append(f"expected effect {expect.effect}, it is {endpoint.effect}")
        if expect.approval is not None:
            rule = endpoint.approval
            needs = rule is not None and (
                rule.required or bool(rule.when and rule.when.may_hold(matched.view))
            )
            if needs is not expect.approval:
                self.problems.append(f"expected approval {expect.approval}, it is {needs}")

    def _reserved(self, matched: Matched) -> None:
        wanted, meter = self.example.expect.reserved, matched.endpoint.meter
        if wanted is None:
            return
        given = None if meter is None else reserved(meter, matched.view)
        if given != wanted:
            self.problems.append(f"expected reserved {wanted}, {_it_is(given)}")

    def _placed(self, prepared: Prepared) -> None:
        expect, request = self.example.expect, prepared.request
        for name, text in expect.header.items():
            self._equal(f"header {name}", text, request.header(name), prepared)
        for name, text in expect.query.items():
            self._equal(f"query {name}", text, read_pair(request.query, name), prepared)
        if expect.form:
            body = (request.body.data or b"").decode("utf-8", "replace")
            for name, text in expect.form.items():
                self._equal(f"form {name}", text, read_pair(body, name), prepared)
        if expect.target is not None:
            self._equal("target", expect.target, request.target, prepared)
        if expect.json_ is not None:
            try:
                body = RequestView(request).get("body")
            except BodyMissing as error:
                body = str(error)
            self._contains("json", expect.json_, body, prepared)

    def _contains(self, where: str, wanted: Any, given: Any, prepared: Prepared) -> None:
        if isinstance(wanted, dict) and isinstance(given, dict):
            for name, value in wanted.items():
                self._contains(f"{where}.{name}", value, given.get(name), prepared)
        elif isinstance(wanted, list) and isinstance(given, list) and len(wanted) == len(given):
            for index, (value, inside) in enumerate(zip(wanted, given, strict=True)):
                self._contains(f"{where}[{index}]", value, inside, prepared)
        elif isinstance(wanted, str):
            self._equal(where, wanted, given, prepared)
        elif wanted != given:
            self.problems.append(f"{where}: expected {wanted!r}, {_it_is(given)}")

    def _equal(self, where: str, wanted: str, given: Any, prepared: Prepared) -> None:
        """``{key}`` is the key's text in the key's place and the marker's in the marker's,
        ``{key[0]}`` that of the first item of a batch."""
        texts = [t for t in (prepared.key, prepared.marker) if t is not None] or [""]
        if not any(same(given, prepared.filled(wanted, text)) for text in texts):
            notes = "".join(f" ({note})" for note in prepared.notes)
            self.problems.append(f"{where}: expected {wanted!r}, {_it_is(given)}{notes}")

    def _answer(
        self, number: int, given: schema.ExampleAnswer, matched: Matched, prepared: Prepared
    ) -> None:
        answer = answer_of(given.status, given.header, given.body, prepared)
        verdict = classify(
            matched.endpoint,
            Answered(answer),
            keyed=prepared.key is not None,
            request=prepared.request,
        )
        where = f"answers[{number - 1}]"
        if verdict.means != given.means:
            self.problems.append(
                f"{where}: expected {given.means}, it is {verdict.means} ({verdict.reason})"
            )
        if given.replayed is not None and given.replayed is not verdict.replayed:
            self.problems.append(f"{where}: expected replayed {given.replayed}")
        if given.external_id not in (None, verdict.external_id):
            self.problems.append(
                f"{where}: expected external_id {given.external_id}, it is {verdict.external_id}"
            )
        if given.tokens is not None:
            tokens = _tokens(matched.endpoint, answer)
            if tokens != given.tokens:
                self.problems.append(f"{where}: expected tokens {given.tokens}, {_it_is(tokens)}")

    def _lookup(
        self,
        number: int,
        given: schema.ExampleLookup,
        matched: Matched,
        prepared: Prepared,
        obtained: str | None,
    ) -> None:
        where = f"lookups[{number - 1}]"
        lookup = choose(matched.endpoint, matched.view)
        if lookup is None:
            self.problems.append(f"{where}: no lookup of the endpoint is meant for this request")
            return
        names = {"key": prepared.name, "sent_at": SENT_AT, "obtained": obtained}
        inquiry = inquiry_of(matched.endpoint, lookup, prepared.request, matched.params, names)
        first = inquiry.next()
        if isinstance(first, Request) and given.asks is not None:
            self._equal(f"{where} asks", given.asks, f"{first.method} {first.target}", prepared)
        for body in (given.body, *given.pages):
            answer = answer_of(given.status, given.header, body, prepared)
            inquiry.feed(Answered(answer))
        verdict = inquiry.next()
        if isinstance(verdict, Request):
            self.problems.append(f"{where}: it asks for another page; give it under `pages:`")
            return
        means, reason = _means(verdict)
        if means != given.means:
            self.problems.append(f"{where}: expected {given.means}, it is {means}{reason}")
        found = verdict.external_id if isinstance(verdict, Found) else None
        if given.external_id not in (None, found):
            self.problems.append(f"{where}: expected external_id {given.external_id}, is {found}")


def _tokens(endpoint: Endpoint, answer: Answer) -> int | str | None:
    if endpoint.meter is None:
        return None
    reader = UsageReader(endpoint, answer)
    reader.feed(answer.body.data or b"" if answer.body else b"")
    tokens = reader.end(whole=True)
    return "unknown" if tokens is None else tokens


def _it_is(given: Any) -> str:
    return "there is none" if given is None or given is MISSING else f"it is {given!r}"


def _means(verdict: LookupVerdict) -> tuple[str, str]:
    match verdict:
        case Found(failed=True):
            return "failed", ""
        case Found():
            return "found", ""
        case Several():
            return "several", ""
        case Partial():
            return "partial", ""
        case NoneFound():
            return "none", ""
        case Inconclusive():
            return "inconclusive", f" ({verdict.blocked_by}: {verdict.reason})"


def request_of(method: str, url: str, headers: Headers, body: bytes, kind: str | None) -> Request:
    """A request to a URL. Raises ValueError with a reason."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be METHOD and a path, or METHOD and an http or https URL")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if kind is not None and not any(name.lower() == "content-type" for name, _ in headers):
        headers = (*headers, ("Content-Type", kind))
    stored = Body.of(body) if body else EMPTY
    return Request(method, parts.scheme, parts.hostname, port, target, headers, stored)


def request_of_example(model: schema.Service, given: schema.ExampleRequest) -> Request:
    """What an example of a file sends. Raises ValueError with a reason."""
    method, _, target = given.send.strip().partition(" ")
    if target.startswith("/"):
        target = f"{_a_url(model.hosts[0])}{target}"
    return request_of(method, target, tuple(given.header.items()), *_body_of(given))


def _body_of(given: schema.ExampleRequest) -> tuple[bytes, str | None]:
    if given.form is not None:
        fields = [(name, text_of(value) or "") for name, value in given.form.items()]
        return urlencode(fields).encode(), "application/x-www-form-urlencoded"
    if given.json_ is not None:
        return dump_json(given.json_).encode(), "application/json"
    return (given.body or "").encode(), None


def _a_url(host: str) -> str:
    """An address that the pattern takes."""
    name = "any.example" if host == "*" else host.replace("*.", "example.")
    while "{" in name:
        before, _, rest = name.partition("{")
        name = f"{before}example{rest.partition('}')[2]}"
    return f"https://{name}"


def answer_of(status: int, header: Mapping[str, str], body: Any, prepared: Prepared) -> Answer:
    """What an example answers, with the key where it says {key}."""
    value = filled(body, prepared)
    text = value if isinstance(value, str) else "" if value is None else dump_json(value)
    headers = tuple(header.items())
    if not isinstance(value, str) and value is not None:
        headers = (*headers, ("Content-Type", "application/json"))
    return Answer(status, "", headers, Body.of(text.encode()))


def filled(value: Any, prepared: Prepared) -> Any:
    if isinstance(value, str):
        return prepared.filled(value, prepared.name or "")
    if isinstance(value, dict):
        return {name: filled(inner, prepared) for name, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, prepared) for inner in value]
    return value
