"""What states, reasons and events mean to a person, in plain sentences. Nothing here is HTML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Json = Mapping[str, Any]

PATIENCE_SECONDS: Final = 3600.0
"""What settles by itself mostly does within minutes; after an hour somebody should look."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why an unknown operation stays so. ``ask``: asking the API again may help."""

    title: str
    means: str
    do: str
    person: bool = False
    ask: bool = True


BLOCKED: Final[Mapping[str | None, Blocked]] = {
    None: Blocked(
        "Not looked into yet",
        "It was lost a moment ago, and the proxy is about to find out.",
        "Nothing, for now.",
    ),
    "lag": Blocked(
        "Too early to tell",
        "The API does not show it, but may still be working on it or be slow to list it.",
        "Nothing, for now: the proxy looks again by itself.",
    ),
    "query_failed": Blocked(
        "The API did not answer the question",
        "The proxy asked whether it is there and got no usable answer.",
        "Look whether the service is up. The proxy asks again by itself.",
    ),
    "credentials": Blocked(
        "Its caller's credential is needed",
        "Credentials are never stored, and asking the API needs the one it was sent with.",
        "Have the agent make the same call again, or give the rule an auth of its own. "
        "Or look at the service yourself and say what you found.",
        person=True,
    ),
    "no_query": Blocked(
        "There is no way to ask",
        "The rule knows neither a key that the API honours nor a question to ask it.",
        "Look at the service yourself, then say what you found.",
        person=True,
        ask=False,
    ),
    "ambiguous": Blocked(
        "The answer was not clear",
        "Several objects fit, or one that belongs to another operation, or repeated sends "
        "brought nothing that decides it.",
        "Look at the service yourself, then say what you found.",
        person=True,
    ),
    "key_expired": Blocked(
        "The key is too old",
        "The API no longer promises to remember it, so sending again could do it twice.",
        "Look at the service yourself, then say what you found.",
        person=True,
    ),
}

RESOLUTIONS: Final = (
    ("happened", "It happened", "It has succeeded. It is not sent again."),
    ("did_not_happen", "It did not happen", "The next identical call will be sent."),
    (
        "abandoned",
        "Give it up",
        "It has failed for good, whatever happened. Its calls are refused, and none is sent.",
    ),
)

ENDS: Final = {
    None: "under way",
    "not_sent": "not sent",
    "not_applied": "not applied",
    "rejected": "rejected",
    "succeeded": "succeeded",
    "unknown": "maybe sent",
    "absent": "had no effect",
    "decided": "settled by another attempt",
}


def blocked(operation: Json) -> Blocked:
    word = operation.get("blocked_by")
    return BLOCKED.get(word) or Blocked(str(word), "", "Look at it.", person=True)


def needs_person(operation: Json, now: float) -> bool:
    """Whether nothing but a person will settle it, or what should has taken too long."""
    return blocked(operation).person or now - operation["updated_at"] > PATIENCE_SECONDS


def sentence(text: object) -> str:
    """A reason as a sentence of its own."""
    words = str(text or "").strip()
    if not words:
        return ""
    words = words[0].upper() + words[1:]
    return words if words[-1] in ".!?…" else words + "."


# Why an operation is in its state


def why(operation: Json, events: Sequence[Json]) -> str:
    """One or two sentences; ``operation`` with its attempts."""
    attempts = operation["attempt_list"]
    last = attempts[-1] if attempts else None
    match operation["state"]:
        case "awaiting_approval":
            return _why_awaiting(events)
        case "in_flight":
            number = last["number"] if last else 1
            return f"Attempt {number} is under way. Its answer decides."
        case "succeeded":
            return _why_succeeded(operation, events)
        case "failed":
            return _why_failed(operation, events, last)
        case "not_applied":
            return _why_not_applied(events, last)
        case "unknown":
            return _why_unknown(operation, last)
    return ""


def _why_awaiting(events: Sequence[Json]) -> str:
    given = _last(events, "ApprovalGranted")
    asked = _last(events, "ApprovalRequested")
    if given is not None and asked is not None and given["data"]["id"] == asked["data"]["id"]:
        who = given["data"].get("by") or "An operator"
        return f"{who} granted it. It is sent when the agent makes this call again."
    return "Nothing was sent. A person must approve the request first."


