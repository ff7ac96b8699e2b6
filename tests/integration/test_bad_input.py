"""Everything that can be wrong with what the proxy is given: a clear error, and nothing lost.

The real proxy over real sockets with a real SQLite ledger, in front of the toy API. Each case looks
at what the API counted before it looks at what the caller was told, and ends with a correct call.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from proxy.cli import main
from tests.fakes.rawclient import Got, RawClient
from tests.fakes.served import Served, onceproxy, served
from tests.fakes.upstream import ToyApi
from tests.fakes.whole import (
    Door,
    assert_refused,
    configure,
    door_of,
    outcome,
    post,
    toy_rules,
    whole,
)

TESTS = Path(__file__).parent.parent
BROKEN_RULES = sorted((TESTS / "rules" / "broken").glob("*.yaml"))
BROKEN_CONFIGS = sorted((TESTS / "config" / "broken").glob("*.yaml"))
PATHS = {"key": "/refunds", "query": "/invoices", "neither": "/messages"}
LIMIT = 2_000  # bytes of a request body in these tests
LEDGER_ERROR = 4  # exit codes
CONFIG_ERROR = 3


@pytest.fixture
async def toy() -> AsyncIterator[ToyApi]:
    api = ToyApi()
    await api.start()
    yield api
    await api.close()


@pytest.fixture
async def door(toy: ToyApi, tmp_path: Path) -> AsyncIterator[Door]:
    async with whole(tmp_path, toy_rules(toy.url), limits={"request_body": str(LIMIT)}) as opened:
        yield opened


def counted(toy: ToyApi, reference: str) -> tuple[int, int]:
    """Requests and effects at the API."""
    return toy.requests[reference], toy.effects.counts().get(reference, 0)


def body(reference: str, amount: int = 4200) -> dict[str, Any]:
    return {"reference": reference, "amount": amount}


async def assert_works(door: Door, toy: ToyApi, reference: str, kind: str = "key") -> Got:
    """The same call, made correctly, is sent or answered as it should be: one effect in all."""
    got = await door.call(toy.url + PATHS[kind], body(reference))
    assert counted(toy, reference)[1] == 1
    assert got.status == 201, got.body
    assert json.loads(got.body)["reference"] == reference
    return got


# Files


def test_there_are_twenty_broken_files_and_more() -> None:
    """Each with its messages, which tests/rules and tests/config compare one by one."""
    assert len(BROKEN_RULES) >= 20
    assert len(BROKEN_CONFIGS) >= 15
    for file in (*BROKEN_RULES, *BROKEN_CONFIGS):
        assert "# expect: " in file.read_text(), file


@pytest.mark.parametrize("file", BROKEN_CONFIGS, ids=lambda file: file.stem)
def test_a_broken_config_is_told_by_the_command_line_with_code_3(file: Path) -> None:
    done = CliRunner().invoke(main, ["check", "--config", str(file)])
    assert done.exit_code == CONFIG_ERROR
    assert done.stderr.startswith(f"{file}:")
    assert "Traceback" not in done.output


@pytest.mark.parametrize("file", BROKEN_RULES, ids=lambda file: file.stem)
def test_a_broken_rule_file_is_told_by_the_command_line_with_code_3(
    file: Path, tmp_path: Path
) -> None:
    config = configure(tmp_path, file.read_text())
    done = CliRunner().invoke(main, ["check", "--config", str(config)])
    assert done.exit_code == CONFIG_ERROR
    assert f"{tmp_path / 'rules' / 'service.yaml'}:" in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize("broken", ["config", "rules"])
def test_the_proxy_does_not_start_with_a_broken_file(broken: str, tmp_path: Path) -> None:
    file = {"config": BROKEN_CONFIGS, "rules": BROKEN_RULES}[broken][0]
    config = file if broken == "config" else configure(tmp_path, file.read_text())
    done = onceproxy("serve", "--config", str(config), "--state-dir", str(tmp_path / "state"))
    assert done.returncode == CONFIG_ERROR
    assert done.stdout == ""
    assert not (tmp_path / "state" / "ledger.db").exists()
    assert "Traceback" not in done.stderr


async def test_broken_rules_given_to_a_running_proxy_leave_the_old_ones(
    door: Door, toy: ToyApi, tmp_path: Path
) -> None:
    await assert_works(door, toy, "before")
    (tmp_path / "rules" / "service.yaml").write_text(BROKEN_RULES[0].read_text())
    status, told = await door.ask("POST", "/v1/rules/reload")
    assert status == 422
    assert any("service.yaml:" in problem for problem in told["problems"])
    again = await door.call(toy.url + "/refunds", body("before"))
    assert counted(toy, "before") == (1, 1)
    assert outcome(again) == "replayed"


# Calls


@pytest.mark.parametrize("kind", PATHS)
async def test_a_write_that_names_nobody(door: Door, toy: ToyApi, kind: str) -> None:
    got = await door.call(toy.url + PATHS[kind], body("nobody"), "")
    assert counted(toy, "nobody") == (0, 0)
    told = assert_refused(got, 400, "missing-identity", "name run and step", "stop and report")
    assert not told["retryable"]
    await assert_works(door, toy, "nobody", kind)


async def test_a_write_that_names_a_run_and_no_step(door: Door, toy: ToyApi) -> None:
    got = await door.call(toy.url + "/refunds", body("no-step"), "run-1", "-")
    assert counted(toy, "no-step") == (0, 0)
    assert_refused(got, 400, "missing-identity", "name run and step")
    await assert_works(door, toy, "no-step")


@pytest.mark.parametrize("kind", PATHS)
async def test_another_amount_in_the_same_step(door: Door, toy: ToyApi, kind: str) -> None:
    first = await assert_works(door, toy, "drift", kind)
    got = await door.call(toy.url + PATHS[kind], body("drift", 4300))
    assert counted(toy, "drift") == (1, 1)
    told = assert_refused(got, 422, "operation-mismatch", "body.amount", "new tool call")
    assert told["state"] == "succeeded"
    assert not told["retryable"]
    again = await assert_works(door, toy, "drift", kind)
    assert (outcome(again), again.body) == ("replayed", first.body)


async def test_another_amount_while_the_outcome_is_not_known(door: Door, toy: ToyApi) -> None:
    toy.troubles.fault("drift", "drop_after")
    lost = await door.call(toy.url + "/messages", body("drift"))
    got = await door.call(toy.url + "/messages", body("drift", 4300))
    assert counted(toy, "drift") == (1, 1)
    assert_refused(lost, 424, "outcome-unresolved", "do not repeat it")
    told = assert_refused(got, 422, "operation-mismatch", "body.amount")
    assert told["state"] == "unknown"


@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_a_body_over_the_limit(door: Door, toy: ToyApi, framing: str) -> None:
    url, large = toy.url + "/refunds", json.dumps(body("large") | {"text": "x" * LIMIT}).encode()
    call = post(url, large)
    if framing == "chunks":
        length = b"Content-Length: %d" % len(large)
        chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(large), large)
        call = call.replace(length, b"Transfer-Encoding: chunked").replace(large, chunk)
    async with RawClient(door.port) as client:
        got = await client.ask(call)
    assert counted(toy, "large") == (0, 0)
    told = assert_refused(got, 413, "request-too-large", "Nothing was sent", "limits.request_body")
    assert str(LIMIT) in told["detail"]
    await assert_works(door, toy, "large")


async def test_a_body_that_is_not_what_it_says(door: Door, toy: ToyApi) -> None:
    """Two members of one name: which of them the API takes, nobody can say."""
    twice = b'{"reference": "twice", "amount": 1, "amount": 2}'
    got = await door.call(toy.url + "/refunds", twice)
    assert counted(toy, "twice") == (0, 0)
    assert_refused(got, 400, "bad-request", "stop and report")
    await assert_works(door, toy, "twice")


@pytest.mark.parametrize("kind", PATHS)
async def test_a_service_that_refuses_connections(door: Door, toy: ToyApi, kind: str) -> None:
    await toy.refuse()
    got = await door.call(toy.url + PATHS[kind], body("refused"))
    assert counted(toy, "refused") == (0, 0)
    told = assert_refused(got, 502, "upstream-not-reached", "Nothing was sent: repeat the same")
    assert (told["retryable"], told["state"]) == (True, "not_applied")
    await toy.listen()
    sent = await assert_works(door, toy, "refused", kind)
    assert counted(toy, "refused") == (1, 1)
    assert outcome(sent) == "sent"


@pytest.mark.parametrize("fault", ["error_after", "drop_after"])
@pytest.mark.parametrize(
    ("kind", "requests", "how"), [("key", 2, "sent"), ("query", 1, "reconciled")]
)
async def test_no_answer_after_the_effect_is_settled_within_the_call(
    door: Door, toy: ToyApi, kind: str, requests: int, how: str, fault: str
) -> None:
    toy.troubles.fault("lost", fault)
    got = await door.call(toy.url + PATHS[kind], body("lost"))
    assert counted(toy, "lost") == (requests, 1)
    assert (got.status, outcome(got)) == (201, how)
    again = await assert_works(door, toy, "lost", kind)
    assert (outcome(again), again.body) == ("replayed", got.body)


@pytest.mark.parametrize("fault", ["error_after", "drop_after"])
async def test_no_answer_and_nothing_that_can_settle_it(
    door: Door, toy: ToyApi, fault: str
) -> None:
    toy.troubles.fault("lost", fault)
    got = await door.call(toy.url + "/messages", body("lost"))
    again = await door.call(toy.url + "/messages", body("lost"))
    assert counted(toy, "lost") == (1, 1)
    for each in (got, again):
        told = assert_refused(each, 424, "outcome-unresolved", "do not repeat it", "an operator")
        assert (told["state"], told["retryable"]) == ("unknown", False)
    [key] = got.all("onceproxy-operation")
    answer = {"status": 201, "body": {"reference": "lost", "id": "ms_1"}}
    status, _ = await door.resolve(key, **{"as": "happened", "response": answer})
    assert status == 200
    assert outcome(await assert_works(door, toy, "lost", "neither")) == "resolved"


async def test_an_answer_cut_in_the_middle_whose_body_the_rule_needs_is_asked_for_again(
    door: Door, toy: ToyApi
) -> None:
    toy.troubles.fault("cut", "cut")
    got = await door.call(toy.url + "/refunds", body("cut"))
    assert counted(toy, "cut") == (2, 1)
    assert (got.status, outcome(got)) == (201, "sent")
    again = await assert_works(door, toy, "cut")
    assert (outcome(again), again.body) == ("replayed", got.body)


@pytest.mark.parametrize("kind", ["query", "neither"])
async def test_an_answer_cut_in_the_middle_whose_status_tells_is_a_success_without_a_body(
    door: Door, toy: ToyApi, kind: str
) -> None:
    toy.troubles.fault("cut", "cut")
    got = await door.call(toy.url + PATHS[kind], body("cut"))
    again = await door.call(toy.url + PATHS[kind], body("cut"))
    assert counted(toy, "cut") == (1, 1)
    for each in (got, again):
        told = assert_refused(each, 409, "outcome-not-kept", "Already done", "go on")
        assert told["state"] == "succeeded"
    other = await door.call(toy.url + PATHS[kind], body("other"), "run-1", "step-2")
    assert counted(toy, "other") == (1, 1)
    assert other.status == 201


@pytest.mark.parametrize("kind", PATHS)
async def test_a_caller_that_leaves_while_its_call_is_under_way(
    door: Door, toy: ToyApi, kind: str
) -> None:
    gate = toy.troubles.gate("gone", "received")
    async with RawClient(door.port) as client:
        await client.send(post(toy.url + PATHS[kind], body("gone")))
        await gate.reached.wait()
    gate.opened.set()
    got = await assert_works(door, toy, "gone", kind)
    assert counted(toy, "gone") == (1, 1)
    assert outcome(got) in ("coalesced", "replayed")


async def test_a_caller_that_leaves_in_the_middle_of_its_body(door: Door, toy: ToyApi) -> None:
    async with RawClient(door.port) as client:
        await client.send(post(toy.url + "/refunds", body("half"))[:-5])
        client.writer.write_eof()
        told = await client.closed()
    assert counted(toy, "half") == (0, 0)
    assert told == b"" or b"400" in told.split(b"\r\n", 1)[0]
    sent = await assert_works(door, toy, "half")
    assert outcome(sent) == "sent"


# Disks


class Disk:
    """Where a proxy's state lies, and how it fills up and empties again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, proxy: Served) -> None:
        raise NotImplementedError

    def empty(self, proxy: Served) -> None:
        raise NotImplementedError


