"""The intent of a first attempt: the operation as it begins, and the request as it will be sent.

From here on nothing is derived again: a re-send or a lookup takes key, place, marker and body from
what is stored, whatever rule or secret is in force by then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from proxy.core.call import Governed
from proxy.core.jsonrpc import speaks
from proxy.core.keys import render
from proxy.core.matching import effective_method
from proxy.core.model import Request, frozen, without
from proxy.core.operation import Intent, Operation
from proxy.core.placement import CannotPlace, key_of_caller, put_key, put_marker
from proxy.core.rules import Endpoint, KeySpec, Marker

OBTAINED = "obtained"  # the rendering of a key that the API gives

READABLE_CODINGS = frozenset({"gzip", "deflate", "identity"})


@frozen
class Intended:
    operation: Operation  # no event yet
    request: Request  # as it will be sent, without credentials
    notes: tuple[str, ...] = ()  # why a key or marker could not be placed


def intend(
    call: Governed,
    *,
    base: str,
    version: int,
    previous: Operation | None,
    epoch: int,
    secrets: Sequence[bytes],
    now: float,
    kept_body: int,
    key: str | None = None,
    obtained: str | None = None,
) -> Intended:
    """``base``: RUN/STEP/OPERATION. ``secrets``: those that make upstream keys, the first one for
    new operations; empty means the keys are plain functions of the operation key. ``kept_body``:
    largest body to be kept, bytes.
    ``key``: the upstream key of this very version, where an earlier attempt of it had one.
    ``obtained``: what the API gave for this version."""
    secret = secrets[0] if secrets else None
    request, notes = call.bare, []
    own, key = key, call.caller_key
    endpoint = call.endpoint
    inherited = _inherited(previous, call)
    key_version = inherited.key_version if inherited is not None else version
    changes = call.mode == "enforce" and endpoint.signed == "none"
    if changes and (call.ruled or speaks(endpoint)):
        request = readable(request)
    key_place = None
    if endpoint.key is not None:
        key_place = (endpoint.key.place, endpoint.key.name)
        if key is None and changes:
            if own is not None:
                key = own
            elif inherited is not None and inherited.upstream_key is not None:
                key = inherited.upstream_key
            elif endpoint.key.rendering == OBTAINED:
                key = obtained
            else:
                key = _upstream_key(endpoint.key, f"{base}/v{version}", secret)
            try:
                if key is None:
                    raise CannotPlace("the API gave none")
                request = put_key(request, endpoint.key, key, endpoint.match)
            except CannotPlace as problem:
                key = None
                notes.append(f"the key was not placed: {problem}")
    marker = None
    if endpoint.marker is not None and changes:
        marker = _marker(endpoint.marker, f"{base}/v{version}", secret)
        try:
            request = put_marker(request, endpoint.marker, marker, {"key": marker}, endpoint.match)
        except CannotPlace as problem:
            marker = None
            notes.append(f"the marker was not placed: {problem}")
    intent = Intent(
        fingerprint=call.fingerprint,
        core_fingerprint=call.core_fingerprint,
        rule_digest=endpoint.digest,
        upstream_key=key,
        key_place=key_place if key is not None else None,
        key_version=key_version,
        key_secret=_secret_id(secret) if secret is not None and key is not None else None,
        marker=marker,
        marker_place=(
            (endpoint.marker.place, endpoint.marker.name)
            if endpoint.marker is not None and marker is not None
            else None
        ),
        valid_for=endpoint.key.valid_for if endpoint.key is not None else None,
        keeps=endpoint.key.keeps if endpoint.key is not None else "unstated",
        account=call.account,
        credential=call.credential,
        named=call.named_by_caller,
        body_sha256=request.body.sha256,
        body_size=request.body.size,
        body_kept=request.body.size <= kept_body and endpoint.store == "full",
        epoch=epoch,
        mode=call.mode,
        # An override header makes another request of it than the rule speaks of.
        idempotent=endpoint.idempotent and effective_method(request) == request.method,
        obtained=obtained,
    )
    operation = Operation(
        run=call.run,
        step=call.step,
        name=base.rpartition("/")[2],
        version=version,
        service=endpoint.service,
        endpoint=endpoint.name,
        method=request.method,
        url=call.url,
        intent=intent,
        created_at=now,
        updated_at=now,
        caller_key=call.caller_key_digest,
    )
    return Intended(operation, request, tuple(notes))


def other_marks(
    endpoint: Endpoint, operation: Operation, secrets: Sequence[bytes]
) -> tuple[str, ...]:
    """What a lost ledger may have written in place of ``mark``: that of a later version, or one
    made with another secret. They are functions of the name, so it takes no row to know them."""
    own = mark(endpoint, operation.intent)
    marks: list[str] = []
    for version in range(operation.version, operation.version + VERSIONS_LOOKED_FOR):
        for secret in secrets or (None,):
            key = f"{operation.base}/v{version}"
            if endpoint.marker is not None:
                marks.append(_marker(endpoint.marker, key, secret))
            elif endpoint.key is not None and endpoint.key.rendering != OBTAINED:
                marks.append(_upstream_key(endpoint.key, key, secret))
    return tuple(text for text in dict.fromkeys(marks) if text != own)


VERSIONS_LOOKED_FOR = 3  # an agent told twice that it was refused has mostly given up


def inherits(previous: Operation | None, call: Governed) -> str | None:
    """The upstream key that a new version uses on."""
    intent = _inherited(previous, call)
    return intent.upstream_key if intent is not None else None


def _inherited(previous: Operation | None, call: Governed) -> Intent | None:
    """A new version has a new key only if the API would replay the refusal under the old one, or
    another request has already gone out under it; else this earlier intent's key is used on."""
    if previous is None or previous.intent.keeps != "success":
        return None
    if previous.intent.fingerprint != call.fingerprint:
        return None
    outcome = previous.outcome
    if outcome is not None and (outcome.how == "found" or 200 <= (outcome.status or 0) < 300):
        return None  # the API took it, and gives the same answer under its key again
    return previous.intent


