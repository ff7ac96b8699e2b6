"""A scripted agent: makes the calls of its plan in order, through the proxy or straight.

It is as plain as an agent can be: no SDK, no state of its own, standard library only. Started again
it begins at its first step and makes the same calls with the same run and step, as a resumed agent
does. When its connection breaks it dies (exit 75), as the worker around it would.

The plan is a JSON file: ``{"proxy": "127.0.0.1:8901" or null, "patience": seconds, "calls": []}``.
What happens is told on standard output, one JSON object a line:
``{"event": "begin", "call": n}`` directly before a call is made, and
``{"event": "end", "call": n, "status", "outcome", "code", "body"}``.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

LOST = 75  # EX_TEMPFAIL: "try again later"
SOCKET_TIMEOUT = 60.0  # seconds; far above the proxy's patience, so that a hang is seen as one
PAUSE = 0.2  # seconds between repeats of a call that may be repeated, unless the answer says more


@dataclass(frozen=True, slots=True)
class Call:
    """One step of the agent."""

    run: str
    step: str
    method: str
    url: str
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """``proxy`` is ``host:port``, None for an agent without one; ``patience`` in seconds."""

    calls: tuple[Call, ...]
    proxy: str | None
    patience: float = 30.0

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Plan:
        given = json.loads(text)
        return cls(tuple(Call(**c) for c in given["calls"]), given["proxy"], given["patience"])


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    outcome: str | None
    body: str
    retry_after: float

    @property
    def problem(self) -> Mapping[str, Any]:
        """The proxy's refusal, empty for any other answer."""
        if self.outcome not in ("refused", "held"):
            return {}
        try:
            problem = json.loads(self.body)
        except ValueError:
            return {}
        return problem if isinstance(problem, dict) else {}

    @property
    def code(self) -> str:
        """Of the proxy's refusal, "" for any other answer."""
        return str(self.problem.get("type", "")).rpartition(":")[2]


def make(call: Call, proxy: str | None) -> Answer:
    """One call. Raises OSError or HTTPException when the connection breaks."""
    parts = urlsplit(call.url)
    target = call.url if proxy else call.url.partition(parts.netloc)[2] or "/"
    headers = {"Content-Type": "application/json", **call.headers}
    if proxy:
        headers |= {"X-Run-Id": call.run, "X-Step-Id": call.step}
    connection = http.client.HTTPConnection(proxy or parts.netloc, timeout=SOCKET_TIMEOUT)
    try:
        connection.request(call.method, target, call.body.encode(), headers)
        response = connection.getresponse()
        return Answer(
            response.status,
            response.getheader("Onceproxy-Outcome"),
            response.read().decode("utf-8", "replace"),
            _seconds(response.getheader("Retry-After")),
        )
    finally:
        connection.close()


def _seconds(value: str | None) -> float:
    return float(value) if value is not None and value.isdecimal() else PAUSE


def follow(plan: Plan) -> int:
    """Makes all calls; returns the exit code."""
    for number, call in enumerate(plan.calls):
        _tell(event="begin", call=number)
        try:
            answer = settled(call, plan)
        except (OSError, http.client.HTTPException) as error:
            _tell(event="lost", call=number, reason=type(error).__name__)
            return LOST
        _tell(
            event="end",
            call=number,
            status=answer.status,
            outcome=answer.outcome,
            code=answer.code,
            body=answer.body,
        )
    return 0


def settled(call: Call, plan: Plan) -> Answer:
    """The answer, after repeating the same call as long as the proxy says that this helps."""
    until = time.monotonic() + plan.patience
    while True:
        answer = make(call, plan.proxy)
        if not answer.problem.get("retryable") or time.monotonic() > until:
            return answer
        time.sleep(answer.retry_after)


def _tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    sys.exit(follow(Plan.parse(Path(sys.argv[1]).read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
