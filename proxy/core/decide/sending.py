"""What a send needs besides a state that allows it: authority, budget, and a person where the rule
asks for one. Whoever decides to send asks here.
"""

from __future__ import annotations

from proxy.core.decide.approval import approval_missing
from proxy.core.decide.authority import stopped
from proxy.core.decide.budget import exhausted
from proxy.core.decide.decision import Forward, Question, Refuse, RequestApproval


def not_permitted(question: Question) -> Refuse | RequestApproval | None:
    """A person is asked last: for nothing that could not be sent all the same."""
    return stopped(question) or exhausted(question) or approval_missing(question)


def forward(question: Question, reason: str, attempt: int) -> Forward | Refuse | RequestApproval:
    return not_permitted(question) or Forward(reason, attempt)
