"""One operation: its states, the events in its history, and what is known of it.

An *operation* is one intended external effect. It is never in a state because somebody set one: its
state is a fold over its attempts (``transitions``), and an attempt's end is a fact that one event
reports.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from proxy.core.model import frozen


class State(enum.StrEnum):
    AWAITING_APPROVAL = "awaiting_approval"  # nothing sent: a person must allow it
    IN_FLIGHT = "in_flight"  # the intent is durable; it may have been sent
    UNKNOWN = "unknown"  # it may have had its effect, and nothing has told us yet
    NOT_APPLIED = "not_applied"  # known to have had no effect: free to be sent
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # the API rejected it, or a person gave it up: no effect


ENDED = (State.SUCCEEDED, State.FAILED)
UNSETTLED = (State.IN_FLIGHT, State.UNKNOWN)


class Kind(enum.StrEnum):
    """Event types, in the past tense; history, log, console and tests use these words."""

    ATTEMPT_STARTED = "AttemptStarted"
    ATTEMPT_PRESUMED = "AttemptPresumed"
    ATTEMPT_NOT_SENT = "AttemptNotSent"
    ATTEMPT_LOST = "AttemptLost"
    OUTCOME_RECORDED = "OutcomeRecorded"
    EFFECT_FOUND = "EffectFound"
    EFFECT_ABSENT = "EffectAbsent"
    EFFECT_AMBIGUOUS = "EffectAmbiguous"
    LOOKUP_INCONCLUSIVE = "LookupInconclusive"
    ACCEPTED_DONE = "AcceptedDone"
    ACCEPTED_FAILED = "AcceptedFailed"
    APPROVAL_REQUESTED = "ApprovalRequested"
    APPROVAL_GRANTED = "ApprovalGranted"
    APPROVAL_DENIED = "ApprovalDenied"
    APPROVAL_EXPIRED = "ApprovalExpired"
    APPROVAL_REVOKED = "ApprovalRevoked"
    OPERATOR_RESOLVED = "OperatorResolved"
    # Facts worth keeping that move nothing:
    ANSWER_DELIVERED = "AnswerDelivered"
    REPLAYED = "Replayed"
    COALESCED = "Coalesced"
    DRIFTED = "Drifted"
    CREDENTIAL_CHANGED = "CredentialChanged"
    AUTHORITY_REFUSED = "AuthorityRefused"
    FOREIGN_EFFECT = "ForeignEffect"
    EFFECT_CONFLICT = "EffectConflict"
    SHARED_EFFECT = "SharedEffect"
    OBSERVED = "Observed"
    BODIES_PRUNED = "BodiesPruned"
    BUDGET_CHARGED = "BudgetCharged"
    # Of a run, and of no operation:
    RUN_BEGAN = "RunBegan"
    EPOCH_BEGAN = "EpochBegan"
    TOKEN_ISSUED = "TokenIssued"
    TOKEN_REVOKED = "TokenRevoked"
    BUDGET_SET = "BudgetSet"
    BUDGET_SETTLED = "BudgetSettled"
    RUN_REVOKED = "RunRevoked"
    RUN_RESTORED = "RunRestored"
    RUN_CLOSED = "RunClosed"
    CHECKPOINT_SAVED = "CheckpointSaved"
    # The end of a row: after it the key is as one that was never used.
    KEY_FORGOTTEN = "KeyForgotten"


class End(enum.StrEnum):
    """How one attempt ended; an attempt without one is still open."""

    NOT_SENT = "not_sent"  # no byte left
    NOT_APPLIED = "not_applied"  # the API did not look at it (401, 429 ...)
    REJECTED = "rejected"  # the API looked at it and refused; no effect
    SUCCEEDED = "succeeded"
    UNKNOWN = "unknown"  # maybe sent, or an answer that decides nothing
    ABSENT = "absent"  # was unknown; a lookup, the API or a person says it had no effect
    DECIDED = "decided"  # was unknown; what is known of another attempt settled the operation


UNDECIDED = (None, End.UNKNOWN)
PRESUMED = "a ledger that is lost may have sent it"
"""The reason of an attempt that nobody has seen: this ledger does not know what came after it."""
RULE = "rule"  # stands for the credential of a rule's ``auth``, which is no caller's
STOPPED = "the proxy stopped while this attempt was open"


@frozen
class Event:
    kind: Kind
    at: float  # seconds since the epoch, by the wall clock
    data: Mapping[str, Any] = field(default_factory=dict)


@frozen
class Attempt:
    """One send. ``keyed``: it carried the intent's upstream key. ``credential``: a keyed digest of
    the caller's, RULE for one of the rule's own, None where it had none."""

    number: int
    started_at: float
    keyed: bool
    credential: str | None = None
    end: End | None = None
    ended_at: float | None = None
    reason: str = ""
    status: int | None = None
    denied: bool = False  # not sent because the address may not be called

    @property
    def maybe_sent(self) -> bool:
        return self.end is not End.NOT_SENT

    @property
    def undecided(self) -> bool:
        return self.end in UNDECIDED

    @property
    def presumed(self) -> bool:
        return self.reason == PRESUMED


@frozen
class Intent:
    """What a re-send or lookup uses: never derived again. The request itself is sealed content."""

    fingerprint: str
    core_fingerprint: str  # the same without the endpoint's ``wording`` fields
    rule_digest: str = ""
    upstream_key: str | None = None
    key_place: tuple[str, str] | None = None  # (place, name)
    key_version: int = 1  # the version whose key text this is
    key_secret: str | None = None  # id of the secret that made it
    marker: str | None = None
    marker_place: tuple[str, str] | None = None
    valid_for: float | None = None
    keeps: str = "unstated"
    account: str | None = None  # keyed digest, also of "none named"; None: the rule is silent
    credential: str | None = None  # keyed digest of the whole credential; a change is recorded
    named: bool = False  # by an X-Operation-Id
    body_sha256: str = ""
    body_size: int = 0
    body_kept: bool = True
    epoch: int = 1
    mode: str = "enforce"
    idempotent: bool = False
    obtained: str | None = None  # what the API gave before the call


@frozen
class Outcome:
    """The recorded end. ``how``: answered | found | resolved. The answer's bytes are sealed
    content; ``kept`` is False where they are not there (``store: meta``, too large, pruned, broken
    off)."""

    succeeded: bool
    how: str
    status: int | None
    external_id: str | None
    at: float
    attempt: int | None = None
    kept: bool = True
    accepted: bool = False
    abandoned: bool = False


class Consent(enum.StrEnum):
    """What has become of an approval."""

    WAITING = "waiting"
    GRANTED = "granted"
    CONSUMED = "consumed"  # an attempt has begun with it; later ones of the operation need it too
    DENIED = "denied"
    EXPIRED = "expired"
    REVOKED = "revoked"


@frozen
class Approval:
    """A person's word on exactly this operation: its key with version, its account, the request as
    it was stored (``digest``), and the rule as it was then (``rule_digest``)."""

    id: str
    digest: str
    rule_digest: str
    requested_at: float
    expires_at: float
    state: Consent = Consent.WAITING
    summary: str = ""
    by: str | None = None  # who decided last
    note: str = ""
    decided_at: float | None = None

    @property
    def given(self) -> bool:
        return self.state in (Consent.GRANTED, Consent.CONSUMED)

    def holds(self, now: float, rule_digest: str) -> bool:
        """Whether a send may lean on it."""
        return self.given and now < self.expires_at and self.rule_digest == rule_digest


@dataclass(frozen=True)  # without slots, so that ``changed`` can copy it in one go
class Operation:
    run: str
    step: str
    name: str  # SERVICE.ENDPOINT with :X-Operation-Id or ~digest; already encoded
    version: int
    service: str
    endpoint: str
    method: str
    url: str  # credentials in the query are masked
    intent: Intent
    created_at: float
    updated_at: float
    state: State | None = None  # None only before the first event
    blocked_by: str | None = None
    attempts: tuple[Attempt, ...] = ()
    outcome: Outcome | None = None
    delivered_epoch: int | None = None  # newest epoch in which a caller got the answer
    caller_key: str | None = None  # keyed digest of a business key the caller sent
    approval: Approval | None = None
    revision: int = 0  # of the stored row; 0 = not stored yet
    # Asked for some fifteen times per call, so they are made once; ``changed`` carries them.
    base: str = field(init=False, repr=False, compare=False)
    """RUN/STEP/OPERATION; its parts are already percent-encoded."""
    key: str = field(init=False, repr=False, compare=False)
    """RUN/STEP/OPERATION/vN, the operation key."""

    def __post_init__(self) -> None:
        base = f"{self.run}/{self.step}/{self.name}"
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "key", f"{base}/v{self.version}")

    @property
    def undecided(self) -> bool:
        return any(attempt.undecided for attempt in self.attempts)

    @property
    def presumed(self) -> bool:
        """Whether all that is undecided about it is what a lost ledger may have done."""
        undecided = [attempt for attempt in self.attempts if attempt.undecided]
        return bool(undecided) and all(attempt.presumed for attempt in undecided)

    @property
    def ever_left(self) -> bool:
        return any(attempt.maybe_sent for attempt in self.attempts)

    @property
    def first_maybe_sent_at(self) -> float | None:
        return min((a.started_at for a in self.attempts if a.maybe_sent), default=None)

    @property
    def last(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None


def changed(operation: Operation, **changes: Any) -> Operation:
    """A copy with other values, of the same key: what makes the key never changes. It is made
    several times for every call, and ``replace`` takes five times as long for so many fields."""
    copy: Operation = object.__new__(Operation)
    copy.__dict__.update(operation.__dict__)
    copy.__dict__.update(changes)
    return copy
