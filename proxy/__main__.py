"""``python -m proxy`` is ``onceproxy``."""

from proxy.cli import entry

entry()
