"""What each client needs, measured: `python -m tests.clients.table` writes it into docs/clients.md.

Every cell is a write that was made and either came through the proxy or did not: with the proxy
variables in one case only, with one CA variable only, with a gateway address and no variables, and
in the environment of ``onceproxy run``.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from proxy.net.bundle import CA_VARIABLES
from tests.clients.fleet import FLEET, NODE_CLIENTS, Client, command
from tests.clients.world import World, world
from tests.fakes.served import ROOT, environment

DOCUMENT = ROOT / "docs" / "clients.md"
START, END = "<!-- measured: tests/clients/table.py -->", "<!-- end -->"
TITLES = ("client", "`http://` by", "`https://` by", "trusts the CA by", "gateway")
TITLES += ("`onceproxy run`", "its error shows of a refusal", "to do")
HEAD = f"| {' | '.join(TITLES)} |\n{'|---' * len(TITLES)}|\n"
SHOWS = {
    "next": "what to do next",
    "phrase": "its first clause",
    "code": "the code",
    "status": "the status",
    "nothing": "nothing",
}
AT_ONCE = 2  # one for each core of a small machine
_runs = itertools.count()


def rows(clients: Sequence[Client]) -> Iterator[str]:
    """A line of the table for each."""
    with (
        tempfile.TemporaryDirectory() as folder,
        world(Path(folder), all_ruled=True) as w,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        yield from pool.map(lambda client: row(w, client), clients)


def row(w: World, client: Client) -> str:
    plain = {case: _came(w, client, "http", _only(w, case)) for case in ("upper", "lower")}
    secure = {case: _came(w, client, "https", _only(w, case)) for case in ("upper", "lower")}
    cells = [
        _titled(client),
        _cases(plain),
        _cases(secure),
        _trusts(w, client) if any(secure.values()) else "",
        _gateway(w, client),
        _under_run(w, client),
        SHOWS[client.shows],
        client.todo or "nothing",
    ]
    return "| " + " | ".join(cells) + " |\n"


def _titled(client: Client) -> str:
    number = ""
    if client.language == "node" and client.needs:
        file = NODE_CLIENTS / "node_modules" / client.needs / "package.json"
        number = json.loads(file.read_text())["version"]
    elif client.language == "python":
        try:
            number = version(client.name)
        except PackageNotFoundError:
            pass
    name = client.name.removesuffix(" 0.27")
    where = {"python": "Python", "node": "Node", "tool": ""}[client.language]
    return " ".join(filter(None, [where, f"**{name}**", number]))


def _cases(came: Mapping[str, bool]) -> str:
    names = [f"{case} case" for case, through in came.items() if through]
    return "variables" if len(names) == len(came) else " ".join(names) or "no"


def _trusts(w: World, client: Client) -> str:
    if _came(w, client, "https", _without_ca(w)):
        return "needs none"
    bundle = w.environ("-", None)[CA_VARIABLES[0]]
    found = [
        name for name in CA_VARIABLES if _came(w, client, "https", {**_without_ca(w), name: bundle})
    ]
    return " ".join(f"`{name}`" for name in found) or "none"


def _gateway(w: World, client: Client) -> str:
    if client.gateway == "no":
        return "no"
    return "yes" if _came(w, client, "gateway", {}) else "no"


def _under_run(w: World, client: Client) -> str:
    came = {scheme: _came(w, client, scheme, w.environ("-", None)) for scheme in ("http", "https")}
    return {2: "yes", 0: "no"}.get(
        sum(came.values()), "only " + " ".join(s for s in came if came[s])
    )


def _only(w: World, case: str) -> dict[str, str]:
    """The proxy variables in that case alone; no helpers."""
    environ = _without_ca(w)
    bundle = w.environ("-", None)[CA_VARIABLES[0]]
    environ |= dict.fromkeys(CA_VARIABLES, bundle)
    # the other case goes
    other = str.lower if case == "upper" else str.upper
    left = {other(name) for name in ("HTTP_PROXY", "HTTPS_PROXY")}
    return {name: text for name, text in environ.items() if name not in left}


def _without_ca(w: World) -> dict[str, str]:
    left = (*CA_VARIABLES, "NODE_OPTIONS", "PYTHONPATH")
    return {name: text for name, text in w.environ("-", None).items() if name not in left}


def _came(w: World, client: Client, way: str, environ: Mapping[str, str]) -> bool:
    """Whether a write came through the proxy and its client was content with the answer."""
    run = f"measured-{next(_runs)}"
    if way == "gateway":
        base = w.way("gateway", run, "pay", client.site).base
    else:
        base = getattr(w.upstream[client.site], way)
    inherited = {
        name: text
        for name, text in environment().items()
        if not re.search("CERT|CA_B|CAINFO", name)
    }
    named = {name: text.replace("//-:-@", f"//{run}:pay@") for name, text in environ.items()}
    done = subprocess.run(
        command({client: base}, run, times=1),
        env={**inherited, **named},
        capture_output=True,
        timeout=60,
        check=False,
    )
    pleased = done.returncode == 0 and "error" not in json.loads(done.stdout)
    return pleased and bool(w.operations(run))


def written(document: str, table: str) -> str:
    """The document with this table in it."""
    found = re.compile(f"(?<={re.escape(START)}\n).*?(?={re.escape(END)})", re.DOTALL)
    new, count = found.subn(lambda _: table, document)
    assert count == 1, f"{DOCUMENT} has no place for the table"
    return new


def main() -> None:
    for client in FLEET:
        assert client.missing is None, client.missing
    table = HEAD + "".join(rows(FLEET))
    DOCUMENT.write_text(written(DOCUMENT.read_text(), table))


if __name__ == "__main__":
    main()
