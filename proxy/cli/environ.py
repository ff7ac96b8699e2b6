"""The environment of a command whose calls shall go through the proxy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from proxy.cli.client import reachable
from proxy.config import Address
from proxy.net.bundle import CA_VARIABLES

PROXY_VARIABLES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy")
NO_PROXY_VARIABLES = ("NO_PROXY", "no_proxy")
# git offers the credential only when it is asked for, unless it is told that it will be needed.
GIT = {"GIT_HTTP_PROXY_AUTHMETHOD": "basic"}
UNNAMED = "-"  # a step that is not named by the credential
DERIVED = "~"  # a step derived from the canonical body


def child_environment(
    parent: Mapping[str, str],
    *,
    listen: Address,
    control: Address,
    run: str,
    step: str | None,
    bundle: Path | None,
    helpers: Path,
    token: str | None = None,
) -> dict[str, str]:
    """``step``: None not named here, ``auto`` derived. ``bundle``: None where TLS is not opened.
    ``token``: the run's, behind the step."""
    child = dict(parent)
    child.update(dict.fromkeys(PROXY_VARIABLES, proxy_url(listen, run, step, token)))
    child.update(GIT)
    child.update(dict.fromkeys(NO_PROXY_VARIABLES, _no_proxy(parent, control)))
    if bundle is not None:
        child.update(dict.fromkeys(CA_VARIABLES, str(bundle)))
    child["PYTHONPATH"] = os.pathsep.join(filter(None, [str(helpers), parent.get("PYTHONPATH")]))
    require = f'--require "{_escaped(helpers / "preload.cjs")}"'
    child["NODE_OPTIONS"] = " ".join(filter(None, [parent.get("NODE_OPTIONS"), require]))
    return child


def proxy_url(listen: Address, run: str, step: str | None, token: str | None = None) -> str:
    """Clients decode the credential once before they send it, and the proxy once more after its
    split at the first colon; so a colon is written ``%253A``. The one before a run token is no part
    of a name: it is written ``%3A``, since there are clients that take a bare one for the port."""
    password = _twice({None: UNNAMED, "auto": DERIVED}.get(step, step) or UNNAMED)
    if token is not None:
        password += f"%3A{token}"
    return f"http://{_twice(run)}:{password}@{reachable(listen)}"


def _twice(text: str) -> str:
    return quote(quote(text, safe=""), safe="")


def _no_proxy(parent: Mapping[str, str], control: Address) -> str:
    """The user's own entries and the control port. Never a bare loopback name: calls to local APIs
    are protected like any other."""
    entries: list[str] = []
    for name in NO_PROXY_VARIABLES:
        entries += [entry.strip() for entry in parent.get(name, "").split(",") if entry.strip()]
    entries.append(str(reachable(control)))
    return ",".join(dict.fromkeys(entries))


def _escaped(path: Path) -> str:
    return str(path).replace("\\", "\\\\").replace('"', '\\"')
