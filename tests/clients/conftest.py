"""One proxy and one upstream for all tests with real clients; each test has runs of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.clients.world import Way, World, world

Enter = Callable[[Way], str]
STRIPPED = {"proxy-authorization", "proxy-connection", "x-run-id", "x-step-id", "x-operation-id"}
ROOTS = ("CA_BUNDLE", "CERT_FILE", "CERT_DIR", "CA_CERTS", "CAINFO")


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("clients")) as made:
        yield made


@pytest.fixture
def w(whole: World) -> Iterator[World]:
    """The world; afterwards, nothing of identity may have reached the upstream."""
    before = len(whole.upstream.arrivals)
    yield whole
    for arrival in whole.upstream.arrivals[before:]:
        names = {name.lower() for name, _ in arrival.headers}
        assert not STRIPPED & names, arrival
        assert not [name for name in names if name.startswith("onceproxy")], arrival
        members = ",".join(arrival.values("baggage"))
        assert "run.id" not in members, arrival
        assert "step.id" not in members, arrival


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients here are led by what a test sets, not by this machine."""
    for name in os.environ:
        if name.lower().endswith("_proxy") or name.endswith(ROOTS):
            monkeypatch.delenv(name)


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch) -> Enter:
    """Sets the variables of a way in; gives the base URL."""

    def entered(way: Way) -> str:
        for name, value in way.environ.items():
            monkeypatch.setenv(name, value)
        return way.base

    return entered
