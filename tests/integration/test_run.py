"""``onceproxy run``: what the command gets, what becomes of its calls, and how it ends."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.cli.environ import child_environment, proxy_url
from proxy.config import Address
from proxy.net.bundle import CA_VARIABLES, write_bundle
from tests.fakes.served import ROOT, Api, Served, api, environment, onceproxy, served, until

LISTEN, CONTROL = Address("127.0.0.1", 8901), Address("127.0.0.1", 8902)
HELPERS = ROOT / "proxy" / "helpers"

POST = """
    import os, sys, urllib.request
    with urllib.request.urlopen(sys.argv[1], b"amount=5", timeout=60) as answer:
        names = "Onceproxy-Operation", "Onceproxy-Outcome"
        print(answer.status, *(answer.headers[name] for name in names))
"""
NODE = shutil.which("node")


@pytest.fixture(scope="module")
def upstream() -> Iterator[Api]:
    with api() as made:
        yield made


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory, upstream: Api) -> Iterator[Served]:
    state_dir = tmp_path_factory.mktemp("run") / "state"
    host = upstream.url.removeprefix("http://")
    with served(state_dir, ONCEPROXY_EGRESS_ALLOW=host) as running:
        yield running


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code), *arguments]


# The environment


def test_identity_survives_the_two_decodings_of_its_way() -> None:
    assert proxy_url(LISTEN, "case-1", None) == "http://case-1:-@127.0.0.1:8901"
    assert proxy_url(LISTEN, "case-1", "auto") == "http://case-1:~@127.0.0.1:8901"
    assert proxy_url(LISTEN, "a:b", "c/d") == "http://a%253Ab:c%252Fd@127.0.0.1:8901"
    assert proxy_url(LISTEN, "r", "s", "once_t") == "http://r:s%3Aonce_t@127.0.0.1:8901"
    assert proxy_url(LISTEN, "r", None, "once_t") == "http://r:-%3Aonce_t@127.0.0.1:8901"
    assert proxy_url(Address("0.0.0.0", 1), "r", "s") == "http://r:s@127.0.0.1:1"


@pytest.mark.duty("A-41", "C-20")
def test_the_command_gets_every_variable_its_clients_may_read() -> None:
    child = child_environment(
        {"NO_PROXY": "intranet, 10.0.0.1", "PYTHONPATH": "/mine", "NODE_OPTIONS": "--max-x=1"},
        listen=LISTEN,
        control=CONTROL,
        run="r",
        step=None,
        bundle=Path("/state/bundle.pem"),
        helpers=Path("/lib/with space"),
    )
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        assert child[name] == "http://r:-@127.0.0.1:8901"
    for name in ("NO_PROXY", "no_proxy"):
        assert child[name] == "intranet,10.0.0.1,127.0.0.1:8902"
    for name in CA_VARIABLES:
        assert child[name] == "/state/bundle.pem"
    assert child["PYTHONPATH"] == "/lib/with space:/mine"
    assert child["NODE_OPTIONS"] == '--max-x=1 --require "/lib/with space/preload.cjs"'


def test_no_proxy_never_frees_loopback_by_itself() -> None:
    child = child_environment(
        {}, listen=LISTEN, control=CONTROL, run="r", step=None, bundle=None, helpers=HELPERS
    )
    assert child["NO_PROXY"] == "127.0.0.1:8902"
    assert "SSL_CERT_FILE" not in child


def test_the_bundle_holds_what_the_user_trusted_before(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("LOCAL\n")
    (tmp_path / "company.pem").write_text("COMPANY\n")
    environ = {"REQUESTS_CA_BUNDLE": str(tmp_path / "company.pem")}
    bundle = write_bundle(tmp_path, tmp_path / "ca.pem", environ)
    certificates = [line for line in bundle.read_text().splitlines() if line[:1] != "#"]
    assert certificates[:2] == ["LOCAL", "COMPANY"]
    again = write_bundle(tmp_path, tmp_path / "ca.pem", environ | {"SSL_CERT_FILE": str(bundle)})
    assert again.read_text().count("LOCAL") == 1


# The command


def test_the_same_run_id_resumes_and_the_effect_stays_single(proxy: Served, upstream: Api) -> None:
    command = [
        "run", "--state-dir", str(proxy.state_dir), "--run-id", "case:1", "--step", "pay", "--",
        *python(POST, upstream.url + "/single"),
    ]  # fmt: skip
    first, second = onceproxy(*command), onceproxy(*command)
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert first.stdout.startswith("200 case:1/pay/")
    assert first.stdout.rstrip().endswith("sent")
    assert second.stdout.rstrip().endswith("replayed")
    assert upstream.writes().count(("POST", "/single")) == 1


def test_without_a_run_id_one_is_made_and_the_way_to_resume_is_printed(
    proxy: Served, upstream: Api
) -> None:
    state = ["--state-dir", str(proxy.state_dir)]
    done = onceproxy("run", *state, "--step", "auto", *python(POST, upstream.url + "/fresh"))
    assert done.returncode == 0, done.stderr
    again = rf"onceproxy run {re.escape(shlex.join(state))} --run-id (run-\S+) --step auto -- "
    found = re.search(again, done.stderr)
    assert found is not None
    assert f"{found[1]}/" in done.stdout


def test_the_exit_code_is_the_commands(proxy: Served) -> None:
    state = ["--state-dir", str(proxy.state_dir), "--run-id", "codes"]
    assert onceproxy("run", *state, "--", *python("raise SystemExit(7)")).returncode == 7
    killed = python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert onceproxy("run", *state, "--", *killed).returncode == 128 + signal.SIGKILL
    assert onceproxy("run", *state, "--", "no-such-command").returncode == 127


def test_a_command_that_made_no_call_is_warned_about(proxy: Served, upstream: Api) -> None:
    state = ["--state-dir", str(proxy.state_dir), "--run-id", "quiet"]
    assert "no call came through" in onceproxy("run", *state, "--", *python("pass")).stderr
    called = onceproxy("run", *state, "--step", "s", "--", *python(POST, upstream.url + "/heard"))
    assert "no call came through" not in called.stderr


def test_signals_reach_the_command(proxy: Served, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = f"""
        import pathlib, signal, time
        signal.signal(signal.SIGTERM, lambda *_: exit(42))
        pathlib.Path({str(ready)!r}).touch()
        time.sleep(60)
    """
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "proxy", "run", "--state-dir", str(proxy.state_dir)),
            *("--run-id", "signals", "--", *python(code)),
        ],
        env=environment(),
        stderr=subprocess.DEVNULL,
    )
    until(ready.exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 42


def test_a_proxy_is_started_if_none_runs_and_stopped_again(tmp_path: Path, upstream: Api) -> None:
    state_dir = tmp_path / "own"
    host = upstream.url.removeprefix("http://")
    done = onceproxy(
        "run", "--state-dir", str(state_dir), "--set", f"egress.allow={host}",
        "--set", "listen=127.0.0.1:0", "--set", "control.listen=127.0.0.1:0",
        "--run-id", "r", "--step", "s", "--", *python(POST, upstream.url + "/own"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("200 r/s/")
    assert not (state_dir / "serving.json").exists()
    assert (state_dir / "ledger.db").exists()


def test_a_proxy_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "x.yaml").write_text("servce: x\n")
    done = onceproxy(
        "run", "--state-dir", str(tmp_path / "s"), "--set", f"rules={tmp_path / 'rules'}",
        "--", "true",
    )  # fmt: skip
    assert done.returncode == 3
    assert "x.yaml:1" in done.stderr


def test_a_proxy_py_in_the_working_directory_is_not_taken_for_the_proxy(tmp_path: Path) -> None:
    (tmp_path / "proxy.py").write_text("raise SystemExit('wrong module')\n")
    entry = "from proxy.cli import main; main()"
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-c", entry, "run", "--state-dir", str(tmp_path / "s")),
            *("--set", "listen=127.0.0.1:0", "--set", "control.listen=127.0.0.1:0", "--", "true"),
        ],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# The helper files

STEPS = """
    import sys, urllib.request
    import onceproxy_step
    from onceproxy_step import step

    def send():
        with urllib.request.urlopen(sys.argv[1], b"amount=5", timeout=60) as answer:
            print(answer.headers["Onceproxy-Operation"])

    with step("call:1"):
        send()
    with step("call 2"):
        send()
