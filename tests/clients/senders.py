"""The clients that send any request: each posts one JSON body as its users would write it.

They take nothing but the URL: the proxy, the identity and the CA are in the environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import aiohttp
import httpx
import requests
import urllib3

from tests.clients.world import Seen, output, seen

Post = Callable[..., Seen]  # url, headers=...
BODY: dict[str, Any] = {"who": "ada", "amount": 4200}
SECONDS = 30
CURL = shutil.which("curl")


def by_requests(url: str, headers: dict[str, str] | None = None) -> Seen:
    answer = requests.post(url, json=BODY, headers=headers, timeout=SECONDS)
    return seen(answer.status_code, answer.headers, answer.content)


def by_httpx(url: str, headers: dict[str, str] | None = None) -> Seen:
    answer = httpx.post(url, json=BODY, headers=headers, timeout=SECONDS)
    return seen(answer.status_code, answer.headers, answer.content)


def by_httpx_async(url: str, headers: dict[str, str] | None = None) -> Seen:
    async def post() -> Seen:
        async with httpx.AsyncClient(timeout=SECONDS) as client:
            answer = await client.post(url, json=BODY, headers=headers)
        return seen(answer.status_code, answer.headers, answer.content)

    return asyncio.run(post())


def by_aiohttp(url: str, headers: dict[str, str] | None = None) -> Seen:
    # The default context is made when aiohttp is imported, before these tests set SSL_CERT_FILE.
    trusting = ssl.create_default_context()

    async def post() -> Seen:
        async with (
            aiohttp.ClientSession(
                trust_env=True, connector=aiohttp.TCPConnector(ssl=trusting)
            ) as session,
            session.post(url, json=BODY, headers=headers) as answer,
        ):
            return seen(answer.status, answer.headers, await answer.read())

    return asyncio.run(post())


def by_urllib(url: str, headers: dict[str, str] | None = None) -> Seen:
    fields = {"Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(url, json.dumps(BODY).encode(), fields)
    opener = urllib.request.build_opener()  # reads the proxy variables now, unlike urlopen
    with opener.open(request, timeout=SECONDS) as answer:
        return seen(answer.status, answer.headers, answer.read())


def by_urllib3(url: str, headers: dict[str, str] | None = None) -> Seen:
    """It reads no variables: the way that docs/clients.md gives."""
    kind: Any = urllib3.PoolManager()
    if address := os.environ.get("HTTPS_PROXY"):
        proxy = urllib3.util.parse_url(address)
        credential = urllib3.make_headers(proxy_basic_auth=unquote(proxy.auth or ""))
        kind = urllib3.ProxyManager(
            proxy.url, proxy_headers=credential, ca_certs=os.environ["SSL_CERT_FILE"]
        )
    with kind as pool:
        answer = pool.request("POST", url, json=BODY, headers=headers, timeout=SECONDS)
        return seen(answer.status, answer.headers, answer.data)


def by_curl(url: str, headers: dict[str, str] | None = None, *options: str) -> Seen:
    assert CURL is not None
    fields = {"Content-Type": "application/json", **(headers or {})}
    named = [part for name, value in fields.items() for part in ("-H", f"{name}: {value}")]
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "body"
        shown = ("-sS", "--suppress-connect-headers", "-D", "-", "-o", str(into))
        command = [CURL, *shown, *named, "-d", json.dumps(BODY), *options, url]
        head = output(command, dict(os.environ))
        status, *lines = head.decode().strip().splitlines()
        pairs = [line.split(": ", 1) for line in lines]
        return seen(int(status.split()[1]), pairs, into.read_bytes())


SENDERS: dict[str, Post] = {
    "curl": by_curl,
    "requests": by_requests,
    "httpx": by_httpx,
    "httpx async": by_httpx_async,
    "aiohttp": by_aiohttp,
    "urllib": by_urllib,
    "urllib3": by_urllib3,
}
