"""SIGTERM while calls are under way: they end, or what became of them is left unknown."""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fakes.served import api, onceproxy, served, until

STORY = "case-1:refund"


def test_a_call_that_outlasts_the_drain_is_left_unknown_and_never_sent_again(
    tmp_path: Path,
) -> None:
    with api() as upstream, ThreadPoolExecutor(1) as pool:
        host = upstream.url.removeprefix("http://")
        environ = {"ONCEPROXY_EGRESS_ALLOW": host, "ONCEPROXY_LIMITS_DRAIN": "200ms"}
        with served(tmp_path / "state", **environ) as running:
            call = pool.submit(running.call, upstream.url + "/slow/pay", b"a=1", STORY)
            until(lambda: upstream.writes())
            began = time.monotonic()
            assert running.stop() == 0
            assert time.monotonic() - began < 30, "the drain, not the call, decides"
            assert call.exception() is not None or call.result()[0] >= 400
            assert not (tmp_path / "state" / "serving.json").exists()
        done = onceproxy("audit", "verify", "--state-dir", str(tmp_path / "state"))
        assert done.returncode == 0, done.stdout
        with served(tmp_path / "state", **environ) as running:
            status, body = running.call(upstream.url + "/slow/pay", b"a=1", STORY)
            assert status == 424, body
            assert json.loads(body)["state"] == "unknown"
        assert upstream.writes() == [("POST", "/slow/pay")]


def test_new_calls_are_refused_while_running_ones_end(tmp_path: Path) -> None:
    with api() as upstream, ThreadPoolExecutor(1) as pool:
        host = upstream.url.removeprefix("http://")
        with served(tmp_path / "state", ONCEPROXY_EGRESS_ALLOW=host) as running:
            call = pool.submit(running.call, upstream.url + "/slow/pay", b"a=1", STORY)
            until(lambda: upstream.writes())
            running.process.terminate()
            name, _, port = running.listen.rpartition(":")

            def closed() -> bool:
                try:
                    socket.create_connection((name, int(port)), 1).close()
                except OSError:
                    return True
                return False

            until(closed)
            assert call.result()[0] == 200
            assert running.process.wait(30) == 0
        assert len(upstream.writes()) == 1
