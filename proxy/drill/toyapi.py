"""A small API with real effects, in three kinds, that counts what it does.

    POST /refunds    kind "key": honours Idempotency-Key (422 for another request under the same
                     key, 409 while the first one works, Idempotent-Replayed: true on a replay)
    POST /invoices   kind "query": no key; GET /invoices?reference=&limit=&starting_after= lists
                     them, newest first, ``lag`` seconds after they were made
    POST /messages   kind "neither"
    POST /chat       a model: streams an answer that is another one each time, with its usage

Bodies are JSON objects with a ``reference``, the name of what should happen once. Whoever tests it
uses ``/_effects``, ``/_faults``, ``/_gates`` and ``/_refuse``; in one process, the same by methods.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from proxy.clock import Clock, SystemClock
from proxy.drill.effects import Effect, Effects
from proxy.drill.trouble import Fault, Gate, Moment, Trouble, Troubles

COLLECTIONS: Mapping[str, tuple[str, str]] = {  # name -> (kind, prefix of ids)
    "refunds": ("key", "rf"),
    "invoices": ("query", "in"),
    "messages": ("neither", "ms"),
}
PAGE = 10  # objects on a page unless `limit` says otherwise
DAY = 86_400.0


class ToyApi:
    """One API. ``window``: seconds a key is remembered; ``lag``: seconds until the list shows an
    object; ``mismatch``: status for a key that comes with another request; ``latency``: seconds
    that every write takes."""

    def __init__(
        self,
        *,
        file: Path | None = None,
        window: float = DAY,
        lag: float = 0.0,
        mismatch: int = 422,
        latency: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        self.effects = Effects(file)
        self.troubles = Troubles()
        self.requests: Counter[str] = Counter()  # writes that arrived, by reference
        self.turns: Counter[str] = Counter()  # the model's, by reference
        self.window, self.lag, self.mismatch, self.latency = window, lag, mismatch, latency
        self.clock = clock or SystemClock()
        self.port = 0
        self._working: dict[str, str] = {}  # key -> digest of the request that is being worked on
        self._site: web.TCPSite | None = None
        self._runner: web.AppRunner | None = None
        self._reopening: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, port: int = 0) -> str:
        """Listens on loopback; 0 takes a free port. Returns the base URL."""
        self._runner = web.AppRunner(self.app(), access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await self.listen(port)
        return self.url

    async def listen(self, port: int = 0) -> None:
        assert self._runner is not None, "start() first"
        self._site = web.TCPSite(self._runner, "127.0.0.1", port or self.port)
        await self._site.start()
        self.port = self._runner.addresses[0][1]

    async def refuse(self) -> None:
        """New connections are refused until ``listen`` is called."""
        assert self._site is not None, "start() first"
        await self._site.stop()

    async def close(self) -> None:
        self.troubles.open_all()
        if self._reopening is not None:
            self._reopening.cancel()
        if self._runner is not None:
            await self._runner.cleanup()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/{collection:refunds|invoices|messages}", self._create)
        app.router.add_get("/invoices", self._list)
        app.router.add_post("/chat", self._chat)
        app.router.add_get("/_effects", self._show_effects)
        app.router.add_post("/_faults", self._set_fault)
        app.router.add_post("/_gates", self._set_gate)
        app.router.add_get("/_gates/{number}", self._wait_for_gate)
        app.router.add_post("/_gates/{number}/open", self._open_gate)
        app.router.add_post("/_refuse", self._refuse_for)
        return app

    # The API itself

    async def _create(self, request: web.Request) -> web.StreamResponse:
        collection = request.match_info["collection"]
        raw = await request.read()
        try:
            body = json.loads(raw)
            reference = str(body["reference"])
        except (ValueError, TypeError, KeyError):
            return _error(400, "invalid_request", "The body must be a JSON object with `reference`")
        self.requests[reference] += 1
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        key = request.headers.get("Idempotency-Key") if collection == "refunds" else None
        try:
            known = self._known(key, digest)
            if known is not None:
                return known
            return await self._work(
                request, Effect("", collection, reference, body, 0.0, key, digest)
            )
        finally:
            self.troubles.answered(collection)

    def _known(self, key: str | None, digest: str) -> web.Response | None:
        """The answer that the key's memory gives, or None if the request is new."""
        if key is None:
            return None
        if key in self._working:
            if self._working[key] != digest:
                return self._mismatched()
            return _error(409, "idempotency_key_in_use", "A request with this key is in progress")
        oldest = self.clock.time() - self.window
        for effect in self.effects.made:
            if effect.key == key and effect.at >= oldest:
                if effect.digest != digest:
                    return self._mismatched()
                response = _created(effect)
                response.headers["Idempotent-Replayed"] = "true"
                return response
        return None

    def _mismatched(self) -> web.Response:
        return _error(self.mismatch, "idempotency_error", "This key was used with another request")

    async def _work(self, request: web.Request, wanted: Effect) -> web.StreamResponse:
        if wanted.key is not None:
            self._working[wanted.key] = wanted.digest
        try:
            trouble = self.troubles.take(wanted.reference)
            await self.troubles.pass_gate(wanted.collection, wanted.reference, Moment.RECEIVED)
            early = await self._before_effect(request, trouble)
            if early is not None:
                return early
            effect = self._make(wanted)
        finally:
            if wanted.key is not None:
                del self._working[wanted.key]
        await self.troubles.pass_gate(wanted.collection, wanted.reference, Moment.EFFECT)
        return await self._after_effect(request, trouble, effect)

    async def _before_effect(
        self, request: web.Request, trouble: Trouble | None
    ) -> web.StreamResponse | None:
        if self.latency:
            await self.clock.sleep(self.latency)
        match trouble:
            case Trouble(fault=Fault.DROP_BEFORE):
                return _drop(request)
            case Trouble(fault=Fault.ERROR_BEFORE):
                return _error(503, "unavailable", "Try again later")
            case Trouble(fault=Fault.REJECT):
                return _error(402, "declined", "It was declined")
            case Trouble(fault=Fault.DELAY):
                await self.clock.sleep(trouble.seconds)
        return None

    def _make(self, wanted: Effect) -> Effect:
        prefix = COLLECTIONS[wanted.collection][1]
        effect = Effect(
            id=f"{prefix}_{len(self.effects.made) + 1}",
            collection=wanted.collection,
            reference=wanted.reference,
            body=wanted.body,
            at=self.clock.time(),
            key=wanted.key,
            digest=wanted.digest,
        )
        self.effects.add(effect)
        return effect

    async def _after_effect(
        self, request: web.Request, trouble: Trouble | None, effect: Effect
    ) -> web.StreamResponse:
        match trouble:
            case Trouble(fault=Fault.DROP_AFTER):
                return _drop(request)
            case Trouble(fault=Fault.ERROR_AFTER):
                return _error(500, "internal", "Something went wrong")
            case Trouble(fault=Fault.CUT):
                return await _cut(request, effect)
        return _created(effect)

    async def _list(self, request: web.Request) -> web.Response:
        reference, after = request.query.get("reference"), request.query.get("starting_after")
        limit = int(request.query.get("limit", PAGE))
        newest = self.clock.time() - self.lag
        objects = [
            _object(effect)
            for effect in self.effects.newest_first("invoices")
            if effect.at <= newest and reference in (None, effect.reference)
        ]
        ids = [found["id"] for found in objects]
        start = ids.index(after) + 1 if after in ids else 0
        page = objects[start : start + limit]
        self.troubles.answered("invoices")
        return web.json_response(
            {"object": "list", "data": page, "has_more": start + limit < len(objects)}
        )

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self.turns[str((await request.json())["reference"])] += 1
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        words = ("I", "shall", "write", "it", "as", secrets.token_hex(8))
        for word in words:
            await response.write(_event({"delta": f"{word} "}))
        await response.write(_event({"usage": {"total_tokens": len(words)}}))
        return response

    # For whoever tests

    async def _show_effects(self, request: web.Request) -> web.Response:
        counted = {"requests": dict(self.requests), "turns": dict(self.turns)}
        return web.json_response({"counts": self.effects.counts(), **counted})

    async def _set_fault(self, request: web.Request) -> web.Response:
        given = await request.json()
        self.troubles.fault(given.pop("match"), given.pop("fault"), **given)
        return web.json_response({})

    async def _set_gate(self, request: web.Request) -> web.Response:
        given = await request.json()
        self.troubles.gate(given.pop("match"), given.pop("moment"), **given)
        return web.json_response({"gate": len(self.troubles.gates) - 1})

    def _gate(self, request: web.Request) -> Gate:
        return self.troubles.gates[int(request.match_info["number"])]

    async def _wait_for_gate(self, request: web.Request) -> web.Response:
        """Answers when the gate holds its request: the exact moment, without polling."""
        await self._gate(request).reached.wait()
        return web.json_response({})

    async def _open_gate(self, request: web.Request) -> web.Response:
        self._gate(request).opened.set()
        return web.json_response({})

    async def _refuse_for(self, request: web.Request) -> web.Response:
        seconds = float((await request.json())["seconds"])

        async def reopen() -> None:
            await self.refuse()
            await self.clock.sleep(seconds)
            await self.listen()

        self._reopening = asyncio.create_task(reopen())
        return web.json_response({})


