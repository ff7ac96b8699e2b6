"""The intent of a first attempt: the operation as it begins, and the request as it will be sent.

From here on nothing is derived again: a re-send or a lookup takes key, place, marker and body from
what is stored, whatever rule or secret is in force by then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.core.call import Governed
from proxy.core.keys import render
from proxy.core.model import Request, without
from proxy.core.operation import Intent, Operation
from proxy.core.placement import CannotPlace, put_key, put_marker
from proxy.core.rules import Endpoint, KeySpec, Marker

READABLE_CODINGS = frozenset({"gzip", "deflate", "identity"})


@dataclass(frozen=True, slots=True)
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
) -> Intended:
    """``base``: RUN/STEP/OPERATION. ``secrets``: those that make upstream keys, the first one for
    new operations; empty means the keys are plain functions of the operation key. ``kept_body``:
    largest body to be kept, bytes."""
    secret = secrets[0] if secrets else None
    request, notes = call.bare, []
    key = call.caller_key
    endpoint = call.endpoint
    inherited = _inherited(previous, call)
    key_version = inherited.key_version if inherited is not None else version
    changes = call.mode == "enforce" and endpoint.signed == "none"
    if changes and call.ruled:
        request = readable(request)
    key_place = None
    if endpoint.key is not None:
        key_place = (endpoint.key.place, endpoint.key.name)
        if key is None and changes:
            if inherited is not None and inherited.upstream_key is not None:
                key = inherited.upstream_key
            else:
                key = _upstream_key(endpoint.key, f"{base}/v{version}", secret)
            try:
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
        body_sha256=request.body.sha256,
        body_size=request.body.size,
        body_kept=request.body.size <= kept_body and endpoint.store == "full",
        epoch=epoch,
        mode=call.mode,
        idempotent=endpoint.idempotent,
    )
    operation = Operation(
        run=call.run,
        step=call.step,
        name=base.rpartition("/")[2],
        version=version,
        service=endpoint.service,
        endpoint=endpoint.name,
        method=request.method,
        url=call.bare.url,
        intent=intent,
        created_at=now,
        updated_at=now,
        caller_key=call.caller_key_digest,
    )
    return Intended(operation, request, tuple(notes))


def _inherited(previous: Operation | None, call: Governed) -> Intent | None:
    """A new version has a new key only if the API would replay the refusal under the old one, or
    another request has already gone out under it; else this earlier intent's key is used on."""
    if previous is None or previous.intent.keeps != "success":
        return None
    if previous.intent.fingerprint != call.fingerprint:
        return None
    return previous.intent


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
    """A caller's request with the marks of a stored intent, as the first attempt had them."""
    if endpoint.signed != "none" or intent.mode != "enforce":
        return request
    if endpoint.key is not None and intent.upstream_key is not None:
        request = put_key(request, endpoint.key, intent.upstream_key, endpoint.match)
    if endpoint.marker is not None and intent.marker is not None:
        names = {"key": intent.marker}
        request = put_marker(request, endpoint.marker, intent.marker, names, endpoint.match)
    return request
