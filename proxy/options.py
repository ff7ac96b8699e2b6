"""The options as data: what there is to set, under which names, and how a value is printed."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy import units
from proxy.config import Address, Config, Duration, PositiveDuration, Retention, Secret, Size
from proxy.core.authority import Line as AuthorityLine
from proxy.core.egress import Line
from proxy.failpoints import Fault

PREFIX = "ONCEPROXY_"

OptionPath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """One option as it can be set: ``ledger.url``, ``ONCEPROXY_LEDGER_URL``."""

    path: OptionPath
    type: Any

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        return PREFIX + "_".join(self.path).upper()


def options(kind: type = Config, above: OptionPath = ()) -> Iterator[Option]:
    """Every option, in the order of the reference."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        path = (*above, field.name)
        if is_section(hint):
            yield from options(hint, path)
        else:
            yield Option(path, hint)


def names_beside(path: Sequence[str | int]) -> tuple[str, ...]:
    """The names an option at that place could have had."""
    kind: Any = Config
    for part in path[:-1]:
        if isinstance(part, int):
            continue
        hint = bare(typing.get_type_hints(kind, include_extras=True).get(str(part), str))
        kind = typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint
        if not dataclasses.is_dataclass(kind):
            return ()
    return tuple(field.name for field in dataclasses.fields(kind))


def as_dict(config: Config) -> dict[str, Any]:
    """The configuration as plain data for printing; secrets are stars."""
    return typing.cast("dict[str, Any]", _plain(config, Config))


def _plain(value: Any, hint: Any) -> Any:
    if isinstance(value, (Address, Path, Secret)):
        return str(value)
    if hint in (Duration, PositiveDuration, Retention):
        return units.show_duration(value)
    if hint == Size:
        return units.show_size(value)
    if isinstance(value, (Line, AuthorityLine)):
        return value.plain()
    if isinstance(value, Fault):
        return dataclasses.asdict(value)
    if dataclasses.is_dataclass(value):
        hints = typing.get_type_hints(type(value), include_extras=True)
        return {
            field.name: _plain(getattr(value, field.name), hints[field.name])
            for field in dataclasses.fields(value)
        }
    if isinstance(value, tuple):
        return [_plain(item, None) for item in value]
    if isinstance(value, Mapping):
        return {name: _plain(item, None) for name, item in value.items()}
    return value


def bare(hint: Any) -> Any:
    """A type without Annotated and without "or None"."""
    if typing.get_origin(hint) is typing.Annotated:
        return bare(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return bare(next(part for part in typing.get_args(hint) if part is not types.NoneType))
    return hint


def is_section(hint: Any) -> bool:
    """Whether it is a group of options rather than one."""
    kind = bare(hint)
    return dataclasses.is_dataclass(kind) and hasattr(kind, "__pydantic_config__")


def is_list(hint: Any) -> bool:
    """Whether it is a list of texts, which an environment variable may give as ``a,b``."""
    kind = bare(hint)
    if typing.get_origin(kind) is not tuple:
        return False
    inner = typing.get_args(kind)[0]
    return not dataclasses.is_dataclass(inner) or inner in (Secret, Line)


def is_structured(hint: Any) -> bool:
    """Whether a text given for it is YAML: lists of mappings, mappings."""
    origin = typing.get_origin(bare(hint))
    return origin is tuple or (isinstance(origin, type) and issubclass(origin, Mapping))
