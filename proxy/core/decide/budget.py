"""Is there enough left of the run's budget? One version of an operation is one unit, however often
it is sent, so only its first attempt asks.
"""

from __future__ import annotations

import shlex
from urllib.parse import unquote

from proxy.core.decide.authority import about
from proxy.core.decide.decision import Question, Refuse
from proxy.core.refusal import Refusal
from proxy.core.runs import Amounts, Shortage, Unit

WRITE: Amounts = {Unit.TOOL_CALLS.value: 1, Unit.WRITES.value: 1}
READ: Amounts = {Unit.TOOL_CALLS.value: 1}


def exhausted(question: Question) -> Refuse | None:
    short, operation = question.snapshot.standing.short, question.snapshot.operation
    if short is None or (operation is not None and operation.attempts):
        return None
    told = about("budget-exhausted", words(short), operation)
    return Refuse(f"no {short.unit} left", told, short=short)


def refusal(short: Shortage) -> Refusal:
    return Refusal("budget-exhausted", words(short))


def words(short: Shortage) -> str:
    left = max(0, short.limit - short.used)
    run = shlex.quote(unquote(short.run))
    return (
        f"Of {short.limit} {short.unit} of the run {short.run} {short.used} are used and {left} "
        f"left. An operator can raise it: onceproxy budget {run} --{_option(short.unit)} N."
    )


def _option(unit: str) -> str:
    return unit.replace("_", "-")
