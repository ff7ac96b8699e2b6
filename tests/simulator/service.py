"""A service that behaves as its rule file says, and no better.

All it knows comes from one endpoint's rule and examples: where the key stands, how long it is
honoured and which answers it gives again; where the marker stands, and how an object that carries
it looks in a lookup's list; what a refusal, a throttle or an answer "still running" looks like.
Within what the rule leaves open it is as awkward as it may be: an object shows only when ``settle``
is over, a slow request has its effect just before ``running`` is, a key is forgotten the moment its
window ends, lists begin with a page of other people's objects. It counts effects.
"""

from __future__ import annotations

import base64
import copy
import email
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from proxy.core import obtaining
from proxy.core.intent import OBTAINED
from proxy.core.matching import BadPath, Matched, RuleSet
from proxy.core.model import Answer, Body, Headers, Lost, NotSent, Request
from proxy.core.paths import Step, answer_path, parse_steps, walk
from proxy.core.placement import CannotPlace, key_of_caller, put_marker
from proxy.core.reconcile import choose
from proxy.core.rules import Endpoint, KeySpec, Lookup
from proxy.core.splice import read_pair, write_pair
from proxy.core.templates import render_structure
from proxy.core.values import iso, text_of
from proxy.core.views import ItemView, RequestView
from proxy.rulefile import schema
from proxy.rulefile.loader import RuleFile
from proxy.rulefile.testing import SENT_AT, Prepared, answer_of, filled, request_of_example
from tests.fakes.clock import FakeClock
from tests.fakes.world import Opened, objection_of

UNSTATED = 60.0  # seconds for which a key is honoured whose window no document states
UNSEEN = 3600.0  # lag of a lookup whose lag no document states
SLOW = 30.0  # seconds that a slow request takes where no lookup says how long it may
LONG_AGO = SENT_AT - 1e7
BLANK = "\0"
STRANGER = "somebody-elses"  # what marks the objects of others


@dataclass(frozen=True)
class Scenario:
    """One request of an endpoint, and what its examples say about it. ``why``: what tells it from
    the endpoint's other scenarios."""

    file: RuleFile
    rules: RuleSet
    endpoint: Endpoint
    request: Request
    lookup: Lookup | None
    answers: tuple[schema.ExampleAnswer, ...]
    lookups: tuple[schema.ExampleLookup, ...]
    obtains: schema.ExampleObtained | None = None
    why: str = ""

    @property
    def marked(self) -> bool:
        return _is_marked(self.endpoint, self.request)

    @property
    def title(self) -> str:
        return f"{self.endpoint.title}{self.why and ' ' + self.why}"

    def example(self, means: str) -> schema.ExampleAnswer | None:
        return next((each for each in self.answers if each.means == means), None)

    def lookup_example(self, means: str) -> schema.ExampleLookup | None:
        return next((each for each in self.lookups if each.means == means), None)

    def known_by(self, mark: str | None) -> Prepared:
        """What came of the request, with this text where the examples say {key}."""
        return Prepared(self.request, marker=mark, endpoint=self.endpoint)

    def __deepcopy__(self, memo: object) -> Scenario:
        return self


def scenarios(file: RuleFile) -> Iterator[Scenario]:
    """What is to be played of a file: every write, with one request for each way in which it may be
    known again. What only observes is played as if it were in force: that is what it will be."""
    enforced = tuple(replace(each, mode="enforce") for each in file.service.endpoints)
    rules = RuleSet([replace(file.service, endpoints=enforced)])
    for endpoint in enforced:
        if endpoint.effect != "write":
            continue
        examples = file.model.endpoints[endpoint.name].examples
        answers = tuple(a for e in examples for a in e.answers)
        seen: set[object] = set()
        for example, request, matched in _own(rules, file, endpoint, examples):
            lookup = choose(endpoint, matched.view)
            way = (lookup and endpoint.reconcile.index(lookup), _is_marked(endpoint, request))
            if way in seen:
                continue
            seen.add(way)
            alike = [
                e
                for e, _, m in _own(rules, file, endpoint, examples)
                if choose(endpoint, m.view) is lookup
            ]
            looks = tuple(each for e in (example, *alike) for each in e.lookups)
            why = f"#{len(seen)}" if len(seen) > 1 else ""
            given = next((e.obtains for e in (example, *alike) if e.obtains is not None), None)
            yield Scenario(file, rules, endpoint, request, lookup, answers, looks, given, why)


