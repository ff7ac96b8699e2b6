"""The command ``onceproxy``. Each command is a module of its own, imported only when it is used;
its list is printed without importing anything."""

from __future__ import annotations

import sys
from typing import Any

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
    "runs": ("proxy.cli.runs:runs", "List runs, or show one."),
    "budget": ("proxy.cli.runs:budget", "Show or set what a run may use."),
    "revoke": ("proxy.cli.runs:revoke", "Stop a run, a run's token, or an approval."),
    "approvals": ("proxy.cli.approvals:approvals", "List what waits for a person."),
    "approve": ("proxy.cli.approvals:approve", "Allow a call that waits."),
    "deny": ("proxy.cli.approvals:deny", "Refuse a call that waits."),
    "audit": ("proxy.cli.audit:audit", "Check the ledger's history, or write it out."),
    "backup": ("proxy.cli.backup:backup", "Copy the ledger, also while it is in use."),
    "restore": ("proxy.cli.backup:restore", "Put a copy in the place of the ledger."),
    "gap": ("proxy.cli.backup:gap", "What a ledger that was put back may not know."),
    "prune": ("proxy.cli.prune:prune", "Take what is older than it has to be kept."),
    "doctor": ("proxy.cli.doctor:doctor", "Look at this machine and this configuration."),
    "ca": ("proxy.cli.ca:ca", "The local certificate authority."),
}

ABOUT = """\
  Makes every external write of an agent happen once, through crashes, retries
  and resumes.

Options:
  --version      Show the version and exit.
  --config PATH  Configuration file, for any command.
  -h, --help     Show this message and exit.
"""


def entry() -> None:
    """Where the program begins. What is asked first and most often needs no library: importing
    click takes three times as long as starting Python."""
    if sys.argv[1:] in (["-h"], ["--help"]):
        sys.stdout.write(help_text("onceproxy"))
    else:
        from proxy.cli.group import main

        main()


def help_text(program: str) -> str:
    """As click would write it; a test holds the two."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {line}\n" for name, (_, line) in COMMANDS.items()]
    usage = f"Usage: {program} [OPTIONS] COMMAND [ARGS]...\n\n"
    return f"{usage}{ABOUT}\nCommands:\n{''.join(lines)}"


def __getattr__(name: str) -> Any:
    if name != "main":
        raise AttributeError(name)
    from proxy.cli.group import main

    return main
