"""``onceproxy`` as a group of commands."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import click

from proxy import __version__
from proxy.cli import COMMANDS


class Lazy(click.Group):
    """A group that imports a command when it is called and not to list it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: Any = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="onceproxy")
@click.option(
    "--config", type=click.Path(path_type=Path), help="Configuration file, for any command."
)
@click.pass_context
def main(ctx: click.Context, config: Path | None) -> None:
    """Makes every external write of an agent happen once, through crashes, retries and resumes."""
    ctx.obj = config
