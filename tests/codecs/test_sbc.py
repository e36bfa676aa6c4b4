"""Sparse Binary and Sparse Ternary Compression: what they select, what they send, and what it costs."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_rows import dense
from strategies import BACKENDS, make, same_bits, using

import sparsewire as sw
from sparsewire.codecs.indices.golomb import golomb_parameter
from sparsewire.codecs.presets import PRESETS, local_settings

every_backend = pytest.mark.parametrize("backend", BACKENDS)
PLAN = "one_sign(ratio={}) | indices=golomb | values=mean | memory=residual"
LEAST_FRAME = 48  # bytes of a header and a checksum


def by_definition(x: np.ndarray, k: int) -> list[int]:
    """The published rule, where at least k entries have either sign."""
    up, down = (np.sort(np.argsort(-sign * x, kind="stable")[:k]) for sign in (1, -1))
    return (up if x[up].mean() >= -x[down].mean() else down).tolist()


# --- the selection -----------------------------------------------------------------------------------------------


@every_backend
@given(seed=st.integers(0, 999), k=st.integers(1, 20), size=st.sampled_from([100, 5000]))
def test_exactly_k_entries_of_one_sign_as_published(backend: str, seed: int, k: int, size: int) -> None:
    x = make("normal", size, "float64", seed)
    with using(backend):
        sent = sw.decode(sw.encode(x, f"one_sign(k={k}) | values=raw"))
    assert sent.indices.tolist() == by_definition(x, k)
    assert sent.count == k and len(set(np.sign(sent.values))) == 1


@every_backend
@given(x=dense(size=129), k=st.integers(1, 140))
def test_entries_of_one_sign_are_never_zeros_and_no_larger_one_is_left(backend: str, x: np.ndarray, k: int) -> None:
    with using(backend):
        sent = sw.decode(sw.encode(x, f"one_sign(k={k}) | values=raw"))
    if not np.isfinite(x).all():
        assert sent.indices.tolist() == np.flatnonzero(~np.isfinite(x)).tolist()
        return
    signs = set(np.sign(sent.values))
    assert len(signs) <= 1 and 0 not in signs
    same = x[np.sign(x) == next(iter(signs), 1)]
    assert sent.count == min(k, same.size)
    assert np.array_equal(np.sort(np.abs(sent.values)), np.sort(np.abs(same))[same.size - sent.count :])


@every_backend
def test_ties_go_to_the_lowest_index_and_to_the_positive_sign(backend: str) -> None:
    x = np.array([-2, 1, -2, 2, 0, 2, 1, 2, -2], np.float32)
    with using(backend):
        assert sw.decode(sw.encode(x, "one_sign(k=2)")).indices.tolist() == [3, 5]
        assert sw.decode(sw.encode(-x, "one_sign(k=2)")).indices.tolist() == [0, 2]


@every_backend
def test_zeros_are_not_sent(backend: str) -> None:
    with using(backend):
        assert sw.decode(sw.encode(np.zeros(99, np.float32), "one_sign(k=3)")).count == 0
        assert sw.decode(sw.encode(np.array([0, 5, -1, -1.5]), "one_sign(k=3)")).indices.tolist() == [1]


@every_backend
def test_sums_that_would_overflow_are_compared_all_the_same(backend: str) -> None:
    x = np.array([-1.0, -1.0, 1.0, 0.75]) * np.finfo(np.float64).max
    with using(backend):
        sent = sw.decode(sw.encode(x, "one_sign(k=2) | values=mean"))
        assert sent.indices.tolist() == [0, 1] and np.isfinite(sent.values).all()


@pytest.mark.parametrize(("ratio", "size", "count"), [("0.07", 100, 7), ("1%", 150, 2), ("0.001", 10, 1), ("1%", 0, 0)])
def test_a_ratio_is_rounded_up(ratio: str, size: int, count: int) -> None:
    assert sw.decode(sw.encode(np.ones(size, np.float32), f"one_sign(ratio={ratio})")).count == count


# --- values and residual -----------------------------------------------------------------------------------------


def test_every_entry_is_the_mean_and_the_rest_is_kept() -> None:
    x, residual = make("normal", 5000, "float32", 1), make("normal", 5000, "float32", 2)
    total = x + residual
    sent = sw.decode(sw.compress(x, PLAN.format("1%"), residual=residual)[0])
    assert set(sent.values) == {np.float32(total[sent.indices].astype(np.float64).mean())}
    expected = total.copy()
    expected[sent.indices] -= sent.values
    assert same_bits(residual, expected)


def test_both_signs_occur_over_the_rounds() -> None:
    x, residual, seen = make("normal", 1000, "float32", 3), np.zeros(1000, np.float32), set()
    for step in range(6):
        sent = sw.decode(sw.compress(x, PLAN.format("2%"), step=step, residual=residual)[0])
        assert sent.count == 20
        seen |= set(np.sign(sent.values))
    assert seen == {-1.0, 1.0}


def test_ternary_values_are_one_magnitude_with_the_signs_of_the_input() -> None:
    x = make("normal", 5000, "float32")
    sent = sw.decode(sw.encode(x, "stc(ratio=0.02)"))
    assert np.array_equal(np.sign(sent.values), np.sign(x[sent.indices]))
    assert set(np.abs(sent.values)) == {np.float32(np.abs(x[sent.indices]).astype(np.float64).mean())}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_magnitude_costs_one_number(dtype: str) -> None:
    x, size = make("normal", 10_000, dtype), np.dtype(dtype).itemsize
    for spec, most in ((PLAN.format("1%"), size), ("topk(1%) | values=sign_mean", size + 13)):
        assert sw.inspect(sw.encode(x, spec))["sections"]["values"] == most
    assert sw.inspect(sw.encode(x * 0, PLAN.format("1%")))["sections"]["values"] == 0


# --- golomb ------------------------------------------------------------------------------------------------------


def expected_bits(p: float, b: int) -> float:
    return b + 1 / -math.expm1(2**b * math.log1p(-p))


@pytest.mark.parametrize("share", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(2))
def test_positions_cost_what_the_formula_says(share: int, seed: int) -> None:
    numel, count = 10_000_000, 10 ** (7 - share)
    p, b = count / numel, golomb_parameter(numel, count)
    indices = np.unique(np.random.default_rng(seed).integers(0, numel, 3 * count))
    indices = np.sort(np.random.default_rng(seed).permutation(indices)[:count])
    frame = sw.encode(sw.Sparse(indices, np.ones(count, np.float32), (numel,)), "indices=golomb | values=mean")
    bits = 8 * sw.inspect(frame)["sections"]["indices"] / count
    assert abs(bits / expected_bits(p, b) - 1) < 0.01


@pytest.mark.parametrize("p", ["0.5", "0.1", "0.01", "0.001", "0.0001", "1e-9"])
def test_the_parameter_is_the_published_one_and_the_best(p: str) -> None:
    share = Fraction(p)
    b = golomb_parameter(share.denominator, share.numerator)
    golden = (math.sqrt(5) - 1) / 2
    assert b == max(0, 1 + math.floor(math.log2(math.log(golden) / math.log1p(-float(share)))))
    assert b == min(range(64), key=lambda other: expected_bits(float(share), other))


@pytest.mark.parametrize(("numel", "count", "b"), [(1, 1, 0), (9, 9, 0), (0, 0, 0), (9, 0, 0), (2**62, 1, 61)])
def test_a_full_an_empty_and_an_enormous_tensor_have_a_parameter(numel: int, count: int, b: int) -> None:
    assert golomb_parameter(numel, count) == b


# --- presets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("level", "delay", "ratio"), [(1, 1, 0.001), (2, 10, 0.01), (3, 100, 0.01)])
def test_a_level_of_sbc_is_a_delay_and_a_ratio(level: int, delay: int, ratio: float) -> None:
    named = sw.scheme(f"sbc(level={level})")
    assert named == sw.scheme(PLAN.format(ratio)) == sw.scheme(str(named)) == sw.scheme(named.to_dict())
    assert named == sw.scheme(f"sbc(delay={delay}, ratio={ratio})")
    expected = {"every": delay, "mean": "all", "mask_momentum": True}
    assert local_settings(f"sbc(level={level})") == local_settings(f"sbc(delay={delay})") == expected


def test_slots_after_a_preset_leave_its_local_settings() -> None:
    assert local_settings("sbc(level=3) | values=half") == local_settings("sbc(level=3)")


@pytest.mark.parametrize("spec", ["topk(1%)", "deepreduce", sw.scheme("topk"), {"select": "topk"}, "no scheme at all"])
def test_other_schemes_carry_no_local_settings(spec: object) -> None:
    assert local_settings(spec) == {}


def test_diloco_is_dense() -> None:
    x = make("normal", 5000, "float32")
    assert same_bits(sw.decode(sw.encode(x, "diloco")).to_dense(), x)
    outer = "sgd(rate=0.7, momentum=0.9, nesterov=true)"
    assert local_settings("diloco") == {"every": 50, "outer": outer, "mean": "all"}
    assert local_settings("diloco(every=7)")["every"] == 7


@pytest.mark.parametrize(
    ("spec", "message"),
    [("sbc(level=4)", "levels 1, 2 and 3"), ("sbc(delay=0)", "at least 1"), ("stc(delay=x)", "number of steps")],
)
def test_what_is_wrong_with_a_preset_is_said(spec: str, message: str) -> None:
    for read in (sw.scheme, local_settings):
        with pytest.raises(sw.SchemeError, match=message):
            read(spec)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_round_trips_and_sends(name: str) -> None:
    plan, x = sw.scheme(name), make("normal", 5000, "float32")
    assert plan == sw.scheme(str(plan))
    assert sw.decode(sw.encode(x, plan)).count > 0


@pytest.mark.parametrize("spec", ["sbc(level=1)", "sbc(level=2)", "sbc(level=3)", "sbc(delay=3, ratio=0.0123)"])
def test_a_frame_says_what_it_is_in_few_bytes(spec: str) -> None:
    x = make("normal", 2_000_000, "float32").reshape(200, 100, 10, 10)
    info = sw.inspect(sw.encode(x, spec))
    assert info["bytes"] - info["sections"]["indices"] - info["sections"]["values"] <= LEAST_FRAME
