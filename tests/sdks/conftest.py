"""One proxy and one recorder for all SDKs; each test has a run and scripts of its own."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator

import pytest

from tests.clients.world import Proxied
from tests.sdks.recorder import Recorder
from tests.sdks.support import Sdk, behind_a_proxy

ROOTS = ("CA_BUNDLE", "CERT_FILE", "CERT_DIR", "CA_CERTS", "CAINFO")
_numbers = itertools.count(1001)


@pytest.fixture(scope="session")
def _running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Proxied, Recorder]]:
    with behind_a_proxy(tmp_path_factory.mktemp("sdks")) as made:
        yield made


@pytest.fixture
def sdk(
    _running: tuple[Proxied, Recorder],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Sdk]:
    proxied, recorder = _running
    for name in os.environ:
        if name.lower().endswith("_proxy") or name.endswith(ROOTS):
            monkeypatch.delenv(name)
    recorder.apis.clear()
    run = re.sub("[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    yield Sdk(proxied.proxy, proxied.ca, recorder, run, next(_numbers), monkeypatch.setenv)
    unexpected = {a.host: a.unexpected for a in recorder.apis.values() if a.unexpected}
    assert not unexpected, f"requests that are in no script: {unexpected}"
