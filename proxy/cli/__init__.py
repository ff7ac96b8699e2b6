"""The command ``onceproxy``. Each command is a module of its own, imported only when it is used, so
that ``--help`` and completion stay fast."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import click

from proxy import __version__

# name -> (module:attribute, one line for --help)
COMMANDS = {
    "serve": ("proxy.cli.serve:serve", "Run the proxy."),
    "run": ("proxy.cli.run:run", "Run a command with its calls going through the proxy."),
    "helper": ("proxy.cli.helper:helper", "Write the helper files for agents into a directory."),
    "demo": (
        "proxy.drill.command:demo_command",
        "The refund that was paid twice, with and without.",
    ),
    "drill": (
        "proxy.drill.command:drill_command",
        "Kill the proxy at every point and count effects.",
    ),
    "check": ("proxy.cli.check:check", "Check configuration and rules; starts nothing."),
    "rules": ("proxy.cli.rules:rules", "List, test and explain rules."),
    "ops": ("proxy.cli.operations:ops", "List operations."),
    "show": ("proxy.cli.operations:show", "Show one operation with its history."),
    "resolve": ("proxy.cli.operations:resolve", "Say what became of an unknown operation."),
    "reconcile": ("proxy.cli.operations:reconcile", "Ask the API once more about an operation."),
    "audit": ("proxy.cli.audit:audit", "Check the ledger's history, or write it out."),
    "backup": ("proxy.cli.backup:backup", "Copy the ledger, also while it is in use."),
    "restore": ("proxy.cli.backup:restore", "Put a copy in the place of the ledger."),
    "gap": ("proxy.cli.backup:gap", "What a ledger that was put back may not know."),
    "prune": ("proxy.cli.prune:prune", "Take what is older than it has to be kept."),
    "doctor": ("proxy.cli.doctor:doctor", "Look at this machine and this configuration."),
    "ca": ("proxy.cli.ca:ca", "The local certificate authority."),
}


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
