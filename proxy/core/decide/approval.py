"""May it be sent without a person? Only what was never sent asks; a recorded end is answered."""

from __future__ import annotations

from proxy.core.decide.decision import Question, Refuse
from proxy.core.operation import State
from proxy.core.refusal import Refusal


def approval_missing(question: Question) -> Refuse | None:
    operation = question.snapshot.operation
    if operation is not None and operation.state is not State.NOT_APPLIED:
        return None
    if not question.ask.needs_approval:
        return None
    return Refuse(
        "the rule asks for an approval",
        Refusal(
            "approval-required",
            f"The rule for {question.endpoint.title} lets this call go out only with an approval.",
            operation=operation.key if operation else None,
            state=str(operation.state) if operation else None,
        ),
    )
