"""The process of one rank, which `net/launch.py` starts: `python -m sparsewire.lab.net.worker RANK ORDER_IN_JSON`."""

from __future__ import annotations

import datetime
import importlib
import json
import os
import socket
import struct
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist

from . import proxy_store
from .ranks import PROXY

TCP_INFO = 11
BYTES_SENT, BYTES_RECEIVED = 200, 128  # where Linux's tcp_info has tcpi_bytes_sent and tcpi_bytes_received


@dataclass(frozen=True)
class Worker:
    """A job's rank, the number of ranks, and the channel to the process that launched it."""

    rank: int
    size: int
    output: TextIO

    def emit(self, **event: Any) -> None:
        print(json.dumps(event), file=self.output, flush=True)


def wire_bytes(field: int = BYTES_SENT) -> int | None:
    """Bytes that this process has sent over TCP, or received, as counted by the kernel; None where there is no such
    count."""
    folder = Path("/proc/self/fd")
    if not folder.exists():
        return None
    return sum(_counted(int(entry), field) for entry in os.listdir(folder))


def _counted(fd: int, field: int) -> int:
    try:
        connection = socket.socket(fileno=fd)
    except OSError:
        return 0
    try:
        return int(struct.unpack_from("=Q", connection.getsockopt(socket.IPPROTO_TCP, TCP_INFO, field + 8), field)[0])
    except (OSError, struct.error):  # not TCP
        return 0
    finally:
        connection.detach()  # the socket is gloo's and stays open


def main(rank: int, order: dict[str, Any]) -> None:
    threading.Thread(target=_follow_parent, daemon=True).start()
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a job's own prints must not mix with the JSON
    worker = Worker(rank, order["size"], output)
    try:
        result = _run(worker, order)
    except Exception as error:
        worker.emit(error=describe(error))
        raise
    worker.emit(result=result)


def _run(worker: Worker, order: dict[str, Any]) -> Any:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    store = _meet(worker, order["store"], datetime.timedelta(seconds=order["limit"]))
    module, name = order["job"].split(":")
    result = getattr(importlib.import_module(module), name)(worker, **order["settings"])
    dist.barrier()
    dist.destroy_process_group()
    del store  # not before the groups that it serves
    return result


def _meet(worker: Worker, store: str, limit: datetime.timedelta) -> object:
    """Makes the process group; returns what is to live as long."""
    if proxy := os.environ.get(PROXY):
        return proxy_store.meet(store, worker.rank, worker.size, limit, proxy)
    place = f"file://{store}"
    dist.init_process_group("gloo", init_method=place, rank=worker.rank, world_size=worker.size, timeout=limit)
    return None


def describe(error: Exception) -> str:
    """The error in one line: its type, the first line that it says, and its notes.

    >>> describe(ValueError("odd\\n  frame 1"))
    'ValueError: odd'
    """
    said = str(error).strip().partition("\n")[0]
    notes = [note.strip().partition("\n")[0] for note in getattr(error, "__notes__", [])]
    return "; ".join([f"{type(error).__name__}: {said}" if said else type(error).__name__, *notes])


def _follow_parent() -> None:
    """Exits with the launching process: our standard input, to which nothing is written, then closes."""
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
