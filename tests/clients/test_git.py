"""git over https, before a real git-http-backend: what is fetched is never answered from the
ledger, and a push made twice is there once.
"""

from __future__ import annotations

import http.server
import os
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.clients.certificates import make
from tests.clients.world import Proxied
from tests.fakes.served import FREE_PORTS, environment, served

GIT = shutil.which("git")
BACKEND = (
    Path(
        subprocess.run([GIT, "--exec-path"], capture_output=True, check=True)
        .stdout.decode()
        .strip()
    )
    if GIT
    else Path()
) / "git-http-backend"
pytestmark = pytest.mark.skipif(not BACKEND.is_file(), reason="git-http-backend is not installed")
SELF = ("-c", "user.name=Ada", "-c", "user.email=ada@example.test")


@dataclass
class Forge:
    """A bare repository behind https. ``posts``: the paths that writes came to."""

    url: str
    repository: Path
    posts: list[str] = field(default_factory=list)
    lose_next_push: bool = False

    def head(self, branch: str) -> str:
        return git(self.repository, "rev-parse", branch, environ={}).strip()


def git(where: Path, *arguments: str, environ: Mapping[str, str]) -> str:
    done = subprocess.run(
        [str(GIT), *SELF, *arguments],
        cwd=where,
        env={**environment(), **environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


@contextmanager
def forge(folder: Path, certificate: Path) -> Iterator[Forge]:
    repository = folder / "shop.git"
    repository.mkdir()
    git(repository, "init", "-q", "--bare", "-b", "main", environ={})
    git(repository, "config", "http.receivepack", "true", environ={})

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        forge: ClassVar[Forge]

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path, _, query = self.path.partition("?")
            answer = _cgi(folder, self.command, path, query, self.headers, body)
            if self.command == "POST":
                self.forge.posts.append(path.rpartition("/")[2])
                if path.endswith("receive-pack") and self.forge.lose_next_push:
                    self.forge.lose_next_push = False
                    self.close_connection = True
                    return
            head, _, content = answer.partition(b"\r\n\r\n")
            fields = [line.split(": ", 1) for line in head.decode().split("\r\n")]
            status = next((text for name, text in fields if name == "Status"), "200 OK")
            self.send_response(int(status.split()[0]))
            for name, text in fields:
                if name != "Status":
                    self.send_header(name, text)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = _serve

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    Handler.forge = Forge(f"https://localhost:{server.server_address[1]}/shop.git", repository)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield Handler.forge
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _cgi(root: Path, method: str, path: str, query: str, fields: Any, body: bytes) -> bytes:
    environ = {
        **os.environ,
        "GIT_PROJECT_ROOT": str(root),
        "GIT_HTTP_EXPORT_ALL": "1",
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "CONTENT_TYPE": fields.get("Content-Type", ""),
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_CONTENT_ENCODING": fields.get("Content-Encoding", ""),
        "GIT_PROTOCOL": fields.get("Git-Protocol", ""),
        "REMOTE_USER": "ada",
    }
    done = subprocess.run([BACKEND], input=body, env=environ, capture_output=True, check=True)
    return done.stdout


@dataclass(frozen=True)
class Site:
    forge: Forge
    world: Proxied
    environ: Mapping[str, str]
    clone: Path

    def git(self, *arguments: str) -> str:
        return git(self.clone, *arguments, environ=self.environ)

    def commit(self, text: str) -> str:
        (self.clone / "note").write_text(text)
        self.git("add", "note")
        self.git("commit", "-q", "-m", text)
        return self.git("rev-parse", "HEAD").strip()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    tmp_path = tmp_path_factory.mktemp("git")
    ca, certificate = make(tmp_path)
    with forge(tmp_path, certificate) as made:
        host = made.url.split("/")[2]
        config = tmp_path / "config.yaml"
        config.write_text(f'upstream: {{ca_file: {ca}}}\negress: {{allow: ["{host}"]}}\n')
        with served(tmp_path / "state", "--config", str(config), *FREE_PORTS) as proxy:
            w = Proxied(proxy, tmp_path / "state" / "ca" / "ca.pem")
            environ = w.environ("release-7", "publish")
            git(tmp_path, "clone", "-q", made.url, "work", environ=environ)
            yield Site(made, w, environ, tmp_path / "work")


def test_a_push_made_twice_is_there_once_and_a_fetch_is_never_stale(site: Site) -> None:
    """The second push has the same bytes as the first; the ref was taken away in between, so that
    git sends them again and the forge would take them."""
    first = site.commit("one")
    site.git("push", "-q", "origin", "HEAD:main")
    assert site.forge.head("main") == first
    git(site.forge.repository, "update-ref", "-d", "refs/heads/main", environ={})
    assert "main" not in site.git("ls-remote", "origin")  # the same question, another answer
    site.git("push", "-q", "origin", "HEAD:main")
    assert site.forge.posts.count("git-receive-pack") == 1
    [push] = site.world.operations("release-7")
    assert (push["state"], push["attempts"]) == ("succeeded", 1)


def test_a_push_whose_answer_was_lost_is_not_sent_again(site: Site) -> None:
    lost, before = site.commit("lost"), site.forge.posts.count("git-receive-pack")
    site.forge.lose_next_push = True
    with pytest.raises(RuntimeError, match="424"):
        site.git("push", "-q", "origin", "HEAD:lost")
    assert site.forge.head("lost") == lost
    assert "up to date" in site.git("push", "--porcelain", "origin", "HEAD:lost")
    assert site.forge.posts.count("git-receive-pack") == before + 1
    assert site.world.operations("release-7")[-1]["state"] == "unknown"
