"""What stands for the vendors' hosts: a parent proxy that answers for every name itself.

The proxy under test reaches it by ``upstream.proxy``, so that hosts, rules and TLS are those of the
real service: a tunnel to any name ends here, in TLS with a certificate for that name.
"""

from __future__ import annotations

import json
import re
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.clients.certificates import Authority
from tests.clients.upstream import Handler, Server, running
from tests.clients.words import Answer, Arrival

JSON = "application/json"


class Lost:
    """The request has arrived and had its effect; the connection ends without an answer."""


LOST = Lost()


def reply(body: Any = None, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """``body``: text or bytes as they are, anything else as JSON."""
    raw = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else None
    if raw is None:
        raw = b"" if body is None else json.dumps(body).encode()
    return Answer(status, {"Content-Type": JSON, **(headers or {})}, raw)


Answering = Any  # an Answer, LOST, a JSON body, or a function of the arrival that gives one of them


class _Request:
    def __init__(self, text: str) -> None:
        self.method, _, path = text.partition(" ")
        self.path = re.compile(".*".join(map(re.escape, path.split("*"))))

    def is_of(self, arrival: Arrival) -> bool:
        path = unquote(arrival.target.partition("?")[0])
        return arrival.method == self.method and self.path.fullmatch(path) is not None


@dataclass
class Api:
    """One host, and its script. A request that is not in the script gets 500, and fails the test
    when it ends (see ``unexpected``)."""

    host: str
    arrivals: list[Arrival] = field(default_factory=list)
    unexpected: list[Arrival] = field(default_factory=list)
    _script: list[tuple[_Request, list[Answering]]] = field(default_factory=list)

    def on(self, request: str, *answers: Answering) -> None:
        """``request``: ``"POST /v1/refunds"``; ``*`` in the path stands for any text, and the query
        does not count. The answers come in this order, the last again and again. The newest line
        for a request wins."""
        assert answers, request
        self._script.insert(0, (_Request(request), list(answers)))

    def came(self, request: str) -> list[Arrival]:
        """The requests of this kind that arrived, oldest first."""
        wanted = _Request(request)
        return [arrival for arrival in self.arrivals if wanted.is_of(arrival)]

    def take(self, arrival: Arrival) -> Answer | None:
        self.arrivals.append(arrival)
        for wanted, answers in self._script:
            if wanted.is_of(arrival):
                answer = answers.pop(0) if len(answers) > 1 else answers[0]
                if callable(answer):
                    answer = answer(arrival)
                if isinstance(answer, Lost):
                    return None
                return answer if isinstance(answer, Answer) else reply(answer)
        self.unexpected.append(arrival)
        return reply({"error": "not in the script of this test"}, 500)


@dataclass
class Recorder:
    """All hosts. ``url``: of the parent proxy."""

    authority: Authority
    url: str = ""
    apis: dict[str, Api] = field(default_factory=dict)
    _contexts: dict[str, ssl.SSLContext] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def api(self, host: str) -> Api:
        return self.apis.setdefault(host, Api(host))

    def take(self, arrival: Arrival) -> Answer | None:
        with self._lock:
            return self.api(arrival.site).take(arrival)

    def context(self, host: str) -> ssl.SSLContext:
        with self._lock:
            made = self._contexts.get(host)
            if made is None:
                made = self._contexts[host] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                made.load_cert_chain(self.authority.certificate(host))
            return made


@contextmanager
def recorder(authority: Authority) -> Iterator[Recorder]:
    made = Recorder(authority)
    server = _Proxy(("127.0.0.1", 0), _Tunnels)
    server.recorder = made
    with running(server) as port:
        made.url = f"http://127.0.0.1:{port}"
        yield made


class _Proxy(Server):
    recorder: Recorder
    site = ""


class _Tunnels(Handler):
    server: _Proxy
    host = ""

    def do_CONNECT(self) -> None:
        self.host = self.path.rpartition(":")[0]
        self.send_response_only(200)
        self.end_headers()
        context = self.server.recorder.context(self.host)
        try:
            secure = context.wrap_socket(self.connection, server_side=True)
        except OSError:
            self.close_connection = True
            return
        self.request = secure
        self.close_connection = False
        self.setup()

    def finish(self) -> None:
        super().finish()
        if self.host:
            self.request.close()

    def take(self, arrival: Arrival) -> Answer | None:
        host, target = self.host, arrival.target
        if not host:  # http in clear, with the whole address
            parts = urlsplit(arrival.target)
            host, target = parts.hostname or "", parts._replace(scheme="", netloc="").geturl()
        return self.server.recorder.take(
            Arrival(host, arrival.method, target, arrival.headers, arrival.body)
        )

    def pause(self) -> None:
        return None
