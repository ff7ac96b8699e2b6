"""What one attempt, or one lookup, has taught us, as events.

A verdict belongs to one attempt. Whether it also closes the operation is worked out by the fold in
``operation.py``; the one judgement made here is whether a rejection under the same key is the API's
recorded answer, and so speaks for the earlier attempts too.
"""

from __future__ import annotations

from collections.abc import Collection

from proxy.core.classify import Verdict
from proxy.core.decide.decision import Watch
from proxy.core.model import Answered, Denied, Lost, NotSent, SendResult, frozen
from proxy.core.operation import STOPPED, Event, Kind, Operation, State
from proxy.core.reconcile import Found, Inconclusive, LookupVerdict, NoneFound, Partial, Several
from proxy.core.rules import Endpoint, Lookup

# A refusal that says nothing about what an earlier attempt did: an expired credential, a missing
# permission, an object the earlier attempt already moved, a precondition it consumed, a throttle.
SPEAKS_FOR_ITSELF_ONLY = frozenset({401, 403, 404, 407, 412, 429})


def attempt_ended(
    operation: Operation,
    endpoint: Endpoint,
    attempt: int,
    result: SendResult,
    verdict: Verdict | None,
    at: float,
    *,
    kept: bool = True,
) -> tuple[Event, ...]:
    """Events for the end of one attempt; ``verdict`` is given when ``result`` is an answer."""
    match result:
        case NotSent(reason):
            data: dict[str, object] = {"attempt": attempt, "reason": reason}
            if isinstance(result, Denied):
                data["denied"] = True
            return (Event(Kind.ATTEMPT_NOT_SENT, at, data),)
        case Lost(reason):
            return (_unknown(endpoint, attempt, reason, None, at),)
        case Answered(answer):
            assert verdict is not None
            return _answered(operation, endpoint, attempt, answer.status, verdict, at, kept)


def _answered(
    operation: Operation,
    endpoint: Endpoint,
    attempt: int,
    status: int,
    verdict: Verdict,
    at: float,
    kept: bool,
) -> tuple[Event, ...]:
    earlier = [a for a in operation.attempts if a.number != attempt and a.undecided]
    this = next(a for a in operation.attempts if a.number == attempt)
    means = verdict.means
    gone = means == "rejected" and operation.method == "DELETE" and status == 404
    if gone and earlier and all(a.credential == this.credential for a in earlier):
        # The earlier attempt took it away. Another credential might merely not see it.
        means = "succeeded"
    data: dict[str, object] = {"attempt": attempt, "status": status, "reason": verdict.reason}
    notes: tuple[Event, ...] = ()
    if verdict.replayed:
        data["replayed"] = True
        if foreign(operation, attempt):
            # Somebody else, or a ledger that is lost, has used our key before.
            notes = (Event(Kind.FOREIGN_EFFECT, at, {"attempt": attempt, "status": status}),)
    if means in ("succeeded", "accepted"):
        data |= {"verdict": "succeeded", "external_id": verdict.external_id, "kept": kept}
        if means == "accepted":
            data["accepted"] = True
        return (Event(Kind.OUTCOME_RECORDED, at, data), *notes)
    if means == "rejected":
        data |= {"verdict": "rejected", "kept": kept}
        if earlier and _recorded_answer(operation, endpoint, this.keyed, verdict, status):
            data["conclusive"] = True
        return (Event(Kind.OUTCOME_RECORDED, at, data), *notes)
    if means == "not_applied":
        return (Event(Kind.OUTCOME_RECORDED, at, data | {"verdict": "not_applied"}),)
    reason = means if means in ("running", "mismatch", "exists") else verdict.reason
    return (_unknown(endpoint, attempt, reason, status, at), *notes)


def late(
    before: Operation, after: Operation, newest: Operation | None, at: float
) -> tuple[Event, ...]:
    """The alarm of an effect that shows where it was taken to have failed, or where a later version
    may have made it again. ``newest``: the newest version there is."""
    if after.state is not State.SUCCEEDED or before.state is State.SUCCEEDED:
        return ()
    if newest is not None and newest.version <= before.version:
        newest = None
    again = newest is not None and (newest.undecided or newest.state is State.SUCCEEDED)
    if before.state is not State.FAILED and not again:
        return ()
    data: dict[str, object] = {}
    if after.outcome is not None:
        data["external_id"] = after.outcome.external_id
    if before.outcome is not None:
        data["said"] = "abandoned" if before.outcome.abandoned else "failed"
    if again and newest is not None:
        data["beside"] = newest.key
    return (Event(Kind.EFFECT_CONFLICT, at, data),)


