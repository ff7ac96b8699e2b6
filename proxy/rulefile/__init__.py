"""Rule files: strict YAML in, the core's rules out, with every mistake named at once."""

from proxy.rulefile.loader import load
from proxy.rulefile.problems import RuleErrors
from proxy.rulefile.schema import json_schema

__all__ = ["RuleErrors", "json_schema", "load"]
