"""``/v1/operations``: list, look at, resolve and reconcile operations."""

from __future__ import annotations

from urllib.parse import unquote

from aiohttp import web

from proxy.control.http import Route, answer, json_body, moment, whole_number
from proxy.control.tokens import Holder, Role
from proxy.core.operation import State
from proxy.errors import ServiceError
from proxy.ledger.base import Query
from proxy.service.operations import LIST_MAX, OperationService
from proxy.service.resolution import read_resolution

BASE = "/v1/operations"
ONE = BASE + "/{key:.+}"
# A key may come with its slashes, but what follows one is not its end.
PLAIN = BASE + r"/{key:.+(?<!/history)(?<!/content)(?<!/resolve)(?<!/reconcile)}"


def routes(service: OperationService) -> list[Route]:
    async def listed(request: web.Request, _: Holder) -> web.Response:
        return answer({"operations": await service.operations(_query(request))})

    async def one(request: web.Request, _: Holder) -> web.Response:
        return answer(await service.one(_key(request)))

    async def history(request: web.Request, _: Holder) -> web.Response:
        key = _key(request, "/history")
        return answer({"operation": key, "events": await service.history(key)})

    async def content(request: web.Request, _: Holder) -> web.Response:
        return answer(await service.content(_key(request, "/content")))

    async def resolve(request: web.Request, holder: Holder) -> web.Response:
        resolution = read_resolution(await json_body(request), holder.name)
        return answer(await service.resolve(_key(request, "/resolve"), resolution))

    async def reconcile(request: web.Request, _: Holder) -> web.Response:
        return answer(await service.reconcile(_key(request, "/reconcile")))

    return [
        Route("GET", BASE, Role.AGENT, listed),
        Route("GET", ONE + "/history", Role.AGENT, history),
        Route("GET", ONE + "/content", Role.OPERATOR, content),
        Route("POST", ONE + "/resolve", Role.OPERATOR, resolve),
        Route("POST", ONE + "/reconcile", Role.OPERATOR, reconcile),
        Route("GET", PLAIN, Role.AGENT, one),
    ]


def _key(request: web.Request, suffix: str = "") -> str:
    """The operation key in the raw path: one percent-encoded segment. A key whose slashes were left
    as they are was not encoded at all, and is taken as it stands."""
    raw = request.rel_url.raw_path.removeprefix(BASE + "/").removesuffix(suffix)
    return raw if "/" in raw else unquote(raw)


def _query(request: web.Request) -> Query:
    return Query(
        run=request.query.get("run") or None,
        step=request.query.get("step") or None,
        states=_states(request),
        service=request.query.get("service") or None,
        limit=max(1, whole_number(request, "limit", 100, LIST_MAX)),
        before=moment(request, "before"),
    )


def _states(request: web.Request) -> tuple[State, ...]:
    words = [word for text in request.query.getall("state", []) for word in text.split(",") if word]
    known = [state.value for state in State]
    if not set(words) <= set(known):
        raise ServiceError("bad-request", f"A state is one of {', '.join(known)}.")
    return tuple(State(word) for word in words)
