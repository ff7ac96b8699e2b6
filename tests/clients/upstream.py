"""A counting API in this process, over http and https: what arrived, and how many effects it had.

It honours ``Idempotency-Key``, so that effects and arrivals are two numbers. It can lose an answer
after the effect (``lose``), keep calls waiting (``hold``), and let a call go on only when so many
others have come (paths that end in ``/together``: a proof that they ran at the same time).
"""

from __future__ import annotations

import http.server
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.clients.words import Answer, Arrival, answer_of

TOGETHER = 3  # calls that wait for each other
WAIT_SECONDS = 20.0  # for the others, or for the end of a hold; a broken test ends by it


@dataclass
class Site:
    """One API: the same handler on a port for http and one for https."""

    name: str
    http: str = ""  # origins, without a path
    https: str = ""

    @property
    def hosts(self) -> list[str]:
        return [self.http.split("//")[1], self.https.split("//")[1]]


@dataclass
class Pause:
    """Streams stop after their first event until somebody lets them go on. ``ended``: for each,
    whether somebody did, or it went on by itself after a long wait."""

    gate: threading.Event = field(default_factory=threading.Event)
    ended: list[bool] = field(default_factory=list)


@dataclass
class Upstream:
    """All sites together."""

    sites: dict[str, Site] = field(default_factory=dict)
    arrivals: list[Arrival] = field(default_factory=list)
    effects: list[Arrival] = field(default_factory=list)
    _kept: dict[tuple[str, str], Answer] = field(default_factory=dict)
    _lose: set[str] = field(default_factory=set)
    pauses: dict[str, Pause] = field(default_factory=dict)
    _holds: dict[str, threading.Event] = field(default_factory=dict)
    _meetings: dict[str, threading.Barrier] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __getitem__(self, name: str) -> Site:
        return self.sites[name]

    def came(self, target: str) -> list[Arrival]:
        return [arrival for arrival in self.arrivals if arrival.target == target]

    def done(self, target: str) -> list[Arrival]:
        return [effect for effect in self.effects if effect.target == target]

    def lose(self, target: str) -> None:
        """The next call has its effect, and its connection ends without an answer."""
        self._lose.add(target)

    @contextmanager
    def hold(self, target: str) -> Iterator[threading.Event]:
        """Calls get no answer until the event is set, or the block is left."""
        gate = self._holds[target] = threading.Event()
        try:
            yield gate
        finally:
            gate.set()

    def take(self, arrival: Arrival) -> Answer | None:
        """What to answer; None: close the connection instead."""
        with self._lock:
            self.arrivals.append(arrival)
            meeting = None
            if arrival.target.endswith("/together"):
                name = arrival.target
                meeting = self._meetings.setdefault(name, threading.Barrier(TOGETHER))
            gate = self._holds.get(arrival.target)
        if meeting is not None:
            meeting.wait(WAIT_SECONDS)
        if gate is not None:
            gate.wait(WAIT_SECONDS)
        with self._lock:
            answer = self._act(arrival)
            if arrival.target in self._lose:
                self._lose.discard(arrival.target)
                return None
        return answer

    def _act(self, arrival: Arrival) -> Answer:
        key = next(iter(arrival.values("Idempotency-Key")), None)
        kept = self._kept.get((arrival.site, key)) if key else None
        if kept is not None:
            return Answer(kept.status, {**kept.headers, "Idempotent-Replayed": "true"}, kept.body)
        if arrival.method != "GET":
            self.effects.append(arrival)
        answer = answer_of(arrival, len(self.effects))
        if key:
            self._kept[(arrival.site, key)] = answer
        return answer


@contextmanager
def upstream(names: list[str], certificate: Path) -> Iterator[Upstream]:
    """``certificate``: PEM with key, for localhost and 127.0.0.1."""
    made = Upstream()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with ExitStack() as stack:
        for name in names:
            http_port = stack.enter_context(_serve(made, name, None))
            https_port = stack.enter_context(_serve(made, name, context))
            plain, secure = f"http://127.0.0.1:{http_port}", f"https://localhost:{https_port}"
            made.sites[name] = Site(name, plain, secure)
        yield made


@contextmanager
def _serve(made: Upstream, site: str, context: ssl.SSLContext | None) -> Iterator[int]:
    server = Server(("127.0.0.1", 0), Handler)
    server.made, server.site = made, site
    if context is not None:
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    with running(server) as port:
        yield port


@contextmanager
def running(server: http.server.ThreadingHTTPServer) -> Iterator[int]:
    """It serves in a thread; the port."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    made: Upstream
    site: str

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no news."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def take(self, arrival: Arrival) -> Answer | None:
        return self.server.made.take(arrival)

    def pause(self) -> Pause | None:
        return self.server.made.pauses.get(self.path)

    def _serve(self) -> None:
        headers = tuple(self.headers.items())
        arrival = Arrival(self.server.site, self.command, self.path, headers, self._body())
        answer = self.take(arrival)
        if answer is None:
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.rest:
            self._stream(answer)
            return
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def _stream(self, answer: Answer) -> None:
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        pause = self.pause()
        for number, piece in enumerate((answer.body, answer.rest)):
            if number and pause is not None:
                pause.ended.append(pause.gate.wait(WAIT_SECONDS))
                pause.gate.clear()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def log_message(self, *_: Any) -> None:
        pass