@lru_cache(maxsize=16)  # one or two are in use
def _secret_id(secret: bytes) -> str:
    """Names a secret without giving it away."""
    return hashlib.sha256(b"onceproxy secret id\0" + secret).hexdigest()[:8]


def _upstream_key(spec: KeySpec, operation_key: str, secret: bytes | None) -> str:
    return render(
        operation_key,
        spec.rendering,
        max_length=spec.max_length,
        min_length=spec.min_length,
        alphabet=spec.alphabet,
        prefix=spec.prefix,
        secret=secret,
    )


def _marker(spec: Marker, operation_key: str, secret: bytes | None) -> str:
    return render(operation_key, spec.rendering, max_length=spec.max_length, secret=secret)


def readable(request: Request) -> Request:
    """The request without content codings that an answer could not be judged in."""
    accepted = request.header("Accept-Encoding")
    if accepted is None:
        return request
    kept = [
        coding.strip()
        for coding in accepted.split(",")
        if coding.partition(";")[0].strip().lower() in READABLE_CODINGS
    ]
    headers = without(request.headers, ("Accept-Encoding",))
    return request.with_(headers=(*headers, ("Accept-Encoding", ", ".join(kept) or "identity")))


def placed(request: Request, endpoint: Endpoint, intent: Intent) -> Request:
    """A caller's request with the marks of a stored intent, in the places that they had then. One
    that is signed as a whole is left as it is. Raises CannotPlace."""
    if intent.mode != "enforce" or endpoint.signed == "sigv4":
        return request
    if intent.upstream_key is not None and intent.key_place is not None:
        place, name = intent.key_place
        spec = endpoint.key if endpoint.key is not None else KeySpec(place, name)
        spec = replace(spec, place=place, name=name)
        request = put_key(request, spec, intent.upstream_key, endpoint.match)
    if intent.marker is not None and endpoint.marker is not None and same_marker(endpoint, intent):
        names = {"key": intent.marker}
        request = put_marker(request, endpoint.marker, intent.marker, names, endpoint.match)
    return request


def sent_again(request: Request, endpoint: Endpoint, intent: Intent) -> str | None:
    """Digest of the body that would go out if the stored call were sent again as this caller makes
    it. None where it would not carry the key of the first attempt: what is signed as a whole goes
    out with the token that its SDK made up for this call, and would be another call to the API.
    Raises CannotPlace."""
    if endpoint.signed == "sigv4" and intent.upstream_key is not None:
        place, name = intent.key_place or ("", "")
        own = key_of_caller(request, KeySpec(place, name), endpoint.match) if place else None
        if own != intent.upstream_key:
            return None
    return placed(request, endpoint, intent).body.sha256


def same_marker(endpoint: Endpoint, intent: Intent) -> bool:
    """Whether the rule still has its marker where the stored request carries it."""
    marker = endpoint.marker
    return marker is not None and intent.marker_place == (marker.place, marker.name)


def mark(endpoint: Endpoint, intent: Intent) -> str | None:
    """The text by which a lookup knows the operation. Where the rule has a marker that the request
    does not carry there is none: the key was written elsewhere, and not finding it proves
    nothing."""
    if endpoint.marker is not None:
        return intent.marker if same_marker(endpoint, intent) else None
    if endpoint.key is None or intent.key_place != (endpoint.key.place, endpoint.key.name):
        return None
    return intent.upstream_key