def _why_succeeded(operation: Json, events: Sequence[Json]) -> str:
    made = f" It made {operation['external_id']}." if operation["external_id"] else ""
    match operation["how"]:
        case "found":
            return f"The proxy asked the API and found the effect there.{made}"
        case "resolved":
            return f"{_said(events)} that it happened.{made}"
    answered = _last(events, "OutcomeRecorded")
    number = answered["data"].get("attempt") if answered else None
    of = f" to attempt {number}" if number and operation["attempts"] > 1 else ""
    later = " Identical calls get the same answer without being sent."
    return f"The API answered {operation['status']}{of}.{made}{later}"


def _why_failed(operation: Json, events: Sequence[Json], last: Json | None) -> str:
    if operation["abandoned"]:
        return f"{_said(events)} to give it up. Calls of it are refused and none is sent."
    if operation["how"] == "found":
        return "The proxy asked the API and found it recorded there as refused: no effect."
    reason = sentence(last["reason"]) if last else ""
    told = f"The API rejected it with {operation['status']}: no effect. {reason}".strip()
    return f"{told} A call made after that answer was delivered starts a new version."


def _why_not_applied(events: Sequence[Json], last: Json | None) -> str:
    then = "The next identical call will be sent."
    said = _last(events, "OperatorResolved")
    if said is not None and said["data"].get("as") == "did_not_happen":
        return f"{_said(events)} that it did not happen. {then}"
    if last is None:
        return _why_unapproved(events) or then
    match last["end"]:
        case "not_sent":
            return f"Nothing left the proxy. {sentence(last['reason'])} {then}"
        case "absent":
            return f"The proxy asked the API, and it is not there. {then}"
        case "not_applied":
            status = f" with {last['status']}" if last["status"] else ""
            return f"The API turned it away{status} without looking at it. {then}"
    return f"It had no effect. {then}"


def _why_unapproved(events: Sequence[Json]) -> str:
    for event in reversed(events):
        who = event["data"].get("by") or "An operator"
        match event["event"]:
            case "ApprovalDenied":
                return f"Nothing was sent: {who} denied it. Another call asks anew."
            case "ApprovalRevoked":
                return f"Nothing was sent: {who} took the approval back. Another call asks anew."
            case "ApprovalExpired":
                return "Nothing was sent: nobody approved it in time. Another call asks anew."
    return ""


def _why_unknown(operation: Json, last: Json | None) -> str:
    held = blocked(operation)
    reason = sentence(last["reason"]) if last else ""
    number = f"Attempt {last['number']}" if last else "It"
    status = (
        f" The API answered {last['status']}, which decides nothing."
        if last and last["status"]
        else ""
    )
    return f"{number} may have had its effect.{status} {reason} {held.title}: " + (
        held.means[:1].lower() + held.means[1:]
    )


def _said(events: Sequence[Json]) -> str:
    event = _last(events, "OperatorResolved")
    who = event["data"].get("by") if event else None
    word = "decided" if event and event["data"].get("as") == "abandoned" else "said"
    return f"{who or 'An operator'} {word}"


def _last(events: Sequence[Json], kind: str) -> Json | None:
    return next((event for event in reversed(events) if event["event"] == kind), None)


# The timeline


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a history. ``tone``: good | bad | doubt | plain. ``times``: how many equal events
    in a row it stands for; ``at`` is the last one's moment."""

    at: float
    event: str
    title: str
    detail: str = ""
    quote: str = ""  # what a person wrote
    tone: str = "plain"
    times: int = 1
    first_at: float = 0.0


def timeline(events: Sequence[Json]) -> list[Entry]:
    """Oldest first; what callers merely got again, several times in a row, is one line."""
    entries: list[Entry] = []
    for event in events:
        entry = _entry(event)
        before = entries[-1] if entries else None
        if before is not None and before.event == entry.event and _same(before, entry):
            entries[-1] = Entry(
                entry.at, entry.event, entry.title, entry.detail, entry.quote, entry.tone,
                before.times + 1, before.first_at,
            )  # fmt: skip
        else:
            entries.append(entry)
    return entries


