"""The memory of a step in the steady state, in a process of its own that has no threads but Python's.

`tracemalloc` crashes the interpreter when it starts or stops beside the threads of gloo or MPI.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sparsewire import kernels

STEP = """
import sys, tracemalloc
import numpy as np
from trainings import averager
import sparsewire as sw
from sparsewire.comm import run_ranks

KIND, SIZE, STEPS = sys.argv[1], 2_000_000, 6
SCHEME = "topk(1%) | indices=rice | values=qsgd(bits=7) | memory=residual"

def given(rank, step):
    rng = np.random.default_rng([rank, step])
    if KIND != "sparse":
        return {name: rng.standard_normal(SIZE, np.float32) for name in "ab"}
    rows = np.sort(rng.choice(SIZE // 16, 100, replace=False))
    return {"w": sw.Sparse(rows, rng.standard_normal(1600, np.float32), (SIZE // 16, 16), width=16)}

def train(comm):
    dense, per = 10**6 if KIND.startswith("dense") else 0, KIND if KIND in ("bucket", "model") else "parameter"
    one = averager(comm, SCHEME, dense, select_per=per, decides_late=KIND == "dense late")
    for step in range(STEPS):
        x = given(comm.rank, step)
        comm.barrier()
        if step == STEPS - 1 and comm.rank == 0:
            tracemalloc.start()
        comm.barrier()
        one.put(x)
        if KIND == "dense late":
            assert one.write_means(one.prepare())
            one.settle(True)
        else:
            assert one.finish()
    comm.barrier()
    return tracemalloc.get_traced_memory()[1]

print(run_ranks(2, train)[0], 4 * SIZE)
"""


@pytest.mark.parametrize("kind", ["parameter", "bucket", "model", "sparse", "dense", "dense late"])
def test_a_steady_step_makes_no_dense_arrays(kind: str) -> None:
    if kernels.backend() == "reference":
        pytest.skip("the NumPy kernels make dense arrays; this is about the native ones")
    command = [sys.executable, "-c", STEP, kind]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1] / "support")
    assert done.returncode == 0, done.stderr
    peak, dense = map(int, done.stdout.split())
    assert 0 < peak < dense / 4  # two ranks; one array as large as a tensor would be four times too much
