"""What may be decided about a call, and what a decision is made from."""

from __future__ import annotations

from dataclasses import field

from proxy.core.authority import OPEN, Standing
from proxy.core.model import frozen
from proxy.core.operation import Event, Operation, State
from proxy.core.refusal import Refusal
from proxy.core.rules import Endpoint
from proxy.core.runs import Shortage


@frozen
class Ask:
    """Who wants an operation settled, and what they ask for.

    ``fresh``: an agent makes or holds this very call now; False for background settling, which only
    queries and re-sends while the intent is young. ``attempts_before``: how many attempts the
    operation had when the call arrived; what came later is this call's own end.
    """

    version: int
    fingerprint: str
    core_fingerprint: str
    account: str | None
    epoch: int
    fresh: bool
    arrived_at: float
    attempts_before: int
    credential: str | None  # digest of what it would be sent with, RULE, or None
    joined: bool = False  # it waited for a caller of its epoch that made this operation otherwise
    accepted: bool = False  # this very wording was answered before
    body_sha256: str | None = None  # of the request as it would be sent, where that is compared
    signer: str | None = None  # digest of the access key with which the proxy can sign anew
    needs_approval: bool = False  # the rule asks for one for this request

    @property
    def signs(self) -> bool:
        """Whether a signature can be made for whoever asks: with the very key that is theirs."""
        return self.signer is not None and self.signer == self.credential


@frozen
class Watch:
    """What this process has seen of an unknown operation, by its monotonic clock.

    ``quiet_for``: seconds since the last byte of any attempt could have left; a restart counts
    anew. ``looked_with``: whose credential its last lookup had; None before the first.
    ``looks``: agreeing lookups so far that found nothing and began late enough to count.
    ``next_look_in``: seconds until another lookup makes sense; 0 or less means now.
    """

    quiet_for: float = 0.0
    looked_with: tuple[str | None] | None = None
    looks: int = 0
    next_look_in: float = 0.0


@frozen
class Snapshot:
    """Everything a decision looks at besides the call itself."""

    now: float  # wall clock, never before the newest event known
    wall: float  # wall clock as it is
    operation: Operation | None  # of the version the call is bound to
    previous: Operation | None = None  # the version before it, where this one is not begun
    overtaken: bool = False  # a later version has begun
    watch: Watch = Watch()
    lookup: bool = False  # the rule has a lookup for the stored request
    rewritten: bool = False  # another operation wrote to that URL since
    standing: Standing = OPEN  # of the run, for this endpoint
    doubt: float | None = None  # a lost ledger may have sent it, since that moment at the earliest
    poll: bool = False  # this call may still ask what became of what was accepted

    @property
    def is_done(self) -> bool:
        """It succeeded, as far as is known."""
        return self.operation is not None and self.operation.state is State.SUCCEEDED


@frozen
class Limits:
    """The numbers of section 7: seconds, and how often."""

    send_timeout: float = 120.0
    resend_within: float = 300.0  # a stale order is no favour to an agent that is gone
    attempts_max: int = 5  # some APIs replay their own 500 for a day
    backoff: float = 0.5
    late_pause: float = 60.0  # after so many attempts, between one more and the next


@frozen
class Forward:
    """Send it: ``attempt`` is its number, counted from 1."""

    reason: str
    attempt: int


@frozen
class Presume:
    """Write down that a ledger that is lost may have sent it, since that moment at the earliest;
    from there on it is settled like any other unknown operation."""

    reason: str
    since: float


@frozen
class RequestApproval:
    """Ask a person, and send nothing. ``expired``: an earlier request of this operation ran out."""

    reason: str
    expired: bool = False


@frozen
class Reconcile:
    """Ask the API whether the effect exists."""

    reason: str


@frozen
class Hold:
    """Wait, then decide again. ``seconds`` None: until the twin in flight has ended. ``otherwise``
    is what a caller hears whose patience ends first."""

    reason: str
    seconds: float | None
    otherwise: Refusal


@frozen
class Answer:
    """Give the operation's recorded end."""

    reason: str
    operation: Operation
    notes: tuple[Event, ...] = ()
    drifted: bool = False


@frozen
class Refuse:
    reason: str
    refusal: Refusal
    notes: tuple[Event, ...] = ()
    blocked_by: str | None = None  # to be recorded on the unknown operation when it changed
    short: Shortage | None = None  # of a budget


@frozen
class PassThrough:
    """Forward it unrecorded and unchanged."""

    reason: str


Decision = Forward | Presume | RequestApproval | Reconcile | Hold | Answer | Refuse | PassThrough


@frozen
class Question:
    """What each part of the decision is given."""

    ask: Ask
    endpoint: Endpoint
    snapshot: Snapshot
    limits: Limits = field(default_factory=Limits)
