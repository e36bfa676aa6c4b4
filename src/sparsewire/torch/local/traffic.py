"""Bytes that a link has sent and received, over one group after another."""

from __future__ import annotations

from sparsewire.comm import Communicator


class TrafficTotal:
    """Counts a communicator's bytes from `open` on; `close` keeps the count for the next communicator."""

    def __init__(self) -> None:
        self._before, self._start = (0, 0), (0, 0)  # over earlier groups; of the present one, when it was opened

    def open(self, comm: Communicator) -> None:
        self._start = comm.bytes_sent, comm.bytes_received

    def close(self, comm: Communicator) -> None:
        self._before = self.total(comm)

    def total(self, comm: Communicator) -> tuple[int, int]:
        """(bytes sent, bytes received)"""
        (sent, received), (sent_at, received_at) = self._before, self._start
        return sent + comm.bytes_sent - sent_at, received + comm.bytes_received - received_at
