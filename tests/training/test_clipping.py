"""Each rank's gradient is clipped before it is compensated, whatever its norm."""

from __future__ import annotations

import math

import numpy as np
import pytest
from strategies import BACKENDS, make, using
from trainings import NAMES, all_same, averager, gradients, residuals

import sparsewire as sw
from sparsewire.comm import Communicator, run_ranks

HUGE = {"float32": 2.0**120, "float64": 2.0**600}  # their squares are beyond the type


def clipped_means(comm: Communicator, kind: str, scale: float, most: float) -> list[np.ndarray]:
    """Of a step in which everything is sent, with a table."""
    kept = np.dtype(kind).type(scale)
    x = {name: make("normal", size, kind, 10 * comm.rank + 1) * kept for name, size in NAMES.items()}
    table = sw.Sparse(np.array([1]), make("normal", 4, kind, comm.rank) * kept, (5, 4), width=4)
    one = averager(comm, "nonzero | values=raw | memory=none", clip_norm=most)
    one.put({**x, "table": table})
    assert one.finish()
    return [*x.values(), one.sparse_means["table"].work_values]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", HUGE)
@pytest.mark.parametrize("most", [1.0, 1e-9])
def test_a_norm_that_overflows_is_clipped_as_any_other(kind: str, most: float, backend: str) -> None:
    """A gradient times a power of two is clipped to the same bits, by all kernels."""

    def fn(comm: Communicator) -> list[np.ndarray]:
        means = clipped_means(comm, kind, HUGE[kind], most)
        assert all_same(means, clipped_means(comm, kind, 1.0, most))
        total = sum(float((mean.astype(np.float64) ** 2).sum()) for mean in means)
        assert 0.1 * most < math.sqrt(total) <= most / math.sqrt(2) * (1 + 1e-6)
        return means

    with using(backend):
        found = run_ranks(2, fn)
    assert all_same(found[0], run_ranks(2, fn)[0])


def test_a_gradient_that_is_not_finite_is_not_clipped() -> None:
    def fn(comm: Communicator) -> None:
        one, x = averager(comm, clip_norm=1.0), gradients(comm, 0)
        x["w"][3] = np.nan if comm.rank else np.inf
        one.put(x)
        assert not one.finish()
        assert not np.isfinite(x["w"]).all()

    run_ranks(2, fn)


@pytest.mark.parametrize("memory", ["residual", "gain"])
@pytest.mark.parametrize("clip", [1.0, 1e6])
def test_each_ranks_gradient_is_clipped_before_it_is_compensated(clip: float, memory: str) -> None:
    scheme = f"topk(5%) | values=raw | memory={memory}"

    def fn(comm: Communicator) -> None:
        one, other = averager(comm, scheme, clip_norm=clip), averager(comm, scheme)
        for step in range(3):
            x, y = gradients(comm, step), gradients(comm, step)
            table = sw.Sparse(np.array([1]), make("normal", 4, "float32"), (5, 4), width=4)
            norm = np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in [*y.values(), table.values]))
            factor = np.float32(min(1.0, clip / np.sqrt(comm.size) / norm))
            one.put({**x, "table": table})
            smaller = table.like(table.indices, table.values * factor)
            other.put({**{name: g * factor for name, g in y.items()}, "table": smaller})
            assert one.finish() and other.finish()
            for name, kept in residuals(other).items():
                np.testing.assert_allclose(residuals(one)[name], kept, atol=1e-5)
        assert one.stats()["bytes_dense"] == other.stats()["bytes_dense"]

    run_ranks(2, fn)