class SmallDisk(Disk):
    """A file system of its own; the kernel says ENOSPC."""

    filler = "filler"

    def fill(self, proxy: Served) -> None:
        with (self.folder / self.filler).open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    def empty(self, proxy: Served) -> None:
        (self.folder / self.filler).unlink()


class Quota(Disk):
    """A limit on the process; the kernel says EFBIG, which is another error to SQLite."""

    def fill(self, proxy: Served) -> None:
        _, most = resource.prlimit(proxy.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(proxy.process.pid, resource.RLIMIT_FSIZE, (0, most))

    def empty(self, proxy: Served) -> None:
        _, most = resource.prlimit(proxy.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(proxy.process.pid, resource.RLIMIT_FSIZE, (most, most))


@contextmanager
def mounted(folder: Path, size: str = "4m") -> Iterator[Path]:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "onceproxy-test", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("only root may mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(params=["small disk", "quota"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "small disk":
        with mounted(tmp_path / "disk") as folder:
            yield SmallDisk(folder)
    else:
        (tmp_path / "disk").mkdir()
        yield Quota(tmp_path / "disk")


def start(config: Path, disk: Disk) -> Any:
    return served(disk.folder / "state", "--config", str(config))


# A key is the one that a full ledger could make the proxy use twice.
AT_A_TIME = [pytest.param(k, marks=() if k == "key" else pytest.mark.slow) for k in PATHS]


async def test_a_ledger_that_is_full_before_a_send(toy: ToyApi, disk: Disk, tmp_path: Path) -> None:
    with start(configure(tmp_path, toy_rules(toy.url)), disk) as proxy:
        door = door_of(proxy)
        first = await door.call(toy.url + "/refunds", body("early"), "run-1", "early")
        disk.fill(proxy)
        for kind, path in PATHS.items():
            got = await door.call(toy.url + path, body(kind), "run-1", kind)
            assert counted(toy, kind) == (0, 0)
            told = assert_refused(got, 503, "ledger-unavailable", "Nothing was sent: repeat")
            assert told["retryable"]
        replayed = await door.call(toy.url + "/refunds", body("early"), "run-1", "early")
        assert counted(toy, "early") == (1, 1)
        assert (replayed.status, replayed.body) == (first.status, first.body)
        disk.empty(proxy)
        for kind, path in PATHS.items():
            got = await door.call(toy.url + path, body(kind), "run-1", kind)
            assert counted(toy, kind) == (1, 1)
            assert (got.status, outcome(got)) == (201, "sent")


async def _answered_while_full(toy: ToyApi, proxy: Served, disk: Disk, kind: str) -> Got:
    """A call whose ledger is full from the moment of its effect on."""
    gate = toy.troubles.gate("full", "effect")
    call = asyncio.create_task(door_of(proxy).call(toy.url + PATHS[kind], body("full")))
    await gate.reached.wait()
    disk.fill(proxy)
    gate.opened.set()
    return await call


@pytest.mark.parametrize("kind", AT_A_TIME)
async def test_a_ledger_that_is_full_after_a_send(
    toy: ToyApi, disk: Disk, kind: str, tmp_path: Path
) -> None:
    with start(configure(tmp_path, toy_rules(toy.url)), disk) as proxy:
        door = door_of(proxy)
        got = await _answered_while_full(toy, proxy, disk, kind)
        assert counted(toy, "full") == (1, 1)
        assert (got.status, outcome(got)) == (201, "sent")  # the true answer
        again = await door.call(toy.url + PATHS[kind], body("full"))
        assert counted(toy, "full") == (1, 1)
        assert again.status in (409, 503), again.body  # the same call may come again
        disk.empty(proxy)
        later = await assert_works(door, toy, "full", kind)
        assert counted(toy, "full") == (1, 1)
        assert (outcome(later), later.body) == ("replayed", got.body)


@pytest.mark.parametrize("kind", AT_A_TIME)
async def test_a_proxy_that_dies_with_a_full_ledger_after_a_send(
    toy: ToyApi, disk: Disk, kind: str, tmp_path: Path
) -> None:
    config = configure(tmp_path, toy_rules(toy.url))
    with start(config, disk) as proxy:
        got = await _answered_while_full(toy, proxy, disk, kind)
        assert got.status == 201
        proxy.process.kill()
        proxy.process.wait()
    if isinstance(disk, SmallDisk):
        disk.empty(proxy)
    with start(config, disk) as proxy:
        door = door_of(proxy)
        if kind == "neither":
            again = await door.call(toy.url + PATHS[kind], body("full"))
            assert counted(toy, "full") == (1, 1)
            assert_refused(again, 424, "outcome-unresolved", "do not repeat it")
        else:
            await assert_works(door, toy, "full", kind)


# Directories and processes


async def test_a_directory_that_cannot_be_written(toy: ToyApi, tmp_path: Path) -> None:
    config = configure(tmp_path, toy_rules(toy.url))
    with mounted(tmp_path / "disk") as folder:
        disk = Disk(folder)
        with start(config, disk) as proxy:
            first = await assert_works(door_of(proxy), toy, "kept")
            proxy.stop()
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        done = onceproxy("serve", "--config", str(config), "--state-dir", str(folder / "state"))
        assert done.returncode == LEDGER_ERROR
        assert str(folder / "state") in done.stderr
        assert "cannot write" in done.stderr
        assert "Traceback" not in done.stderr
        subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)
        with start(config, disk) as proxy:
            again = await assert_works(door_of(proxy), toy, "kept")
        assert counted(toy, "kept") == (1, 1)
        assert (outcome(again), again.body) == ("replayed", first.body)


async def test_a_second_process_on_the_ledger(toy: ToyApi, tmp_path: Path) -> None:
    config = configure(tmp_path, toy_rules(toy.url))
    with served(tmp_path / "state", "--config", str(config)) as proxy:
        await assert_works(door_of(proxy), toy, "held")
        done = onceproxy("serve", "--config", str(config))
        assert done.returncode == LEDGER_ERROR
        assert str(proxy.process.pid) in done.stderr
        assert "stop that one, or give this one its own state_dir" in done.stderr
        assert "Traceback" not in done.stderr
        again = await assert_works(door_of(proxy), toy, "held")
        assert counted(toy, "held") == (1, 1)
        assert outcome(again) == "replayed"
