"""Bloom filters keep to their rate on any support, and each policy does what DeepReduce says of it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from strategies import BACKENDS, using

import sparsewire as sw
from sparsewire import kernels
from sparsewire.codecs.contract import Context
from sparsewire.codecs.indices import Bloom
from sparsewire.comm import Communicator, run_ranks
from sparsewire.exchange import mean
from sparsewire.frames import wire

LAYOUTS = ["classic", "blocked"]
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
needs_native = pytest.mark.skipif("native" not in BACKENDS, reason="NumPy would take minutes")


def uniform(numel: int, count: int) -> np.ndarray:
    return np.sort(np.random.default_rng(0).choice(numel, count, replace=False)).astype(np.int32)


def runs(numel: int, count: int) -> np.ndarray:
    """Runs of 64 within a tenth of the tensor."""
    starts = np.sort(np.random.default_rng(1).choice(numel // 640, -(-count // 64), replace=False))
    return (numel // 3 + starts[:, None] * 64 + np.arange(64)).ravel()[:count].astype(np.int32)


def column(numel: int, count: int) -> np.ndarray:
    """Neighbouring columns of a matrix: a stride that a cheaper permutation might resonate with."""
    rows = 256
    return np.sort((np.arange(rows)[:, None] * (numel // rows) + np.arange(-(-count // rows))).ravel()).astype(np.int32)


def rate(codec: Bloom, indices: np.ndarray, numel: int, times: int) -> float:
    sizes = [codec.encode(indices, Context("float32", numel, indices.size, key=key))[1].size for key in range(times)]
    return (float(np.mean(sizes)) - indices.size) / (numel - indices.size)


@needs_native
@every_layout
@pytest.mark.parametrize("support", [uniform, runs, column])
@pytest.mark.parametrize("fpr", [0.1, 0.01, 0.001])
@pytest.mark.parametrize("numel", [36_864, 1_000_000])
def test_the_false_positive_rate_is_what_was_asked_for(layout: str, support, fpr: float, numel: int) -> None:
    times = max(2, int(1500 / (fpr * numel)))
    measured = rate(Bloom(fpr=fpr, layout=layout), support(numel, numel // 100), numel, times)
    assert 0.85 < measured / fpr < 1.15


@every_layout
def test_the_default_is_a_false_positive_for_ten_entries(layout: str) -> None:
    assert 0.08 < rate(Bloom(layout=layout), uniform(10**5, 1000), 10**5, 3) * 99 < 0.12


def gradient(size: int = 100_000) -> np.ndarray:
    rng = np.random.default_rng(3)
    return (rng.normal(size=size) * np.exp(rng.normal(size=size))).astype(np.float32)


def error(x: np.ndarray, index: str) -> float:
    """‖top-k of x − decoded‖ / ‖top-k of x‖."""
    best = sw.decode(sw.encode(x, "topk(1%) | values=raw")).to_dense()
    seen = sw.decode(sw.encode(x, f"topk(1%) | indices={index} | values=raw")).to_dense()
    return float(np.linalg.norm(best - seen) / np.linalg.norm(best))


@every_layout
def test_p0_sends_all_entries_and_true_values_beside_them(layout: str) -> None:
    x = gradient()
    decoded = sw.decode(sw.encode(x, f"topk(1%) | indices=bloom(0.01, p0, {layout}) | values=raw"))
    assert np.isin(kernels.topk(x, 1000)[0], decoded.indices).all()
    assert np.array_equal(decoded.values, x[decoded.indices])
    assert decoded.count <= 1000 + 1.15 * 0.01 * 99_000


@every_layout
def test_p1_and_p2_send_as_many_as_were_selected_and_p2_errs_less(layout: str) -> None:
    x, errors = gradient(), {}
    for policy in ("p1", "p2"):
        index = f"bloom(0.02, {policy}, {layout})"
        decoded = sw.decode(sw.encode(x, f"topk(1%) | indices={index} | values=raw"))
        assert decoded.count == 1000
        assert np.array_equal(decoded.values, x[decoded.indices])
        errors[policy] = error(x, index)
    assert 0 < errors["p2"] < 0.97 * errors["p1"]
    assert error(x, f"bloom(0.02, p0, {layout})") < errors["p2"]


@every_layout
def test_naive_is_as_bad_as_the_paper_says(layout: str) -> None:
    x = gradient()
    assert error(x, f"bloom(0.02, naive, {layout})") > 0.9
    frame, left = sw.compress(x, f"topk(1%) | indices=bloom(0.02, naive, {layout}) | values=raw")
    assert np.array_equal(sw.decode(frame).values, kernels.topk(x, 1000)[1])
    seen = sw.decode(frame)
    expected = x.copy()
    expected[seen.indices] = x[seen.indices] - seen.values
    assert np.array_equal(left, expected)


@pytest.mark.parametrize("policy", ["naive", "p0", "p1", "p2"])
def test_a_residual_loses_nothing(policy: str) -> None:
    x, residual = gradient(5000), gradient(5000)[::-1].copy()
    total = residual + x
    frame = sw.compress(x, f"topk(5%) | indices=bloom(0.1, {policy})", residual=residual)[0]
    seen = sw.decode(frame)
    total[seen.indices] = total[seen.indices] - seen.values
    assert np.array_equal(residual, total)


@pytest.mark.parametrize("policy", ["naive", "p1", "p2"])
def test_ranks_keep_what_was_left_out(policy: str) -> None:
    x = gradient(3000)

    def step(comm: Communicator) -> bool:
        residual = np.zeros_like(x)
        _, sent = mean(x, f"topk(5%) | indices=bloom(0.2, {policy})", comm, residual=residual)
        return np.array_equal(residual, x - sent)

    assert run_ranks(2, step) == [True, True]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("policy", ["naive", "p0", "p1", "p2"])
def test_non_finite_values_are_never_left_out(policy: str, bad: float) -> None:
    x = gradient(2000)
    for place in range(0, 2000, 97):
        nonfinite = x.copy()
        nonfinite[place] = bad
        assert not np.isfinite(sw.decode(sw.encode(nonfinite, f"topk(1%) | indices=bloom(0.3, {policy})")).values).all()


CHILD = """
import sys, hashlib, numpy as np, sparsewire as sw
x = np.random.default_rng(3).normal(size=5000).astype(np.float32)
for policy in ("naive", "p0", "p1", "p2"):
    for layout in ("classic", "blocked"):
        frame = sw.encode(x, f"topk(5%) | indices=bloom(0.1, {policy}, {layout})", seed=4)
        print(hashlib.sha256(frame + sw.decode(frame).indices.tobytes()).hexdigest())
