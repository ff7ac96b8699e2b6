"""An agent that knows nothing of any proxy: one write with each client, to URL/CLIENT."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from collections.abc import Mapping

import aiohttp
import httpx
import requests
import stripe

SECONDS = 30


def show(client: str, headers: Mapping[str, str], body: bytes) -> None:
    names = ("Onceproxy-Operation", "Onceproxy-Outcome", "Idempotent-Replayed")
    shown = {name: headers.get(name) for name in names}
    print(json.dumps({"client": client, "body": body.decode(), **shown}), flush=True)


async def with_aiohttp(url: str) -> None:
    async with (
        aiohttp.ClientSession(trust_env=True) as session,
        session.post(url, data=b"amount=5") as answer,
    ):
        show("aiohttp", answer.headers, await answer.read())


def main(url: str, stripe_base: str) -> None:
    by_requests = requests.post(f"{url}/requests", data={"amount": 5}, timeout=SECONDS)
    show("requests", by_requests.headers, by_requests.content)
    by_httpx = httpx.post(f"{url}/httpx", data={"amount": 5}, timeout=SECONDS)
    show("httpx", by_httpx.headers, by_httpx.content)
    with urllib.request.urlopen(f"{url}/urllib", b"amount=5", timeout=SECONDS) as answer:
        show("urllib", answer.headers, answer.read())
    asyncio.run(with_aiohttp(f"{url}/aiohttp"))
    with_stripe(stripe_base)


def with_stripe(base: str) -> None:
    """Its roots are its own; this is the one line that docs/clients.md asks for."""
    import os

    stripe.ca_bundle_path = os.environ["SSL_CERT_FILE"]
    stripe.api_key, stripe.api_base = "sk_test_c4n4ry5ecret", base
    made = stripe.Refund.create(charge="ch_unchanged", amount=500).last_response
    assert made is not None
    show("stripe", made.headers, made.body.encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
