"""`entropy` keeps the error that was asked for, and no other codec needs fewer bits for it; `quantile` beside it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from strategies import BACKENDS, DTYPES, make, same_bits, using, work

import sparsewire as sw
from sparsewire.codecs.contract import Context
from sparsewire.codecs.values import QSGD, Chain, Entropy, Half, Quantile
from sparsewire.codecs.values.entropy import LEVELS, MAGNITUDE, Section
from sparsewire.core.binary import Reader
from sparsewire.kernels.reference.alphabet import log2

ERRORS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.3]
SIZES = [369, 2697, 30_000]
SHAPES = ["normal", "laplace", "student", "skewed", "dense"]


def values(shape: str, size: int) -> np.ndarray:
    """The largest 1 % of a distribution; `dense` is all of it."""
    rng = np.random.default_rng(size)
    draw = {"laplace": rng.laplace, "student": lambda size: rng.standard_t(4, size)}.get(shape, rng.standard_normal)
    x = np.asarray(draw(size=size if shape == "dense" else 100 * size)) + (0.3 if shape == "skewed" else 0)
    return x.astype(np.float32) if shape == "dense" else sw.kernels.topk(x.astype(np.float32), size)[1]


def context(x: np.ndarray, dtype: str = "") -> Context:
    return Context(dtype or x.dtype.name, 100 * x.size, x.size)


def sent(codec: object, x: np.ndarray) -> tuple[int, float]:
    """(bytes, relative error)."""
    body, approx = codec.encode(x, context(x))  # type: ignore[attr-defined]
    norm = np.linalg.norm(x.astype(float))
    return len(body), float(np.linalg.norm(approx - x.astype(float)) / norm) if norm else 0.0


def one_bin(x: np.ndarray) -> float:
    """The error of sending signs only, beyond which nothing can be saved."""
    return float(np.std(np.abs(x.astype(float))) / np.sqrt(np.mean(x.astype(float) ** 2)))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_wanted_error_is_met_and_used(shape: str, size: int) -> None:
    x = values(shape, size)
    for wanted in [0.001, 0.005, *ERRORS, 0.5]:
        error = sent(Entropy(wanted), x)[1]
        assert error <= wanted
        if size >= 1000 and 2 * wanted < one_bin(x):
            assert error >= 0.8 * wanted


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_else_sends_such_an_error_in_fewer_bytes(shape: str, size: int) -> None:
    x = values(shape, size)
    others = [QSGD(bits, bucket) for bits in range(2, 13) for bucket in (64, 512, 4096)]
    others += [Quantile(levels, split) for levels in (2, 4, 8, 16, 64, 256) for split in (True, False)]
    rivals = [sent(codec, x) for codec in [*others, Half()]]
    for wanted in ERRORS:
        size_here = sent(Entropy(wanted), x)[0]
        assert size_here < min((bytes_ for bytes_, error in rivals if error <= wanted), default=2 * x.size)


@pytest.mark.parametrize("shape", SHAPES)
def test_less_error_costs_more(shape: str) -> None:
    sizes = [sent(Entropy(wanted), values(shape, 2697))[0] for wanted in [0.001, 0.003, *ERRORS, 0.5]]
    assert all(after <= before + 4 for before, after in itertools.pairwise(sizes))
    assert sizes[0] > 3 * sizes[-1]


@pytest.mark.parametrize("shape", ["normal", "laplace"])
def test_it_is_near_the_entropy_of_its_own_bins(shape: str) -> None:
    x = values(shape, 30_000)
    body, approx = Entropy(0.05).encode(x, context(x))
    counts = np.unique(approx, return_counts=True)[1]
    assert 8 * len(body) <= 1.02 * float((counts * np.log2(x.size / counts)).sum()) + 400


def normalised(counts: np.ndarray) -> np.ndarray:
    """The frequencies out of 4096 that give these counts the fewest bits."""
    shares = np.maximum(1, np.round(counts * 4096 / counts.sum())).astype(np.int64)
    while (missing := 4096 - int(shares.sum())) != 0:
        step = 1 if missing > 0 else -1
        gain = np.where(shares + step > 0, counts * np.log2(np.maximum(1, shares + step) / shares), -np.inf)
        shares[np.argmax(gain)] += step
    return shares


def ideal(counts: np.ndarray) -> float:
    """Bytes of rANS with exactly normalised counts: four states, a plain table of 12 bits a symbol, the symbols."""
    counts = counts[counts > 0]
    return 16 + (12 * counts.size + float((counts * (12 - np.log2(normalised(counts)))).sum())) / 8


@pytest.mark.parametrize("error", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("size", [20_000, 100_000])
@pytest.mark.parametrize("shape", ["laplace", "normal", "skewed", "dense"])
def test_it_is_as_small_as_with_an_ideal_table_of_12_bits(shape: str, size: int, error: float) -> None:
    x = values(shape, size)
    body, approx = Entropy(error).encode(x, context(x))
    if body[0] in (MAGNITUDE, LEVELS):
        return
    section = Section.read(Reader(memoryview(body)), size)
    symbols = sw.kernels.rans_decode(section.stream, section.frequencies, size)
    rest = len(body) - section.table.data.size - section.stream.size
    assert len(body) <= 1.003 * (rest + ideal(np.bincount(symbols)))
    every_bin = np.unique(approx, return_counts=True)[1]
    assert len(body) <= 1.003 * (rest - section.extra.size + ideal(every_bin))


# --- unusual inputs ----------------------------------------------------------------------------------------------


def test_a_constant_costs_next_to_nothing() -> None:
    for number in (1.0, -0.3, 1e-20, -3e38):
        x = np.full(100_000, number, np.float32)
        size, error = sent(Entropy(0.01), x)
        assert size < 24
        assert error <= 0.01


def test_signs_of_one_kind_are_free() -> None:
    x = values("laplace", 30_000)
    both, one = sent(Entropy(), x)[0], sent(Entropy(), np.abs(x))[0]
    assert both - one > 0.95 * x.size / 8
    assert sent(Entropy(), -np.abs(x))[0] == one


def test_zeros_stay_zeros_and_signs_stay_where_there_is_a_gap() -> None:
    x = np.where(np.arange(5000) % 3 == 0, 0, values("normal", 5000)).astype(np.float32)
    assert np.array_equal(np.sign(Entropy().encode(x, context(x))[1]), np.sign(x))


@pytest.mark.parametrize("codec", [Entropy(), Entropy(0.5), Entropy(0.001), Quantile(), Quantile(2), Quantile(256)])
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("size", [0, 1, 2, 3, 17, 300])
def test_few_and_unusual_numbers_arrive_as_declared(codec: Chain, dtype: str, size: int) -> None:
    for kind in ("normal", "zeros", "constant", "repeated", "magnitudes", "denormal"):
        x = work(make(kind, size, dtype))
        for nonfinite in (0, np.nan, np.inf):
            x[size // 2 : size // 2 + (nonfinite != 0)] = nonfinite
            body, approx = codec.encode(x, context(x, dtype))
            assert same_bits(codec.decode(memoryview(body), context(x, dtype)), approx)
            assert np.array_equal(np.isfinite(approx), np.isfinite(x))
            assert len(body) <= codec.size_limit(context(x, dtype))


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e-44, 1e-30, 1e30, 1e37, 1e200, 1e300])
def test_huge_and_tiny_numbers_keep_their_error(scale: float) -> None:
    normal = np.random.default_rng(0).normal(size=3000)
    for dtype in ("float64", *(["float32"] if 1e-36 < scale < 1e37 else [])):
        x = (normal * scale).astype(dtype)
        approx = Entropy().encode(x, context(x))[1]
        assert np.linalg.norm(approx / scale - x / scale) <= 0.05 * np.linalg.norm(x / scale)


def test_numbers_near_the_largest_can_be_quantized() -> None:
    x = np.full(300, 3.3e38, np.float32)
    x[5] = 1e-10
    for wanted in (0.05, 0.5):
        size, error = sent(Entropy(wanted), x)
        assert size < 100
        assert error <= wanted


def test_costs_are_counted_with_logarithms_that_are_near_enough() -> None:
    numbers = np.unique(np.geomspace(1, 2**40, 5000).astype(np.int64))
    assert np.abs(log2(numbers) / 65536 - np.log2(numbers)).max() < 3e-5


def test_non_finite_values_cost_the_others_nothing() -> None:
    x = values("normal", 2697)
    y = x.copy()
    y[::500] = np.inf
    approx = Entropy().encode(y, context(y))[1]
    assert np.isnan(approx[::500]).all()
    rest = np.isfinite(y)
    assert np.linalg.norm(approx[rest] - y[rest]) <= 0.05 * np.linalg.norm(y[rest])


@pytest.mark.parametrize("size", [369, 4095, 4096, 6001])
def test_backends_agree(size: int) -> None:
    for codec in (Entropy(0.02), Entropy(0.3), Quantile()):
        results = []
        for backend in BACKENDS:
            with using(backend):
                x = values("student", size)
                body, approx = codec.encode(x, context(x))
                assert same_bits(codec.decode(memoryview(body), context(x)), approx)
                results.append((body, approx.tobytes()))
        assert len(set(results)) == 1


def test_the_parts_of_a_section_add_up() -> None:
    frame = sw.encode(values("normal", 2697), "topk(100%) | values=entropy")
    facts = sw.inspect(frame)
    assert (
        sum(size for part, size in facts["parts"].items() if part.startswith("values")) == facts["sections"]["values"]
    )


@pytest.mark.parametrize("text", ["entropy(error=0.6)", "entropy(0)", "quantile(1)", "quantile(257)"])
def test_settings_out_of_range_are_refused(text: str) -> None:
    with pytest.raises(sw.SchemeError):
        sw.scheme(f"values={text}")


def test_quantile_has_buckets_of_equal_count() -> None:
    x = values("dense", 16_000)
    approx = Quantile(16, split=False).encode(x, context(x))[1]
    assert np.unique(approx, return_counts=True)[1].tolist() == [1000] * 16
    assert (np.sign(Quantile(15).encode(x, context(x))[1]) == np.sign(x)).all()