def _own(
    rules: RuleSet, file: RuleFile, endpoint: Endpoint, examples: Sequence[schema.Example]
) -> Iterator[tuple[schema.Example, Request, Matched]]:
    for example in examples:
        request = request_of_example(file.model, example.request)
        try:
            matched = rules.match(request)
        except BadPath:
            continue
        if matched is not None and matched.endpoint.name == endpoint.name:
            yield example, request, matched


def _is_marked(endpoint: Endpoint, request: Request) -> bool:
    """Whether the request has a place for its mark, or needs none."""
    if endpoint.marker is None:
        return True
    try:
        put_marker(request, endpoint.marker, "a-mark", {"key": "a-mark"}, endpoint.match)
    except CannotPlace:
        return False
    return True


@dataclass
class Effect:
    at: float
    mark: str | None
    request: Request


@dataclass
class Remembered:
    """What the service knows of a key."""

    at: float
    request: Request
    answer: Answer
    due: float = 0.0  # until then it is at work on it


@dataclass
class Service:
    """Implements the upstream that an engine sends to. ``script``: what happens to the next sends,
    in order; then it answers. The factors are for tests that need one that does worse than its
    rule says."""

    scenario: Scenario
    clock: FakeClock
    script: list[str] = field(default_factory=list)
    window_factor: float = 1.0
    lag_factor: float = 1.0
    slow_factor: float = 1.0
    effects: list[Effect] = field(default_factory=list)
    keys: dict[str, Remembered] = field(default_factory=dict)
    late: list[tuple[float, Request]] = field(default_factory=list)
    sends: int = 0
    lookups: int = 0
    asked: int = 0  # for a value before the call
    mismatches: int = 0
    on_effect: Any = None

    # the wire

    async def open(self, request: Request, **options: Any) -> NotSent | Lost | Opened:
        self.catch_up()
        if self._obtains(request):
            return _opened(self._given())
        if not self._writes(request):
            self.lookups += 1
            return _opened(self._listed(request))
        behaviour = self.script.pop(0) if self.script else "answers"
        if behaviour == "refuses":
            return NotSent("connection refused")
        if (objection := objection_of(options)) is not None:
            return NotSent(objection)
        self.sends += 1
        if options.get("on_sent") is not None:
            options["on_sent"]()
        if behaviour == "loses_before":
            return Lost("connection reset")
        answer = self._taken(request, behaviour)
        if behaviour in ("loses_after", "slow") or answer is None:
            return Lost("connection reset")
        return _opened(answer)

    def _writes(self, request: Request) -> bool:
        matched = self.scenario.rules.match(request)
        return matched is not None and matched.endpoint.name == self.scenario.endpoint.name

    # values before the call

    def _obtains(self, request: Request) -> bool:
        spec = self.scenario.endpoint.obtain
        if spec is None:
            return False
        params = _view(self.scenario).params
        question = obtaining.asked(spec, self.scenario.request, params)
        return question is not None and (question.method, question.target) == (
            request.method,
            request.target,
        )

    def _given(self) -> Answer:
        """The example's answer; where it is an id for an object to come, another one each time."""
        example, spec = self.scenario.obtains, self.scenario.endpoint.obtain
        assert example is not None, f"{self.scenario.title} has no example of what it obtains"
        assert spec is not None
        self.asked += 1
        body = copy.deepcopy(example.body)
        key = self.scenario.endpoint.key
        if key is not None and key.rendering == OBTAINED:
            steps = spec.take.steps
            body = _put(body, steps, f"{text_of(walk(body, steps))}{self.asked}")
        return answer_of(example.status, example.header, body, self.scenario.known_by(None))

    def catch_up(self, *, all_of_it: bool = False) -> None:
        """What was slow has had its effect meanwhile."""
        now = self.clock.time()
        for due, request in [each for each in self.late if all_of_it or each[0] <= now]:
            self.late.remove((due, request))
            self._effect(request, due)

    # writes

    def _taken(self, request: Request, behaviour: str) -> Answer | None:
        if behaviour == "throttles":
            return self._says("not_applied", 429)
        known = self._known(request)
        if known is not None:
            return self._again(request, known)
        if behaviour == "rejects":
            answer = self._says("rejected", 400)
            self._remember(request, answer, success=False)
            return answer
        if behaviour in ("fails_before", "fails_after"):
            answer = self._says("unknown", 500)
            self._remember(request, answer, success=False)
            if behaviour == "fails_after":
                self._effect(request, self.clock.time())
            return answer
        if behaviour == "errs_before":
            return self._says("unknown", 502)
        if behaviour == "slow":
            due = self.clock.time() + self.slowness * self.slow_factor
            self.late.append((due, request))
            self._remember(request, self._success(), success=True, due=due)
            return None
        taken = self._effect(request, self.clock.time())
        answer = self._success() if taken else self._gone()
        self._remember(request, answer, success=True)
        if self.on_effect is not None:
            self.on_effect()
        return self._says("unknown", 502) if behaviour == "errs_after" else answer

    @property
    def slowness(self) -> float:
        lookup = self.scenario.lookup
        return 0.95 * lookup.running if lookup is not None else SLOW

    def _effect(self, request: Request, at: float) -> bool:
        """False where there was nothing left to do."""
        endpoint = self.scenario.endpoint
        if endpoint.idempotent:
            for effect in self.effects:
                if (effect.request.method, effect.request.target) == (
                    request.method,
                    request.target,
                ):
                    effect.mark, effect.request = self.mark_of(request), request
                    return request.method != "DELETE"
        self.effects.append(Effect(at, self.mark_of(request), request))
        return True

    def _known(self, request: Request) -> Remembered | None:
        """What is known of the request's key; of an object that may exist once, that it does."""
        key = self._key_of(request)
        if key is None:
            endpoint = self.scenario.endpoint
            unique = endpoint.key is None and not endpoint.idempotent
            if unique and self.scenario.example("exists"):
                present = next(iter(self.effects), None)
                if present is not None:
                    return Remembered(present.at, present.request, self._success())
            return None
        known = self.keys.get(key)
        spec = self.scenario.endpoint.key
        if known is None or spec is None:
            return None
        window = UNSTATED if spec.valid_for is None else spec.valid_for
        return known if self.clock.time() - known.at <= window * self.window_factor else None

    def _again(self, request: Request, known: Remembered) -> Answer:
        same = known.request.body == request.body and known.request.target == request.target
        if not same and self.scenario.endpoint.key is not None:
            self.mismatches += 1
            return self._says("mismatch", 422)
        if known.due > self.clock.time():
            if self.scenario.example("running") is not None:
                return self._says("running", 409)
            self.catch_up(all_of_it=True)  # it waits for the first one, and answers both
        spec = self.scenario.endpoint.key
        if self.scenario.example("exists") and (spec is None or spec.place != "header"):
            return self._says("exists", 409)
        return known.answer

    def _remember(
        self, request: Request, answer: Answer, *, success: bool, due: float = 0.0
    ) -> None:
        key, spec = self._key_of(request), self.scenario.endpoint.key
        if key is not None and spec is not None and (success or spec.keeps == "all"):
            self.keys[key] = Remembered(self.clock.time(), request, answer, due)

    def _key_of(self, request: Request) -> str | None:
        endpoint = self.scenario.endpoint
        return endpoint.key and key_of_caller(request, endpoint.key, endpoint.match)

    def mark_of(self, request: Request) -> str | None:
        """The text by which lookups know what came of the request, out of what really came."""
        marker = self.scenario.endpoint.marker
        if self.scenario.lookup is not None and self.scenario.lookup.by_obtained:
            return "what the call was given" if self.asked else None
        if marker is None:
            return self._key_of(request)
        if marker.message is not None:
            return _field_of_mail(RequestView(request).get(f"body.{marker.message}"), marker.name)
        blank = {"key": BLANK}
        if marker.element is not None:
            path = ".".join(
                ("body.variables" if marker.place == "graphql" else "body", marker.name)
            )
            elements = RequestView(request).get(path)
            wanted = render_structure(marker.element, None, blank)
            return _filling(wanted, elements[-1]) if isinstance(elements, list) else None
        spec = KeySpec(marker.place, marker.name.replace("[]", "[0]"))  # of a batch the first
        value = key_of_caller(request, spec, self.scenario.endpoint.match)
        if value is None or marker.append is None:
            return value
        return _filling(f"{BLANK}{marker.append.render(None, blank)}", value)

    # answers

    def _says(self, means: str, status: int) -> Answer:
        """The example's answer of that meaning, or one with this status."""
        example = self.scenario.example(means)
        if example is not None:
            return self._filled(example)
        return Answer(status, "", (), Body.of(b""))

    def _success(self) -> Answer:
        for means in ("succeeded", "accepted"):
            example = self.scenario.example(means)
            if example is not None:
                return self._filled(example)
        raise AssertionError(f"{self.scenario.title} has no example of a success")

    def _gone(self) -> Answer:
        """To whom deletes what is not there any more, if its examples know of such an answer."""
        gone = (each for each in self.scenario.answers if each.status in (404, 410))
        example = next((each for each in gone if each.means == "rejected"), None)
        return self._success() if example is None else self._filled(example)

    def _filled(self, example: schema.ExampleAnswer) -> Answer:
        newest = self.effects[-1].mark if self.effects else None
        return answer_of(
            example.status, example.header, example.body, self.scenario.known_by(newest)
        )

    # lookups

    def _listed(self, request: Request) -> Answer:
        lookup = self.scenario.lookup
        assert lookup is not None, f"{self.scenario.title}: {request.method} {request.url}"
        lag = (UNSEEN if lookup.settle is None else lookup.settle) * self.lag_factor
        now = self.clock.time()
        there = [effect for effect in self.effects if effect.at + lag <= now]
        return Listing(self.scenario, lookup).page(request, there)


