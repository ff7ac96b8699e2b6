"""Hosts of one's own that serve models: the rules for models hold there too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from proxy.core.rules import Service
from proxy.rulefile.patterns import host_pattern

MODEL_SERVICES = ("models", "ollama")
"""Rule files that describe kinds of model API, whoever serves them."""


def at_hosts(services: Iterable[Service], hosts: Sequence[str]) -> list[Service]:
    """The services, those for models also at ``hosts`` (as in a rule's ``hosts``). Raises
    PatternError."""
    patterns = [host_pattern(text) for text in hosts]
    return [
        replace(service, hosts=tuple(dict.fromkeys((*service.hosts, *patterns))))
        if patterns and service.name in MODEL_SERVICES
        else service
        for service in services
    ]
