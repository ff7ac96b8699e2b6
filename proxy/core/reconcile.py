"""Asking an API whether an effect exists, page by page, without sending anything.

An ``Inquiry`` is one look: it names the next request, is fed how that ended, and comes to a
verdict. "None" is the strong word here, because something may be sent again after it: it takes
every template value, every page a 2xx with a list, and the last page reached. Anything less is
inconclusive. How long to wait, how many looks must agree and whether the stored request carried the
marker is for the caller to know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

from proxy.core import graphql, jsonrpc
from proxy.core.bodies import BodyMissing, dump_json
from proxy.core.classify import external_id_of
from proxy.core.model import (
    EMPTY,
    Answer,
    Answered,
    Body,
    Headers,
    NotSent,
    Request,
    SendResult,
    without,
)
from proxy.core.pages import Next, NoWayOn, following, more_than_this
from proxy.core.paths import MISSING, Missing, answer_path, walk
from proxy.core.placement import CannotPlace, each, item_key, item_marker, keys_of_items, stays
from proxy.core.rules import Endpoint, Lookup
from proxy.core.splice import CannotSplice, write_member
from proxy.core.templates import ValueMissing, render_structure
from proxy.core.values import text_of
from proxy.core.views import AnswerView, ItemView, RequestView


@dataclass(frozen=True, slots=True)
class Found:
    """One object. ``failed``: it records a refusal (``found: {failed: ...}``): no effect."""

    external_id: str | None
    item: Any
    answer: Answer
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Several:
    count: int


@dataclass(frozen=True, slots=True)
class Partial:
    """Of a batch some items are there, and no more than these."""

    found: int
    count: int


@dataclass(frozen=True, slots=True)
class NoneFound:
    """Every page was read and held a list without a match. ``shifting``: pages were counted by
    offset or number, so that one look alone may have skipped an object."""

    shifting: bool = False


@dataclass(frozen=True, slots=True)
class Inconclusive:
    blocked_by: str  # lag | credentials | no_query | query_failed
    reason: str


LookupVerdict = Found | Several | Partial | NoneFound | Inconclusive

DENIED = frozenset({401, 403, 407})

# Of the first request a lookup takes what selects version and account, never what described its
# body or made it conditional.
NOT_INHERITED = (
    "accept",
    "accept-encoding",
    "content-encoding",
    "content-language",
    "content-length",
    "content-md5",
    "content-type",
    "digest",
    "expect",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "origin",
    "prefer",
    "range",
    "referer",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
)

INCOMPLETE = ("incomplete_results", "incompleteSearch", "timed_out", "partial", "isError")
"""Members that are true where an API searched less than it was asked to."""


def choose(endpoint: Endpoint, view: RequestView) -> Lookup | None:
    """The first lookup whose ``when`` holds. A ``when`` that cannot be told is not skipped over,
    because a later lookup might look in the wrong place: None."""
    for lookup in endpoint.reconcile:
        try:
            if lookup.when is None or lookup.when.holds(view):
                return lookup
        except (BodyMissing, ValueMissing):
            return None
    return None


def inquiry_of(
    endpoint: Endpoint,
    lookup: Lookup,
    request: Request,
    params: Mapping[str, str],
    names: Mapping[str, Any],
) -> Inquiry | BatchInquiry:
    if lookup.each is None:
        return Inquiry(lookup, request, params, names)
    return BatchInquiry(endpoint, lookup, request, params, names)


ITEMS_MAX = 100  # of a batch, that are asked about


class BatchInquiry:
    """One look for every item of a batch: all are there, none is, or some are. ``{key}`` is the
    item's own, ``{each}`` the item. An address that was asked for one item is not asked again."""

    def __init__(
        self,
        endpoint: Endpoint,
        lookup: Lookup,
        request: Request,
        params: Mapping[str, str],
        names: Mapping[str, Any],
    ) -> None:
        self.lookup = lookup
        self.names = names
        self.view = RequestView(request, params)
        self._answers: dict[tuple[str, str, str], SendResult] = {}
        self._verdicts: list[Found | NoneFound] = []
        self._inquiries: list[Inquiry] = []
        self._stop: LookupVerdict | None = None
        assert lookup.each is not None
        try:
            items = self.view.get(lookup.each)
        except BodyMissing as error:
            self._stop = Inconclusive("no_query", f"the stored request: {error}")
            return
        if not isinstance(items, list) or not 0 < len(items) <= ITEMS_MAX:
            reason = f"{lookup.each.text} is no list of 1 to {ITEMS_MAX} items"
            self._stop = Inconclusive("no_query", reason)
            return
        keys = _keys_of_items(endpoint, request, names, len(items))
        for index, item in enumerate(items):
            own = {**names, "key": keys[index], "each": item}
            self._inquiries.append(Inquiry(lookup, request, params, own))

    def next(self) -> Request | LookupVerdict:
        while self._stop is None:
            if len(self._verdicts) == len(self._inquiries):
                self._stop = self._verdict()
                break
            step = self._inquiries[len(self._verdicts)].next()
            if isinstance(step, Request):
                known = self._answers.get(_asked(step))
                if known is None:
                    return step
                self._inquiries[len(self._verdicts)].feed(known)
            elif isinstance(step, Found | NoneFound):
                self._verdicts.append(step)
            else:
                self._stop = step
        return self._stop

    def feed(self, result: SendResult) -> None:
        step = self.next()
        if isinstance(step, Request):
            self._answers[_asked(step)] = result
            self._inquiries[len(self._verdicts)].feed(result)

    def _verdict(self) -> LookupVerdict:
        found = [each for each in self._verdicts if isinstance(each, Found)]
        if not found:
            shifting = any(isinstance(e, NoneFound) and e.shifting for e in self._verdicts)
            return NoneFound(shifting)
        if len(found) < len(self._verdicts) or len({each.failed for each in found}) > 1:
            return Partial(sum(not each.failed for each in found), len(self._verdicts))
        items = [each.item for each in found]
        if len({dump_json(item) for item in items}) < len(items):
            return Several(len(items))  # one object for two items
        names = {**self.names, "items": items}
        answer = build_answer(self.lookup, items, self.view, names)
        external_id = external_id_of(self.lookup.external_id, AnswerView(answer, "json"))
        return Found(external_id, items, answer, found[0].failed)


