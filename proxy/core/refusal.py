"""The refusals: their codes, statuses, and the one sentence that tells a model what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Meaning:
    status: int
    title: str
    next: str
    retryable: bool = False


_SETUP = (
    "This is a set-up error and not yours to work around: name run and step, then stop and "
    "report it."
)
_BAD = "This is a set-up error and not yours to work around: stop and report it."
_STOP = "Stop: do not repeat this call and do not do it another way; report it."

CODES: Mapping[str, Meaning] = {
    "missing-identity": Meaning(400, "No run or step was named", _SETUP),
    "bad-request": Meaning(400, "The request cannot be handled", _BAD),
    "egress-denied": Meaning(403, "This address may not be called", _STOP),
    "authority-revoked": Meaning(403, "The authority of this run was revoked", _STOP),
    "run-closed": Meaning(403, "This run is closed", _STOP),
    "approval-required": Meaning(
        403,
        "A person must approve this call",
        "A person must approve this: do not change it or repeat it in another form.",
    ),
    "approval-denied": Meaning(
        403,
        "A person denied this call",
        "A person said no: do not repeat it, and do it another way only if they ask for it{note}.",
    ),
    "budget-exhausted": Meaning(
        403,
        "The budget of this run is used up",
        "Stop calls of this kind; report what is done and what is left.",
    ),
    "operation-in-progress": Meaning(
        409,
        "The same call is still running",
        "The same call is still running: repeat exactly the same call.",
        retryable=True,
    ),
    "outcome-unknown": Meaning(
        409,
        "The outcome is being settled",
        "The outcome is being settled: repeat exactly the same call after {retry_after} seconds.",
        retryable=True,
    ),
    "outcome-unresolved": Meaning(
        424,
        "The outcome is not known",
        "It may have taken effect: do not repeat it and do not do it another way; "
        "an operator decides.",
    ),
    "run-reused": Meaning(409, "This run id belongs to another case", _STOP),
    "superseded": Meaning(409, "A newer start of this run has taken over", _STOP),
    "outcome-not-kept": Meaning(
        409,
        "Already done, the answer is no longer stored",
        "Already done{external_id}; the answer is no longer stored: go on.",
    ),
    "operation-mismatch": Meaning(
        422,
        "This step already made another call",
        "Same intent: repeat the earlier values ({fields}); new intent: make a new tool call.",
    ),
    "account-mismatch": Meaning(
        422,
        "This operation belongs to another account",
        "Same intent: repeat it with the earlier account; new intent: make a new tool call.",
    ),
    "key-reused": Meaning(
        422,
        "This idempotency key was used for another call",
        "Same intent: repeat the earlier values ({fields}); new intent: use a new key in a new "
        "tool call.",
    ),
    "request-too-large": Meaning(
        413,
        "The request body is too large",
        "Nothing was sent: make the request smaller or have limits.request_body raised.",
    ),
    "upstream-not-reached": Meaning(
        502,
        "The service could not be reached",
        "Nothing was sent: repeat the same call.",
        retryable=True,
    ),
    "upstream-lost": Meaning(
        502,
        "The service gave no whole answer",
        "The call was passed on unrecorded and its answer was lost: a read may be repeated, a "
        "write may have taken effect.",
    ),
    "internal-error": Meaning(
        500,
        "The proxy met a fault of its own",
        "It may have taken effect: do not repeat it and do not do it another way; "
        "an operator decides.",
    ),
    "too-busy": Meaning(
        503,
        "The proxy has no room for this call now",
        "Nothing was sent: repeat the same call later.",
        retryable=True,
    ),
    "ledger-unavailable": Meaning(
        503,
        "The ledger cannot write",
        "Nothing was sent: repeat the same call later.",
        retryable=True,
    ),
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """The proxy says no. ``detail`` is for people and never echoes input beyond field names."""

    code: str
    detail: str
    operation: str | None = None  # operation key
    state: str | None = None
    external_id: str | None = None
    retry_after: int | None = None
    fields: tuple[str, ...] = ()
    note: str = ""  # a person's own words to the agent
    status: int | None = None  # only where the code's own does not fit (431, 505 ...)
    shape: Mapping[str, Any] | None = field(default=None, compare=False)  # a rule's `refusal`

    @property
    def meaning(self) -> Meaning:
        return CODES[self.code]

    @property
    def next(self) -> str:
        return self.meaning.next.format(
            retry_after=self.retry_after or 5,
            external_id=f", with external id {self.external_id}" if self.external_id else "",
            fields=", ".join(self.fields) or "all of them",
            note=f". Their note: {' '.join(self.note.split()).rstrip('.')}" if self.note else "",
        )
