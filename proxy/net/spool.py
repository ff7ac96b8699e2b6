"""Bodies that are too large for memory: unnamed files that vanish with their last reference.

A file without a name needs no cleaning up, also after a SIGKILL, and no other process can open it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from aiohttp.streams import StreamReader

from proxy.core.model import EMPTY, Body

MEMORY = 1 << 20
"""Bytes of one body held in memory; larger ones are spooled. 64 such calls are then at most 64
MiB."""

PIECE = 1 << 16  # read and written at a time: one send buffer's worth


class FileSpool:
    """A finished body in an unnamed file. May be read any number of times, also at once."""

    __slots__ = ("_descriptor", "_size")

    def __init__(self, file: IO[bytes], size: int) -> None:
        """Takes the file over."""
        # A bare descriptor: of a file object nobody can say whether it or this is dropped first.
        self._descriptor = -1
        self._descriptor = os.dup(file.fileno())
        file.close()
        self._size = size

    def chunks(self) -> Iterator[bytes]:
        offset = 0
        while offset < self._size:
            # pread has its own position, so that two readers do not disturb each other.
            data = os.pread(self._descriptor, PIECE, offset)
            if not data:
                raise OSError("a spooled body is shorter than it was written")
            offset += len(data)
            yield data

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


class Collector:
    """Takes a body piece by piece and makes a ``Body`` of it."""

    __slots__ = ("_digest", "_directory", "_file", "_pieces", "size")

    def __init__(self, directory: Path | None = None) -> None:
        """``directory`` is where files go; None is the system's directory for temporary files."""
        self._directory = directory
        self._pieces: list[bytes] = []
        self._file: IO[bytes] | None = None
        self._digest = hashlib.sha256()
        self.size = 0

    def add(self, data: bytes) -> None:
        """Raises OSError if the disk is full."""
        self.size += len(data)
        self._digest.update(data)
        if self._file is not None:
            self._file.write(data)
            return
        self._pieces.append(data)
        if self.size > MEMORY:
            self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115 - lives on
            self._file.writelines(self._pieces)
            self._pieces.clear()

    def finish(self) -> Body:
        if self._file is not None:
            self._file.flush()
            file, self._file = self._file, None
            return Body(self.size, self._digest.hexdigest(), None, FileSpool(file, self.size))
        if not self.size:
            return EMPTY
        return Body(self.size, self._digest.hexdigest(), b"".join(self._pieces))

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()  # a body that broke off


def arrived(payload: StreamReader, paused: bool) -> bytes:
    """All bytes of a body that has come to its end and of which nothing was read. ``paused``: its
    connection was told to wait, and has to be told to go on; that takes longer than the rest."""
    if paused:
        return payload.read_nowait()
    held = payload._buffer
    data = b"".join(held)
    held.clear()
    return data


def pieces(body: Body) -> Iterator[bytes]:
    """The bytes of a body, wherever they are."""
    if body.data is not None:
        if body.data:
            yield body.data
    elif body.spool is not None:
        yield from body.spool.chunks()
