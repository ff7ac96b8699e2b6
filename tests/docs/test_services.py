"""docs/services.md says what the rule files say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_list_of_services_is_as_the_rule_files_say() -> None:
    found = subprocess.run(
        [sys.executable, "tools/services.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
