"""Is it the same account? Another account's effect is never replayed, queried or sent again."""

from __future__ import annotations

from proxy.core.decide.decision import Question, Refuse
from proxy.core.operation import State
from proxy.core.refusal import Refusal


def other_account(question: Question) -> Refuse | None:
    operation = question.snapshot.operation
    if operation is None or not question.ask.fresh:
        return None
    if operation.intent.account is None or operation.intent.account == question.ask.account:
        # Where no rule says what selects the account, the run is trusted.
        return None
    if operation.state is State.NOT_APPLIED and not operation.ever_left:
        return None  # nothing ever left under the first account
    return Refuse(
        "the operation belongs to another account",
        Refusal(
            "account-mismatch",
            "This run and step already made this operation with another account.",
            operation=operation.key,
            state=str(operation.state),
        ),
    )