"""
CLIENTS = """
    import asyncio, sys
    import aiohttp, httpx, requests
    from onceproxy_step import step

    url = sys.argv[1]

    async def main():
        with step("httpx-async"):
            async with httpx.AsyncClient() as client:
                print((await client.post(url, content=b"1")).headers["Onceproxy-Operation"])
        with step("aiohttp"):
            async with aiohttp.ClientSession(trust_env=True) as session:
                async with session.post(url, data=b"1") as answer:
                    print(answer.headers["Onceproxy-Operation"])

    with step("requests"):
        print(requests.post(url, data=b"1").headers["Onceproxy-Operation"])
    with step("httpx"):
        print(httpx.post(url, content=b"1").headers["Onceproxy-Operation"])
    with step("own"):
        headers = {"X-Step-Id": "given"}
        print(requests.post(url, data=b"1", headers=headers).headers["Onceproxy-Operation"])
    asyncio.run(main())
"""


def test_python_tool_calls_are_steps(proxy: Served, upstream: Api) -> None:
    done = onceproxy(
        "run", "--state-dir", str(proxy.state_dir), "--run-id", "tools", "--",
        *python(STEPS, upstream.url + "/tool"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    keys = [line.split("/")[:2] for line in done.stdout.splitlines()]
    assert keys == [["tools", "call:1"], ["tools", "call%202"]]
    assert all("X-Step-Id" not in headers for _, _, headers, _ in upstream.arrived)


def test_the_usual_python_clients_carry_the_step(proxy: Served, upstream: Api) -> None:
    done = onceproxy(
        "run", "--state-dir", str(proxy.state_dir), "--run-id", "clients", "--",
        *python(CLIENTS, upstream.url + "/clients"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    steps = [line.split("/")[1] for line in done.stdout.splitlines()]
    assert steps == ["requests", "httpx", "given", "httpx-async", "aiohttp"]


MANY_RUNS = """
    import sys, urllib.request
    from onceproxy_step import run, step

    def send():
        with urllib.request.urlopen(sys.argv[1], b"amount=5", timeout=60) as answer:
            print(answer.headers["Onceproxy-Operation"])

    for case in ("case 1", "case:2"):
        with run(case), step("call_1"):
            send()
    with step("call_2"), run("case 1"):
        send()
