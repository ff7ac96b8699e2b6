"""Loading a configuration: where values come from, and what is said about wrong ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.config import Address, Config, Secret
from proxy.configload import ConfigErrors, load
from proxy.options import as_dict, options

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "config.example.yaml"
BROKEN = sorted((Path(__file__).parent / "broken").glob("*.yaml"))
HOME = {"XDG_STATE_HOME": "/state"}


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "onceproxy.yaml"
    file.write_text(text)
    return file


@pytest.mark.parametrize("file", BROKEN, ids=lambda file: file.stem)
def test_a_broken_file_gets_all_its_messages(file: Path) -> None:
    expected = re.findall(r"^# expect: (.*)$", file.read_text(), re.M)
    with pytest.raises(ConfigErrors) as caught:
        load(file, environ=HOME)
    problems = [problem.removeprefix(f"{file}:") for problem in caught.value.problems]
    wanted = [text.replace("{here}", str(file.parent)) for text in expected]
    if wanted == ["not YAML"]:
        assert len(problems) == 1
        assert "not YAML" in problems[0]
    else:
        assert problems == wanted


def test_without_any_configuration_the_defaults_hold() -> None:
    config = load(environ=HOME).config
    assert config == Config(state_dir=Path("/state/onceproxy"))
    assert str(config.listen) == "127.0.0.1:8901"
    assert config.ledger_path == Path("/state/onceproxy/ledger.db")


def test_a_relative_xdg_directory_is_ignored_as_its_rules_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    config = load(environ={"XDG_STATE_HOME": "state"}).config
    assert config.state_dir == Path("/home/ada/.local/state/onceproxy")


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    file = write(tmp_path, "mode: observe\npatience: 1s\nledger: {url: 'sqlite:file.db'}\n")
    environ = HOME | {"ONCEPROXY_PATIENCE": "2s", "ONCEPROXY_LEDGER_URL": "sqlite:env.db"}
    loaded = load(file, environ=environ, flags={"ledger.url": "sqlite:flag.db"})
    assert loaded.config.mode == "observe"
    assert loaded.config.patience == 2.0
    assert loaded.config.ledger.url == "sqlite:flag.db"
    assert loaded.origins == {
        "mode": f"{file}:1",
        "patience": "environment ONCEPROXY_PATIENCE",
        "ledger.url": "flag ledger.url",
    }


def test_every_option_has_its_own_environment_variable() -> None:
    names = [option.variable for option in options()]
    assert len(names) == len(set(names))


def test_lists_and_mappings_can_be_given_in_the_environment(tmp_path: Path) -> None:
    config = load(
        environ=HOME
        | {
            "ONCEPROXY_TLS_TUNNEL": "a.example, b.example",
            "ONCEPROXY_UNRULED_HOSTS": '{"*.example.com": pass}',
            "ONCEPROXY_GATEWAY": "[{listen: '127.0.0.1:1', to: 'https://api.example'}]",
            "ONCEPROXY_FAULTS": "{after_effect: delay, seconds: 0.5}",
        }
    ).config
    assert config.tls.tunnel == ("a.example", "b.example")
    assert config.unruled.hosts == {"*.example.com": "pass"}
    assert config.gateway[0].listen == Address("127.0.0.1", 1)
    assert config.faults[0].seconds == 0.5


def test_a_wrong_value_in_the_environment_names_its_variable() -> None:
    with pytest.raises(ConfigErrors) as caught:
        load(environ=HOME | {"ONCEPROXY_LIMITS_DRAIN": "ages"})
    assert caught.value.problems[0].startswith(
        "environment ONCEPROXY_LIMITS_DRAIN: limits.drain: not a duration"
    )


def test_a_misspelt_variable_is_a_warning_and_foreign_ones_are_not() -> None:
    environ = HOME | {"ONCEPROXY_LEDGER_ULR": "x", "ONCEPROXY_SERVICE_HOST": "10.0.0.1"}
    assert load(environ=environ).warnings == (
        "ONCEPROXY_LEDGER_ULR is no option; did you mean ONCEPROXY_LEDGER_URL?",
    )


def test_an_unknown_flag_is_refused() -> None:
    with pytest.raises(ConfigErrors, match="lisen: unknown option"):
        load(environ=HOME, flags={"lisen": "x"})


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigErrors, match=r"nowhere\.yaml: cannot be read: No such file"):
        load(Path("nowhere.yaml"), environ=HOME)


def test_the_environment_names_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "mode: observe\n")
    assert load(environ=HOME | {"ONCEPROXY_CONFIG": str(file)}).config.mode == "observe"


def test_a_file_of_comments_and_empty_sections_is_the_default(tmp_path: Path) -> None:
    assert load(write(tmp_path, "# nothing\n"), environ=HOME).config == load(environ=HOME).config
    assert load(write(tmp_path, "tls:\nprobe:\n"), environ=HOME).config.tls.intercept == "all"


def test_relative_paths_start_at_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    config = load(write(tmp_path, "rules: [mine]\nstate_dir: here\n"), environ=HOME).config
    assert config.rules == (tmp_path / "mine",)
    assert config.state_dir == tmp_path / "here"
    assert config.rule_dirs[-1] == tmp_path / "mine"


def test_egress_lines_are_for_all_runs_or_for_some(tmp_path: Path) -> None:
    text = 'egress: {allow: [a.test, {run: "s-*", to: [b.test, 10.0.0.0/8]}], deny: ["*"]}\n'
    config = load(write(tmp_path, text), environ=HOME).config
    assert [(line.text, line.run) for line in config.egress.allow] == [
        ("a.test", "*"),
        ("b.test", "s-*"),
        ("10.0.0.0/8", "s-*"),
    ]
    shown = as_dict(config)["egress"]
    assert shown["allow"][1] == {"run": "s-*", "to": "b.test"}
    again = load(write(tmp_path, yaml.safe_dump({"egress": shown})), environ=HOME).config
    assert again.egress == config.egress
    environ = HOME | {"ONCEPROXY_EGRESS_DENY": '[{run: "x", to: "y.test"}]'}
    assert load(environ=environ).config.egress.deny[0].run == "x"


def test_a_parents_address_from_a_file_is_checked_as_well(tmp_path: Path) -> None:
    (tmp_path / "parent").write_text("proxy.example:3128\n")
    file = write(tmp_path, "upstream: {proxy_file: parent}\n")
    with pytest.raises(ConfigErrors, match=r"upstream\.proxy: not a proxy address"):
        load(file, environ=HOME)


def test_secrets_come_from_files_and_never_show(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("sixteen-characters-or-more\n")
    text = "identity: {secret_file: secret}\ncontrol: {agent_token: very-secret-token}\n"
    config = load(write(tmp_path, text), environ=HOME).config
    assert config.identity.secret == (Secret("sixteen-characters-or-more"),)
    for shown in (repr(config), str(as_dict(config))):
        assert "sixteen" not in shown
        assert "very-secret-token" not in shown


def test_the_example_is_the_default_configuration() -> None:
    assert load(EXAMPLE, environ=HOME).config == load(environ=HOME).config


def test_the_example_shows_every_option() -> None:
    text = re.sub(r"^(\s*)#(?=[a-z_]+:|  - | {4,}[a-z])", r"\1", EXAMPLE.read_text(), flags=re.M)
    shown = _paths(yaml.load(text, Loader=_Merging))
    missing = [option.name for option in options() if option.path not in shown]
    assert not missing


class _Merging(yaml.SafeLoader):
    """Takes the second of two keys, as the example shows a default and then a use."""


def _paths(data: Any, above: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = {above}
    if isinstance(data, dict):
        for name, value in data.items():
            found |= _paths(value, (*above, str(name)))
    return found
