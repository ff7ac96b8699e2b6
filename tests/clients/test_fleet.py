"""Every SDK by every way in that it can take: each write is made twice and has one effect."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import pytest

from tests.clients.fleet import FLEET, NODE_CLIENTS, Client, arrived, command, here, needing
from tests.clients.table import DOCUMENT, rows
from tests.clients.world import World, lines

WAYS = ("absolute", "tunnel", "gateway")


def once(w: World, run: str, clients: Mapping[Client, str], said: list[dict[str, str]]) -> None:
    """Two writes of each: the same id twice, one arrival, one effect, one attempt."""
    assert len(said) == 2 * len(clients)
    for number, client in enumerate(clients):
        first, second = said[2 * number : 2 * number + 2]
        assert "error" not in first, first
        assert second == first
        assert arrived(w, client, run, number) == (1, 1), client
    operations = w.operations(run)
    assert [(one["state"], one["attempts"]) for one in operations] == [("succeeded", 1)] * len(
        clients
    )


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("client", needing(FLEET))
def test_a_write_made_twice_has_one_effect(w: World, client: Client, way: str) -> None:
    if way == "gateway" and client.gateway != "path":
        pytest.skip("takes no base URL with a path")
    run = f"{client.id}-{way}"
    entered = w.way(way, run, "pay", client.site)
    clients = {client: entered.base}
    once(w, run, clients, lines(entered.environ, *command(clients, run)))


@pytest.mark.parametrize("client", needing(tuple(one for one in FLEET if one.name == "boto3")))
def test_a_signed_request_arrives_as_it_was_signed(w: World, client: Client) -> None:
    """SigV4 over method, address, headers and body; made anew from what arrived."""
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    run = "signed"
    entered = w.way("tunnel", run, "pay", client.site)
    clients = {client: entered.base}
    once(w, run, clients, lines(entered.environ, *command(clients, run)))
    arrival = w.upstream.arrivals[-1]
    fields = {name.lower(): value for name, value in arrival.headers}
    parts = dict(
        part.split("=", 1) for part in fields["authorization"].partition(" ")[2].split(", ")
    )
    signed = {name: fields[name] for name in parts["SignedHeaders"].split(";")}
    assert {"host", "x-amz-date"} <= set(signed)
    auth = SigV4Auth(Credentials("AKIDEXAMPLE", "secret"), "sns", "eu-west-1")
    request = AWSRequest(
        arrival.method, f"https://{fields['host']}{arrival.target}", signed, arrival.body
    )
    request.context["timestamp"] = fields["x-amz-date"]
    text = auth.string_to_sign(request, auth.canonical_request(request))
    assert auth.signature(text, request) == parts["Signature"]


OWN = tuple(client for client in FLEET if client.language == "node" and client.listens)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["absolute", "tunnel"])
@pytest.mark.parametrize("client", needing(OWN))
def test_node_clients_with_proxy_support_need_no_preload(
    w: World, client: Client, way: str
) -> None:
    """axios before 1.8 sends https:// in clear text to the proxy, undici http:// in a tunnel."""
    run = f"{client.id}-own-{way}"
    entered = w.way(way, run, "pay", client.site)
    environ = {name: text for name, text in entered.environ.items() if name != "NODE_OPTIONS"}
    clients = {client: entered.base}
    once(w, run, clients, lines(environ, *command(clients, run)))


@pytest.mark.parametrize(
    ("language", "scheme"),
    [
        ("python", "https"),
        ("node", "https"),
        ("tool", "https"),
        pytest.param("python", "http", marks=pytest.mark.slow),
        pytest.param("node", "http", marks=pytest.mark.slow),
    ],
)
def test_under_onceproxy_run_they_need_no_change(w: World, language: str, scheme: str) -> None:
    clients = {client: getattr(w.upstream[client.site], scheme) for client in here(language)}
    if not clients:
        pytest.skip("none is installed: make clients")
    run = f"fleet-{language}-{scheme}"
    once(w, run, clients, w.run(run, "auto", *command(clients, run)))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_table_in_the_documents_is_what_these_clients_do() -> None:
    """``python -m tests.clients.table`` writes it anew. Versions may be others here."""
    present = [client for client in FLEET if client.missing is None]
    document = [unversioned(line) for line in DOCUMENT.read_text().splitlines()]
    for line in rows(present):
        assert unversioned(line.rstrip()) in document


def unversioned(line: str) -> str:
    return re.sub(r"(?<=\*\*) [0-9.a-z]+(?= \|)", "", line, count=1)


def test_the_lock_of_nodes_clients_names_digests_and_no_index() -> None:
    packages = json.loads((NODE_CLIENTS / "package-lock.json").read_text())["packages"]
    for name, package in packages.items():
        assert "resolved" not in package, name
        assert "integrity" in package or not name, name
