"""``python -m tests.fuzz.campaign NAME SECONDS``: atheris on one target; prints how many inputs."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris


def main(name: str, seconds: int) -> None:
    with atheris.instrument_imports(include=["proxy", "tests.fuzz.targets"]):
        from tests.fuzz.targets import SEEDS, TARGETS
    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(SEEDS[name]):
            (Path(folder) / str(number)).write_bytes(seed)
        arguments = [sys.argv[0], f"-max_total_time={seconds}", "-max_len=4096"]
        arguments += ["-print_final_stats=1", "-timeout=5", "-rss_limit_mb=2048", folder]
        atheris.Setup(arguments, TARGETS[name])
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
