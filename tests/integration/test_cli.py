"""The commands as a user runs them: real processes, exit codes, and what is printed."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography.x509 import NameConstraints, load_pem_x509_certificate

from proxy.cli import COMMANDS, help_text, main
from proxy.core.matching import RuleSet
from proxy.ledger.seal import load_keys
from proxy.ledger.sqlite import SqliteLedger
from tests.fakes.clock import FakeClock
from tests.fakes.scripted import Proxy, Scripted, answer
from tests.fakes.served import FREE_PORTS, ROOT, Api, Served, api, onceproxy, served, until
from tests.fakes.world import post

STORY = "case-1:refund"


@pytest.fixture(scope="module")
def upstream() -> Iterator[Api]:
    with api() as made:
        yield made


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory, upstream: Api) -> Iterator[Served]:
    state_dir = tmp_path_factory.mktemp("proxy") / "state"
    host = upstream.url.removeprefix("http://")
    with served(state_dir, ONCEPROXY_EGRESS_ALLOW=host, ONCEPROXY_PATIENCE="300ms") as running:
        yield running


def run(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(main, arguments, env=environ, catch_exceptions=False)


def lost_call(proxy: Served, upstream: Api, path: str) -> str:
    """A write whose answer never came; returns its operation key."""
    status, body = proxy.call(upstream.url + path, b"amount=5", STORY)
    assert status in (409, 424), body
    return str(json.loads(body)["operation"])


# Without a proxy


def test_the_quick_help_is_the_one_of_the_commands() -> None:
    assert help_text("onceproxy") == run("--help").output.replace("main [OPT", "onceproxy [OPT")
    assert help_text("onceproxy") == onceproxy("--help").stdout == onceproxy("-h").stdout


def test_help_takes_at_most_six_times_as_long_as_starting_python() -> None:
    """The fastest of some, in turns, so that a busy machine slows both."""

    def seconds(*command: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, *command], stdout=subprocess.DEVNULL, check=True, cwd=ROOT)
        return time.perf_counter() - began

    bare, asked = [], []
    for _ in range(7):
        bare.append(seconds("-c", "pass"))
        asked.append(seconds("-m", "proxy", "--help"))
    assert min(asked) < 6 * min(bare)


def test_help_lists_every_command_without_importing_any() -> None:
    code = (
        "import sys; from proxy.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    )
    code += (
        "print([m for m in sys.modules if m in ('pydantic', 'aiohttp', 'yaml', 'proxy.config')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd()
    )
    assert done.stdout.rstrip().endswith("[]")
    for name in COMMANDS:
        assert f"  {name} " in done.stdout


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_explains_itself(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_check_prints_what_is_in_effect_and_where_it_is_from(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("mode: observe\ncontrol: {agent_token: a-secret-token}\n")
    result = run("check", "--config", str(file), "--state-dir", str(tmp_path), "--json")
    assert result.exit_code == 0
    data = json.loads(result.output)
    assert data["config"]["mode"] == "observe"
    assert data["origins"]["mode"] == f"{file}:1"
    assert "a-secret-token" not in result.output
    assert data["rules"]["services"] > 3


def test_the_configuration_can_be_named_before_the_command(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("mode: observe\n")
    result = run("--config", str(file), "check", "--json")
    assert json.loads(result.output)["config"]["mode"] == "observe"


def test_a_broken_configuration_ends_with_3_and_names_every_problem(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("lisen: 1\nmode: off2\n")
    for command in ("check", "serve", "ops"):
        result = run(command, "--config", str(file))
        assert result.exit_code == 3
        assert f'{file}:1:1: lisen: unknown option; did you mean "listen"?' in result.output
        assert f"{file}:2:1: mode: must be one of" in result.output


def test_broken_rules_end_with_3(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "x.yaml").write_text("servce: x\n")
    for command in (["check"], ["rules", "list"], ["rules", "test"]):
        result = run(*command, "--set", f"rules={rules}")
        assert result.exit_code == 3
        assert "x.yaml:1" in result.output


def test_wrong_usage_ends_with_2() -> None:
    assert run("serve", "--port", "1").exit_code == 2
    assert run("check", "--set", "mode").exit_code == 2
    assert run("nothing").exit_code == 2


def test_rules_are_listed_as_one_array_of_objects() -> None:
    rows = json.loads(run("rules", "list", "--json").output)
    wanted = {"service", "endpoint", "key", "settles_by", "confidence", "mode"}
    assert all(wanted <= set(row) for row in rows)
    named = {(row["service"], row["endpoint"]): row for row in rows}
    refund = named["stripe", "refunds.create"]
    assert refund["settles_by"] == "key+query"


def test_rules_are_listed_of_the_services_that_are_named() -> None:
    rows = json.loads(run("rules", "list", "slack", "gmail", "--json").output)
    assert {row["service"] for row in rows} == {"slack", "gmail"}
    unknown = run("rules", "list", "slack", "slak")
    assert (unknown.exit_code, unknown.output) == (1, "there are no rules for slak\n")


def test_the_list_ends_with_what_it_comes_to() -> None:
    output = run("rules", "list").output
    last = output.splitlines()[-1]
    assert "MECHANISM" in output.splitlines()[0]
    assert "key header:Idempotency-Key, mark form:metadata[operation_key]" in output
    share = re.search(r"(\d+) services, (\d+) endpoints, .* person \((\d+) %\)", last)
    assert share is not None, last
    assert last.startswith("without the generated files: ")
    assert int(share[1]) >= 40
    assert int(share[2]) >= 150
    assert int(share[3]) >= 75


def test_examples_that_do_not_show_what_a_rule_says_are_missed_if_that_is_asked(
    tmp_path: Path,
) -> None:
    file = tmp_path / "thin.yaml"
    head = "service: thin\nhosts: [thin.test]\nsource: https://thin.test\nconfidence: documented\n"
    key = "{in: header, name: Idempotency-Key, valid_for: 24h}"
    file.write_text(f"{head}key: {key}\nendpoints:\n  a:\n    match: POST /a\n")
    assert run("rules", "test", str(file)).exit_code == 0
    result = run("rules", "test", "--strict", str(file))
    assert result.exit_code == 1
    assert "thin.a: no example of an answer that means unknown" in result.output
    assert "thin.a: no example expects what is placed" in result.output
    assert "0 examples, 1 failed" in result.output


def test_shipped_rules_pass_their_own_examples() -> None:
    result = run("rules", "test")
    assert result.exit_code == 0, result.output
    assert " 0 failed" in result.output


def test_an_example_that_fails_ends_with_1(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "rules" / "example.yaml").read_text()
    file = tmp_path / "example.yaml"
    assert "means: rejected" in text or "means: succeeded" in text
    file.write_text(text.replace("means: succeeded", "means: not_applied"))
    assert run("rules", "test", str(file)).exit_code == 1


def test_a_new_rule_file_is_right_from_the_start(tmp_path: Path) -> None:
    directory = ["--directory", str(tmp_path)]
    assert run("rules", "new", "my-api", "--host", "*.my-api.example", *directory).exit_code == 0
    tested = run("rules", "test", str(tmp_path / "my-api.yaml"))
    assert tested.exit_code == 0, tested.output
    assert "1 example, 0 failed" in tested.output
    assert run("rules", "new", "my-api", "--host", "x.example", *directory).exit_code == 1
    assert run("rules", "new", "my.api", "--host", "x.example", *directory).exit_code == 2


async def _ledger_with_calls(state: Path) -> None:
    """Two orders and a cancellation, as a proxy records what no rule is for."""
    key = load_keys(state / "ledger.key", create=True)
    clock = FakeClock(auto=False)
    ledger = SqliteLedger(state / "ledger.db", key=key, clock=clock)
    await ledger.open()
    try:
        made = {"id": "ord_1", "email": "bob@secret.test"}
        sends = [answer(201, made), answer(201, made), answer(204)]
        proxy = Proxy(RuleSet([]), Scripted(sends), ledger=ledger, clock=clock)
        order = {"email": "bob@secret.test", "lines": [{"sku": "a-77", "n": 3}], "rush": True}
        for step in ("one", "two"):
            await proxy.call(post("/v2/orders", order, step=step))
        await proxy.call(post("/v2/orders/ord_8f3a/cancel", {"reason": "asked by Bob"}))
    finally:
        await ledger.close()


async def test_a_rule_file_is_begun_with_the_calls_that_were_seen(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    await _ledger_with_calls(state)
    given = ["--seen", "api.world.test", "--directory", str(tmp_path), "--state-dir", str(state)]
    made = await asyncio.to_thread(run, "rules", "new", *given)
    assert made.exit_code == 0, made.output
    text = (tmp_path / "world.yaml").read_text()
    assert 'match: "POST /v2/orders"' in text
    assert 'match: "POST /v2/orders/{order}/cancel"' in text
    assert "orders.cancel:" in text
    assert '"sku"' in text
    for secret in ("secret.test", "a-77", "Bob", "ord_1", "8f3a"):
        assert secret not in text
    tested = await asyncio.to_thread(run, "rules", "test", str(tmp_path / "world.yaml"))
    assert tested.exit_code == 0, tested.output
    assert "4 examples, 0 failed" in tested.output
    given[1] = "api.elsewhere.test"
    nothing = await asyncio.to_thread(run, "rules", "new", "other", *given)
    assert nothing.exit_code == 1
    assert "no write to api.elsewhere.test is in the ledger" in nothing.output


def test_a_call_can_be_explained() -> None:
    result = run("rules", "explain", "POST", "https://api.stripe.com/v1/refunds")
    assert result.exit_code == 0
    assert "stripe.refunds.create" in result.output
    assert run("rules", "explain", "POST", "not-a-url").exit_code == 2


def test_a_call_of_a_model_at_a_host_of_ones_own_is_explained() -> None:
    call = ("POST", "http://llm.internal:8000/v1/responses", "-d", '{"max_output_tokens": 70}')
    known = run("rules", "explain", "--set", "models=llm.internal:8000", *call)
    assert "models.openai.responses" in known.output
    assert "reserves 70 tokens" in known.output
    assert "no rule names this host" in run("rules", "explain", *call).output


def test_the_helpers_are_written_where_they_are_wanted(tmp_path: Path) -> None:
    assert run("helper", str(tmp_path / "lib")).exit_code == 0
    assert {file.name for file in (tmp_path / "lib").iterdir()} == {
        "onceproxy_step.py",
        "preload.cjs",
    }


def test_the_ca_is_made_and_its_variables_name_a_bundle_with_it(tmp_path: Path) -> None:
    path = Path(run("ca", "path", "--state-dir", str(tmp_path)).output.strip())
    certificate = path.read_text()
    assert certificate.startswith("-----BEGIN CERTIFICATE-----")
    variables = json.loads(run("ca", "env", "--state-dir", str(tmp_path), "--json").output)
    bundle = Path(variables["SSL_CERT_FILE"]).read_text()
    assert certificate.strip() in bundle
    assert bundle.count("BEGIN CERTIFICATE") > 1


@pytest.mark.parametrize("command", [["ops"], ["show", "k"], ["reconcile", "k"]])
def test_without_a_proxy_the_message_says_how_to_start_one(
    tmp_path: Path, command: list[str]
) -> None:
    result = run(*command, "--state-dir", str(tmp_path / "none"))
    assert result.exit_code == 5
    assert "start one with onceproxy serve" in result.output


# With one


def test_operations_are_listed_and_shown(proxy: Served, upstream: Api) -> None:
    key = lost_call(proxy, upstream, "/lost/shown")
    state = ["--state-dir", str(proxy.state_dir)]
    rows = json.loads(run("ops", *state, "--run", "case-1", "--state", "unknown", "--json").output)
    assert key in [row["key"] for row in rows]
    assert key in run("ops", *state).output
    shown = run("show", key, *state)
    assert shown.exit_code == 0
    assert "AttemptLost" in shown.output
    data = json.loads(run("show", key, *state, "--json").output)
    assert data["operation"]["state"] == "unknown"
    assert data["events"][0]["event"] == "AttemptStarted"


def test_resolving_decides_what_the_next_identical_call_gets(
    proxy: Served, upstream: Api, tmp_path: Path
) -> None:
    state = ["--state-dir", str(proxy.state_dir)]
    key = lost_call(proxy, upstream, "/lost/resolved")
    sent = len(upstream.writes())
    response = tmp_path / "answer.json"
    response.write_text('{"status": 201, "body": {"id": "made-elsewhere"}}')
    happened = run(
        "resolve", key, "--as", "happened", "--external-id", "made-elsewhere",
        "--response", str(response), "--evidence", "seen in the dashboard", *state,
    )  # fmt: skip
    assert happened.exit_code == 0, happened.output
    status, body = proxy.call(upstream.url + "/lost/resolved", b"amount=5", STORY)
    assert (status, json.loads(body)) == (201, {"id": "made-elsewhere"})
    assert len(upstream.writes()) == sent

    again = run("resolve", key, "--as", "abandoned", *state)
    assert again.exit_code == 1
    assert "It has succeeded." in again.output


def test_a_stale_revision_and_an_unknown_key_end_with_1(proxy: Served, upstream: Api) -> None:
    state = ["--state-dir", str(proxy.state_dir)]
    key = lost_call(proxy, upstream, "/lost/stale")
    stale = run("resolve", key, "--as", "did_not_happen", "--revision", "1", *state)
    assert stale.exit_code == 1
    assert "look at it again" in stale.output
    assert run("show", "no/such/op/v1", *state).exit_code == 1
    assert run("reconcile", key, *state).exit_code == 0


def test_a_second_proxy_on_the_same_ledger_ends_with_4(proxy: Served) -> None:
    done = onceproxy("serve", "--state-dir", str(proxy.state_dir), *FREE_PORTS)
    assert done.returncode == 4
    assert str(proxy.process.pid) in done.stderr


def test_a_port_that_is_taken_ends_with_5(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = onceproxy(
            "serve", "--state-dir", str(tmp_path / "s"), "--listen", address,
            "--control", "127.0.0.1:0",
        )  # fmt: skip
    assert done.returncode == 5
    assert "--listen" in done.stderr


def test_reload_by_signal_keeps_the_old_rules_when_the_new_ones_are_broken(
    tmp_path: Path,
) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    good = (
        "service: mine\nhosts: [api.mine.example]\nsource: https://mine.example\n"
        "confidence: inferred\nchecked: '2026-01-01'\nkey: none\n"
        "endpoints:\n  a:\n    match: POST /a\n"
    )
    (rules / "mine.yaml").write_text(good)
    with served(tmp_path / "state", *FREE_PORTS, "--rules", str(rules)) as running:
        (rules / "mine.yaml").write_text("service: [broken\n")
        running.process.send_signal(signal.SIGHUP)
        until(lambda: "rules not reloaded" in running.log.read_text())
        (rules / "mine.yaml").write_text(good + "  b:\n    match: POST /b\n")
        running.process.send_signal(signal.SIGHUP)
        until(lambda: "rules reloaded" in running.log.read_text())
        assert running.stop() == 0
    assert not (tmp_path / "state" / "serving.json").exists()


def test_hosts_of_ones_own_models_are_named_by_rules_also_after_a_reload(tmp_path: Path) -> None:
    """A CA that speaks only for hosts of rules has the name."""
    options = ("--set", "models=llm.internal", "--set", "tls.intercept=rules")
    with served(tmp_path / "state", *FREE_PORTS, *options) as running:
        running.process.send_signal(signal.SIGHUP)
        until(lambda: "rules reloaded" in running.log.read_text())
        certificate = load_pem_x509_certificate((tmp_path / "state/ca/ca.pem").read_bytes())
        names = certificate.extensions.get_extension_for_class(NameConstraints).value
        assert "llm.internal" in [name.value for name in names.permitted_subtrees or ()]
        assert running.stop() == 0


def test_it_says_where_it_is_and_stops_when_told(tmp_path: Path) -> None:
    with served(tmp_path / "state") as running:
        where = json.loads((tmp_path / "state" / "serving.json").read_text())
        assert where["listen"] == running.listen
        assert Path(where["ca_cert"]).is_file()
        assert running.stop(signal.SIGINT) == 0


def test_a_stop_lets_the_running_call_end(tmp_path: Path, upstream: Api) -> None:
    host = upstream.url.removeprefix("http://")
    with (
        served(tmp_path / "state", ONCEPROXY_EGRESS_ALLOW=host) as running,
        ThreadPoolExecutor(1) as pool,
    ):
        call = pool.submit(running.call, upstream.url + "/slow/stop", b"a=1", STORY)
        until(lambda: ("POST", "/slow/stop") in upstream.writes())
        assert running.stop() == 0
        assert call.result()[0] == 200


def test_secrets_in_a_call_reach_neither_ledger_nor_log(proxy: Served, upstream: Api) -> None:
    import urllib.request

    canary = "canary-8d1f"
    handler = urllib.request.ProxyHandler({"http": f"http://{STORY}@{proxy.listen}"})
    request = urllib.request.Request(
        upstream.url + f"/pay?api_key={canary}", b"a=1", {"Authorization": f"Bearer {canary}"}
    )
    with urllib.request.build_opener(handler).open(request, timeout=60) as response:
        assert response.status == 200
    assert upstream.arrived[-1][2]["Authorization"] == f"Bearer {canary}"
    for file in [proxy.log, *proxy.state_dir.rglob("*")]:
        if file.is_file():
            assert canary.encode() not in file.read_bytes(), file
