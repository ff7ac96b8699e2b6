"""One call, one snapshot, one decision with its reason.

The questions are asked in this order, and the first one that has an answer decides: may this run
have anything at all, is it the same account, is it the same request, may a lost ledger have sent
it, what does its state allow. Where the answer is a send, that needs authority, budget and approval
(``sending``). Each is a file of its own. First call, duplicate, recovery and background settling
all come through here.
"""

from __future__ import annotations

from proxy.core.decide.account import other_account
from proxy.core.decide.authority import barred
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
    RequestApproval,
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
    "RequestApproval",
    "Snapshot",
    "Watch",
    "bind",
    "decide",
    "notes_wording",
]


def decide(ask: Ask, endpoint: Endpoint, snapshot: Snapshot, limits: Limits) -> Decision:
    question = Question(ask, endpoint, snapshot, limits)
    return (
        barred(question)
        or other_account(question)
        or drifted(question)
        or doubted(question)
        or by_state(question)
    )
