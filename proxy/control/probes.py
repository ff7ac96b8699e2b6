"""``/metrics``, ``/healthz``, ``/readyz``: what monitoring asks, without a token.

Alive is not ready: a proxy that drains, or has not opened its ledger yet, answers /healthz and asks
not to be given calls by /readyz.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from proxy.control.http import Route, answer
from proxy.control.tokens import Holder
from proxy.metrics import CONTENT_TYPE, Metrics


def routes(metrics: Metrics, not_ready: Callable[[], str | None]) -> list[Route]:
    """``not_ready`` gives the reason for not being ready, None when calls are welcome."""

    async def scrape(_request: web.Request, _: Holder) -> web.Response:
        return web.Response(body=metrics.expose(), headers={"Content-Type": CONTENT_TYPE})

    async def health(_request: web.Request, _: Holder) -> web.Response:
        return answer({"status": "ok"})

    async def ready(_request: web.Request, _: Holder) -> web.Response:
        reason = not_ready()
        if reason is not None:
            return answer({"status": "not ready", "reason": reason}, 503)
        return answer({"status": "ready"})

    return [
        Route("GET", "/metrics", None, scrape),
        Route("GET", "/healthz", None, health),
        Route("GET", "/readyz", None, ready),
    ]
