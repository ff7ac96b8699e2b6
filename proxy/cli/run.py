"""``run``: run a command with its calls going through the proxy."""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from urllib.parse import quote

import click

from proxy.cli.client import ControlClient, NotRunning, Refused, Serving
from proxy.cli.common import PORT, stop, with_config
from proxy.cli.environ import UNNAMED, child_environment
from proxy.cli.helper import helpers_dir
from proxy.cli.launch import CannotStart, calls_seen, proxy_for
from proxy.configload import Loaded
from proxy.net.bundle import write_bundle

PASSED_ON = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGINT")
NOT_FOUND = 127  # what shells exit with
NOT_EXECUTABLE = 126


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--run-id",
    help="Name of the run; the same again resumes it. -: the command names its runs itself, as a "
    "process that serves many does.  [default: a new one]",
)
@click.option(
    "--step", help="Name of this process's one step; auto: a step for each different call."
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@with_config
@click.pass_context
def run(
    ctx: click.Context, loaded: Loaded, run_id: str | None, step: str | None, command: Sequence[str]
) -> None:
    """Run COMMAND with its calls going through the proxy, and exit as it does.

    A proxy is started if none runs with this state directory. Without --step the agent names its
    steps itself (X-Step-Id, or onceproxy_step for Python and onceproxy.step for Node), and a write
    to a service with a rule is refused if it names none. With --run-id - it names its runs too.
    """
    run = run_id or new_run_id()
    try:
        with proxy_for(loaded, _serve_arguments(ctx)) as found:
            code = _run(loaded, found, run, step, command, made=run_id is None)
    except CannotStart as error:
        stop(error.code, "the proxy could not be started:", *error.lines)
    except (NotRunning, Refused) as error:
        stop(PORT, str(error))
    if run_id is None:
        # With the same configuration: another state directory would be another ledger.
        again = ["onceproxy", "run", *_serve_arguments(ctx), "--run-id", run]
        again += [*(["--step", step] if step else []), "--", *command]
        click.echo(f"onceproxy: to resume this run: {shlex.join(again)}", err=True)
    sys.exit(code)


def new_run_id() -> str:
    return f"run-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def _run(
    loaded: Loaded,
    found: Serving,
    run: str,
    step: str | None,
    command: Sequence[str],
    *,
    made: bool,
) -> int:
    """``made``: the run's name was made just now."""
    if run != UNNAMED:
        new = {"new": True} if made else {}
        ControlClient(loaded.config).post(f"/v1/runs/{quote(run, safe='')}/resume", new)
    bundle = None
    if found.ca_cert is not None:
        bundle = write_bundle(loaded.config.state_dir, Path(found.ca_cert))
    environment = child_environment(
        os.environ,
        listen=found.listen,
        control=found.control,
        run=run,
        step=step,
        bundle=bundle,
        helpers=helpers_dir(),
    )
    before = calls_seen(found)
    code = run_child(command, environment)
    if code not in (NOT_FOUND, NOT_EXECUTABLE) and calls_seen(found) <= before:
        click.echo(
            "onceproxy: warning: no call came through the proxy. If the command calls APIs, its "
            "client ignores HTTP_PROXY: see docs/clients.md, or call "
            f"http://{found.listen}/via/https/HOST/PATH",
            err=True,
        )
    return code


def run_child(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run to its end, with signals passed on; its exit code, 128 and the signal's number if one
    ended it."""
    try:
        child = subprocess.Popen(list(command), env=environment)
    except FileNotFoundError:
        click.echo(f"onceproxy: {command[0]}: command not found", err=True)
        return NOT_FOUND
    except OSError as error:
        click.echo(f"onceproxy: {command[0]}: {error.strerror}", err=True)
        return NOT_EXECUTABLE
    with _signals_to(child):
        code = child.wait()
    return code if code >= 0 else 128 - code


@contextmanager
def _signals_to(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """A terminal sends Ctrl-C and its like to the child by itself; passing them on as well would
    make two of one."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if not (number in (signal.SIGINT, signal.SIGQUIT) and _from_terminal()):
            child.send_signal(number)

    numbers = [getattr(signal, name) for name in PASSED_ON]
    earlier = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _from_terminal() -> bool:
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False


def _serve_arguments(ctx: click.Context) -> list[str]:
    """What this command was told about the configuration, for the proxy that it starts."""
    arguments: list[str] = []
    config = ctx.params.get("config") or ctx.find_root().obj
    if config is not None:
        arguments += ["--config", str(config)]
    if ctx.params.get("state_dir"):
        arguments += ["--state-dir", ctx.params["state_dir"]]
    for setting in ctx.params.get("settings") or ():
        arguments += ["--set", setting]
    return arguments
