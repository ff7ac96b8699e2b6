"""The rule file that ``rules new`` begins with: small, right, and with one example that passes."""

from __future__ import annotations

import datetime
import re

SERVICE = re.compile(r"[a-z][a-z0-9-]*")
HOST = re.compile(r"[A-Za-z0-9.*{}_-]+(:[0-9]+)?")

_FILE = """\
# What onceproxy has to know about {service}. Lines behind # show what else can be said;
# docs/rules.md explains every one.
service: {service} # first part of every operation's name; never renamed
hosts: ["{host}"]
source: https://{plain} # the page that says how the API deduplicates
confidence: inferred # documented once you have read it there; inferred rules only observe
checked: "{today}"
key: none # or where the API takes an idempotency key:
# key:
#   in: header
#   name: Idempotency-Key
#   valid_for: 24h # how long the API remembers it
#   keeps: all # which answers it replays: all | success | unstated
endpoints:
  things.create:
    match: POST /things
    external_id: id # where the answer names what was made
    # marker: {{in: json, name: metadata.operation_key}} # text by which a lookup finds it
    # reconcile:
    #   request: GET /things?limit=100
    #   items: data
    #   where: {{metadata.operation_key: "{{key}}"}}
    examples:
      - request: {{send: POST /things, json: {{name: first}}}}
        expect: {{endpoint: things.create}}
        answers:
          - {{status: 201, body: {{id: t_1}}, means: succeeded, external_id: t_1}}
          - {{status: 500, means: unknown}}
"""


def new_file(service: str, host: str) -> str:
    """Raises ValueError for names that a rule file cannot have."""
    if not SERVICE.fullmatch(service):
        raise ValueError("a service is named in lower case letters, digits and -, without a dot")
    if not HOST.fullmatch(host):
        raise ValueError("a host is a name, with *. in front for all below it, or with a :port")
    plain = host.removeprefix("*.").partition(":")[0]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return _FILE.format(service=service, host=host, plain=plain, today=today)


def named_after(host: str) -> str:
    """``acme`` of ``api.acme.com``; for a person to change."""
    labels = [label for label in host.partition(":")[0].lower().split(".") if label.isalnum()]
    common = {"api", "www", "rest", "gateway", "com", "net", "org", "io", "co", "dev", "app"}
    telling = [label for label in labels if label not in common and not label.isdigit()]
    return telling[-2] if len(telling) > 1 else telling[0] if telling else "service"
