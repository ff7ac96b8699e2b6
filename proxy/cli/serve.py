"""``serve``: run the proxy."""

from __future__ import annotations

import asyncio
import errno
import functools
import gc
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import click

from proxy.cli.common import CONFIG, LEDGER, PORT, json_option, print_json, stop, with_config
from proxy.configload import ConfigErrors, Loaded

# A call makes a few hundred objects and drops nearly all of them by itself; the usual 700 has the
# collector look for cycles several times a call, about a twentieth of its cost.
COLLECT = (20_000, 20, 50)

F = TypeVar("F", bound=Callable[..., Any])


def _flags(command: F) -> F:
    """Turns this command's own options into flags of the configuration."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        given = {
            "listen": kwargs.pop("listen"),
            "control.listen": kwargs.pop("control"),
            "mode": kwargs.pop("mode"),
            "rules": list(kwargs.pop("rules")) or None,
            "log.level": kwargs.pop("log_level"),
            "log.format": kwargs.pop("log_format"),
        }
        flags = {name: value for name, value in given.items() if value is not None}
        return command(*args, flags=flags, **kwargs)

    return wrapped  # type: ignore[return-value]


@click.command()
@click.option("--listen", metavar="HOST:PORT", help="Where agents send their calls.")
@click.option("--control", metavar="HOST:PORT", help="Where the control API listens.")
@click.option("--mode", type=click.Choice(["enforce", "observe", "pass"]), help="For all rules.")
@click.option("--rules", metavar="DIR", multiple=True, help="More rule files; may be repeated.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]))
@click.option("--log-format", type=click.Choice(["auto", "json", "text"]))
@click.option(
    "--restored",
    is_flag=True,
    help="Once, after the ledger file was put back by other means than `restore`.",
)
@json_option
@_flags
@with_config
def serve(loaded: Loaded, as_json: bool, restored: bool) -> None:
    """Run the proxy until it is told to stop.

    It prints where it listens once it takes calls. SIGTERM and Ctrl-C let running calls end,
    SIGHUP reads the rule files again.
    """
    from proxy import app, log
    from proxy.control.tokens import TokensUnusable
    from proxy.ledger.base import LedgerError
    from proxy.net.tls import CaError
    from proxy.rulefile import RuleErrors

    def ready(started: app.Started) -> None:
        gc.freeze()  # what is loaded by now stays for ever: spares every collection a look at it
        gc.set_threshold(*COLLECT)
        if as_json:
            print_json(started.as_json())
            return
        click.echo(f"onceproxy listens on {started.listen}, control on {started.control}")
        click.echo(f"state directory: {started.state_dir}")
        click.echo(f"CA certificate: {started.ca_cert or 'none, TLS is not opened'}")

    log.configure(loaded.config.log.level, loaded.config.log.format, final=True)
    try:
        _run(app.serve(loaded, ready, restored=restored))
    except (ConfigErrors, RuleErrors) as error:
        stop(CONFIG, *error.problems)
    except (TokensUnusable, CaError) as error:
        stop(CONFIG, str(error))
    except LedgerError as error:
        stop(LEDGER, str(error))
    except OSError as error:
        stop(PORT, *_why(error, loaded))


def _run(main: Coroutine[Any, Any, None]) -> None:
    """On uvloop where the ``speed`` extra is installed."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


def _why(error: OSError, loaded: Loaded) -> Sequence[str]:
    if error.errno == errno.EADDRINUSE:
        return (
            f"{error.strerror}: another program listens there; choose another address with "
            "--listen or --control",
        )
    if error.filename is not None:
        return (f"{error.filename}: {error.strerror}", f"state_dir is {loaded.config.state_dir}")
    return (str(error),)