def _asked(request: Request) -> tuple[str, str, str]:
    return request.method, request.target, request.body.sha256


def _keys_of_items(
    endpoint: Endpoint, request: Request, names: Mapping[str, Any], count: int
) -> list[str | None]:
    """By what each item is looked for: a key that its caller gave it has stayed, and is the one."""
    key: str | None = names.get("key")
    made = [key_of_item(endpoint, key, index) for index in range(count)]
    spec = endpoint.key
    if key is None or spec is None or endpoint.marker is not None or not each(spec.name):
        return made
    try:
        found = keys_of_items(request, spec)
    except CannotPlace:
        return made
    sent = names.get("sent", key)
    return [
        text_of(own) if stays(own, spec) and own != item_key(spec, sent, index) else ours
        for index, (own, ours) in enumerate(zip(found, made, strict=False))
    ]


def key_of_item(endpoint: Endpoint, key: str | None, index: int) -> str | None:
    """The text that the marker, else the key, wrote into an item of the batch."""
    if key is None:
        return None
    if endpoint.marker is not None:
        marker = endpoint.marker
        return item_marker(marker, key, index) if each(marker.name) else key
    if endpoint.key is not None and each(endpoint.key.name):
        return item_key(endpoint.key, key, index)
    return key


class Inquiry:
    """One look. ``request`` as it was sent; ``params`` of its match; ``names``: ``key`` (the text
    that its marker, else its key, wrote; None if neither went out) and ``sent_at`` (start of the
    first attempt, float seconds since the epoch)."""

    def __init__(
        self, lookup: Lookup, request: Request, params: Mapping[str, str], names: Mapping[str, Any]
    ) -> None:
        self.lookup = lookup
        self.names = names
        self.view = RequestView(request, params)
        self.pages_read = 0
        self._hits: list[tuple[Any, Headers]] = []
        self._address: str | None = None
        self._is_single = False
        self._step: Request | LookupVerdict = self._first(request)

    def next(self) -> Request | LookupVerdict:
        """The request to send, without credentials, or the verdict once there is one."""
        return self._step

    def feed(self, result: SendResult) -> None:
        """How the request that ``next`` gave ended."""
        request = self._step
        if isinstance(request, Request):
            self._step = self._after(request, result)

    def _first(self, request: Request) -> Request | LookupVerdict:
        lookup = self.lookup
        try:
            target = self._target()
            if not isinstance(target, str):
                missing = lookup.target.path.absent(self.view, self.names)
                return Inconclusive("no_query", f"the lookup needs {missing}")
            self._address = target.partition("?")[0]
            body = EMPTY
            if lookup.json is not None:
                structure = render_structure(lookup.json, self.view, self.names)
                body = Body.of(dump_json(structure).encode())
            self._check_where()
        except ValueMissing as error:
            return Inconclusive("no_query", f"the lookup needs {error}")
        except BodyMissing as error:
            return Inconclusive("no_query", f"the stored request: {error}")
        headers = jsonrpc.routed(_inherited(request, lookup), body)
        return Request(
            lookup.method, request.scheme, request.host, request.port, target, headers, body
        )

    def _target(self) -> str | Missing:
        if not self.lookup.at_location:
            return self.lookup.target.render(self.view, self.names)
        location = self.names.get("location")
        return location if isinstance(location, str) else MISSING

    def _check_where(self) -> None:
        """Values that ``where`` needs are missing before the first answer, not after it."""
        for check in self.lookup.where.checks if self.lookup.where else ():
            operands = check.operand if isinstance(check.operand, tuple) else (check.operand,)
            render_structure(list(operands), self.view, self.names)

    def _after(self, request: Request, result: SendResult) -> Request | LookupVerdict:
        if not isinstance(result, Answered):
            how = "not sent" if isinstance(result, NotSent) else "lost"
            return Inconclusive("query_failed", f"the lookup was {how}: {result.reason}")
        if not result.complete:
            return Inconclusive("query_failed", "the answer of the lookup broke off")
        seen = AnswerView(result.answer, self.lookup.answer_format)
        try:
            return self._read(request, seen)
        except BodyMissing as error:
            return Inconclusive("query_failed", f"the answer of the lookup: {error}")
        except ValueMissing as error:
            return Inconclusive("query_failed", f"in the answer of the lookup {error}")
        except NoWayOn as error:
            return self._stopped(str(error))

    def _read(self, request: Request, seen: AnswerView) -> Request | LookupVerdict:
        status = seen.answer.status
        if status == 404 and self._one_object:
            return NoneFound()
        refused = _refused(seen, self.lookup)
        if refused is not None:
            return refused
        self.pages_read += 1
        items = self._items(seen)
        if isinstance(items, Inconclusive):
            return items
        for item in items:
            if self._matches(item, seen.answer.headers):
                self._hits.append((item, seen.answer.headers))
        # One hit by marker is enough; by content a second one would make it ambiguous.
        if self._hits and self.lookup.by == "marker":
            return self._verdict()
        return self._go_on(request, seen, items)

    @property
    def _one_object(self) -> bool:
        """It reads one object at its own address, so that 404 says "there is none"."""
        lookup = self.lookup
        return lookup.items is None and lookup.pages is None and lookup.method != "POST"

    def _items(self, seen: AnswerView) -> list[Any] | Inconclusive:
        path = self.lookup.items
        value = seen.body if path is None else walk(seen.body, answer_path(path).steps)
        where = path or "the answer"
        if isinstance(value, list):
            return value
        if isinstance(value, dict) and self.lookup.pages is None:
            self._is_single = True
            return [value]
        return Inconclusive("query_failed", f"{where} holds no list")

    def _matches(self, item: Any, headers: Headers) -> bool:
        where = self.lookup.where
        return where is None or where.holds(ItemView(item, headers), self.names, self.view)

    def _go_on(
        self, request: Request, seen: AnswerView, items: list[Any]
    ) -> Request | LookupVerdict:
        pages = self.lookup.pages
        if pages is None:
            if more_than_this(seen):
                return self._stopped("the answer has more pages than the rule reads")
            return self._verdict()
        step = following(pages, request, seen, items, in_body=self.lookup.json is not None)
        if step is None:
            return self._verdict()
        if self.pages_read >= pages.max:
            return self._stopped(f"more than {pages.max} pages")
        return _stepped(request, step)

    def _stopped(self, reason: str) -> Inconclusive:
        return Inconclusive("query_failed", f"not all of it could be read: {reason}")

    # verdicts

    def _verdict(self) -> LookupVerdict:
        hits = _distinct(self._hits, self.lookup.external_id)
        if not hits:
            counted = self.lookup.pages is not None and self.lookup.pages.kind in (
                "offset",
                "page",
            )
            return NoneFound(shifting=counted and self.pages_read > 1)
        failed = [hit for hit in hits if self._holds(self.lookup.failed, hit)]
        alive = [hit for hit in hits if hit not in failed]
        if len(alive) > 1:
            return Several(len(alive))
        if not alive:
            return self._found(failed[-1], failed=True)
        if self.lookup.succeeded is not None and not self._holds(self.lookup.succeeded, alive[0]):
            return Inconclusive("lag", "found, but it records neither success nor failure yet")
        return self._found(alive[0], failed=False)

    def _holds(self, condition: Any, hit: tuple[Any, Headers]) -> bool:
        return condition is not None and condition.holds(ItemView(*hit), self.names, self.view)

    def _found(self, hit: tuple[Any, Headers], *, failed: bool) -> Found:
        item, headers = hit
        answer = build_answer(self.lookup, item, self.view, self.names)
        built = AnswerView(answer, "xml" if self.lookup.answer_format == "xml" else "json")
        path = self.lookup.external_id
        found = external_id_of(path, built)
        if found is None and path is not None:
            value = ItemView(item, headers).get(path)
            found = None if value is MISSING else text_of(value)
        if found is None and self._is_single and self.lookup.method != "POST":
            found = self._address  # what is read at its own address is told from others by that
        if self.lookup.graphql:
            answer = self._as_asked(answer)
        return Found(found, item, answer, failed)

    def _as_asked(self, answer: Answer) -> Answer:
        """With the alias that the call gave its GraphQL field."""
        try:
            alias = graphql.alias_of(self.view.get("body"), self.view.request.query)
        except BodyMissing:
            return answer
        if alias is None or alias.alias == alias.name:
            return answer
        body = alias.named(AnswerView(answer, "json").body)
        return Answer(answer.status, "", answer.headers, Body.of(dump_json(body).encode()))


