"""``ca``: the certificate that clients have to trust, and the variables that make them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from proxy.cli.common import CONFIG, json_option, print_json, stop, with_config
from proxy.cli.launch import running
from proxy.configload import Loaded
from proxy.net.bundle import CA_VARIABLES, write_bundle


@click.group()
def ca() -> None:
    """The local certificate authority."""


@ca.command()
@json_option
@with_config
def path(loaded: Loaded, as_json: bool) -> None:
    """Print the file with the CA's certificate; it is made if there is none yet."""
    certificate = authority_file(loaded)
    if as_json:
        print_json({"ca_cert": str(certificate)})
    else:
        click.echo(certificate)


@ca.command()
@json_option
@with_config
def env(loaded: Loaded, as_json: bool) -> None:
    """Print the variables that make clients trust the CA, for `eval` in a shell."""
    bundle = write_bundle(loaded.config.state_dir, authority_file(loaded))
    variables = dict.fromkeys(CA_VARIABLES, str(bundle))
    if as_json:
        print_json(variables)
        return
    for name, value in variables.items():
        click.echo(f"export {name}={shlex.quote(value)}")


@ca.command()
@click.option(
    "--revoke", is_flag=True, help="Have clients trust no earlier CA from their next start on."
)
@json_option
@with_config
def rotate(loaded: Loaded, as_json: bool, revoke: bool) -> None:
    """Make a new CA.

    Clients that start from now on trust it and, until its end, the earlier one (not with --revoke).
    Clients that run already know the earlier one only, and a running proxy goes on using it: start
    the clients again, then the proxy (or send it SIGHUP).
    """
    from proxy.net.tls import CERT_FILE, CaError
    from proxy.net.tls import rotate as make_new

    config = loaded.config
    if config.tls.ca_cert_file is not None:
        stop(CONFIG, "the CA is your own (tls.ca_cert_file): replace its files and start again")
    try:
        make_new(config.ca_dir, names=_names(loaded), revoke=revoke)
        bundle = write_bundle(config.state_dir, config.ca_dir / CERT_FILE)
    except CaError as error:
        stop(CONFIG, str(error))
    if as_json:
        print_json({"ca_cert": str(config.ca_dir / CERT_FILE), "bundle": str(bundle)})
        return
    click.echo(config.ca_dir / CERT_FILE)
    found = running(config)
    if found is not None:
        click.echo(
            "onceproxy: the proxy that runs goes on using the earlier CA. When its clients have "
            f"been started again: kill -HUP {found.pid}",
            err=True,
        )


def _names(loaded: Loaded) -> Sequence[str] | None:
    """The only names that the CA may speak for."""
    if loaded.config.tls.intercept != "rules":
        return None
    from proxy.rulefile import RuleErrors, load

    try:
        return load(loaded.config.rule_dirs, loaded.config.models, loaded.config.mcp).names
    except RuleErrors as error:
        stop(CONFIG, *error.problems)


def authority_file(loaded: Loaded) -> Path:
    """The CA's certificate, from the configuration or made in the state directory."""
    config = loaded.config
    if config.tls.ca_cert_file is not None:
        return config.tls.ca_cert_file
    from proxy.net.tls import CERT_FILE, CaError, CertificateAuthority

    certificate = config.ca_dir / CERT_FILE
    if not certificate.exists():
        try:
            CertificateAuthority.open(config.ca_dir, names=_names(loaded))
        except (CaError, OSError) as error:
            stop(CONFIG, str(error))
    return certificate
