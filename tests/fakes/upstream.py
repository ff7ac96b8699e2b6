"""The drill's toy API for tests in one process: ``api = ToyApi(); url = await api.start()``."""

from __future__ import annotations

from proxy.drill.effects import Effect, Effects
from proxy.drill.toyapi import ToyApi
from proxy.drill.trouble import Fault, Gate, Moment, Release

__all__ = ["Effect", "Effects", "Fault", "Gate", "Moment", "Release", "ToyApi"]
