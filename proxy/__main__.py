"""``python -m proxy`` is ``onceproxy``."""

from proxy.cli import main

main()
