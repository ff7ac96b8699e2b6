"""Writes docs/services.md from the rule files. ``--check`` only says whether the file is as it
would be written.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # this tree's rules are read by this tree's code

from proxy.core.coverage import counts, is_generated, settles, settles_by, totals  # noqa: E402
from proxy.core.rules import Endpoint, Lookup, Service  # noqa: E402
from proxy.rulefile import load  # noqa: E402

DOCUMENT = ROOT / "docs" / "services.md"
HEAD = """\
# Services

What the shipped rule files know, written from them by `make services`.

- All files: {all}.
- Without those that are generated from AWS's and Google's own models: {written}.

How an unknown outcome is settled:

| | |
|---|---|
| `key` | the same call is sent again under the key that the service honours, as long as it does |
| `query` | the service is asked whether the effect exists; a hit settles, a miss where it says so |
| `held key` | the service takes a key and states no window: it serves only while the call is held |
| `re-send` | the same call again does no harm |
| `person` | nothing can settle it: it is never sent again by itself |
| `-` | it has no effect |

There is nothing to switch on: a call to a listed host is under its rule once it goes through the
proxy and names run and step. Services are asked with the credentials of the call, which must be
allowed to read what it wrote (in Slack the channel's history, in Gmail the mailbox); where they
are not, a person decides. What the words of the column *confidence* mean stands in
[rules/README.md](../rules/README.md). A file that is `inferred`, and an endpoint that says so,
only observes. Writing such a file: [rules.md](rules.md). What is in force at a proxy:
`onceproxy rules list`, or `onceproxy rules list stripe slack`.

| service | endpoints | writes | settle by themselves | of | confidence | source |
|---|---|---|---|---|---|---|
"""


def document() -> str:
    services = load([ROOT / "rules" / "generated", ROOT / "rules"]).services
    written = [service for service in services if not is_generated(service)]
    lines = [HEAD.format(all=totals(services), written=totals(written))]
    lines += [_summary(service) for service in services]
    for service in written:
        lines += _section(service)
    return "".join(lines)


def _summary(service: Service) -> str:
    counted = [endpoint for endpoint in service.endpoints if counts(endpoint)]
    file = f"../rules/generated/{Path(service.path).name}"
    cells = (
        f"[{service.name}]({file if is_generated(service) else '#' + service.name})",
        str(len(service.endpoints)),
        str(sum(endpoint.effect == "write" for endpoint in service.endpoints)),
        str(sum(map(settles, counted))) if counted else "-",
        str(len(counted)) if counted else "-",
        service.confidence,
        _link(service.source),
    )
    return _row(cells)


def _section(service: Service) -> Iterator[str]:
    hosts = ", ".join(f"`{host.text}`" for host in service.hosts)
    yield f"\n## {service.name}\n\n{hosts}, checked {service.checked}.\n\n"
    yield "| endpoint | call | unknown is settled by | |\n|---|---|---|---|\n"
    for endpoint in service.endpoints:
        yield _row(
            (
                f"`{endpoint.name}`",
                f"`{_call(endpoint)}`",
                settles_by(endpoint),
                "; ".join(_how(endpoint)),
            )
        )


def _call(endpoint: Endpoint) -> str:
    match = endpoint.match
    return match.text if match is not None else ""


def _how(endpoint: Endpoint) -> Iterator[str]:
    if endpoint.effect == "read":
        yield "model call" if endpoint.meter is not None else "reads"
        return
    if endpoint.mode != "enforce":
        yield f"mode {endpoint.mode}"
    if endpoint.key is not None:
        yield f"key in {endpoint.key.place} `{endpoint.key.name}` {_window(endpoint.key.valid_for)}"
    if endpoint.marker is not None:
        yield f"marked in {endpoint.marker.place} `{endpoint.marker.name}`"
    yield from dict.fromkeys(map(_lookup, endpoint.reconcile))


def _window(seconds: float | None) -> str:
    if seconds is None:
        return "for an unstated time"
    if math.isinf(seconds):
        return "forever"
    return f"for {seconds / 86_400:g} d" if seconds >= 172_800 else f"for {seconds / 3600:g} h"


def _lookup(lookup: Lookup) -> str:
    by = "by its mark" if lookup.by == "marker" else "by content"
    if lookup.settle is None or lookup.absent != "resend" or lookup.by != "marker":
        return f"looked for {by}; a miss is for a person"
    return f"looked for {by}; a miss is believed after {lookup.running + lookup.settle:g} s"


def _link(source: str) -> str:
    return f"[{source.removeprefix('https://').partition('/')[0]}]({source})"


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def main() -> int:
    text = document()
    if "--check" in sys.argv[1:]:
        current = DOCUMENT.exists() and DOCUMENT.read_text() == text
        print("as it should be" if current else f"{DOCUMENT} is old: make services")
        return not current
    DOCUMENT.write_text(text)
    print(DOCUMENT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
