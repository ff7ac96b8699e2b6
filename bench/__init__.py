"""Throughput and cost of the durable path, beside a plain proxy in the same run."""
