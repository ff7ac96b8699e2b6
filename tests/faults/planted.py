"""``python -m tests.faults.planted PLANT serve ...``: the proxy with a bug planted in it."""

from __future__ import annotations

import sys

from proxy.cli import main
from tests.faults.plants import PLANTS

if __name__ == "__main__":
    PLANTS[sys.argv.pop(1)]()
    main()