def foreign(operation: Operation, attempt: int) -> bool:
    """Whether an effect that is older than this attempt is none that this ledger knows of."""
    return all(a.presumed for a in operation.attempts if a.number != attempt)


def _recorded_answer(
    operation: Operation, endpoint: Endpoint, keyed: bool, verdict: Verdict, status: int
) -> bool:
    if not keyed or not all(a.keyed for a in operation.attempts if a.maybe_sent):
        return False
    if verdict.replayed:
        return True
    marks_replays = any(line.replayed for line in endpoint.answers)
    return (
        operation.intent.keeps == "all"
        and not marks_replays
        and status not in SPEAKS_FOR_ITSELF_ONLY
    )


def presumed(
    operation: Operation,
    endpoint: Endpoint,
    since: float,
    at: float,
    *,
    keyed: bool,
    credential: str | None,
) -> Event:
    """A ledger that is lost may have sent it, with what this call has. ``keyed``: it would have
    been under the same key."""
    return Event(
        Kind.ATTEMPT_PRESUMED,
        at,
        {
            "attempt": len(operation.attempts) + 1,
            "since": since,
            "keyed": keyed,
            "credential": credential,
            "blocked_by": _blocked(endpoint),
        },
    )


def _unknown(endpoint: Endpoint, attempt: int, reason: str, status: int | None, at: float) -> Event:
    data = {"attempt": attempt, "reason": reason, "status": status}
    return Event(Kind.ATTEMPT_LOST, at, data | {"blocked_by": _blocked(endpoint)})


def _blocked(endpoint: Endpoint) -> str | None:
    if endpoint.reconcile:
        return "lag"
    may_be_sent = endpoint.key is not None or endpoint.idempotent
    return None if may_be_sent else "no_query"


def abandoned(operation: Operation, at: float, unsent: Collection[int] = ()) -> tuple[Event, ...]:
    """Events for attempts that are open though nobody drives them any more: the process that did
    has ended, or could not record them. ``unsent``: those this process knows it never sent."""
    return tuple(
        Event(
            Kind.ATTEMPT_NOT_SENT,
            at,
            {"attempt": a.number, "reason": "its intent could not be recorded, so it was not sent"},
        )
        if a.number in unsent
        else Event(
            Kind.ATTEMPT_LOST,
            at,
            {"attempt": a.number, "reason": STOPPED},
        )
        for a in operation.attempts
        if a.end is None
    )


@frozen
class Learned:
    """What one lookup taught: its events and, for looks that must agree, whether this one
    counts."""

    events: tuple[Event, ...]
    counts: bool = False
    failed: bool = False


def lookup_ended(
    lookup: Lookup,
    verdict: LookupVerdict,
    watch: Watch,
    at: float,
    *,
    adopted_by: str | None,
    marked: bool,
    same_view: bool,
    since: float | None = None,
    presumed: bool = False,
) -> Learned:
    """Events for the end of one lookup. ``watch`` is as it was when the lookup began;
    ``adopted_by`` is another operation that already owns the object found; ``marked``: the request
    carried what the lookup looks for; ``same_view``: the lookup has the attempts' credential;
    ``since``: when the first of them may have been sent; ``presumed``: nobody saw them."""
    match verdict:
        case Found() if adopted_by is not None:
            data = {"count": 1, "reason": "another operation already owns the object found"}
            return Learned((Event(Kind.EFFECT_AMBIGUOUS, at, data),))
        case Found() if lookup.by == "content" and verdict.external_id is None:
            data = {"count": 1, "reason": "the object found has no id that tells it from others"}
            return Learned((Event(Kind.EFFECT_AMBIGUOUS, at, data),))
        case Found() if lookup.by == "content" and presumed:
            data = {"count": 1, "reason": "an equal object is there; nothing tells who made it"}
            return Learned((Event(Kind.EFFECT_AMBIGUOUS, at, data),))
        case Found():
            data = {
                "succeeded": not verdict.failed,
                "external_id": verdict.external_id,
                "status": verdict.answer.status,
                "by": lookup.by,
            }
            notes: tuple[Event, ...] = ()
            if presumed and not verdict.failed:
                known = {"external_id": verdict.external_id}
                notes = (Event(Kind.FOREIGN_EFFECT, at, known),)
            return Learned((Event(Kind.EFFECT_FOUND, at, data), *notes))
        case Several(count):
            data = {"count": count, "reason": "several objects fit"}
            return Learned((Event(Kind.EFFECT_AMBIGUOUS, at, data),))
        case Partial(found, count):
            reason = f"{found} of {count} items are there"
            if watch.quiet_for < lookup.running + (lookup.settle or 0.0):
                data = {"blocked_by": "lag", "reason": reason}
                return Learned((Event(Kind.LOOKUP_INCONCLUSIVE, at, data),))
            return Learned((Event(Kind.EFFECT_AMBIGUOUS, at, {"count": found, "reason": reason}),))
        case Inconclusive(blocked_by, reason):
            data = {"blocked_by": blocked_by, "reason": reason}
            return Learned((Event(Kind.LOOKUP_INCONCLUSIVE, at, data),), failed=True)
        case NoneFound():
            if not same_view:
                data = {
                    "blocked_by": "credentials",
                    "reason": "nothing found, but with another credential than it was sent with",
                }
                return Learned((Event(Kind.LOOKUP_INCONCLUSIVE, at, data),))
            if lookup.remembers is not None and since is not None and at - since > lookup.remembers:
                data = {
                    "blocked_by": "ambiguous",
                    "reason": "nothing found, but the service may have forgotten it by now",
                }
                return Learned((Event(Kind.LOOKUP_INCONCLUSIVE, at, data),))
            return _nothing(lookup, watch, at, marked, 2 if verdict.shifting else 1)


