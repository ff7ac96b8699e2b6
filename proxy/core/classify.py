"""What an answer says about the effect: the rule's lines first, then the built-in table.

"Cannot tell" is an end of its own. A line whose status fits and that needs a body which broke off
decides: unknown, because that body may have said the opposite of the status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.core import graphql, jsonrpc
from proxy.core.bodies import BodyMissing, is_json, media_type
from proxy.core.model import Answered, Request, frozen
from proxy.core.rules import AnswerLine, Endpoint
from proxy.core.templates import ValueMissing
from proxy.core.values import text_of
from proxy.core.views import AnswerView, RequestView

NOT_APPLIED = frozenset({401, 407, 421, 425, 429})
"""Turned away before anybody looked at it: credentials, wrong server, too early, limits."""

UNDECIDED = frozenset({300, 301, 302, 304, 408, 499})
"""Says nothing about the effect: redirects that may follow it, time-outs on the way."""

NO_NAMES: Mapping[str, Any] = {}
"""Templates are not filled in here: a line compares with what stands in it."""

REDIRECTED = frozenset({307, 308})
"""The same request is wanted elsewhere; following it is a new version or operation."""


@frozen
class Verdict:
    """``means``: succeeded | rejected | not_applied | unknown | running | mismatch | exists |
    accepted. ``replayed``: the API says that it gave this answer before."""

    means: str
    replayed: bool
    external_id: str | None
    reason: str


def classify(
    endpoint: Endpoint | None, answered: Answered, *, keyed: bool, request: Request | None = None
) -> Verdict:
    """``keyed``: the attempt carried the operation's upstream key. ``request``: it, for what its
    answer calls a GraphQL field."""
    answer_format = endpoint.answer_format if endpoint else "json"
    alias = alias_in(endpoint, request)
    seen = AnswerView(answered.answer, answer_format, answered.complete, alias)
    means, replayed, reason = _by_lines(endpoint, seen)
    if means is None:
        means, reason = _by_rpc(endpoint, answered, seen) or _built_in(answered, keyed)
        if means == "succeeded" and endpoint is not None and speaks_graphql(endpoint):
            means, reason = _graphql(seen) or (means, reason)
    external_id = None
    if means in ("succeeded", "accepted") and endpoint is not None:
        external_id = external_id_of(endpoint.external_id, seen)
    return Verdict(means, replayed, external_id, reason)


def speaks_graphql(endpoint: Endpoint) -> bool:
    """Whether the rule knows calls of this endpoint by their GraphQL document."""
    return endpoint.match is not None and bool(endpoint.match.graphql)


def alias_in(endpoint: Endpoint | None, request: Request | None) -> graphql.Alias | None:
    if endpoint is None or request is None or not speaks_graphql(endpoint):
        return None
    try:
        body = RequestView(request).get("body")
    except BodyMissing:
        return None
    return graphql.alias_of(body, request.query)


def _graphql(seen: AnswerView) -> tuple[str, str] | None:
    """What GraphQL itself says about errors inside a success."""
    try:
        means = graphql.error_of(seen.body)
    except BodyMissing as error:
        return "unknown", f"errors may be inside: {error}"
    return None if means is None else (means, f"errors inside the answer: {means}")


def _by_lines(endpoint: Endpoint | None, seen: AnswerView) -> tuple[str | None, bool, str]:
    replayed = False
    for number, line in enumerate(endpoint.answers if endpoint else (), 1):
        holds = _line_holds(line, seen)
        if holds is None and line.means is None:
            continue
        if holds is None:
            return (
                "unknown",
                replayed,
                f"answer line {number} needs the body, which cannot be read",
            )
        if not holds:
            continue
        replayed = replayed or line.replayed
        if line.means is not None:
            return line.means, replayed, f"answer line {number}: {line.means}"
    return None, replayed, ""


def _line_holds(line: AnswerLine, seen: AnswerView) -> bool | None:
    """None where it hangs on a body that cannot be read."""
    try:
        return all(check.holds(seen, NO_NAMES, None) for check in line.checks)
    except ValueMissing:
        return False
    except BodyMissing:
        return False if _foreign(seen) else None


def _by_rpc(
    endpoint: Endpoint | None, answered: Answered, seen: AnswerView
) -> tuple[str, str] | None:
    """What JSON-RPC says inside a 2xx. An answer that ought to be there and is not says nothing."""
    if not _success(answered.answer.status) or seen.answer_format != "jsonrpc":
        return None
    streamed = media_type(seen.answer.headers) == "text/event-stream"
    try:
        return jsonrpc.verdict(seen.body)
    except BodyMissing as error:
        if streamed or not answered.complete:
            return "unknown", f"status {answered.answer.status}, and {error}"
        return None


def _foreign(seen: AnswerView) -> bool:
    """A whole body of another kind, which cannot hold what the API would have said in its own: a
    picture, or a gateway's error page. A page of text with a 2xx is no success of this API, so
    that is not such a body."""
    kind = media_type(seen.answer.headers)
    if not seen.complete or not kind or seen.answer.body is None or is_json(kind):
        return False
    if kind.startswith("text/") or kind.endswith("xml"):
        return not _success(seen.answer.status)
    return True


def _success(status: int) -> bool:
    return 200 <= status < 300 or status == 303


def _built_in(answered: Answered, keyed: bool) -> tuple[str, str]:
    status = answered.answer.status
    if _success(status):
        cut = "" if answered.complete else ", its body broke off"
        return "succeeded", f"status {status}{cut}"
    if status in NOT_APPLIED:
        return "not_applied", f"status {status}"
    if not answered.complete:
        return "unknown", f"status {status}, and the body broke off"
    if status in REDIRECTED:
        return "rejected", f"status {status}: wanted elsewhere, redirects are not followed"
    if status == 409 and keyed:
        return "unknown", "status 409 under a key: our own earlier attempt may be at work"
    if 400 <= status < 500 and status not in UNDECIDED:
        return "rejected", f"status {status}"
    return "unknown", f"status {status} does not tell"


def external_id_of(path: str | None, seen: AnswerView) -> str | None:
    """The id that the API gave the effect; None where the answer does not show it."""
    if path is None:
        return None
    try:
        return text_of(seen.get(path)) or None
    except BodyMissing:
        return None
