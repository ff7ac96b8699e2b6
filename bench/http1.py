"""Just enough HTTP/1.1 for both ends of the bench: where a message ends, one field of its head."""

from __future__ import annotations


def head_end(data: bytes | bytearray) -> int:
    """Where the body begins, or -1 while the head is incomplete."""
    end = data.find(b"\r\n\r\n")
    return -1 if end < 0 else end + 4


def field(head: bytes, name: bytes) -> bytes | None:
    """A header's value; ``head`` in lower case, ``name`` as ``b"content-length"``."""
    start = head.find(b"\r\n" + name + b":")
    if start < 0:
        return None
    start += len(name) + 3
    return head[start : head.find(b"\r\n", start)].strip()


def message_end(data: bytes | bytearray) -> int:
    """Where the first message in ``data`` ends, or -1 while it is incomplete."""
    body = head_end(data)
    if body < 0:
        return -1
    head = bytes(data[:body]).lower()
    length = field(head, b"content-length")
    if length is not None:
        end = body + int(length)
        return end if len(data) >= end else -1
    if field(head, b"transfer-encoding") == b"chunked":
        return _chunked_end(data, body)
    return body


def _chunked_end(data: bytes | bytearray, at: int) -> int:
    while (line := data.find(b"\r\n", at)) >= 0:
        size = int(bytes(data[at:line]).partition(b";")[0], 16)
        at = line + 2 + size + 2
        if size == 0:  # no trailers: neither end of the bench sends any
            return at if len(data) >= at else -1
    return -1
