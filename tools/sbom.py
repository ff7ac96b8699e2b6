"""The software bill of materials (CycloneDX 1.5, JSON) of what runs: this package and its locked
dependencies with their hashes. ``python tools/sbom.py > sbom.json``; needs nothing installed.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def document() -> dict[str, Any]:
    version = re.search(r'__version__ = "([^"]+)"', (ROOT / "proxy/__init__.py").read_text())
    assert version is not None
    text = (ROOT / "requirements/runtime.txt").read_text()
    entry = re.compile(r"^([A-Za-z0-9._-]+)==(\S+?)(?: ?;.*?)?( \\\n(?:    --hash=\S+.*\n)+)", re.M)
    components = []
    for name, release, hashes in entry.findall(text):
        components.append(
            {
                "type": "library",
                "bom-ref": f"pkg:pypi/{name.lower()}@{release}",
                "name": name,
                "version": release,
                "purl": f"pkg:pypi/{name.lower()}@{release}",
                "hashes": [
                    {"alg": "SHA-256", "content": digest}
                    for digest in re.findall(r"sha256:([0-9a-f]{64})", hashes)
                ],
            }
        )
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": f"pkg:pypi/onceproxy@{version[1]}",
                "name": "onceproxy",
                "version": version[1],
                "licenses": [{"license": {"id": "MIT"}}],
            }
        },
        "components": components,
    }


if __name__ == "__main__":
    json.dump(document(), sys.stdout, indent=2)
    print()