@dataclass
class Listing:
    """What a lookup is shown: the examples' form, with the objects that there are."""

    scenario: Scenario
    lookup: Lookup

    def page(self, request: Request, there: Sequence[Effect]) -> Answer:
        example, body, item = self._template()
        if example is None or (there and there[0].mark is None and self.lookup.by == "marker"):
            there = ()
        if not there and (none := self.scenario.lookup_example("none")) is not None:
            return answer_of(none.status, none.header, none.body, self.scenario.known_by(STRANGER))
        if example is None:
            return Answer(404, "", (), Body.of(b""))
        if item is None:  # text, or one object: as it is
            if not there:
                return Answer(404, "", (), Body.of(b""))
            return answer_of(
                example.status, example.header, body, self.scenario.known_by(there[-1].mark)
            )
        ours = [self._item(item, effect) for effect in there]
        pages = [ours]
        if self.lookup.pages is not None and self.lookup.pages.max > 1:
            pages = [[self._stranger(item)], ours]
        return self._written(request, example, body, pages)

    def _template(self) -> tuple[schema.ExampleLookup | None, Any, Any]:
        """The example of a hit, the page with the hit, and the item; no item where the page is no
        list."""
        example = self.scenario.lookup_example("found")
        if example is None:
            return None, None, None
        view = _view(self.scenario)
        for body in (example.body, *example.pages):
            items = self._items(filled(body, self.scenario.known_by("a-mark")))
            if not isinstance(items, list):
                return example, body, None
            raw = self._items(body)
            for place, item in enumerate(items):
                where = self.lookup.where
                names = {"key": "a-mark", "sent_at": SENT_AT}
                if where is None or where.holds(ItemView(item), names, view):
                    return example, body, raw[place]
        raise AssertionError(f"{self.scenario.title}: no item of the example fits its where")

    def _items(self, body: Any) -> Any:
        path = self.lookup.items
        return body if path is None else walk(body, answer_path(path).steps)

    def _item(self, item: Any, effect: Effect) -> Any:
        made = filled(copy.deepcopy(item), self.scenario.known_by(effect.mark))
        for check in self.lookup.where.checks if self.lookup.where else ():
            if check.op == "after" and check.path.root == "body":
                before = walk(made, check.path.steps)
                _put(made, check.path.steps, _moment(before, effect.at))
        return made

    def _stranger(self, item: Any) -> Any:
        other = filled(copy.deepcopy(item), self.scenario.known_by(STRANGER))
        if isinstance(other, dict):
            where = self.lookup.where
            for check in where.checks if self.lookup.by == "content" and where else ():
                if check.path.root == "body":
                    old = check.op in ("after", "over", "under")
                    before = walk(other, check.path.steps)
                    strange = _moment(before, LONG_AGO) if old else STRANGER
                    _put(other, check.path.steps, strange)
            if "id" in other:
                other["id"] = f"{other['id']}0" if isinstance(other["id"], str) else 1
        return other

    # pages

    def _written(
        self,
        request: Request,
        example: schema.ExampleLookup,
        body: Any,
        pages: list[list[Any]],
    ) -> Answer:
        number = self._number(request, pages)
        items = pages[number] if number < len(pages) else []
        more = number + 1 < len(pages)
        body = self._with_items(copy.deepcopy(body), items)
        headers: Headers = tuple(
            (name, value) for name, value in example.header.items() if name.lower() != "link"
        )
        body, headers = self._leading_on(request, body, headers, number + 1 if more else None)
        answer = answer_of(example.status, {}, body, self.scenario.known_by(None))
        return replace(answer, headers=(*answer.headers, *headers))

    def _with_items(self, body: Any, items: list[Any]) -> Any:
        path = self.lookup.items
        return items if path is None else _put(body, answer_path(path).steps, items)

    def _leading_on(
        self, request: Request, body: Any, headers: Headers, following: int | None
    ) -> tuple[Any, Headers]:
        pages = self.lookup.pages
        if isinstance(body, dict) and "has_more" in body:
            body["has_more"] = following is not None
        if pages is None:
            return body, headers
        beyond = f"{request.path}?{write_pair(request.query, 'sim-page', str(following))}"
        match pages.kind:
            case "after_id" if isinstance(body, dict):
                body["has_more"] = following is not None
            case "link" if following is not None:
                url = f"{request.scheme}://{request.authority}{beyond}"
                headers = (*headers, ("Link", f'<{url}>; rel="{pages.path or "next"}"'))
            case "cursor" | "next":
                steps = answer_path(pages.path or "").steps
                value = None
                if following is not None:
                    value = f"page-{following}"
                    if pages.kind == "next":
                        value = f"{request.scheme}://{request.authority}{beyond}"
                if answer_path(pages.path or "").root == "header":
                    if value is not None:
                        headers = (*headers, (str(steps[0]), value))
                elif value is not None or walk(body, steps):
                    body = _put(body, steps, value)
        return body, headers

    def _number(self, request: Request, pages: list[list[Any]]) -> int:
        """Which page is asked for."""
        spec = self.lookup.pages
        if spec is None:
            return 0
        into = spec.into or ""
        match spec.kind:
            case "link" | "next":
                return int(read_pair(request.query, "sim-page") or 0)
            case "cursor":
                cursor = read_pair(request.query, into)
                if self.lookup.json is not None:
                    cursor = text_of(
                        walk(json.loads(request.body.data or b"{}"), parse_steps(into))
                    )
                return int((cursor or "page-0").removeprefix("page-")) if cursor else 0
            case "after_id":
                after = read_pair(request.query, into)
                last = [text_of(page[-1].get("id")) if page else None for page in pages]
                return last.index(after) + 1 if after in last else 0
            case "page":
                first = read_pair(RequestView(request).request.query, into) or "1"
                return int(first) - 1 if first.isdecimal() else 0
        offset = int(read_pair(request.query, into) or 0)
        count = 0
        for number, page in enumerate(pages):
            if count >= offset:
                return number
            count += len(page)
        return len(pages)


