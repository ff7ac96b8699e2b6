"""What can be made to go wrong at the toy API: faults of single requests, and gates that hold one.

A gate is how a test knows the exact moment at which something happened inside the API without
sleeping: the request waits in the gate, whoever set the gate is told, and decides when it goes on.
"""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass, field
from fnmatch import fnmatchcase


class Fault(enum.StrEnum):
    DROP_BEFORE = "drop_before"  # the connection is cut, no effect
    DROP_AFTER = "drop_after"  # the effect is made, the connection is cut
    ERROR_BEFORE = "error_before"  # 503, no effect
    ERROR_AFTER = "error_after"  # the effect is made, 500
    CUT = "cut"  # the effect is made, the answer's body ends too early
    DELAY = "delay"  # the effect comes late
    REJECT = "reject"  # 402, no effect


class Moment(enum.StrEnum):
    RECEIVED = "received"  # the whole request is here, nothing done
    EFFECT = "effect"  # the effect is made and durable, nothing answered


class Release(enum.StrEnum):
    ASKED = "asked"  # when somebody opens the gate
    NEXT_CALL = "next_call"  # when another call to the same collection has got its answer


@dataclass(slots=True)
class Trouble:
    """A fault for requests whose reference matches the glob, ``times`` times."""

    match: str
    fault: Fault
    times: int = 1
    seconds: float = 0.1


@dataclass(slots=True)
class Gate:
    """Holds the first request that matches at that moment. ``reached`` is set when it is in."""

    match: str
    moment: Moment
    release: Release = Release.ASKED
    collection: str = ""  # of the request it holds
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def holding(self) -> bool:
        return self.reached.is_set() and not self.opened.is_set()


@dataclass(slots=True)
class Troubles:
    faults: list[Trouble] = field(default_factory=list)
    gates: list[Gate] = field(default_factory=list)

    def fault(
        self, match: str, fault: Fault | str, *, times: int = 1, seconds: float = 0.1
    ) -> Trouble:
        """From now on requests whose reference matches the glob meet this fault."""
        trouble = Trouble(match, Fault(fault), times, seconds)
        self.faults.append(trouble)
        return trouble

    def gate(
        self, match: str, moment: Moment | str, release: Release | str = Release.ASKED
    ) -> Gate:
        """The next request whose reference matches the glob waits at that moment."""
        gate = Gate(match, Moment(moment), Release(release))
        self.gates.append(gate)
        return gate

    def take(self, reference: str) -> Trouble | None:
        """The fault that this request meets, used up by one."""
        for trouble in self.faults:
            if trouble.times > 0 and fnmatchcase(reference, trouble.match):
                trouble.times -= 1
                return trouble
        return None

    async def pass_gate(self, collection: str, reference: str, moment: Moment) -> None:
        for gate in self.gates:
            if (
                gate.moment is moment
                and not gate.reached.is_set()
                and fnmatchcase(reference, gate.match)
            ):
                gate.collection = collection
                gate.reached.set()
                await gate.opened.wait()

    def answered(self, collection: str) -> None:
        """A call of this collection has its answer ready: gates that wait for that open."""
        for gate in self.gates:
            if gate.holding and gate.release is Release.NEXT_CALL and gate.collection == collection:
                gate.opened.set()

    def open_all(self) -> None:
        for gate in self.gates:
            gate.opened.set()
