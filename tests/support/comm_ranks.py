"""The script that a rank of gloo, TensorFlow or MPI runs to try the laws of a communicator.

    comm_ranks.py gloo OUT RANK SIZE STORE      one rank of a gloo group
    comm_ranks.py tensorflow OUT RANK SIZE PORTS   one rank of a TensorFlow cluster
    comm_ranks.py mpi OUT                       one rank, started by mpirun
    comm_ranks.py mpi-raise OUT                 the same, but rank 1 fails while the others wait

Each rank writes OUT/RANK.json: law -> "" or the traceback.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from comm_laws import LAWS

from sparsewire.comm import Communicator
from sparsewire.errors import CommError, CommTimeout

LIMIT = 1.0  # seconds that a group waits for a rank that never arrives


def expect_timeout(comm: Communicator, swap: bool = False) -> None:
    begin = time.monotonic()
    with pytest.raises(CommTimeout, match="all_to_all" if swap else "all_gather"):
        comm.all_to_all([b"is anyone there?"] * comm.size) if swap else comm.all_gather(b"is anyone there?")
    assert LIMIT / 2 < time.monotonic() - begin < LIMIT + 15


def attempt(results: dict[str, str], name: str, law: Callable[[], None]) -> None:
    try:
        law()
        results[name] = ""
    except Exception:
        results[name] = traceback.format_exc()


def gloo(out: Path, rank: int, size: int, store: str) -> None:
    from datetime import timedelta

    import torch.distributed as dist

    from sparsewire.comm import TorchCommunicator

    warnings.simplefilter("error")
    limit, short = timedelta(seconds=30), timedelta(seconds=LIMIT)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=limit)
    results: dict[str, str] = {}
    comm = TorchCommunicator()
    staged = TorchCommunicator(dist.new_group(list(range(size))), device="cpu:0")  # the path of an accelerator
    for name, law in LAWS.items():
        attempt(results, name, lambda law=law: law(comm))
        attempt(results, f"staged {name}", lambda law=law: law(staged))

    groups = [dist.new_group(list(range(size)), timeout=short) for _ in range(2)]
    if rank == 0:
        attempt(results, "timeout", lambda: expect_timeout(TorchCommunicator(groups[0])))
        attempt(results, "timeout of a swap", lambda: expect_timeout(TorchCommunicator(groups[1]), swap=True))
    comm = TorchCommunicator()
    comm.barrier()
    if rank == 0:
        attempt(results, "lost rank", lambda: expect_lost_peer(comm))
    (out / f"{rank}.json").write_text(json.dumps(results))
    os._exit(0)  # as a crash would: no goodbye to the group


def expect_lost_peer(comm: Communicator) -> None:
    with pytest.raises(CommError, match="all_gather"):
        for _ in range(100):
            comm.all_gather(b"still there?", "lost")


def tensorflow(out: Path, rank: int, size: int, ports: str) -> None:
    """At the end one of 2 ranks is late, or two of 3 are lost: after one failure TensorFlow ends all collectives."""
    workers = [f"127.0.0.1:{port}" for port in ports.split(",")]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})
    from sparsewire.comm import TensorFlowCommunicator

    results: dict[str, str] = {}
    comm, late = TensorFlowCommunicator(timeout=60), TensorFlowCommunicator(timeout=LIMIT if size == 2 else 60)
    for name, law in LAWS.items():
        attempt(results, name, lambda law=law: law(comm))
    last = TensorFlowCommunicator()
    last.barrier()
    if rank == 0:
        attempt(results, "failure", lambda: (expect_timeout if size == 2 else expect_lost_peer)(late))
    elif size == 2:
        time.sleep(2 * LIMIT)
    (out / f"{rank}.json").write_text(json.dumps(results))
    os._exit(0)


def mpi(out: Path) -> None:
    from mpi4py import MPI

    from sparsewire.comm import MPICommunicator

    warnings.simplefilter("error")
    results: dict[str, str] = {}
    comm = MPICommunicator()
    for name, law in LAWS.items():
        attempt(results, name, lambda law=law: law(comm))

    late, impatient, swapping = MPICommunicator(), MPICommunicator(timeout=LIMIT), MPICommunicator(timeout=LIMIT)
    if late.rank != late.size - 1:
        attempt(results, "timeout", lambda: expect_timeout(impatient))
        attempt(results, "timeout of a swap", lambda: expect_timeout(swapping, swap=True))
    late.barrier()
    if late.rank == late.size - 1:
        impatient.all_gather(b"sorry")  # so that MPI can shut down in good order
        swapping.all_to_all([b"sorry"] * late.size)
    else:
        attempt(results, "unusable after a timeout", lambda: expect_unusable(impatient))
    late.barrier()
    (out / f"{MPI.COMM_WORLD.rank}.json").write_text(json.dumps(results))


def expect_unusable(comm: Communicator) -> None:
    with pytest.raises(CommError, match="timed out"):
        comm.barrier()


def mpi_raise(out: Path) -> None:
    from sparsewire.comm import MPICommunicator

    comm = MPICommunicator()
    if comm.rank == 1:
        raise RuntimeError("rank 1 is broken")
    comm.barrier()
    (out / f"{comm.rank}.json").write_text("{}")


if __name__ == "__main__":
    mode, folder, *rest = sys.argv[1:]
    if mode in ("gloo", "tensorflow"):
        {"gloo": gloo, "tensorflow": tensorflow}[mode](Path(folder), int(rest[0]), int(rest[1]), rest[2])
    else:
        {"mpi": mpi, "mpi-raise": mpi_raise}[mode](Path(folder))