def asking(
    request: Request, *, key_header: str | None, json: bool, but: Sequence[str] = ()
) -> Headers:
    """The header fields of a question about a call: the call's own that select version and account.
    ``but``: names that the question has of its own."""
    gone = [*NOT_INHERITED, *but]
    if key_header is not None:
        gone.append(key_header)
    given = (
        ("Accept", request.header("accept") or "application/json"),
        ("Accept-Encoding", "gzip"),
        *([("Content-Type", "application/json")] if json else []),
    )
    return (*without(request.headers, gone), *given)


def _inherited(request: Request, lookup: Lookup) -> Headers:
    own = [name.lower() for name, _ in lookup.header]
    headers = asking(request, key_header=lookup.key_header, json=lookup.json is not None, but=own)
    return (*without(headers, own), *lookup.header)


LOCATIONS = ("operation-location", "azure-asyncoperation", "location", "content-location")
"""Where an answer says what to ask later, the most specific first."""


def answered(answer: Answer, request: Request, answer_format: str) -> dict[str, Any]:
    """What a question about an accepted call may use of its answer: ``answer``, its body, and
    ``location``, the address it names. One on another host is none: it would get credentials."""
    names: dict[str, Any] = {"answer": MISSING, "location": MISSING}
    try:
        names["answer"] = AnswerView(answer, answer_format).body
    except BodyMissing:
        pass
    given = next((v for name in LOCATIONS if (v := answer.header(name)) is not None), None)
    if given is None:
        return names
    try:
        parts = urlsplit(urljoin(request.url, given))
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return names
    if (parts.scheme, parts.hostname, port) == (request.scheme, request.host, request.port):
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if _TARGET.fullmatch(target):
            names["location"] = target
    return names


