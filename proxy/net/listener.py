"""Listening sockets that never take more connections than there is room for.

asyncio's own accept loop takes whatever waits, and answers a lack of file descriptors with a second
of deafness and a line in the log for each caller that waits. Here a caller for which there is no
room gets its answer and is let go, and room is made first by ending a connection that only idles.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

log = logging.getLogger(__name__)

BACKLOG = 1024
BATCH = 16  # connections taken in one turn of the loop, so that running calls go on meanwhile
LEAVING = 16  # callers turned away that may still read their answer; more lose the oldest
LEAVE_SECONDS = 1.0
STARVED_SECONDS = 0.25  # until the next look after the system had no descriptor left
_STARVED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Room:
    """How many connections may be open at once, for all listeners that share it."""

    def __init__(
        self,
        limit: int,
        *,
        make_room: Callable[[], bool] = lambda: False,
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        """``make_room`` is asked at the limit to end a connection that can be spared; True if it
        did. ``on_refused`` is called for each caller turned away."""
        self.limit = limit
        self.open = 0
        self._make_room = make_room
        self.on_refused = on_refused

    def free(self) -> bool:
        # A connection that is being ended counts until its socket is closed, some turns later.
        return self.open < self.limit or self._make_room()


class Listener:
    """One listening socket. ``make`` gives a protocol for each connection, ``refusal`` are the
    bytes for a caller without room."""

    def __init__(
        self, sock: socket.socket, make: Callable[[], Any], room: Room, refusal: bytes
    ) -> None:
        self._sock = sock
        self._make = make
        self._room = room
        self._refusal = refusal
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[None]] = set()
        self._leaving: deque[socket.socket] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY)
        self.port: int = sock.getsockname()[1]
        self._loop.add_reader(sock.fileno(), self._accept)

    def close(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        if self._timer is not None:
            self._timer.cancel()
        while self._leaving:
            self._leave(self._leaving[0])
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _accept(self) -> None:
        for _ in range(BATCH):
            try:
                caller, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _STARVED:
                    raise
                self._starved(error)
                return
            caller.setblocking(False)
            if self._room.free():
                counted = _Counted(caller, self._room)
                task = self._loop.create_task(self._begin(counted))
                self._beginning.add(task)
                task.add_done_callback(self._beginning.discard)
            else:
                self._turn_away(caller)

    async def _begin(self, caller: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, caller)
        except BaseException as error:
            caller.close()
            if not isinstance(error, OSError):
                raise

    def _turn_away(self, caller: socket.socket) -> None:
        """Says so. Closing at once would take the answer from a caller that has sent something."""
        self._room.on_refused()
        with suppress(OSError):
            caller.send(self._refusal)
            caller.shutdown(socket.SHUT_WR)
        self._leaving.append(caller)
        self._loop.add_reader(caller.fileno(), self._drain, caller)
        self._loop.call_later(LEAVE_SECONDS, self._leave, caller)
        if len(self._leaving) > LEAVING:
            self._leave(self._leaving[0])

    def _drain(self, caller: socket.socket) -> None:
        try:
            if caller.recv(1 << 16):
                return
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            pass
        self._leave(caller)

    def _leave(self, caller: socket.socket) -> None:
        if caller.fileno() < 0:
            return
        self._leaving.remove(caller)
        self._loop.remove_reader(caller.fileno())
        caller.close()

    def _starved(self, error: OSError) -> None:
        """No descriptor is left, although there was to be room: one that is kept for this moment
        lets a caller be told, and then the others have time to give theirs back."""
        log.error("connections are turned away: %s (raise ulimit -n)", error.strerror)
        while self._leaving:
            self._leave(self._leaving[0])
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
            with suppress(OSError):
                caller, _ = self._sock.accept()
                self._room.on_refused()
                with caller:
                    caller.setblocking(False)
                    caller.send(self._refusal)
        with suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY)
        self._loop.remove_reader(self._sock.fileno())
        self._timer = self._loop.call_later(STARVED_SECONDS, self._resume)

    def _resume(self) -> None:
        self._loop.add_reader(self._sock.fileno(), self._accept)


class _Counted(socket.socket):
    """Takes a place in the room until it is closed."""

    __slots__ = ("_room",)

    def __init__(self, sock: socket.socket, room: Room) -> None:
        family, kind, proto = sock.family, sock.type, sock.proto
        super().__init__(family, kind, proto, fileno=sock.detach())
        self._room: Room | None = room
        room.open += 1

    def close(self) -> None:
        super().close()
        self._leave()

    def detach(self) -> int:
        """How uvloop closes a socket: its descriptor is closed right after."""
        self._leave()
        return super().detach()

    def _leave(self) -> None:
        if self._room is not None:
            self._room.open -= 1
            self._room = None


async def bind(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for all addresses of a name; port 0 takes a free one, the same for all.
    Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    bound: list[socket.socket] = []
    try:
        for family, kind, proto, _, address in dict.fromkeys(found):
            try:
                sock = socket.socket(family, kind, proto)
            except OSError:
                continue  # a family that this system does not have
            bound.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if port == 0 and len(bound) > 1:
                address = (address[0], bound[0].getsockname()[1], *address[2:])
            sock.bind(address)
            sock.listen(BACKLOG)
    except OSError:
        for sock in bound:
            sock.close()
        raise
    if not bound:
        raise OSError(errno.EADDRNOTAVAIL, "the name has no address of this machine")
    return bound
