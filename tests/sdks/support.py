"""What a test with a vendor's official SDK needs.

A real ``onceproxy serve`` process with the shipped rule files, real sockets and TLS; a recorder
that is every host of the internet (tests/sdks/recorder.py). A test is a script and a call::

    def test_a_refund(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
        api = sdk.api("api.stripe.com")                       # the vendor's real host name
        api.on("POST /v1/refunds", {"id": "re_1"})            # 200 with JSON; or reply(body, 201)
        first, second = sdk.twice("issue-refund", refund)     # calls refund() in that step
        assert first == second                                # what the SDK makes of the answers
        [arrival] = api.came("POST /v1/refunds")              # one arrival
        key = sdk.assert_once("issue-refund", "stripe.refunds.create")   # second was replayed
        assert arrival.values("Idempotency-Key") == [key]     # key and marker as they arrived
        assert arrival.form()["metadata[operation_key]"] == [key]

``LOST`` in a script: the effect happened and the answer did not come. With a lookup beside it::

        api.on("POST /api/chat.postMessage", LOST)
        api.on("GET /api/conversations.history", lambda _: {"messages": [what_arrived(api)]})
        made = sdk.call("post", post)                         # the proxy asks, and answers for it
        sdk.assert_reconciled("post", "slack.chat.postMessage", external_id="17.1")

The ledger is shared by all tests, and an object that one operation has adopted is never another's:
give what the API makes an id with ``sdk.number`` in it.

``refund`` is a function that makes the call with the SDK as its users write it: a client made
inside it takes proxy and CA from the environment, which ``twice`` and ``call`` set (HTTPS_PROXY,
SSL_CERT_FILE, REQUESTS_CA_BUNDLE ...). An SDK that reads them at import, or that is Node's, runs in
a process of its own, whose JSON lines are the result::

        send = sdk.node("const {Resend} = await import('resend'); ... console.log(...)")
        first, second = sdk.twice("mail", send)               # or sdk.python(SCRIPT, *arguments)

Node packages stand in tests/clients/node/package.json (after ``npm install NAME`` there, take the
lines ``"resolved"`` out of the lock file: it names no index), Python ones in
requirements/clients.in. Where an SDK is not installed the test skips:
``resend = pytest.importorskip("resend")``, ``@needs_node("resend")``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from proxy.core.identity import encode_part
from tests.clients.certificates import Authority
from tests.clients.fleet import NODE_CLIENTS
from tests.clients.world import NODE, Proxied, output
from tests.fakes.served import FREE_PORTS, served, until
from tests.sdks.recorder import LOST, Api, Recorder, recorder, reply

__all__ = ["LOST", "Api", "Sdk", "needs_node", "reply"]

CONFIG = """
upstream: {{ca_file: "{ca}", proxy: "{parent}"}}
patience: 30s
{more}
"""
Call = Callable[[], Any]


@dataclass
class Sdk(Proxied):
    """``run_id``: of this test alone, named after it. ``number``: of this test alone, for the ids
    of what its API makes."""

    recorder: Recorder
    run_id: str
    number: int
    _set: Callable[[str, str], None] = field(repr=False)
    _environ: dict[str, str] = field(default_factory=dict, repr=False)

    def api(self, host: str) -> Api:
        return self.recorder.api(host)

    # calls

    def enter(self, step: str) -> None:
        """Sets the variables of the step in this process."""
        self._environ = self.environ(self.run_id, step)
        for name, value in self._environ.items():
            if name not in ("PYTHONPATH", "NODE_OPTIONS"):
                self._set(name, value)

    def call(self, step: str, call: Call) -> Any:
        """What ``call`` gives in this step."""
        self.enter(step)
        return call()

    def twice(self, step: str, call: Call) -> tuple[Any, Any]:
        return self.call(step, call), self.call(step, call)

    def python(self, script: str, *arguments: str) -> Call:
        """A call that is a process: the JSON lines that a script prints."""
        return lambda: self._lines([sys.executable, "-c", script, *arguments])

    def node(self, script: str, *arguments: str) -> Call:
        """The same for Node: an ES module, which finds ``arguments`` from ``process.argv[1]`` on.
        It goes through the preload that ``onceproxy run`` gives."""
        return lambda: self._lines(
            [str(NODE), "--input-type=module", "-e", script, "--", *arguments]
        )

    def _lines(self, command: list[str]) -> list[Any]:
        printed = output(command, self._environ, cwd=NODE_CLIENTS)
        return [json.loads(line) for line in printed.splitlines()]

    # what is known afterwards

    def key(self, step: str, operation: str, version: int = 1) -> str:
        """The operation key; ``operation``: SERVICE.ENDPOINT. With `distinguish` or an operation
        id in its name it is looked up."""
        found = [one["key"] for one in self.operations(self.run_id)]
        wanted = f"{self.run_id}/{encode_part(step)}/{operation}"
        fitting = [
            key
            for key in found
            if key.endswith(f"/v{version}")
            and key.rpartition("/")[0].startswith(wanted)
            and key.rpartition("/")[0].removeprefix(wanted)[:1] in ("", "~", ":", "@")
        ]
        assert len(fitting) == 1, (wanted, found)
        return str(fitting[0])

    def operation(self, key: str) -> dict[str, Any]:
        [found] = [one for one in self.operations(self.run_id) if one["key"] == key]
        return found

    def events(self, key: str) -> list[str]:
        return [event["event"] for event in self.history(key)]

    def assert_once(
        self, step: str, operation: str, *, external_id: str | None = None, replays: int = 1
    ) -> str:
        """One attempt, succeeded; the later calls were answered from the ledger. Gives the key."""
        key = self.key(step, operation)
        known = self.operation(key)
        assert (known["state"], known["attempts"]) == ("succeeded", 1), known
        if external_id is not None:
            assert known["external_id"] == external_id
        # The note of a replay is written after the answer.
        until(lambda: self.events(key).count("Replayed") == replays, seconds=10)
        return key

    def assert_reconciled(
        self, step: str, operation: str, *, external_id: str | None = None
    ) -> str:
        """One attempt whose answer was lost; a lookup found the effect. Gives the key."""
        key = self.key(step, operation)
        known = self.operation(key)
        assert (known["state"], known["attempts"]) == ("succeeded", 1), known
        if external_id is not None:
            assert known["external_id"] == external_id
        events = self.events(key)
        assert "AttemptLost" in events, events
        assert "EffectFound" in events, events
        return key


def needs_node(*packages: str) -> pytest.MarkDecorator:
    """Skips where Node or one of the packages is not installed."""
    missing = [one for one in packages if not (NODE_CLIENTS / "node_modules" / one).is_dir()]
    reason = f"not here: {', '.join(missing) or 'node'} (make clients)"
    return pytest.mark.skipif(NODE is None or bool(missing), reason=reason)


@contextmanager
def behind_a_proxy(folder: Path, more: str = "") -> Iterator[tuple[Proxied, Recorder]]:
    """``more``: of the configuration."""
    authority = Authority(folder)
    with recorder(authority) as api:
        config = folder / "config.yaml"
        config.write_text(CONFIG.format(ca=authority.file, parent=api.url, more=more))
        with served(folder / "state", "--config", str(config), *FREE_PORTS) as proxy:
            yield Proxied(proxy, folder / "state" / "ca" / "ca.pem"), api
