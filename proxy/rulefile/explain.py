"""What the rules make of one call, as lines for a person: which endpoint, and what would happen."""

from __future__ import annotations

import math

from proxy.core.coverage import settles_by
from proxy.core.matching import READS, BadPath, Matched, RuleSet, effective_method
from proxy.core.metering import reserved
from proxy.core.model import Headers
from proxy.core.reconcile import choose
from proxy.core.rules import KeySpec, Lookup
from proxy.core.views import BodyMissing
from proxy.rulefile.testing import RUN_AND_STEP, prepare, request_of

Line = tuple[str, str]
"""What it is about, and what is to say."""


def explain(
    rules: RuleSet, method: str, url: str, headers: Headers = (), body: bytes = b""
) -> list[Line]:
    """Raises ValueError where the URL is none."""
    request = request_of(method.upper(), url, headers, body, None)
    try:
        matched = rules.match(request)
    except BadPath as error:
        return [("refused", f"bad-request: {error}")]
    if matched is None:
        known = rules.knows_host(request.host, request.port)
        why = "no endpoint of its service fits" if known else "no rule names this host"
        verb = effective_method(request)
        protection = "none needed: a read is passed on"
        if verb not in READS:
            protection = "by the option `unruled`: the ledger alone, none, or refused"
        return [("endpoint", f"none: {why}"), ("method", verb), ("protection", protection)]
    endpoint = matched.endpoint
    lines = [("endpoint", endpoint.title), ("effect", endpoint.effect), ("mode", endpoint.mode)]
    lines += [(name, value) for name, value in sorted(matched.params.items())]
    if endpoint.meter is not None:
        lines.append(("model call", f"reserves {reserved(endpoint.meter, matched.view)} tokens"))
    if endpoint.journal:
        lines.append(("journal", "its answers are given again in a later epoch"))
    if endpoint.effect == "read":
        return lines
    return [*lines, *_of_write(matched)]


def _of_write(matched: Matched) -> list[Line]:
    endpoint = matched.endpoint
    request = matched.view.request
    operation_key = f"{RUN_AND_STEP}/{endpoint.title}/v1"
    prepared = prepare(matched, request, operation_key)
    told_apart = "~DIGEST" if endpoint.distinguish else ""
    lines = [("operation key", f"RUN/STEP/{endpoint.title}{told_apart}/v1")]
    for path in endpoint.distinguish:
        lines.append(("told apart by", f"{path} = {_value(matched, path)}"))
    lines.append(("key", key_text(endpoint.key)))
    if prepared.marker is not None and endpoint.marker is not None:
        lines.append(("marker", f"{endpoint.marker.place} {endpoint.marker.name}"))
    lines += [("note", note) for note in prepared.notes]
    lookup = choose(endpoint, matched.view)
    lines.append(("lookup", lookup_text(lookup)))
    if endpoint.obtain is not None:
        asked = f"{endpoint.obtain.method} {endpoint.obtain.target.source}"
        lines.append(("asked before", f"{asked}, for its {endpoint.obtain.take.text}"))
    if endpoint.poll is not None:
        where = (
            "the address it was answered" if endpoint.poll.at_location else "what it was answered"
        )
        lines.append(("when accepted", f"asked about by {where}, if it is called again"))
    lines.append(("settles by", settles_by(endpoint)))
    if endpoint.approval is not None:
        when = endpoint.approval.when
        needed = endpoint.approval.required or bool(when and when.may_hold(matched.view))
        lines.append(("approval", "needed" if needed else "not needed"))
    return lines


def _value(matched: Matched, path: str) -> str:
    try:
        return repr(matched.view.get(path))
    except BodyMissing as error:
        return f"not known: {error}"


def key_text(key: KeySpec | None) -> str:
    """``header Idempotency-Key, honoured for 24h`` or ``none``."""
    if key is None:
        return "none"
    return f"{key.place} {key.name}, honoured {_how_long(key.valid_for)}"


def _how_long(seconds: float | None) -> str:
    if seconds is None:
        return "for a time that is not stated: only within the held call"
    if math.isinf(seconds):
        return "forever"
    return f"for {seconds / 3600:g}h" if seconds >= 3600 else f"for {seconds:g}s"


def lookup_text(lookup: Lookup | None) -> str:
    if lookup is None:
        return "none"
    absent = "a miss is for a person"
    if lookup.settle is not None and lookup.absent == "resend":
        wait = lookup.running + lookup.settle
        absent = f"a miss is believed after {wait:g}s and {lookup.looks} looks"
        if lookup.remembers is not None:
            absent += f", up to {lookup.remembers / 3600:g}h after the call"
    return f"{lookup.method} {lookup.target.source} by {lookup.by}; {absent}"
