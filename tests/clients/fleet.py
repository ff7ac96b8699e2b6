"""The SDKs and tools that are put behind the proxy, and which of them are installed here.

Each is a program of its own in the environment that ``onceproxy run`` makes (agents/sdks.py and
node/sdks.mjs). ``make clients`` installs them; those that are not there skip.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clients.world import AGENTS, NODE, World

NODE_CLIENTS = Path(__file__).parent / "node"
PROGRAMS = {
    "python": (sys.executable, str(AGENTS / "sdks.py")),
    "tool": (sys.executable, str(AGENTS / "sdks.py")),
    "node": (str(NODE), str(NODE_CLIENTS / "sdks.mjs")),
}


@dataclass(frozen=True)
class Client:
    """``needs``: the module, package or command it is. ``listens``: whether it follows the proxy
    variables without the preload for Node. ``gateway``: whether it takes a
    base URL with a path, or (boto3) signs it."""

    name: str
    language: str
    needs: str
    site: str = "things"
    listens: bool = True
    gateway: str = "path"  # or "no"
    shows: str = (
        "next"  # of a refusal, in the error that it raises: next | phrase | code | status | nothing
    )
    todo: str = ""  # for the table in docs/clients.md

    @property
    def id(self) -> str:
        return f"{self.language}-{self.name}".replace(" ", "-").replace("@slack/", "slack-")

    @property
    def missing(self) -> str | None:
        """What is not installed here."""
        if self.language == "node":
            package = NODE_CLIENTS / "node_modules" / self.needs
            here = NODE is not None and (not self.needs or package.is_dir())
        elif self.language == "tool":
            return None if shutil.which(self.needs) else f"{self.needs} is not installed"
        else:
            here = importlib.util.find_spec(self.needs) is not None
        return None if here else f"{self.name} ({self.language}) is not here: make clients"


def _python(name: str, needs: str, site: str = "things", **more: Any) -> Client:
    return Client(name, "python", needs, site, **more)


def _node(name: str, needs: str, site: str = "things", **more: Any) -> Client:
    return Client(name, "node", needs, site, **{"listens": False, **more})


FLEET = (
    _python("requests", "requests", shows="phrase"),
    _python(
        "httpx",
        "httpx",
        shows="phrase",
        todo="a client with its own `transport=` ignores proxies: gateway",
    ),
    _python("aiohttp", "aiohttp", shows="phrase", todo="`ClientSession(trust_env=True)`"),
    _python("urllib", "urllib", shows="phrase", todo="`ALL_PROXY` is not read"),
    _python(
        "httplib2",
        "httplib2",
        shows="phrase",
        todo="install PySocks; it repeats a POST whose answer was lost; ids: as axios",
    ),
    _python("google-api-python-client", "googleapiclient", "google-calendar", todo="as httplib2"),
    _python("boto3", "boto3", "aws", gateway="no", todo="no gateway: the signature covers it"),
    _python("slack_sdk", "slack_sdk", "slack"),
    _python("stripe", "stripe", "stripe", todo="`stripe.ca_bundle_path`, or the gateway (below)"),
    _python("openai", "openai", "openai"),
    _python("resend", "resend", "resend", shows="nothing"),
    _python("twilio", "twilio", "twilio"),
    _python("PyGithub", "github", "github"),
    _node("fetch", "", shows="phrase"),
    _node(
        "axios",
        "axios",
        shows="status",
        listens=True,
        todo="run and step of letters, digits and `-._~`",
    ),
    _node(
        "axios 0.27",
        "axios-0.27",
        shows="status",
        listens=True,
        todo="sends `https://` in clear to the proxy",
    ),
    _node("got", "got", shows="phrase"),
    _node(
        "undici ProxyAgent",
        "undici",
        shows="phrase",
        listens=True,
        todo="`new ProxyAgent(process.env.HTTPS_PROXY)`",
    ),
    _node("undici EnvHttpProxyAgent", "undici", shows="phrase", listens=True),
    _node("@slack/web-api", "@slack/web-api", "slack", shows="code"),
    _node("stripe", "stripe", "stripe", gateway="no", todo="no gateway: host and port only"),
    _node("openai", "openai", "openai"),
    _node("resend", "resend", "resend"),
    _node("twilio", "twilio", "twilio"),
    _node("octokit", "octokit", "github"),
    Client("curl", "tool", "curl", todo="step per call: `-H 'X-Step-Id: ...'`"),
    Client("wget", "tool", "wget", shows="phrase", todo='`--ca-certificate="$SSL_CERT_FILE"`'),
)


def needing(clients: tuple[Client, ...] = FLEET) -> list[Any]:
    """As parameters; with a skip where it is not installed."""
    return [
        pytest.param(
            client,
            id=client.id,
            marks=pytest.mark.skipif(bool(client.missing), reason=client.missing or ""),
        )
        for client in clients
    ]


def here(language: str) -> list[Client]:
    return [one for one in FLEET if one.language == language and one.missing is None]


def command(clients: Mapping[Client, str], tag: str, times: int = 2) -> list[str]:
    """Has each client, all of one language, write to its base that many times."""
    [language] = {client.language for client in clients}
    named = [f"{client.name}={base}" for client, base in clients.items()]
    return [*PROGRAMS[language], tag, str(times), *named]


def arrived(w: World, client: Client, tag: str, number: int = 0) -> tuple[int, int]:
    """Arrivals and effects at the API of that client's writes."""
    site, text = client.site, f"{tag}.{number}.".encode()
    came = [one for one in w.upstream.arrivals if one.site == site and text in one.body]
    done = [one for one in w.upstream.effects if one.site == site and text in one.body]
    return len(came), len(done)
