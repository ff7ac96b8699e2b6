"""``run``: run a command with its calls going through the proxy."""

from __future__ import annotations

import hashlib
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from proxy.cli.client import ControlClient, NotRunning, Refused, Serving, run_path
from proxy.cli.common import CHECK_FAILED, PORT, stop, with_config
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
@click.option(
    "--input",
    "about",
    metavar="FILE|TEXT",
    help="What the run is about: its id is refused for anything else later on. @FILE: a file only.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@with_config
@click.pass_context
def run(
    ctx: click.Context,
    loaded: Loaded,
    run_id: str | None,
    step: str | None,
    about: str | None,
    command: Sequence[str],
) -> None:
    """Run COMMAND with its calls going through the proxy, and exit as it does.

    A proxy is started if none runs with this state directory. Without --step the agent names its
    steps itself (X-Step-Id, or onceproxy_step for Python and onceproxy.step for Node), and a write
    to a service with a rule is refused if it names none. With --run-id - it names its runs too.
    """
    run = run_id or new_run_id()
    start: dict[str, object] = {"new": True} if run_id is None else {}
    if about is not None:
        if run == UNNAMED:
            raise click.UsageError("--input is of one run: name it with --run-id")
        start["input_digest"] = input_digest(about)
    try:
        with proxy_for(loaded, _serve_arguments(ctx)) as found:
            code = _run(loaded, found, run, step, command, start)
    except CannotStart as error:
        stop(error.code, "the proxy could not be started:", *error.lines)
    except Refused as error:
        _refused(error, run)
    except NotRunning as error:
        stop(PORT, str(error))
    if run_id is None:
        # With the same configuration: another state directory would be another ledger.
        again = ["onceproxy", "run", *_serve_arguments(ctx), "--run-id", run]
        again += [*(["--step", step] if step else []), *(["--input", about] if about else [])]
        again += ["--", *command]
        click.echo(f"onceproxy: to resume this run: {shlex.join(again)}", err=True)
    sys.exit(code)


def new_run_id() -> str:
    return f"run-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def input_digest(about: str) -> str:
    """Of the file of that name if there is one, else of the text itself."""
    only_file = about.startswith("@")
    path = Path(about[1:] if only_file else about)
    try:
        content = path.read_bytes() if only_file or path.is_file() else about.encode()
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--input {about}: {error}") from error
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _refused(refused: Refused, run: str) -> NoReturn:
    told = f"the run {run} was not started: {refused}"
    if refused.problem.get("code") == "run-reused":
        stop(CHECK_FAILED, told, "take another --run-id, or the --input that it was begun with")
    if refused.problem.get("code") in ("run-revoked", "run-closed"):
        stop(CHECK_FAILED, told, f"to let it go on: onceproxy revoke {shlex.quote(run)} --undo")
    stop(PORT, told)


def _run(
    loaded: Loaded,
    found: Serving,
    run: str,
    step: str | None,
    command: Sequence[str],
    start: Mapping[str, object],
) -> int:
    """``start``: what is said when the run's next start begins."""
    token = None
    if run != UNNAMED:
        body = {**start, "token": True} if found.run_tokens else start
        token = ControlClient(loaded.config).post(run_path(run, "/resume"), body).get("token")
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
        token=token,
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
