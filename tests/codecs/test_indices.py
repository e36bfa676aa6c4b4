"""What indices cost: close to the least possible where they are spread, less where they cluster."""

from __future__ import annotations

import numpy as np
import pytest

import sparsewire as sw
from sparsewire.codecs.contract import Context
from sparsewire.codecs.indices import Best, EliasFano
from sparsewire.codecs.indices.best import CANDIDATES
from sparsewire.frames.codec import bound_bits

MILLION = 1_000_000
LOSSLESS = ["raw", "bitmap", "run_length", "huffman", "elias_fano", "rice", "golomb"]


def uniform(share: float, seed: int = 0) -> np.ndarray:
    count = int(share * MILLION)
    return np.sort(np.random.default_rng(seed).choice(MILLION, count, replace=False))


def clustered(share: float) -> np.ndarray:
    """As many as `uniform`, two thirds of them within a tenth of the tensor."""
    rng, count = np.random.default_rng(1), int(share * MILLION)
    dense = rng.choice(MILLION // 10, 2 * count // 3, replace=False) + MILLION // 3
    rest = np.setdiff1d(rng.permutation(MILLION), dense, assume_unique=True)
    return np.sort(np.concatenate([dense, rng.choice(rest, count - dense.size, replace=False)]))


def rows(share: float) -> np.ndarray:
    """Whole rows of 64 elements, as embeddings have them."""
    picked = np.sort(np.random.default_rng(2).choice(MILLION // 64, int(share * MILLION / 64), replace=False))
    return (picked[:, None] * 64 + np.arange(64)).ravel()


def regular(share: float) -> np.ndarray:
    return np.arange(0, MILLION, int(1 / share))


SUPPORTS = {
    f"{make.__name__}-{share:.1%}": make(share)
    for make in (uniform, clustered, rows, regular)
    for share in (0.001, 0.01, 0.1)
} | {"uniform-60%": uniform(0.6), "all": np.arange(MILLION), "one": np.array([7]), "none": np.empty(0, int)}


def section(indices: np.ndarray, codec: str) -> int:
    """Bytes of the indices section."""
    x = sw.Sparse(indices, np.zeros(indices.size, np.float32), (MILLION,))
    return int(sw.inspect(sw.encode(x, f"nonzero | indices={codec}"))["sections"]["indices"])


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1])
@pytest.mark.parametrize("seed", range(3))
def test_rice_is_within_three_percent_of_the_bound(share: float, seed: int) -> None:
    indices = uniform(share, seed)
    assert 8 * section(indices, "rice") <= 1.03 * bound_bits(MILLION, indices.size)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1])
def test_no_code_beats_the_bound_on_uniform_indices(share: float) -> None:
    indices = uniform(share)
    smallest = min(section(indices, codec) for codec in LOSSLESS)
    assert 8 * smallest > 0.99 * bound_bits(MILLION, indices.size)


@pytest.mark.parametrize("codec", ["rice", "huffman", "best"])
@pytest.mark.parametrize("share", [0.001, 0.01, 0.1])
def test_clustered_indices_cost_less(codec: str, share: float) -> None:
    assert section(clustered(share), codec) < 0.98 * section(uniform(share), codec)


def test_rows_cost_a_small_fraction_as_runs() -> None:
    indices = rows(0.01)
    assert section(indices, "run_length") < 0.1 * section(indices, "elias_fano")


@pytest.mark.parametrize("name", SUPPORTS)
def test_best_is_as_small_as_the_smallest(name: str) -> None:
    indices = SUPPORTS[name]
    smallest = min(section(indices, codec) for codec in LOSSLESS)
    assert section(indices, "best") <= 1.01 * smallest + 8


def test_elias_fano_never_costs_more_than_two_bits_above_the_logarithm() -> None:
    for indices in SUPPORTS.values():
        if indices.size:
            most = indices.size * (2 + np.ceil(np.log2(MILLION / indices.size))) / 8
            assert section(indices, "elias_fano") <= most + 2


@pytest.mark.parametrize(("numel", "count"), [(100, 1), (300, 3), (1000, 10), (100, 10)])
def test_elias_fano_is_the_smallest_that_best_chooses_from_for_a_few_entries(numel: int, count: int) -> None:
    for seed in range(20):
        indices = np.sort(np.random.default_rng(seed).choice(numel, count, replace=False)).astype(np.int32)
        ctx = Context("float32", numel, count)
        others = [codec for codec in CANDIDATES if codec.id != "elias_fano"]
        body, _ = EliasFano().encode(indices, ctx)
        assert len(body) < min(len(codec.encode(indices, ctx)[0]) for codec in others)
        assert Best().encode(indices, ctx)[0] == bytes([EliasFano.wire_id]) + body


def test_indices_take_eight_bytes_only_where_four_do_not_reach() -> None:
    for numel, size in ((2**31, 4), (2**31 + 1, 8)):
        frame = sw.encode(sw.Sparse([0, numel - 1], np.ones(2, np.float32), (numel,)), "indices=raw")
        assert sw.inspect(frame)["sections"]["indices"] == 2 * size
        assert sw.decode(frame).indices.dtype.itemsize == size
        assert sw.decode(frame).indices.tolist() == [0, numel - 1]


def test_a_bitmap_of_an_enormous_tensor_is_refused_with_advice() -> None:
    x = sw.Sparse([1], np.ones(1, np.float32), (2**40,))
    with pytest.raises(sw.InputError, match="indices=rice"):
        sw.encode(x, "indices=bitmap")
    assert sw.decode(sw.encode(x, "indices=best")).indices.tolist() == [1]


@pytest.mark.parametrize("codec", [*LOSSLESS, "best"])
def test_the_parts_of_a_section_add_up(codec: str) -> None:
    x = sw.Sparse(uniform(0.01), np.ones(10_000, np.float32), (MILLION,))
    info = sw.inspect(sw.encode(x, f"indices={codec}"))
    parts = [size for name, size in info["parts"].items() if name.startswith("indices.")]
    assert not parts or info["sections"]["indices"] - sum(parts) in range(8)  # varints between streams
    assert sum(info["sections"].values()) == info["bytes"]
