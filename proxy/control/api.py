"""The applications of the control port and of the probe port, and where they listen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from importlib.resources import files

from aiohttp import web

from proxy.config import Address
from proxy.control import approvals, checkpoints, events, ledger, operations, probes, rules, runs
from proxy.control.http import Route, RunTokens, guarded, host_middleware, problems_middleware
from proxy.control.tokens import Holder, Tokens
from proxy.metrics import Metrics
from proxy.net.listener import Listener, Room, bind
from proxy.service.services import Services

SPARE_BYTES = 64_000  # of a resolving body, beside the answer it carries
CONNECTIONS = 64  # of people, dashboards and probes; callers have their own
NO_ROOM = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\n"
    b"Connection: close\r\n\r\n"
)
CLOSE_SECONDS = 2.0  # a request to this port is short; streams are told to end


class Control:
    """Serves the control API and, where one is set, the probe port. ``pages`` adds the console's
    to the same port."""

    def __init__(
        self,
        *,
        services: Services,
        metrics: Metrics,
        tokens: Tokens,
        not_ready: Callable[[], str | None],
        hosts: Sequence[str] = (),
        body_max: int = 10_000_000,
        pages: Callable[[web.Application], None] | None = None,
    ) -> None:
        self._closing = asyncio.Event()
        monitoring = probes.routes(metrics, not_ready)
        self.routes: list[Route] = [
            *monitoring,
            Route("GET", "/openapi.json", None, _openapi),
            *operations.routes(services.operations),
            *events.routes(services.operations, self._closing),
            *rules.routes(services.operations),
            *runs.routes(services.resumes, services.runs),
            *checkpoints.routes(services.checkpoints),
            *approvals.routes(services.approvals),
            *ledger.routes(services.operations),
        ]
        self.application = web.Application(
            middlewares=[problems_middleware, host_middleware(hosts)],
            client_max_size=max(body_max, services.checkpoints.size_max) + SPARE_BYTES,
        )
        _add(self.application, self.routes, tokens, services.runs)
        if pages is not None:
            pages(self.application)
        self._probe = web.Application(middlewares=[problems_middleware])
        _add(self._probe, monitoring, tokens, services.runs)
        self._runners: list[web.AppRunner] = []
        self.ports: list[int] = []  # that it listens on
        self.probe: Address | None = None  # where, once it does
        self._listeners: list[Listener] = []
        self._on_turned_away = lambda: metrics.turned_away("control")

    async def start(self, listen: Address, probe: Address | None = None) -> Address:
        """Listen; returns the address with the port that the system chose for 0. Raises OSError."""
        bound = await self._serve(self.application, listen)
        if probe is not None:
            self.probe = await self._serve(self._probe, probe)
        return bound

    async def stop(self) -> None:
        self._closing.set()
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        for runner in self._runners:
            await runner.cleanup()
        self._runners.clear()

    async def _serve(self, application: web.Application, address: Address) -> Address:
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=CLOSE_SECONDS)
        await runner.setup()
        self._runners.append(runner)
        assert runner.server is not None
        room = Room(CONNECTIONS, on_refused=self._on_turned_away)
        opened = [
            Listener(sock, runner.server, room, NO_ROOM)
            for sock in await bind(address.host, address.port)
        ]
        self._listeners += opened
        self.ports += [listener.port for listener in opened]
        return Address(address.host, opened[0].port)


def _add(
    application: web.Application, routes: Sequence[Route], tokens: Tokens, runs: RunTokens
) -> None:
    for route in routes:
        # By itself a parameter takes no braces, and a run's name may have some.
        path = route.path.replace("{run}", "{run:[^/]+}").replace("{id}", "{id:[^/]+}")
        application.router.add_route(route.method, path, guarded(route, tokens, runs))


async def _openapi(_request: web.Request, _: Holder) -> web.Response:
    text = files("proxy.control").joinpath("openapi.json").read_bytes()
    return web.Response(body=text, content_type="application/json")
