"""What is in ``deploy/`` fits its schemas, this configuration, and these metrics."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from proxy.configload import load
from proxy.metrics import Metrics
from proxy.net.bundle import CA_VARIABLES
from proxy.options import PREFIX, options
from proxy.rulefile.loader import load_text

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "onceproxy.rules.yml"
TESTS = DEPLOY / "prometheus" / "onceproxy.rules.test.yml"
DASHBOARD = DEPLOY / "grafana" / "onceproxy.json"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
KUBERNETES = DEPLOY / "kubernetes" / "agent.yaml"
UNIT = DEPLOY / "systemd" / "onceproxy.service"
BIN = Path(sys.executable).parent
KUBERNETES_MIN = "1.29"  # the first with sidecars by default

promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool here: install Debian's prometheus"
)


def tool(name: str, *arguments: str | Path, cwd: Path = ROOT) -> str:
    """What a tool prints; it must be content."""
    found = BIN / name if (BIN / name).exists() else Path(shutil.which(name) or name)
    done = subprocess.run(
        [found, *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def metric_names() -> set[str]:
    """As Prometheus has them: counters end in _total, histograms in three ways."""
    names: set[str] = set()
    for metric in Metrics().registry.collect():
        ends = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
        names |= {metric.name + end for end in ends.get(metric.type, [""])}
    return names


def named(expression: str) -> set[str]:
    return set(re.findall(r"\bonceproxy_[a-z_]+", expression))


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


# Prometheus and Grafana


def test_every_metric_that_is_watched_exists() -> None:
    known = metric_names()
    variables = json.loads(DASHBOARD.read_text())["templating"]["list"]
    watched = [*(alert["expr"] for alert in alerts()), *expressions()]
    watched += [str(variable["query"]) for variable in variables]
    used = set().union(*map(named, watched))
    assert used
    assert used - known == set()


@promtool
def test_alert_rules_fire_when_they_should_and_not_otherwise() -> None:
    tool("promtool", "check", "rules", RULES)
    assert "SUCCESS" in tool("promtool", "test", "rules", TESTS.name, cwd=TESTS.parent)


@promtool
def test_the_control_an_alert_that_never_fires_fails_its_test(tmp_path: Path) -> None:
    groups = yaml.safe_load(RULES.read_text())
    for group in groups["groups"]:
        for rule in group["rules"]:
            rule["expr"] = "vector(0) > 1"
    (tmp_path / RULES.name).write_text(yaml.safe_dump(groups))
    shutil.copy(TESTS, tmp_path / TESTS.name)
    command = ["promtool", "test", "rules", TESTS.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert [a["alert"] for a in alerts() if f"alertname: {a['alert']}," not in said] == []


@promtool
def test_every_expression_of_the_dashboard_is_promql(tmp_path: Path) -> None:
    rules = [
        {"record": f"x:{number}", "expr": text.replace("$__rate_interval", "5m")}
        for number, text in enumerate(expressions())
    ]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    tool("promtool", "check", "rules", file)


def test_an_alert_says_what_is_wrong_and_what_to_do() -> None:
    tested = TESTS.read_text()
    for alert in alerts():
        assert alert["labels"]["severity"] in ("critical", "warning", "info")
        assert alert["annotations"].keys() == {"summary", "action"}
        assert tested.count(alert["alert"]) >= 2, "one case where it fires, one where it does not"


def test_panels_have_their_own_place_and_source() -> None:
    taken: set[tuple[int, int]] = set()
    assert len({panel["id"] for panel in panels()}) == len(panels())
    for panel in panels():
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["targets"]


# Containers


def settings() -> dict[str, Any]:
    return {option.variable: option for option in options()}


def ours(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(PREFIX)}


def test_the_dockerfile_has_nothing_to_complain_about() -> None:
    assert (BIN / "hadolint").exists() or sys.platform == "win32"
    assert tool("hadolint", "--failure-threshold", "info", ROOT / "Dockerfile") == ""


def test_the_control_a_careless_dockerfile_is_complained_about(tmp_path: Path) -> None:
    careless = tmp_path / "Dockerfile"
    careless.write_text("FROM python:latest\nRUN cd /x && pip install onceproxy\n")
    done = subprocess.run([BIN / "hadolint", careless], capture_output=True, check=False)
    assert done.returncode == 1


def test_the_compose_file_fits_its_schema(tmp_path: Path) -> None:
    schema = ("check-jsonschema", "--builtin-schema", "vendor.compose-spec")
    tool(*schema, COMPOSE)
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(COMPOSE.read_text().replace("depends_on:", "depend_on:", 1))
    with pytest.raises(AssertionError, match="depend_on"):
        tool(*schema, wrong)


def test_compose_gives_the_agent_no_other_way_out_and_no_secret() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    networks = yaml.safe_load(COMPOSE.read_text())["networks"]
    agent = services["agent"]
    assert all(networks[name].get("internal") for name in agent["networks"])
    assert [volume for volume in agent["volumes"] if "state" in volume] == []
    proxy = services["onceproxy"]
    assert ours(proxy["environment"]).keys() <= settings().keys()
    assert int(proxy["stop_grace_period"].removesuffix("s")) > load(None).config.limits.drain
    assert set(CA_VARIABLES) <= agent["environment"].keys()


def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(KUBERNETES.read_text()))


@pytest.mark.parametrize("version", [KUBERNETES_MIN, None], ids=["oldest", "newest"])
def test_kubernetes_documents_fit_their_schemas(version: str | None) -> None:
    for document in documents():
        kubernetes_validate.validate(
            document, version or kubernetes_validate.latest_version(), strict=True
        )


def test_the_control_a_misspelt_field_is_found() -> None:
    document = next(d for d in documents() if d["kind"] == "StatefulSet")
    document["spec"]["template"]["spec"]["initContainers"][1]["restartPolice"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError, match="restartPolice"):
        kubernetes_validate.validate(document, KUBERNETES_MIN, strict=True)


def pod() -> dict[str, Any]:
    found = next(d for d in documents() if d["kind"] == "StatefulSet")
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def test_the_sidecar_is_ready_before_the_agent_and_outlasts_it() -> None:
    _, sidecar = pod()["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert sidecar[probe]["httpGet"]["path"] in ("/readyz", "/healthz")
        assert sidecar[probe]["httpGet"]["port"] == "probe"
    assert sidecar["livenessProbe"]["httpGet"]["path"] == "/healthz", "never killed for its peers"
    assert pod()["terminationGracePeriodSeconds"] > load(None).config.limits.drain


def test_the_agent_has_the_certificate_and_nothing_else_of_the_proxy() -> None:
    (agent,) = pod()["containers"]
    assert [mount["name"] for mount in agent["volumeMounts"]] == ["ca"]
    sidecar = pod()["initContainers"][1]
    assert "ca" not in [mount["name"] for mount in sidecar["volumeMounts"]]
    assert agent["securityContext"]["runAsUser"] != sidecar["securityContext"]["runAsUser"]
    names = {variable["name"] for variable in agent["env"]}
    assert set(CA_VARIABLES) | {"HTTP_PROXY", "HTTPS_PROXY"} <= names
    volumes = {volume["name"] for volume in pod()["volumes"]} | {"state"}
    for container in (*pod()["initContainers"], agent):
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_the_configuration_in_the_config_map_is_one(tmp_path: Path) -> None:
    data = next(d for d in documents() if d["kind"] == "ConfigMap")["data"]
    file = tmp_path / "config.yaml"
    rules = next(line for line in data["config.yaml"].splitlines() if line.startswith("rules:"))
    file.write_text(data["config.yaml"].replace(rules, f"rules: [{tmp_path}]"))
    environ = {v["name"]: v["value"] for v in pod()["initContainers"][1]["env"]}
    assert environ.keys() <= settings().keys()
    config = load(file, environ=environ).config
    assert str(config.probe) == "0.0.0.0:8903"
    assert config.listen.loopback
    assert load_text(data["example.yaml"]).service.name == "billing"
    mounts = {m["mountPath"] for m in pod()["initContainers"][1]["volumeMounts"]}
    assert str(config.state_dir.parent) in mounts


def test_the_policy_selects_the_pod_and_closes_both_directions() -> None:
    policy = next(d for d in documents() if d["kind"] == "NetworkPolicy")["spec"]
    labels = next(d for d in documents() if d["kind"] == "StatefulSet")["spec"]["template"]
    assert policy["podSelector"]["matchLabels"].items() <= labels["metadata"]["labels"].items()
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    blocks = [to["ipBlock"] for rule in policy["egress"] for to in rule["to"] if "ipBlock" in to]
    assert all("169.254.0.0/16" in block["except"] for block in blocks), "metadata addresses"
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == {8903}


def dockerfile_variables() -> Iterator[str]:
    yield from re.findall(rf"\b({PREFIX}[A-Z_]+)=", (ROOT / "Dockerfile").read_text())


def test_the_image_sets_options_that_exist() -> None:
    names = set(dockerfile_variables())
    assert names
    assert names <= settings().keys()


# One machine


def unit() -> dict[str, dict[str, list[str]]]:
    """A unit file may give a name several times."""
    found: dict[str, dict[str, list[str]]] = {}
    section = ""
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
            found[section] = {}
        elif line and not line.startswith("#"):
            name, equals, value = line.partition("=")
            assert equals, line
            found[section].setdefault(name, []).append(value)
    return found


def test_the_unit_runs_the_proxy_reloads_it_and_lets_it_drain() -> None:
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.read_string(UNIT.read_text())
    assert parsed.sections() == ["Unit", "Service", "Install"]
    service = unit()["Service"]
    assert service["ExecStart"][0].split()[1] == "serve"
    assert service["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert int(service["TimeoutStopSec"][0]) > load(None).config.limits.drain
    assert service["StateDirectoryMode"] == ["0700"]
    names = {value.partition("=")[0] for value in service["Environment"]}
    assert names <= settings().keys()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_knows_every_line_of_the_unit(tmp_path: Path) -> None:
    runnable = UNIT.read_text().replace("/opt/onceproxy/bin/onceproxy", "/bin/true")
    file = tmp_path / "onceproxy.service"
    file.write_text(runnable)
    assert "Unknown" not in tool("systemd-analyze", "verify", file)
