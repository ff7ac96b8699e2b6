"""Starts the onceproxy command with a slower disk: every SQLite commit takes MILLISECONDS longer.

On a disk that flushes in a tenth of a millisecond, batches stay small because nothing queues up; a
cloud disk needs 1 to 10. The delay is planted from outside, beneath the ledger, so that the product
knows nothing of it: ``python -m bench.slow_commit MILLISECONDS serve ...``
"""

from __future__ import annotations

import sqlite3
import sys
import time
from typing import Any


def plant(seconds: float) -> None:
    connect = sqlite3.connect

    class SlowConnection(sqlite3.Connection):
        def commit(self) -> None:
            if self.in_transaction:
                time.sleep(seconds)
            super().commit()

        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            if sql.lstrip()[:6].upper() == "COMMIT":
                time.sleep(seconds)
            return super().execute(sql, *parameters)

    def slow_connect(*args: Any, **options: Any) -> sqlite3.Connection:
        return connect(*args, **{"factory": SlowConnection, **options})

    sqlite3.connect = slow_connect


if __name__ == "__main__":
    plant(float(sys.argv[1]) / 1000)
    from proxy.cli import main

    sys.argv = ["onceproxy", *sys.argv[2:]]
    main()