def _filling(pattern: Any, value: Any) -> str | None:
    """What stands in ``value`` where the pattern is BLANK; in front of a second one, anything."""
    if isinstance(pattern, dict) and isinstance(value, dict):
        found = (_filling(inner, value.get(name)) for name, inner in pattern.items())
        return next((text for text in found if text is not None), None)
    if not isinstance(pattern, str) or not isinstance(value, str) or BLANK not in pattern:
        return None
    before, after = (
        pattern.removeprefix(BLANK).split(BLANK)
        if pattern.count(BLANK) > 1
        else (pattern.split(BLANK))
    )
    if before not in value or not value.endswith(after):
        return None
    return value.removesuffix(after).rpartition(before)[2] if before else value.removesuffix(after)


def _field_of_mail(encoded: Any, name: str) -> str | None:
    if not isinstance(encoded, str):
        return None
    data = base64.urlsafe_b64decode(encoded.replace("+", "-").replace("/", "_") + "==")
    return email.message_from_bytes(data)[name]


def _view(scenario: Scenario) -> RequestView:
    matched = scenario.rules.match(scenario.request)
    assert matched is not None
    return matched.view


def _put(value: Any, steps: Sequence[Step], new: Any) -> Any:
    """The value with ``new`` at the steps; objects on the way are made."""
    if not steps:
        return new
    step, rest = steps[0], steps[1:]
    if isinstance(value, list):
        index = step if isinstance(step, int) else 0
        if index < len(value):
            value[index] = _put(value[index], rest, new)
        return value
    value = value if isinstance(value, dict) else {}
    value[str(step)] = _put(value.get(str(step)), rest, new)
    return value


def _moment(like: Any, at: float) -> Any:
    if isinstance(like, str) and not like.isdecimal():
        return iso(at)
    number = int(like) if isinstance(like, int | str) else 0
    made = math.ceil(at * 1000) if number > 1e11 else math.ceil(at)
    return str(made) if isinstance(like, str) else made


def _opened(answer: Answer) -> Opened:
    data = answer.body.data if answer.body is not None else b""
    return Opened(answer.status, answer.reason, answer.headers, data or b"")
