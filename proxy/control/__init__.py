"""The control port: JSON API over ``proxy.service``, metrics, probes. One file per resource."""
