"""What the commands share: options, exit codes, and how they print."""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from proxy.cli.client import NotRunning, Refused
from proxy.configload import ConfigErrors, Loaded, load

CHECK_FAILED = 1
CONFIG = 3
LEDGER = 4
PORT = 5

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def with_config(command: F) -> F:
    """Adds ``--config``, ``--state-dir`` and ``--set``, and passes ``loaded``.

    Options of the command whose names are in ``flags`` of the wrapped function's keyword arguments
    are the command's own business; these three work on all commands alike.
    """

    @click.option("--config", type=click.Path(path_type=Path), help="Configuration file.")
    @click.option("--state-dir", metavar="DIR", help="Where ledger, keys and tokens are.")
    @click.option(
        "--set", "settings", metavar="NAME=VALUE", multiple=True, help="Any option, as a.b=value."
    )
    @click.pass_context
    @functools.wraps(command)
    def wrapped(
        ctx: click.Context,
        /,
        *args: Any,
        config: Path | None,
        state_dir: str | None,
        settings: Sequence[str],
        **kwargs: Any,
    ) -> Any:
        flags = kwargs.pop("flags", {}) | read_settings(settings)
        if state_dir is not None:
            flags["state_dir"] = state_dir
        loaded = load_or_exit(config or ctx.find_root().obj, flags)
        return ctx.invoke(command, *args, loaded=loaded, **kwargs)

    return wrapped  # type: ignore[return-value]


def read_settings(settings: Sequence[str]) -> dict[str, str]:
    flags: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise click.UsageError(
                f"--set {setting}: write NAME=VALUE, such as ledger.url=sqlite:x"
            )
        flags[name.strip()] = value
    return flags


def load_or_exit(file: Path | None, flags: dict[str, Any]) -> Loaded:
    """The configuration; with a broken one every problem is printed and the process ends."""
    try:
        return load(file, flags=flags)
    except ConfigErrors as error:
        stop(CONFIG, *error.problems)


def stop(code: int, *lines: str) -> NoReturn:
    """Print to stderr and end."""
    for line in lines:
        click.echo(line, err=True)
    sys.exit(code)


def print_json(data: object) -> None:
    click.echo(json.dumps(data, indent=2, ensure_ascii=False))


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns as wide as their content; None is empty."""
    texts = [["" if cell is None else visible(cell) for cell in row] for row in rows]
    widths = [max(len(line[n]) for line in [list(head), *texts]) for n in range(len(head))]
    for line in [list(head), *texts]:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        click.echo("  ".join(cells).rstrip())


def moment(seconds: float) -> str:
    """For people who read it on this machine."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def visible(value: object) -> str:
    """Text for a terminal: what came from outside must not steer it."""
    return "".join(
        character if character.isprintable() else f"\\x{ord(character):02x}"
        for character in str(value)
    )


def talks(command: F) -> F:
    """Turns what the control API may answer into messages and exit codes."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except NotRunning as error:
            stop(PORT, str(error))
        except Refused as error:
            stop(CHECK_FAILED, *(error.problem.get("problems") or [str(error)]))

    return wrapped  # type: ignore[return-value]
