"""The file that docs/rules.md writes is right, shows what it says, and keeps its word."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from proxy.cli import main
from proxy.core.coverage import settles
from proxy.rulefile.loader import load_file
from tests.simulator.matrix import FEW, end, worlds
from tests.simulator.service import scenarios

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    path = tmp_path / "parcels.yaml"
    path.write_text(max(blocks, key=len))
    return path


def test_the_commands_print_what_the_page_shows(file: Path) -> None:
    text = PAGE.read_text()
    tested = CliRunner().invoke(main, ["rules", "test", "--strict", str(file)])
    assert tested.exit_code == 0, tested.output
    assert tested.output in text
    call = ["POST", "https://api.parcels.example/v1/labels", "-d", '{"order": "1842"}']
    explained = CliRunner().invoke(
        main, ["rules", "explain", "--set", f"rules={file.parent}", *call]
    )
    assert explained.output in text
    assert load_file(file).warnings == ()


async def test_its_service_is_killed_and_resumed_without_a_second_label(file: Path) -> None:
    played = list(scenarios(load_file(file)))
    assert len(played) == 2
    for scenario in played:
        assert settles(scenario.endpoint)
        for world in await worlds(scenario, [FEW]):
            assert (await end(world)).violations == ()