_TARGET = re.compile(r"/[!-~]*")  # anything else would break the line of the request


def _refused(seen: AnswerView, lookup: Lookup) -> Inconclusive | None:
    """Why this answer is no page of a list, if it is none."""
    status = seen.answer.status
    if status in DENIED:
        blocked_by = "query_failed" if _limited(seen) else "credentials"
        return Inconclusive(blocked_by, f"the lookup was answered {status}")
    if not 200 <= status < 300 or status == 202:
        return Inconclusive("query_failed", f"the lookup was answered {status}")
    body = seen.body
    if isinstance(body, dict):
        if body.get("ok") is False or any(body.get(name) for name in _errors_of(lookup)):
            return Inconclusive("query_failed", "the answer of the lookup holds an error")
        if any(body.get(name) is True for name in INCOMPLETE):
            return Inconclusive("query_failed", "the API says that it did not search everything")
    for line in lookup.answers:
        if line.means in ("rejected", "not_applied", "unknown") and line.when.holds(seen):
            return Inconclusive("query_failed", f"the lookup's answer means {line.means}")
    return None


def _limited(seen: AnswerView) -> bool:
    """A 403 that is a rate limit, as GitHub's, and no denial."""
    answer = seen.answer
    remaining = answer.header("x-ratelimit-remaining")
    return answer.status == 403 and (answer.header("retry-after") is not None or remaining == "0")


