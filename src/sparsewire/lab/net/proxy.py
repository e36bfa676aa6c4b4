"""A link of a given rate between two ranks on 127.0.0.1, without namespaces: their connections lead through this
process, which passes bytes on no faster than the rate.

A token bucket for each direction, shared by all connections between the two. gloo's ranks tell each other their
addresses through a store; `net/proxy_store.py` writes the proxy's there instead.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from sparsewire.errors import SparsewireError

from .network import bits_per_second, burst
from .ranks import Endpoint

HOME = "127.0.0.1"
# gloo decides by the order of two addresses who of the ranks connects: a neighbour of a rank's port is in its place.
NEIGHBOURS = (1, -1)
CHUNK = 16_384  # bytes that are passed on at once
BUFFER = 65_536  # bytes that the kernel holds for the proxy


class TokenBucket:
    """Passes bytes at a rate, and so many at once when nothing has passed for a while."""

    def __init__(self, rate: str) -> None:
        self._bytes_per_second, self._lock = bits_per_second(rate) / 8, threading.Lock()
        self._ahead = burst(rate) / self._bytes_per_second  # seconds
        self._due = time.monotonic()

    def wait(self, count: int) -> None:
        """Returns when so many more bytes may have arrived."""
        with self._lock:
            self._due = max(self._due, time.monotonic() - self._ahead) + count / self._bytes_per_second
            due = self._due
        time.sleep(max(0.0, due - time.monotonic()))


class Proxy(Sequence[Endpoint]):
    """The endpoints of two ranks, whose connections are limited to the rate both ways.

    >>> with Proxy("100mbit") as endpoints:   # doctest: +SKIP
    ...     launch_ranks(job, settings, endpoints)
    """

    def __init__(self, rate: str) -> None:
        self._towards = [TokenBucket(rate), TokenBucket(rate)]  # each rank
        self._open: set[socket.socket] = set()
        self._closed = False
        self._endpoint = Endpoint(proxy=f"{HOME}:{self._listen([0], self._answer)}")

    def __getitem__(self, rank: Any) -> Any:
        return [self._endpoint, self._endpoint][rank]

    def __len__(self) -> int:
        return 2

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all connections."""
        self._closed = True
        for one in [*self._open]:
            _end(one)

    # --- connections ---

    def _listen(self, ports: Sequence[int], serve: Any, *words: Any) -> int:
        """Listens on the first of these ports that is free."""
        for port in ports:
            listener = socket.socket()
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)  # of what it accepts
                listener.bind((HOME, port))
                listener.listen()
            except OSError:
                listener.close()
            else:
                self._open.add(listener)
                _background(self._accept, listener, serve, *words)
                return int(listener.getsockname()[1])
        raise SparsewireError(f"the proxy can listen on none of the ports {', '.join(map(str, ports))} of {HOME}")

    def _accept(self, listener: socket.socket, serve: Any, *words: Any) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = listener.accept()[0]
                self._open.add(connection)
                if self._closed:
                    _end(connection)
                _background(serve, connection, *words)

    def _answer(self, connection: socket.socket) -> None:
        """A rank says its number and a port that it listens on, and is told the port that leads there through us."""
        with contextlib.suppress(OSError), connection, connection.makefile("rw") as file:
            rank, port = map(int, file.readline().split())
            try:
                file.write(f"{self._listen([port + step for step in NEIGHBOURS], self._join, rank, port)}\n")
            except SparsewireError as error:
                file.write(f"{error}\n")

    def _join(self, caller: socket.socket, rank: int, port: int) -> None:
        """Connects a caller with the rank that it calls."""
        called = socket.create_connection((HOME, port))
        self._open.add(called)
        _background(self._pass, called, caller, self._towards[1 - rank])
        self._pass(caller, called, self._towards[rank])

    def _pass(self, source: socket.socket, target: socket.socket, bucket: TokenBucket) -> None:
        with contextlib.suppress(OSError):
            target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := source.recv(CHUNK):
                bucket.wait(len(data))
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def _background(function: Any, *words: Any) -> None:
    threading.Thread(target=function, args=words, daemon=True).start()


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