"""
MANY_RUNS_IN_NODE = """
    const send = async () => {
      const answer = await fetch(process.argv[1], {method: 'POST', body: '1'})
      console.log(answer.headers.get('onceproxy-operation'))
    }
    const { run, step } = onceproxy
    run('case 1', () => step('call_1', send))
      .then(() => run('case:2', () => step('call_1', send)))
      .then(() => step('call_2', () => run('case 1', send)))
"""


@pytest.mark.parametrize("language", ["python", "node"])
def test_a_process_of_many_runs_names_each(proxy: Served, upstream: Api, language: str) -> None:
    if language == "node" and NODE is None:
        pytest.skip("Node is not installed")
    url = f"{upstream.url}/many-{language}"
    command = python(MANY_RUNS, url)
    if language == "node":
        command = [str(NODE), "-e", textwrap.dedent(MANY_RUNS_IN_NODE), url]
    done = onceproxy("run", "--state-dir", str(proxy.state_dir), "--run-id", "-", "--", *command)
    assert done.returncode == 0, done.stderr
    keys = [line.split("/")[:2] for line in done.stdout.splitlines()]
    assert keys == [["case%201", "call_1"], ["case:2", "call_1"], ["case%201", "call_2"]]
    named = {name for _, _, headers, _ in upstream.arrived for name in headers}
    assert not {"X-Run-Id", "X-Step-Id"} & named


async def test_adapters_make_each_tool_call_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HELPERS))
    import importlib

    helper = importlib.import_module("onceproxy_step")

    def current() -> object:
        return helper._named.get({}).get("X-Step-Id")

    class Call:
        def __init__(self, call_id: str) -> None:
            self.tool_call = {"id": call_id}
            self.tool_call_id = call_id

    class Tool:
        async def on_invoke_tool(self, context: object, arguments: str) -> str:
            return f"{current()} {arguments}"

    async def later(request: Call) -> str:
        return str(current())

    assert helper.langgraph_tool_call(Call("a"), lambda _: current()) == "a"
    assert await helper.langgraph_tool_call_async(Call("b"), later) == "b"
    tool = Tool()
    assert await helper.agents_tool(tool).on_invoke_tool(Call("c"), "{}") == "c {}"
    assert current() is None
    assert "on_invoke_tool" not in vars(tool)


NODE_CALLS = """
    const https = require('node:https'), http = require('node:http')
    const url = process.argv[2]
    const viaHttp = () => new Promise((resolve, reject) => {
      const request = http.request(url + '/http', { method: 'POST' }, (answer) => {
        answer.resume(); answer.on('end', () => resolve(answer.headers['onceproxy-operation']))
      })
      request.on('error', reject); request.end('amount=5')
    })
    const main = async () => {
      const post = { method: 'POST', body: 'amount=5' }
      const answer = await onceproxy.step('call:1', () => fetch(url + '/fetch', post))
      console.log(answer.url, answer.headers.get('onceproxy-operation'))
      console.log('http', await onceproxy.step('call:2', viaHttp))
    }
    main().catch((error) => { console.error(error); process.exit(1) })
"""


@pytest.mark.skipif(NODE is None, reason="Node is not installed")
def test_node_goes_through_without_proxy_support(
    proxy: Served, upstream: Api, tmp_path: Path
) -> None:
    script = tmp_path / "agent.js"
    script.write_text(textwrap.dedent(NODE_CALLS))
    done = onceproxy(
        "run", "--state-dir", str(proxy.state_dir), "--run-id", "node:1", "--",
        str(NODE), str(script), upstream.url,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    fetched, requested = [line.split() for line in done.stdout.splitlines()]
    assert fetched[0] == upstream.url + "/fetch"
    assert fetched[1].startswith("node:1/call:1/")
    assert requested[1].startswith("node:1/call:2/")
    names = {name.lower() for _, _, headers, _ in upstream.arrived for name in headers}
    assert not {"x-run-id", "x-step-id"} & names