def _object(effect: Effect) -> dict[str, Any]:
    return {
        **effect.body,
        "id": effect.id,
        "object": effect.collection[:-1],
        "created": int(effect.at),
    }


def _created(effect: Effect) -> web.Response:
    return web.json_response(_object(effect), status=201)


def _event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def _error(status: int, kind: str, message: str) -> web.Response:
    return web.json_response({"error": {"type": kind, "message": message}}, status=status)


def _drop(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


async def _cut(request: web.Request, effect: Effect) -> web.StreamResponse:
    whole = json.dumps(_object(effect)).encode()
    response = web.StreamResponse(status=201, headers={"Content-Type": "application/json"})
    response.content_length = len(whole)
    await response.prepare(request)
    await response.write(whole[: len(whole) // 2])
    if request.transport is not None:
        request.transport.close()  # after what is already in the buffer has left
    return response


async def _serve(arguments: argparse.Namespace) -> None:
    api = ToyApi(file=arguments.file, lag=arguments.lag, latency=arguments.latency)
    await api.start(arguments.port)
    print(json.dumps({"url": api.url}), flush=True)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="toyapi", description="The drill's API, as a process.")
    parser.add_argument("--port", type=int, default=0, help="0: a free one, printed at start")
    parser.add_argument("--file", type=Path, help="where the effects are kept")
    parser.add_argument("--lag", type=float, default=0.0, help="seconds")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds")
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
