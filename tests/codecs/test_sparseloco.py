"""SparseLoCo's message: the largest entries of every chunk, and a codebook of a few means for their values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_rows import dense
from selections import largest
from strategies import BACKENDS, make, same_bits, using

import sparsewire as sw
from sparsewire.codecs.presets import local_settings

every_backend = pytest.mark.parametrize("backend", BACKENDS)


@every_backend
@given(x=dense(size=129), k=st.integers(1, 9), chunk=st.integers(9, 140))
def test_every_chunk_sends_its_largest(backend: str, x: np.ndarray, k: int, chunk: int) -> None:
    expected = []
    for start in range(0, x.size, chunk):
        part = x[start : start + chunk]
        expected += [start + place for place in largest(part, -(-k * part.size // chunk))]
    with using(backend):
        assert sw.decode(sw.encode(x, f"chunk_topk(k={k}, chunk={chunk})")).indices.tolist() == expected


@pytest.mark.parametrize(("size", "count"), [(4096, 64), (4097, 65), (5000, 79), (1, 1), (0, 0)])
def test_a_shorter_chunk_has_its_share_and_at_least_one(size: int, count: int) -> None:
    assert sw.decode(sw.encode(make("normal", size, "float32"), "chunk_topk")).count == count


# --- the codebook ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [1, 2, 5, 8])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_few_different_values_are_exact(bits: int, dtype: str) -> None:
    numbers = make("magnitudes", 2**bits, dtype)
    x = numbers[np.random.default_rng(0).integers(0, numbers.size, 9000)]
    assert same_bits(sw.decode(sw.encode(x, f"topk(100%) | values=centroid(bits={bits})")).to_dense(), x)


def test_a_mean_of_few_messages_is_exact() -> None:
    """Four ranks send one magnitude each: at most sixteen sums of them."""
    x = sum(np.where(make("normal", 5000, "float32", seed) > 1, np.float32(seed + 0.5), 0) for seed in range(4))
    frame = sw.encode(x, "nonzero | values=centroid(bits=4)")
    assert same_bits(sw.decode(frame).to_dense(), x)
    assert len(frame) < len(sw.encode(x, "nonzero | values=raw")) / 3


@given(seed=st.integers(0, 99), bits=st.integers(1, 8), kind=st.sampled_from(["normal", "magnitudes", "sorted"]))
def test_every_code_stands_for_the_mean_of_its_values(seed: int, bits: int, kind: str) -> None:
    x = make(kind, 3000, "float64", seed)
    seen = sw.decode(sw.encode(x, f"topk(100%) | indices=bitmap | values=centroid(bits={bits})")).values
    step, shift = 6 * x.std(ddof=1) / 2**bits, x.mean()
    codes = np.clip(np.rint((x - shift) / step + 2**bits / 2), 0, 2**bits - 1)
    for code in np.unique(codes):
        assert np.allclose(seen[codes == code], x[codes == code].mean(), rtol=1e-9)


@pytest.mark.parametrize("bits", [1, 4])
def test_the_largest_numbers_there_are_have_a_finite_mean(bits: int) -> None:
    x = np.linspace(0.5, 1, 1000) * np.finfo(np.float64).max
    assert np.isfinite(sw.decode(sw.encode(x, f"topk(100%) | values=centroid(bits={bits})")).values).all()


# --- the preset --------------------------------------------------------------------------------------------------


def test_the_preset_is_the_published_method() -> None:
    spelled = "chunk_topk(k=64, chunk=4096) | indices=best | values=centroid(bits=2) | memory=residual(decay=0.95)"
    assert sw.scheme("sparseloco") == sw.scheme(spelled)
    assert local_settings("sparseloco") == {"every": 30, "outer": "sgd(rate=1.0)", "mean": "senders"}
    assert local_settings("sparseloco(mean=all, rate=0.6)") == {"every": 30, "outer": "sgd(rate=0.6)", "mean": "all"}
    with pytest.raises(sw.SchemeError, match="senders"):
        local_settings("sparseloco(mean=some)")


@pytest.mark.parametrize("seed", range(3))
def test_its_message_is_much_smaller_than_14_bits_an_entry(seed: int) -> None:
    x = make("normal", 2**20, "float32", seed)
    frame = sw.encode(x, "sparseloco")
    assert sw.decode(frame).count == 2**20 // 64
    assert 1.45 * len(frame) * 8 <= 14 * 2**20 // 64
