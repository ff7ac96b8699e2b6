"""``/v1/runs/{run}/checkpoint``: save and fetch what an agent goes on from.

Conditions are those of RFC 9110, 13: ``If-Match`` compares strongly, ``If-None-Match`` weakly, both
take lists and ``*``. The tag of a version is its number in quotes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from aiohttp import web

from proxy.control.http import Route, answer, problem, raw_json, run_in_path, whole_number
from proxy.control.tokens import Holder, Role
from proxy.errors import ServiceError
from proxy.ledger.base import Condition
from proxy.service.checkpoints import CheckpointService, Stale, shown

PATH = "/v1/runs/{run}/checkpoint"
MATCH: Final = "If-Match"
NONE_MATCH: Final = "If-None-Match"

_TAG: Final = re.compile(r'\s*(W/)?"([\x21\x23-\x7e\x80-\U0010ffff]*)"\s*(?:,|$)')
_VERSION: Final = re.compile(r"[1-9][0-9]{0,17}")
_NONE: Final = frozenset({0})


def routes(service: CheckpointService) -> list[Route]:
    async def put(request: web.Request, _: Holder) -> web.Response:
        run = run_in_path(request)
        conditions = (*_condition(request, MATCH), *_condition(request, NONE_MATCH))
        try:
            version = await service.save(run, await _body(request, service), conditions)
        except Stale as stale:
            response = problem(stale.code, stale.detail, version=stale.newest)
            if stale.newest:
                response.headers["ETag"] = _tag(stale.newest)
            return response
        return _tagged(answer({"version": version}), version)

    async def get(request: web.Request, _: Holder) -> web.Response:
        wanted = whole_number(request, "version", 0, least=1) or None
        found = await service.one(run_in_path(request), wanted)
        version = found.version
        if not _hold(_condition(request, MATCH), version):
            response = problem("stale-checkpoint", f"This is version {version}.", version=version)
        elif not _hold(_condition(request, NONE_MATCH), version):
            response = web.Response(status=304)
        else:
            response = raw_json(shown(found))
        return _tagged(response, version)

    async def listed(request: web.Request, _: Holder) -> web.Response:
        return answer({"checkpoints": await service.listed(run_in_path(request))})

    return [
        Route("PUT", PATH, Role.RUN, put),
        Route("GET", PATH, Role.RUN, get),
        Route("GET", PATH + "s", Role.RUN, listed),
    ]


async def _body(request: web.Request, service: CheckpointService) -> bytes:
    length = request.content_length
    if length is not None and length > service.size_max:
        raise service.too_large(f"this one has {length}")
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise service.too_large("this one has more") from None


def _tag(version: int) -> str:
    return f'"{version}"'


def _tagged(response: web.Response, version: int) -> web.Response:
    response.headers["ETag"] = _tag(version)
    return response


def _hold(conditions: Sequence[Condition], version: int) -> bool:
    return all(condition.holds(version) for condition in conditions)


def _condition(request: web.Request, name: str) -> tuple[Condition, ...]:
    """What that field says, if it is there. Raises ServiceError for one that cannot be read: it
    must not pass for none."""
    fields = request.headers.getall(name, None)
    if fields is None:
        return ()
    among, text = name == MATCH, ", ".join(fields).strip()
    if text == "*":  # any version at all
        return (Condition(_NONE, not among),)
    return (Condition(_versions(name, text, weak=not among), among),)


def _versions(name: str, text: str, *, weak: bool) -> frozenset[int]:
    """The versions that a list of tags names. Other tags are nobody's here; weak ones count where
    the comparison is weak."""
    found: set[int] = set()
    at = 0
    while at < max(1, len(text)):  # an empty field is no list
        match = _TAG.match(text, at)
        if match is None:
            raise ServiceError("bad-request", f'{name} must be like "3", with its quotes, or *.')
        if _VERSION.fullmatch(match[2]) and (weak or match[1] is None):
            found.add(int(match[2]))
        at = match.end()
    return frozenset(found)
