"""Identities as people and programs spell them in a proxy address, through clients that each take
the address apart in their own way: the ledger has the same names whoever sends them.
"""

from __future__ import annotations

import hashlib
import urllib.error
from urllib.parse import quote

import pytest

from tests.clients.conftest import Enter
from tests.clients.fleet import FLEET, Client, arrived, command, needing
from tests.clients.senders import CURL, SENDERS
from tests.clients.world import World, lines

NAMES = {"curl", "wget", "requests", "httpx", "aiohttp", "urllib", "httplib2", "boto3"}
NAMES |= {"axios", "axios 0.27", "undici ProxyAgent", "undici EnvHttpProxyAgent"}
CLIENTS = tuple(client for client in FLEET if client.name in NAMES)
# They send the credential as it stands in the address, so that names with other characters than
# letters, digits and -._~ arrive encoded: always the same, but not as the run is called elsewhere.
UNDECODED = {"httplib2", "axios"}
# They send no credential that has no password: not even the run is named.
WITHOUT_PASSWORD = {"requests": [""], "urllib": ["", ":"]}
SAFE = "!\"#$&'()*+,-.:;<=>?@[\\]^_`{|}~"  # printable ASCII without space, / and %


def twice(text: str) -> str:
    """As ``onceproxy run`` writes it: a client decodes once, the proxy once more."""
    return quote(quote(text, safe=""), safe="")


def part(text: str) -> str:
    """The text as part of an operation key."""
    encoded = quote(text, safe=SAFE)
    if len(encoded) <= 200:
        return encoded
    return f"{encoded[:40]}~{hashlib.sha256(text.encode()).hexdigest()}"


SPELLINGS = {
    "colon": ("case:7", "a:b"),
    "slash": ("case/7", "a/b"),
    "non-ascii": ("Fall Müller 七", "zahlen €"),
    "percent": ("100%25", "50%"),
    "at": ("ada@example.test", "#1?"),
    "long": ("r" * 5000, "pay"),
}


def spelt(w: World, client: Client, credential: str, tag: str) -> list[dict[str, str]]:
    """Two writes of a client that has the credential in its proxy address."""
    environ = w.environ("-", None)
    del environ["NODE_OPTIONS"]  # each by its own proxy support
    base = w.upstream[client.site].https
    addressed = {name: text.replace("//-:-@", f"//{credential}@") for name, text in environ.items()}
    return lines(addressed, *command({client: base}, tag))


@pytest.mark.slow
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("client", needing(CLIENTS))
def test_an_identity_is_the_same_from_every_client(w: World, client: Client, spelling: str) -> None:
    run, step = SPELLINGS[spelling]
    run += f" {client.id}"
    named = run, step
    if client.name in UNDECODED:
        named = quote(run, safe=""), quote(step, safe="")
    tag = f"spelt-{spelling}-{client.id}"
    first, second = spelt(w, client, f"{twice(run)}:{twice(step)}", tag)
    assert "error" not in first, first
    assert second == first
    assert arrived(w, client, tag) == (1, 1)
    [operation] = w.operations(part(named[0]))
    assert operation["key"].startswith(f"{part(named[0])}/{part(named[1])}/")


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["", ":", ":-"])
@pytest.mark.parametrize("client", needing(tuple(c for c in CLIENTS if c.site == "things")))
def test_a_credential_without_a_step_names_none(w: World, client: Client, ending: str) -> None:
    """``RUN@``, ``RUN:@`` and ``RUN:-@``: the write is refused, and none is sent under a step that
    nobody named."""
    tag = f"no-step-{client.id}-{len(ending)}"
    first, second = spelt(w, client, f"{tag}{ending}", tag)
    assert "error" in first
    assert "error" in second
    assert arrived(w, client, tag) == (0, 0)
    assert w.operations(tag) == []


@pytest.mark.parametrize("ending", ["", ":"])
@pytest.mark.parametrize("client", SENDERS)
def test_a_header_names_the_step_that_the_credential_leaves_open(
    w: World, enter: Enter, monkeypatch: pytest.MonkeyPatch, client: str, ending: str
) -> None:
    if client == "curl" and CURL is None:
        pytest.skip("curl is not installed")
    run = f"open-{client.replace(' ', '-')}-{len(ending)}"
    target = f"/v1/things/{run}"
    way = w.way("tunnel", "-", None)
    url = enter(way) + target
    for name, text in way.environ.items():
        if name.lower().endswith("s_proxy"):
            monkeypatch.setenv(name, text.replace("//-:-@", f"//{run}{ending}@"))
    if ending in WITHOUT_PASSWORD.get(client, ()):
        with pytest.raises((AssertionError, urllib.error.HTTPError)):
            assert SENDERS[client](url, {"X-Step-Id": "call_1"}).status < 400
        assert w.upstream.came(target) == []
        return
    first, second = (SENDERS[client](url, {"X-Step-Id": "call_1"}) for _ in "12")
    w.assert_once(first, second, key=f"{run}/call_1/things.create/v1", target=target)
