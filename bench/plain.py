"""The baseline: a forward proxy on the same library that keeps nothing and promises nothing."""

from __future__ import annotations

import asyncio
import sys

from aiohttp import ClientSession, DummyCookieJar, TCPConnector, web
from yarl import URL

from bench import loop

HOP_BY_HOP = frozenset(
    {
        "connection",
        "content-length",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


async def main(port: int) -> None:
    async with ClientSession(
        auto_decompress=False, connector=TCPConnector(limit=0), cookie_jar=DummyCookieJar()
    ) as session:

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            headers = [(k, v) for k, v in request.headers.items() if k.lower() not in HOP_BY_HOP]
            async with session.request(
                request.method,
                URL(request.raw_path, encoded=True),
                headers=headers,
                data=await request.read(),
                allow_redirects=False,
            ) as answer:
                kept = [(k, v) for k, v in answer.headers.items() if k.lower() not in HOP_BY_HOP]
                reply = web.Response(status=answer.status, body=await answer.read())
                for name, value in kept:
                    reply.headers[name] = value
                return reply

        runner = web.ServerRunner(web.Server(handle, access_log=None))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    loop.run(main(int(sys.argv[1])))
