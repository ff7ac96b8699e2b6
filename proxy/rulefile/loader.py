"""Rule files from directories to one RuleSet, or every mistake in them at once.

A file in a later directory replaces an earlier directory's file of the same service; two files of
one service in the same directory are a mistake.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from proxy.core.matching import RuleSet
from proxy.core.rules import Endpoint, Later, Service
from proxy.rulefile import schema, yamltext
from proxy.rulefile.compile import compile_service
from proxy.rulefile.mcpservers import Server, rule_texts
from proxy.rulefile.modelhosts import at_hosts
from proxy.rulefile.problems import Problems, RuleErrors

SUFFIXES = (".yaml", ".yml")
NO_SERVERS: Mapping[str, Server] = {}


@dataclass(frozen=True, slots=True)
class RuleFile:
    """One file that is right: ``model`` as written (examples included), ``service`` as meant."""

    path: Path
    model: schema.Service
    service: Service
    warnings: tuple[str, ...]


def load(
    dirs: Sequence[Path],
    models: Sequence[str] = (),
    mcp: Mapping[str, Server] = NO_SERVERS,
    *,
    later: Collection[Path] = (),
) -> RuleSet:
    """``models``: hosts at which the rules for models hold too; ``mcp``: MCP servers by the name of
    their service; ``later``: directories with files known to be right, of which only the heads are
    read until a call needs more. Raises RuleErrors with all that is wrong in any other file;
    examples, which are more than half of it, are not looked at."""
    with _uncollected():
        files = load_files(dirs, examples=False, later=later)
        files += _servers(mcp, {f.service.name for f in files})
    services = at_hosts((f.service for f in files), models)
    return RuleSet(services, [w for f in files for w in f.warnings])


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """What is read here stays: to look for garbage in it meanwhile takes a fifth of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _servers(mcp: Mapping[str, Server], taken: Collection[str]) -> list[RuleFile]:
    try:
        return [load_text(text, f"mcp.{name}") for name, text in rule_texts(mcp, taken)]
    except ValueError as error:
        raise RuleErrors([str(error)]) from None


def load_files(
    dirs: Sequence[Path], *, examples: bool = True, later: Collection[Path] = ()
) -> list[RuleFile]:
    """The files in force, by service name. Raises RuleErrors."""
    found: dict[str, RuleFile] = {}
    errors: list[str] = []
    for directory in dirs:
        here: dict[str, RuleFile] = {}
        for path in _files(directory, errors):
            file = _read(path, errors, examples=examples, later=directory in later)
            if file is None:
                continue
            earlier = here.setdefault(file.service.name, file)
            if earlier is not file:
                errors.append(
                    f"{path}:1:1: service: {file.service.name!r} is already in {earlier.path}; "
                    "service names are unique"
                )
        found.update(here)
    if errors:
        raise RuleErrors(errors)
    return [found[name] for name in sorted(found)]


def load_file(path: Path) -> RuleFile:
    """One file by itself. Raises RuleErrors."""
    errors: list[str] = []
    file = _read(path, errors)
    if file is None:
        raise RuleErrors(errors)
    return file


def load_text(text: str, name: str = "rules") -> RuleFile:
    """A rule file given as text. Raises RuleErrors."""
    errors: list[str] = []
    file = _compile(text, Path(name), errors)
    if file is None:
        raise RuleErrors(errors)
    return file


def _files(directory: Path, errors: list[str]) -> Iterator[Path]:
    try:
        entries = sorted(directory.iterdir())
    except OSError as error:
        errors.append(f"{directory}: cannot be read: {error.strerror}")
        return
    yield from (p for p in entries if p.suffix in SUFFIXES and not p.name.startswith("."))


def _read(
    path: Path, errors: list[str], *, examples: bool = True, later: bool = False
) -> RuleFile | None:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        errors.append(f"{path}: cannot be read: {error.strerror}")
        return None
    except UnicodeDecodeError:
        errors.append(f"{path}: is not UTF-8")
        return None
    short = None if examples else without_examples(text)
    if later:
        file = _head(short or text, path)
        if file is not None:
            return file
    file = None if short is None else _compile(short, path, [])
    return file or _compile(text, path, errors)


def _head(text: str, path: Path) -> RuleFile | None:
    """A file whose endpoints are read from ``text`` later on; None where its head does not stand
    by itself."""
    head, found, _ = text.partition("\nendpoints:")
    if not found:
        return None
    file = _compile(f"{head}\n{NO_ENDPOINT}", path, [])
    if file is None or any(pattern.everywhere for pattern in file.service.hosts):
        return None

    def endpoints() -> tuple[Endpoint, ...]:
        errors: list[str] = []
        whole = _compile(text, path, errors)
        if whole is None:
            raise RuleErrors(errors)
        return tuple(whole.service.endpoints)

    digest = hashlib.sha256(text.encode()).hexdigest()
    service = replace(file.service, endpoints=Later(endpoints), digest=digest)
    return RuleFile(path, file.model, service, ())


NO_ENDPOINT = "endpoints: {later: {match: GET /}}\n"
"""In the place of those that are not read yet: a file without any is a mistake."""


def without_examples(text: str) -> str | None:
    """The text with empty lines for the examples of its endpoints; None where they cannot be told
    by their lines alone."""
    kept: list[str] = []
    inside = False
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip(" "))
        inside = inside and (indent > len(EXAMPLES_AT) or not line.strip())
        if line.startswith(EXAMPLES_AT + "examples:"):
            inside = True
        if inside and "&" in line and _ANCHOR.search(line):
            return None  # something further down may repeat it
        kept.append("" if inside else line)
    return "\n".join(kept)


EXAMPLES_AT = "    "  # in front of an endpoint's keys, in a file with indents of two
_ANCHOR = re.compile(r"[:,\[{-]\s*&\w")


def _compile(text: str, path: Path, errors: list[str]) -> RuleFile | None:
    problems = Problems(str(path))
    raw = yamltext.read(text, problems)
    model = None
    if raw is not None:
        model = schema.validate(raw, problems)
    service = None
    if model is not None and isinstance(raw, Mapping):
        service = compile_service(raw, model, problems)
    if problems.errors or model is None or service is None:
        errors += sorted(set(problems.errors), key=_by_line)
        return None
    return RuleFile(path, model, service, tuple(problems.warnings))


def _by_line(problem: str) -> tuple[int, int]:
    for part, following in pairwise(problem.split(":")):
        if part.isdecimal() and following.isdecimal():
            return int(part), int(following)
    return 0, 0