def _same(one: Entry, other: Entry) -> bool:
    return (one.title, one.detail, one.quote) == (other.title, other.detail, other.quote)


def _entry(event: Json) -> Entry:
    kind, data, at = event["event"], event["data"], event["at"]
    tell = _TELL.get(kind)
    if tell is None:
        return Entry(at, kind, _spaced(kind), _facts(data), first_at=at)
    title, detail, quote, tone = tell(data)
    return Entry(at, kind, title, detail, quote, tone, first_at=at)


Told = tuple[str, str, str, str]


def _started(data: Json) -> Told:
    key = "under the API's key" if data.get("keyed") else "without a key of the API's"
    detail = f"{sentence(data.get('reason'))} Sent {key}.".strip()
    return f"Attempt {data.get('attempt')} started", detail, "", "plain"


def _presumed(data: Json) -> Told:
    return (
        "An earlier ledger may have sent it",
        "This ledger was restored or replaced and does not know.",
        "",
        "doubt",
    )


def _not_sent(data: Json) -> Told:
    return f"Attempt {data.get('attempt')} was not sent", sentence(data.get("reason")), "", "plain"


def _lost(data: Json) -> Told:
    status = f"The API answered {data['status']}. " if data.get("status") else ""
    return (
        f"Attempt {data.get('attempt')} may have been sent",
        f"{status}{sentence(data.get('reason'))}",
        "",
        "doubt",
    )


def _outcome(data: Json) -> Told:
    verdict, status = data.get("verdict"), data.get("status")
    title = f"The API answered {status}: {ENDS.get(str(verdict), verdict)}"
    details = [sentence(data.get("reason"))]
    if data.get("external_id"):
        details.append(f"It made {data['external_id']}.")
    if data.get("replayed"):
        details.append("The API says that it is the answer of an earlier attempt.")
    if data.get("kept") is False:
        details.append("The answer is not kept.")
    tone = {"succeeded": "good", "rejected": "bad"}.get(str(verdict), "plain")
    return title, " ".join(filter(None, details)), "", tone


def _found(data: Json) -> Told:
    made = f"It is {data['external_id']}." if data.get("external_id") else ""
    if data.get("succeeded") is False:
        return "Asked the API: recorded as refused", made, "", "bad"
    return "Asked the API: it is there", made, "", "good"


def _absent(data: Json) -> Told:
    if data.get("conclusive"):
        return "Asked the API: it is not there", "That is conclusive.", "", "plain"
    looks = f"Look {data['look']} of {data['looks']}. " if data.get("looks") else ""
    return "Asked the API: not there yet", f"{looks}Too early to be sure.", "", "doubt"


def _ambiguous(data: Json) -> Told:
    return "Asked the API: not clear", sentence(data.get("reason")), "", "doubt"


def _inconclusive(data: Json) -> Told:
    word = data.get("blocked_by")
    held = BLOCKED.get(word)
    return held.title if held else str(word), sentence(data.get("reason")), "", "doubt"


def _resolved(data: Json) -> Told:
    what = {"happened": "it happened", "did_not_happen": "it did not happen"}
    word = str(data.get("as"))
    who = data.get("by") or "An operator"
    title = f"{who} gave it up" if word == "abandoned" else f"{who} said: {what.get(word, word)}"
    made = f"External id {data['external_id']}." if data.get("external_id") else ""
    tone = {"happened": "good", "abandoned": "bad"}.get(word, "plain")
    return title, made, str(data.get("evidence") or ""), tone


def _asked(data: Json) -> Told:
    return "A person was asked to approve it", str(data.get("summary") or ""), "", "plain"


def _decided(word: str, tone: str) -> Any:
    def told(data: Json) -> Told:
        return f"{data.get('by') or 'An operator'} {word} it", "", str(data.get("note") or ""), tone

    return told


def _charged(data: Json) -> Told:
    amounts = data.get("amounts")
    units = amounts.items() if isinstance(amounts, dict) else ()
    return "Charged to the budget", ", ".join(f"{n} {unit}" for unit, n in units), "", "plain"


