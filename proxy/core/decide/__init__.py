"""One call, one snapshot, one decision with its reason.

The questions are asked in this order, and the first one that has an answer decides: is it the same
account, is it the same request, may it be sent without a person, may a lost ledger have sent it,
what does its state allow. Each is a file of its own. First call, duplicate, recovery and background
settling all come through here.
"""

from __future__ import annotations

from proxy.core.decide.account import other_account
from proxy.core.decide.approval import approval_missing
from proxy.core.decide.decision import (
    Answer,
    Ask,
    Decision,
    Forward,
    Hold,
    Limits,
    PassThrough,
    Presume,
    Question,
    Reconcile,
    Refuse,
    Snapshot,
    Watch,
)
from proxy.core.decide.doubt import doubted
from proxy.core.decide.drift import drifted, notes_wording
from proxy.core.decide.state import by_state
from proxy.core.decide.version import bind
from proxy.core.rules import Endpoint

__all__ = [
    "Answer",
    "Ask",
    "Decision",
    "Forward",
    "Hold",
    "Limits",
    "PassThrough",
    "Presume",
    "Reconcile",
    "Refuse",
    "Snapshot",
    "Watch",
    "bind",
    "decide",
    "notes_wording",
]


def decide(ask: Ask, endpoint: Endpoint, snapshot: Snapshot, limits: Limits) -> Decision:
    question = Question(ask, endpoint, snapshot, limits)
    return (
        other_account(question)
        or drifted(question)
        or approval_missing(question)
        or doubted(question)
        or by_state(question)
    )