def _errors_of(lookup: Lookup) -> list[str]:
    """Members that hold errors; one that the rule itself looks at is a part of the object."""
    conditions = [c for c in (lookup.where, lookup.succeeded, lookup.failed) if c is not None]
    looked_at = {str(check.path.steps[0]) for c in conditions for check in c.checks}
    return [name for name in ("error", "errors") if name not in looked_at]


def _stepped(request: Request, step: Next) -> Request:
    if step.target is not None:
        return request.with_(target=step.target)
    text = (request.body.data or b"").decode()
    try:
        written = write_member(text, step.into, step.value)
    except CannotSplice as error:
        raise NoWayOn(f"the cursor has no place in the body: {error}") from None
    if written == text:
        raise NoWayOn("the cursor does not move on")
    return request.with_(body=Body.of(written.encode()))


def _distinct(hits: list[tuple[Any, Headers]], path: str | None) -> list[tuple[Any, Headers]]:
    """An object that two pages showed is one object."""
    seen: dict[str, tuple[Any, Headers]] = {}
    for item, headers in hits:
        value = text_of(item.get("id")) if isinstance(item, dict) else None
        if value is None and path is not None:
            found = ItemView(item, headers).get(path)
            value = None if found is MISSING else text_of(found)
        seen.setdefault(value or dump_json(item), (item, headers))
    return list(seen.values())


def build_answer(lookup: Lookup, item: Any, view: RequestView, names: Mapping[str, Any]) -> Answer:
    """The answer that the caller would have had, as far as the object found tells it. Members whose
    value is not known are left out."""
    scope = {**names, "item": item}
    body = item
    if lookup.answer_body is not None:
        body = render_structure(lookup.answer_body, view, scope, strict=False)
    kind, text = _written(body, lookup.answer_format)
    headers: Headers = (("Content-Type", kind),) if text else ()
    return Answer(lookup.answer_status, "", headers, Body.of(text.encode("utf-8", "replace")))


def _written(body: Any, answer_format: str) -> tuple[str, str]:
    if answer_format == "xml" and isinstance(body, str) and body.startswith("<"):
        return "text/xml; charset=utf-8", body
    if isinstance(body, str) or body is MISSING or answer_format == "xml":
        return "text/plain; charset=utf-8", body if isinstance(body, str) else ""
    if answer_format == "form" and isinstance(body, dict):
        return "application/x-www-form-urlencoded", urlencode(body)
    return "application/json", dump_json(body)