def _nothing(lookup: Lookup, watch: Watch, at: float, marked: bool, looks_min: int) -> Learned:
    if lookup.by == "marker" and not marked:
        data = {"blocked_by": "no_query", "reason": "the request carried no mark to look for"}
        return Learned((Event(Kind.LOOKUP_INCONCLUSIVE, at, data),))
    if watch.quiet_for < lookup.running + _lag(lookup):
        return Learned((Event(Kind.EFFECT_ABSENT, at, {"conclusive": False, "look": 0}),))
    if lookup.settle is None or lookup.absent != "resend" or lookup.by != "marker":
        data = {
            "blocked_by": "ambiguous",
            "reason": "nothing found, and by this rule absence is for a person to judge",
        }
        return Learned((Event(Kind.LOOKUP_INCONCLUSIVE, at, data),))
    look = watch.looks + 1
    looks = max(lookup.looks, looks_min)  # an offset page may skip an object once
    seen = {"conclusive": look >= looks, "look": look, "looks": looks}
    return Learned((Event(Kind.EFFECT_ABSENT, at, seen),), counts=True)


def _lag(lookup: Lookup) -> float:
    """How long nobody need be asked about an absence: the object may just not show yet."""
    return UNSTATED_LAG if lookup.settle is None else lookup.settle


def polled(verdict: LookupVerdict, at: float) -> tuple[Event, ...]:
    """What has become of what the API took for later; nothing while that cannot be told."""
    if not isinstance(verdict, Found):
        return ()
    kind = Kind.ACCEPTED_FAILED if verdict.failed else Kind.ACCEPTED_DONE
    return (Event(kind, at, {"external_id": verdict.external_id}),)


def next_look_in(
    lookup: Lookup, *, quiet_for: float, since_last: float | None, looks: int, tries: int
) -> float:
    """Seconds until the next lookup is worth making: at once, then doubling, and never later than
    the moment from which absence can be believed; from there on spaced by ``settle``.

    ``since_last``: seconds since the last lookup began, None before the first; ``looks``: agreeing
    ones that counted; ``tries``: all of them.
    """
    if since_last is None:
        return 0.0
    settle = _lag(lookup)
    spacing = max(settle, 0.05)
    pause = min(spacing * 2.0 ** max(0, tries - 1), SLOWEST_LOOK)
    until_believable = lookup.running + settle - quiet_for
    if until_believable > 0:
        return min(pause - since_last, until_believable)
    if lookup.settle is None:
        return pause - since_last
    return (spacing if looks or tries <= FAST_LOOKS else pause) - since_last


UNSTATED_LAG = 5.0  # seconds, as of a rule that says nothing; with `never` it proves nothing
SLOWEST_LOOK = 300.0  # seconds; an operation that nothing settles is still asked about
FAST_LOOKS = 10  # after so many lookups without a verdict their pauses grow