def _barred(data: Json) -> Told:
    return "A call of it was refused", sentence(data.get("detail")), "", "bad"


def _drifted(data: Json) -> Told:
    if data.get("unsent"):
        return "Another request took its place", "Nothing of the first one had left.", "", "plain"
    return "Worded anew by the agent", "The recorded answer was given.", "", "plain"


def _foreign(data: Json) -> Told:
    return (
        "The effect is older than this ledger's first attempt",
        "Another proxy, or a ledger that is lost, has used this key before.",
        "",
        "bad",
    )


def _conflict(data: Json) -> Told:
    made = f"The API has {data['external_id']}. " if data.get("external_id") else ""
    said = str(data.get("said") or "otherwise").replace("_", " ")
    return "The effect is there after all", f"{made}It had been told: {said}.", "", "bad"


def _shared(data: Json) -> Told:
    return "The object belongs to two operations", f"Also to {data.get('with')}.", "", "bad"


def _plainly(title: str, detail: str = "") -> Any:
    return lambda data: (title, detail or _facts(data), "", "plain")


_TELL: Final[Mapping[str, Any]] = {
    "AttemptStarted": _started,
    "AttemptPresumed": _presumed,
    "AttemptNotSent": _not_sent,
    "AttemptLost": _lost,
    "OutcomeRecorded": _outcome,
    "EffectFound": _found,
    "EffectAbsent": _absent,
    "EffectAmbiguous": _ambiguous,
    "LookupInconclusive": _inconclusive,
    "OperatorResolved": _resolved,
    "ApprovalRequested": _asked,
    "ApprovalGranted": _decided("granted", "good"),
    "ApprovalDenied": _decided("denied", "bad"),
    "ApprovalRevoked": _decided("took back the approval of", "bad"),
    "ApprovalExpired": lambda data: ("The approval expired", "", "", "plain"),
    "AuthorityRefused": _barred,
    "BudgetCharged": _charged,
    "AnswerDelivered": lambda data: ("The caller got the answer", _epoch(data), "", "plain"),
    "Replayed": lambda data: ("Answered from the ledger", _epoch(data), "", "plain"),
    "Coalesced": lambda data: ("An identical call shared the answer", _epoch(data), "", "plain"),
    "Drifted": _drifted,
    "CredentialChanged": _plainly("Called with another credential"),
    "ForeignEffect": _foreign,
    "EffectConflict": _conflict,
    "SharedEffect": _shared,
    "AcceptedDone": _plainly("What the API took for later is done"),
    "AcceptedFailed": lambda data: ("What the API took for later came to nothing", "", "", "bad"),
    "Observed": _plainly("Observed only"),
    "BodiesPruned": _plainly("Bodies removed", "They had been kept as long as configured."),
    "KeyForgotten": _plainly("Forgotten", "A call with this key is a new one."),
}


def _epoch(data: Json) -> str:
    epoch = data.get("epoch")
    return f"Start {epoch} of the run." if isinstance(epoch, int) and epoch > 1 else ""


def _facts(data: Json) -> str:
    """What an event holds that has no sentence of its own."""
    return ", ".join(
        f"{name.replace('_', ' ')}: {value}"
        for name, value in data.items()
        if value not in (None, "", [], {}) and not isinstance(value, dict | list)
    )


def _spaced(kind: str) -> str:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind)
    return words[:1] + words[1:].lower()


# Times and sizes


UNITS: Final = ((86_400, "days", 172_800), (3600, "h", 3600), (60, "min", 60), (1, "s", 0))
"""Seconds of one, its name, from how many seconds on it is used."""
SIZES: Final = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def relative(at: float, now: float) -> str:
    """``5 min ago``, ``in 3 h``; console.js says the same while the page is open."""
    gap = abs(now - at)
    if gap < 10:
        return "now" if at > now else "just now"
    return f"in {duration(gap)}" if at > now else f"{duration(gap)} ago"


def duration(seconds: float) -> str:
    gap = max(0.0, seconds)
    return next(f"{int(gap // unit)} {name}" for unit, name, start in UNITS if gap >= start)


def size(count: int) -> str:
    for factor, unit in SIZES:
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} byte{'' if count == 1 else 's'}"