"""


def test_processes_and_backends_agree() -> None:
    seen = set()
    for backend in BACKENDS:
        for seed in ("1", "2"):
            env = {**os.environ, "PYTHONHASHSEED": seed, "SPARSEWIRE_KERNELS": backend}
            run = subprocess.run([sys.executable, "-c", CHILD], env=env, capture_output=True, text=True, check=True)
            seen.add(run.stdout)
    assert len(seen) == 1


def test_the_key_travels() -> None:
    x = gradient(5000)
    frames = [sw.encode(x, "topk(5%) | indices=bloom(0.1)", step=step) for step in (0, 1)]
    assert frames[0] != frames[1]
    parts = sw.inspect(frames[0])["parts"]
    assert parts["indices.key"] == 8
    sizes = [size for name, size in parts.items() if name.startswith("indices.")]
    assert sum(sizes) == len(wire.unpack(frames[0]).indices)


@pytest.mark.parametrize("setting", ["fpr=0.0", "fpr=0.95", "policy=p3", "layout=split"])
def test_settings_out_of_range_name_what_is_allowed(setting: str) -> None:
    with pytest.raises(sw.SchemeError, match=r"1e-9|naive, p0, p1, p2|classic, blocked"):
        sw.scheme(f"topk | indices=bloom({setting})")


def test_a_tensor_too_large_to_enumerate_is_refused_with_advice() -> None:
    for numel in (2**30, 2**40):
        with pytest.raises(sw.InputError, match="indices=rice"):
            sw.encode(sw.Sparse([1], np.ones(1, np.float32), (numel,)), "indices=bloom")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("place", range(11))
def test_measures_that_no_encoder_writes_are_refused(place: int, backend: str) -> None:
    frame = wire.unpack(sw.encode(gradient(500), "topk(5%) | indices=bloom(0.1, p2)"))
    section = bytes(frame.indices)
    for body in (section[:place], section + b"\0", section[:8] + bytes(3) + section[11:]):
        with using(backend), pytest.raises(sw.FrameError):
            sw.decode(wire.pack(replace(frame, indices=body)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_full_filter_takes_no_more_memory_than_the_count_allows(backend: str) -> None:
    frame = wire.unpack(sw.encode(gradient(500), "topk(5%) | indices=bloom(0.1, p2)"))
    full = bytes(frame.indices[:11]) + b"\xff" * (len(frame.indices) - 11)
    with using(backend), pytest.raises(sw.FrameError, match="too many positives"):
        sw.decode(wire.pack(replace(frame, indices=full, shape=(2**20,))))
