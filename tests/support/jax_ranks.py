"""Starts processes of jax.distributed for tests, and the script that each of them runs to try a communicator's laws.

    jax_ranks.py laws OUT RANK SIZE PORT

Each rank writes OUT/RANK.json: law -> "" or the traceback.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from host_ranks import environment, free_port

SCRIPT = Path(__file__)


def start(script: Path, mode: str, folder: Path, ranks: int, *words: object) -> list[subprocess.Popen[bytes]]:
    """`python script mode folder RANK SIZE PORT words…` on every rank; what they print is in `RANK.log`."""
    port, children = free_port(), []
    for rank in range(ranks):
        facts = {**environment(), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
        command = [sys.executable, str(script), mode, str(folder), str(rank), str(ranks), str(port), *map(str, words)]
        with (folder / f"{rank}.log").open("wb") as log:
            children.append(subprocess.Popen(command, env=facts, stdout=log, stderr=subprocess.STDOUT))
    return children


def finish(children: list[subprocess.Popen[bytes]], folder: Path, limit: float = 100) -> None:
    """Waits for all ranks, and ends those that are left when the time is up or one has failed."""
    deadline = time.monotonic() + limit
    try:
        for rank, child in enumerate(children):
            status = child.wait(max(0.1, deadline - time.monotonic()))
            assert status == 0, (folder / f"{rank}.log").read_text()
    finally:
        for child in children:
            child.kill()
            child.wait()


def connect(rank: str, size: str, port: str) -> None:
    """Joins the other ranks."""
    import jax

    jax.distributed.initialize(f"127.0.0.1:{port}", int(size), int(rank), initialization_timeout=60)


def laws(folder: str, rank: str, size: str, port: str) -> None:
    """Every law by both ways: chosen by size, and through the store alone; then a rank that never comes."""
    from comm_ranks import LAWS, LIMIT, attempt, expect_timeout

    from sparsewire.comm import JaxCommunicator

    connect(rank, size, port)
    results: dict[str, str] = {}
    comm, stored = JaxCommunicator(30.0, device_above=2**16), JaxCommunicator(30.0, device_above=None)
    for name, law in LAWS.items():
        attempt(results, name, lambda law=law: law(comm))
        attempt(results, f"store {name}", lambda law=law: law(stored))
    late, impatient, swapping = JaxCommunicator(30.0), JaxCommunicator(LIMIT), JaxCommunicator(LIMIT)
    if int(rank) == 0:
        attempt(results, "timeout", lambda: expect_timeout(impatient))
        attempt(results, "timeout of a swap", lambda: expect_timeout(swapping, swap=True))
    late.barrier()
    attempt(results, "told", lambda: expect_told(JaxCommunicator(60.0)))
    late.barrier()
    (Path(folder) / f"{rank}.json").write_text(json.dumps(results))


def expect_told(comm: object) -> None:
    """The last rank fails and says so; the others do not wait for their timeout."""
    import pytest

    from sparsewire.comm import JaxCommunicator
    from sparsewire.errors import PeerFailed

    assert isinstance(comm, JaxCommunicator)
    if comm.rank == comm.size - 1:
        return comm.tell(ValueError("out of luck"))
    with pytest.raises(PeerFailed, match=f"all_gather: .*rank {comm.size - 1}: ValueError: out of luck"):
        comm.all_gather(b"x")
    return None


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    laws(*sys.argv[2:])
