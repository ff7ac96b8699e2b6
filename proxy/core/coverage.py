"""What rules say of themselves: how each endpoint's unknown outcomes end, and for how many that
takes no person.

Counted are the endpoints that could make a duplicate and that a rule vouches for: POST and PATCH,
enforced, not idempotent and not inferred.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from proxy.core.rules import Endpoint, Service

COUNTED_METHODS = frozenset({"POST", "PATCH"})


def mechanism(endpoint: Endpoint) -> str:
    """By what the service tells a repeated call from a new one, or shows what a call has made."""
    if endpoint.effect == "read":
        return "-"
    ways = []
    if endpoint.key is not None:
        ways.append(f"key {endpoint.key.place}:{endpoint.key.name}")
    if endpoint.marker is not None:
        ways.append(f"mark {endpoint.marker.place}:{endpoint.marker.name}")
    elif endpoint.reconcile and endpoint.key is None:
        ways.append("content")
    if endpoint.idempotent and not ways:
        ways.append("idempotent")
    return ", ".join(ways) or "none"


def settles_by(endpoint: Endpoint) -> str:
    """What settles a lost call: ``key``, ``query``, ``key+query``, ``re-send`` (the same write
    again does no harm), ``held key`` (its window is not stated, so it serves only while the call is
    held), or only a ``person``; ``-`` for a read, which has no effect to find out about."""
    return "-" if endpoint.effect == "read" else "+".join(_ways(endpoint)) or "person"


def _ways(endpoint: Endpoint) -> list[str]:
    held = endpoint.key is not None and endpoint.key.valid_for is None
    ways = ["key"] if endpoint.key is not None and not held else []
    if endpoint.reconcile:
        ways.append("query")
    if endpoint.idempotent and not ways:
        return ["re-send"]
    return ["held key", *ways] if held else ways


def counts(endpoint: Endpoint) -> bool:
    """Whether it is one of those by which rules are measured."""
    return (
        endpoint.effect == "write"
        and endpoint.match is not None
        and endpoint.match.method in COUNTED_METHODS
        and endpoint.mode == "enforce"
        and endpoint.confidence != "inferred"
        and not endpoint.idempotent
    )


def settles(endpoint: Endpoint) -> bool:
    """Whether a lost call of it can be settled without a person."""
    return any(way != "held key" for way in _ways(endpoint))


@dataclass(frozen=True, slots=True)
class Totals:
    services: int
    endpoints: int
    writes: int
    counted: int  # POST and PATCH, enforced, not idempotent, not inferred
    settled: int  # of those, the ones that no person need settle
    held: int  # further ones that a key of unstated window settles while their call is held

    @property
    def share(self) -> float:
        """Per cent of ``counted``."""
        return 100 * self.settled / self.counted if self.counted else 0.0

    def __str__(self) -> str:
        return (
            f"{self.services} services, {self.endpoints} endpoints, {self.writes} of them write; "
            f"of {self.counted} POST and PATCH endpoints (enforced, not idempotent, not inferred) "
            f"{self.settled} settle an unknown outcome without a person ({self.share:.0f} %), "
            f"{self.held} more while the call is held"
        )


GENERATED = "generated"  # the folder of files that are made from vendors' own models


def is_generated(service: Service) -> bool:
    """Whether nobody wrote its file. Such files know of keys, and little else."""
    return f"/{GENERATED}/" in service.path.replace("\\", "/")


def totals(services: Iterable[Service]) -> Totals:
    services = tuple(services)
    endpoints = [endpoint for service in services for endpoint in service.endpoints]
    counted = [endpoint for endpoint in endpoints if counts(endpoint)]
    return Totals(
        services=len(services),
        endpoints=len(endpoints),
        writes=sum(endpoint.effect == "write" for endpoint in endpoints),
        counted=len(counted),
        settled=sum(map(settles, counted)),
        held=sum(settles_by(endpoint) == "held key" for endpoint in counted),
    )
