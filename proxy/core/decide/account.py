"""Is it the same account? Another account's effect is never replayed, queried or sent again."""

from __future__ import annotations

from proxy.core.decide.decision import Ask, Question, Refuse
from proxy.core.operation import Operation, State
from proxy.core.refusal import Refusal


def other_account(question: Question) -> Refuse | None:
    operation = question.snapshot.operation
    if operation is None or not question.ask.fresh or same_account(question.ask, operation):
        return None
    if operation.state is State.NOT_APPLIED:
        return None  # nothing has taken effect under the first account
    return Refuse(
        "the operation belongs to another account",
        Refusal(
            "account-mismatch",
            "This run and step already made this operation with another account.",
            operation=operation.key,
            state=str(operation.state),
        ),
    )


def same_account(ask: Ask, operation: Operation) -> bool:
    """Where no rule says what selects the account, the run is trusted."""
    known = operation.intent.account
    return known is None or ask.account is None or known == ask.account


def same_credential(ask: Ask, operation: Operation) -> bool:
    """Whether every undecided attempt went out with what this ask has. Only then does "nothing
    there" mean the same to both: another credential may see another account."""
    return all(a.credential == ask.credential for a in operation.attempts if a.undecided)
