"""A value that the API gives before a call, and that the intent then stores.

Some APIs hand out ids for objects that are yet to be made, and some things are only known while
they are there (the thread of a draft that a send will take away). Such a value is asked for with
the caller's credentials before the intent is written, so that a crash in between leaves nothing;
once an intent has one, its version never gets another.
"""

from __future__ import annotations

from collections.abc import Mapping

from proxy.core.bodies import BodyMissing, dump_json
from proxy.core.model import EMPTY, Answered, Body, Request, SendResult
from proxy.core.paths import MISSING
from proxy.core.reconcile import asking
from proxy.core.rules import Endpoint, Obtain
from proxy.core.templates import ValueMissing, render_structure
from proxy.core.values import text_of
from proxy.core.views import AnswerView, RequestView

LATER = frozenset({408, 421, 425, 429})
"""Answers that say "not now", and nothing of the call."""

LENGTH_MAX = 1024  # characters of a value; ids and addresses are far shorter


class NotObtained(Exception):
    """The value could not be asked for just now; str() says why. Nothing was sent."""


def asked(spec: Obtain, request: Request, params: Mapping[str, str]) -> Request | None:
    """What to ask, without credentials; None where the rule does not want it for this call, or the
    call lacks a value."""
    view = RequestView(request, params)
    try:
        if spec.when is not None and not spec.when.holds(view):
            return None
        target = spec.target.render(view, {})
        body = EMPTY
        if spec.json is not None:
            body = Body.of(dump_json(render_structure(spec.json, view, {})).encode())
    except (BodyMissing, ValueMissing):
        return None
    if not isinstance(target, str):
        return None
    headers = asking(request, key_header=spec.key_header, json=spec.json is not None)
    return Request(spec.method, request.scheme, request.host, request.port, target, headers, body)


def taken(spec: Obtain, endpoint: Endpoint, result: SendResult) -> str | None:
    """The value in the answer. None where the API refuses to give one: then the call goes without,
    and hears itself what is wrong. Raises NotObtained where that may pass."""
    if not isinstance(result, Answered):
        raise NotObtained(f"What it needs could not be asked for: {result.reason}.")
    status = result.answer.status
    if 400 <= status < 500 and status not in LATER:
        return None
    if not 200 <= status < 300 or not result.complete:
        raise NotObtained(f"What it needs was asked for and answered {status}.")
    try:
        value = AnswerView(result.answer, endpoint.answer_format).get(spec.take)
    except BodyMissing as error:
        raise NotObtained(f"The answer with what it needs: {error}.") from None
    text = None if value is MISSING else text_of(value)
    if not text or len(text) > LENGTH_MAX or not text.isprintable():
        raise NotObtained(f"The answer has no {spec.take.text} that it needs.")
    return text
