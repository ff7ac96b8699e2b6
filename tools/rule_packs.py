"""Writes rules/generated/ anew, from the botocore and google-api-python-client that are installed.

.venv/bin/python tools/rule_packs.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import botocore
import googleapiclient

from proxy.rulefile.generate import Pack, Selection, from_botocore, from_discovery

OUT = Path(__file__).parent.parent / "rules" / "generated"
CHECKED = "2026-11-30"
ALL = Selection()

# Operations that have a rule by hand are left out: there it says more than a model can.
AWS = {
    "acm": ALL,
    "athena": ALL,
    "autoscaling": ALL,
    "backup": ALL,
    "batch": ALL,
    "bedrock": ALL,
    "bedrock-agent": ALL,
    "codecommit": ALL,
    "ec2": Selection(without=("RunInstances",)),
    "ecs": ALL,
    "efs": ALL,
    "eks": ALL,
    "fsx": ALL,
    "glue": ALL,
    "guardduty": ALL,
    "logs": ALL,
    "sagemaker": ALL,
    "scheduler": ALL,
    "secretsmanager": ALL,
    "ssm": ALL,
}
GOOGLE = {
    "alloydb.v1": ALL,
    "batch.v1": ALL,
    "clouddeploy.v1": ALL,
    "compute.v1": Selection(
        only=("instances.*", "disks.*", "snapshots.*", "firewalls.*", "*.insert")
    ),
    "dataproc.v1": ALL,
    "datastream.v1": ALL,
}


def packs() -> Iterator[Pack]:
    data = Path(botocore.__file__).parent / "data"
    for service, selection in AWS.items():
        yield from_botocore(data, service, selection, CHECKED)
    documents = Path(googleapiclient.__file__).parent / "discovery_cache" / "documents"
    for api, selection in GOOGLE.items():
        yield from_discovery(documents, api, selection, CHECKED)


def main() -> None:
    OUT.mkdir(exist_ok=True)
    for old in OUT.glob("*.yaml"):
        old.unlink()
    for pack in packs():
        (OUT / f"{pack.service}.yaml").write_text(pack.text, "utf-8")
        print(f"{pack.service}: {pack.operations}")


if __name__ == "__main__":
    main()
