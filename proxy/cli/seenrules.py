"""The rule file that ``rules new --seen`` begins with: made from calls that the ledger holds.

Of the calls only their shape is taken: method, path with {x} for what looks like an id, names of
fields. No value of a call is written, since the file goes to colleagues and into repositories.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from proxy.core.bodies import BodyMissing, is_json, media_type
from proxy.core.classify import classify
from proxy.core.model import Answer, Answered, Request
from proxy.core.views import AnswerView, RequestView

FORM = "application/x-www-form-urlencoded"
ENDPOINTS_MAX = 40  # more than that is no service but a crawl
MASKED = "text"
VERBS = {"POST": "create", "PATCH": "update", "PUT": "put", "DELETE": "delete"}
_WORD = re.compile(r"[A-Za-z][A-Za-z_.:-]*|v[0-9]+(\.[0-9]+)*")  # a segment that no id looks like
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")

_HEAD = """\
# What onceproxy has to know about {service}, begun with {calls} seen at {host}.
# Only their shape was taken: the values are made up. docs/rules.md says how to go on.
service: {service} # first part of every operation's name; never renamed
hosts: ["{host}"]
source: https://{plain} # the page that says how the API deduplicates
confidence: inferred # documented once you have read it there; inferred rules only observe
checked: "{today}"
key: none # or where the API takes an idempotency key:
# key: {{in: header, name: Idempotency-Key, valid_for: 24h, keeps: all}}
endpoints:
"""


@dataclass(frozen=True, slots=True)
class Seen:
    request: Request
    answer: Answer | None


@dataclass(slots=True)
class _Group:
    """Calls of one method to paths of one shape."""

    method: str
    pattern: tuple[str, ...]  # with "" for what varies
    calls: list[Seen] = field(default_factory=list)


def seen_file(service: str, host: str, calls: Sequence[Seen]) -> str:
    """``calls``: at least one."""
    groups = sorted(_grouped(calls), key=lambda group: (-len(group.calls), group.pattern))
    lines = [
        _HEAD.format(
            service=service,
            host=host,
            plain=host.partition(":")[0],
            calls=f"{len(calls)} calls" if len(calls) > 1 else "the call",
            today=datetime.datetime.now(datetime.UTC).date().isoformat(),
        )
    ]
    names: set[str] = set()
    # What has fewer {x} stands first, so that nothing above takes its calls.
    for group in sorted(groups[:ENDPOINTS_MAX], key=lambda group: group.pattern.count("")):
        name = _unique(_name(group), names)
        lines += _endpoint(name, group)
    return "\n".join(lines).rstrip() + "\n"


def _grouped(calls: Iterable[Seen]) -> Iterable[_Group]:
    groups: dict[tuple[str, tuple[str, ...]], _Group] = {}
    for call in calls:
        path = unquote(call.request.path).removeprefix("/").split("/")
        pattern = tuple(segment if _WORD.fullmatch(segment) else "" for segment in path)
        method = call.request.method
        groups.setdefault((method, pattern), _Group(method, pattern)).calls.append(call)
    return groups.values()


def _name(group: _Group) -> str:
    """``orders.create``, or with a verb of its own at the end of the path ``orders.cancel``."""
    words = [w for w in group.pattern if _NAME.fullmatch(w) and not re.fullmatch(r"v[0-9]+", w)]
    if not words:
        return f"root.{VERBS.get(group.method, group.method.lower())}"
    ends_in_word = bool(group.pattern[-1])
    if group.method == "POST" and ends_in_word and "" in group.pattern and words[-1:] != ["s"]:
        return ".".join(words[-2:]) if not words[-1].endswith("s") else f"{words[-1]}.create"
    return f"{words[-1]}.{VERBS.get(group.method, group.method.lower())}"


def _unique(name: str, taken: set[str]) -> str:
    found, number = name, 2
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    taken.add(found)
    return found


def _endpoint(name: str, group: _Group) -> Iterator[str]:
    path, sample, params = _paths(group)
    newest = group.calls[0]
    identified = any(_has_id(call.answer) for call in group.calls)
    count = len(group.calls)
    yield f"  {name}: # seen {'once' if count == 1 else f'{count} times'}"
    yield f"    match: {json.dumps(f'{group.method} {path}')}"
    if params:
        yield f"    distinguish: [{', '.join(f'path.{param}' for param in params)}]"
    if identified:
        yield "    external_id: id"
    yield "    # marker: {in: json, name: metadata.operation_key}  # a field that it gives back"
    yield "    # reconcile: # the request that would show the effect"
    yield f"    #   request: GET {path}?limit=100"
    yield "    #   items: data"
    yield '    #   where: {metadata.operation_key: "{key}"}'
    yield "    examples:"
    send = json.dumps(f"{group.method} {sample}")
    yield f"      - request: {{send: {send}{_body(newest.request)}}}"
    yield f"        expect: {{endpoint: {name}}}"
    yield "        answers:"
    for answer in _answers(group, identified):
        yield f"          - {answer}"
    yield f"      - request: {{send: {json.dumps(f'GET {sample}')}}}"
    yield "        expect: {endpoint: none}"
    yield ""


def _paths(group: _Group) -> tuple[str, str, list[str]]:
    """The path with its {x}, a made-up one, and the names in it."""
    names: list[str] = []
    path, sample = "", ""
    before = "id"
    for segment in group.pattern:
        if segment:
            path, sample, before = f"{path}/{segment}", f"{sample}/{segment}", segment
            continue
        word = before.removesuffix("s") if _NAME.fullmatch(before) else "id"
        word = re.sub(r"[^A-Za-z0-9_]", "_", word) or "id"
        name = _unique(word, set(names))
        names.append(name)
        path, sample = f"{path}/{{{name}}}", f"{sample}/{name}_1"
    return path or "/", sample or "/", names


def _body(request: Request) -> str:
    try:
        value = RequestView(request).get("body")
    except BodyMissing:
        return ""
    if not isinstance(value, dict | list) or not value:
        return ""
    kind = "form" if media_type(request.headers) == FORM else "json"
    masked = _masked(value)
    if kind == "form":
        if any(isinstance(inner, dict | list) for inner in masked.values()):
            return ""
        masked = {name: str(inner) for name, inner in masked.items()}
    return f", {kind}: {json.dumps(masked)}"


def _masked(value: Any) -> Any:
    """The same structure with made-up values. A name that is no word may be a value itself."""
    match value:
        case dict():
            return {n: _masked(inner) for n, inner in value.items() if _NAME.fullmatch(n)}
        case list():
            return [_masked(inner) for inner in value[:1]]
        case bool() | None:
            return value
        case str():
            return MASKED
    return 1


def _has_id(answer: Answer | None) -> bool:
    return answer is not None and 200 <= answer.status < 300 and _id_of(answer) is not None


def _id_of(answer: Answer) -> Any:
    if not is_json(media_type(answer.headers)):
        return None
    try:
        body = AnswerView(answer).body
    except BodyMissing:
        return None
    found = body.get("id") if isinstance(body, dict) else None
    return found if isinstance(found, str | int) and not isinstance(found, bool) else None


def _answers(group: _Group, identified: bool) -> Iterator[str]:
    """Each status that came, with what the built-in table makes of it, and two that will come."""
    statuses = {call.answer.status for call in group.calls if call.answer is not None}
    if not any(200 <= status < 300 for status in statuses):
        statuses.add(200)
    for status in sorted(statuses | {429, 500}):
        means = classify(None, Answered(Answer(status, "", (), None)), keyed=False).means
        shown = identified and 200 <= status < 300
        more = ", body: {id: x_1}" if shown else ""
        yield f"{{status: {status}{more}, means: {means}{', external_id: x_1' if shown else ''}}}"
