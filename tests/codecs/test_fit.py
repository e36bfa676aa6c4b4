"""`fit_poly` and `fit_dexp`: how close values as curves come. The order that goes with them: test_fit_order.py."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from strategies import BACKENDS, make, same_bits, tensors, using, work

import sparsewire as sw
from sparsewire import kernels
from sparsewire.codecs.contract import Context
from sparsewire.codecs.values import FitDExp, FitPoly
from sparsewire.codecs.values.curve import CurveCodec
from sparsewire.codecs.values.dexp import exponential, powers
from sparsewire.codecs.values.fit import automatic_segments

CODECS: list[CurveCodec] = [FitPoly(), FitPoly(1, 1), FitPoly(15, 40), FitPoly(rank_bits=2), FitDExp(), FitDExp(3)]
both = pytest.mark.parametrize("codec", [FitPoly(), FitDExp()], ids=str)
every_codec = pytest.mark.parametrize("codec", CODECS, ids=str)


def through(codec: CurveCodec, values: np.ndarray) -> tuple[np.ndarray, bytes]:
    ctx = Context(values.dtype.name, values.size, values.size)
    body, approx = codec.encode(values, ctx)
    assert same_bits(codec.decode(memoryview(body), ctx), approx)
    return approx, body


def error(codec: CurveCodec, values: np.ndarray) -> float:
    exact, approx = values.astype(np.float64), through(codec, values)[0].astype(np.float64)
    return float(np.linalg.norm(approx - exact) / np.linalg.norm(exact))


def shuffled(values: np.ndarray) -> np.ndarray:
    return np.random.default_rng(3).permutation(values)


# --- how close -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_polynomial_is_met(dtype: str) -> None:
    x = np.linspace(0, 1, 500)
    curve = shuffled(3 - 2 * x - x**3 + 0.5 * x**5).astype(dtype)
    assert error(FitPoly(segments=1), curve) < {"float32": 1e-6, "float64": 1e-13}[dtype]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sum_of_two_exponentials_is_met(dtype: str) -> None:
    x = np.linspace(0, 1, 2000)
    curve = shuffled(np.exp(-9 * x) + 0.5 * np.exp(-x)).astype(dtype)
    assert error(FitDExp(), curve) < 1e-4
    assert error(FitDExp(), -curve * curve.dtype.type(1e-30)) < 1e-4


def test_real_distributions_are_met_closely_by_polynomials_and_roughly_by_exponentials() -> None:
    rng = np.random.default_rng(0)
    for x in (rng.normal(size=20_000), rng.laplace(size=20_000)):
        values = np.sort(np.abs(x))[-400:] * rng.choice([-1, 1], 400)
        assert error(FitPoly(), values.astype(np.float32)) < 0.02
        assert error(FitDExp(), values.astype(np.float32)) < 0.06


def test_more_segments_come_closer() -> None:
    x = make("normal", 5000, "float32")
    errors = [error(FitPoly(segments=p), x) for p in (1, 2, 4, 8, 16, 32)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.1 * errors[0]


@pytest.mark.parametrize("scale", [2.0**-100, 1.0, 2.0**90])
def test_the_scale_of_the_values_changes_nothing(scale: float) -> None:
    curve = np.sort(np.abs(make("normal", 3000, "float64")))[::-1].copy()
    assert automatic_segments(curve * scale) == automatic_segments(curve)
    assert error(FitPoly(), curve * scale) == error(FitPoly(), curve)


# --- what a curve never does -----------------------------------------------------------------------------------


@every_codec
@given(x=tensors(("float32", "float64")))
def test_decoded_values_keep_their_sign_and_their_range(codec: CurveCodec, x: np.ndarray) -> None:
    values = work(x)
    approx, _ = through(codec, values)
    assert np.isfinite(approx).all()
    assert np.array_equal(np.signbit(approx), np.signbit(values))
    for side in (np.signbit(values), ~np.signbit(values)):
        if side.any():
            assert np.abs(approx[side]).max() <= np.abs(values[side]).max()
            lowest = 0 if isinstance(codec, FitDExp) else np.abs(values[side]).min()
            assert np.abs(approx[side]).min() >= lowest


@every_codec
@given(x=tensors(("float32", "float64")))
def test_larger_values_stay_at_least_as_large(codec: CurveCodec, x: np.ndarray) -> None:
    approx, _ = through(codec, work(x))
    order = kernels.descending(work(x))[1]
    first = int((~np.signbit(work(x))).sum())
    assert (np.diff(approx[order][:first]) <= 0).all()
    assert (np.diff(approx[order][first:]) >= 0).all()


@every_codec
@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -3e-45, 3.4e38, -1e-39])
@pytest.mark.parametrize("count", [1, 2, 5, 6, 8, 9, 100])
def test_a_constant_is_exact(codec: CurveCodec, value: float, count: int) -> None:
    values = np.full(count, value, np.float32)
    assert same_bits(through(codec, values)[0], values)


@both
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_extremes_do_no_harm(codec: CurveCodec, dtype: str) -> None:
    top, tiny = np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal
    values = np.array([top, -top, tiny, -tiny, 0, -0.0, 1] * 9, dtype)
    assert np.isfinite(through(codec, values)[0]).all()
    assert np.isfinite(through(codec, np.linspace(0.5, 1, 99).astype(dtype) * top)[0]).all()


@both
def test_few_values_are_exact(codec: CurveCodec) -> None:
    for count in range(6):
        values = make("normal", count, "float32", count)
        assert same_bits(through(codec, values)[0], values)


@every_codec
def test_non_finite_values_arrive_as_they_were(codec: CurveCodec) -> None:
    values = make("normal", 200, "float32")
    values[[3, 50, 199]] = np.inf, -np.inf, np.nan
    values.view(np.uint32)[77] = 0xFFC12345
    nonfinite = ~np.isfinite(values)
    approx, _ = through(codec, values)
    assert same_bits(approx[nonfinite], values[nonfinite])
    assert same_bits(approx[~nonfinite], through(codec, values[~nonfinite])[0])
    assert same_bits(through(codec, values[nonfinite])[0], values[nonfinite])


@both
def test_rank_bits_trade_size_for_error(codec: CurveCodec) -> None:
    x = make("normal", 3000, "float32")
    dial = [replace(codec, rank_bits=bits) for bits in (1, 2, 4, 6, 8, 10, 12)]
    errors, sizes = [error(c, x) for c in dial], [len(through(c, x)[1]) for c in dial]
    assert errors == sorted(errors, reverse=True)
    assert sizes == sorted(set(sizes))
    assert same_bits(through(dial[-1], x)[0], through(codec, x)[0])


# --- what no encoder writes ------------------------------------------------------------------------------------


CURVE = np.linspace(2, 1, 40).astype(np.float32)
SPOILS = {
    "more positives than values": lambda b: b.__setitem__(0, 41),
    "more non-finite values than values": lambda b: b.__setitem__(1, 1),
    "no segments": lambda b: b.__setitem__(2, 0),
    "more segments than bytes": lambda b: b.__setitem__(2, 127),
    "a short segment": lambda b: b.__setitem__(3, 1),
    "a long segment": lambda b: b.__setitem__(3, 39),
    "ends that ascend": lambda b: b.__setitem__(slice(4, 8), np.float32(0.5).tobytes()),
    "an end with a sign": lambda b: b.__setitem__(slice(12, 16), np.float32(-1).tobytes()),
    "a coefficient that is no number": lambda b: b.__setitem__(slice(16, 20), np.float32(np.nan).tobytes()),
    "a huge coefficient": lambda b: b.__setitem__(slice(16, 20), np.float32(1e30).tobytes()),
    "a rank twice": lambda b: b.__setitem__(slice(-30, None), bytes(30)),
    "a rank beyond the last": lambda b: b.__setitem__(-1, 255),
    "a byte more": lambda b: b.append(0),
    "a byte less": lambda b: b.pop(),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", SPOILS)
def test_a_spoiled_section_is_refused(how: str, backend: str) -> None:
    codec = FitPoly(segments=2)
    body = bytearray(through(codec, CURVE**3)[1])
    SPOILS[how](body)
    with using(backend), pytest.raises((ValueError, sw.FrameError)):
        codec.decode(memoryview(body), Context("float32", 40, 40))


@pytest.mark.parametrize(
    ("place", "numbers"),
    [(2, [np.inf]), (2, [3e38, 3e38]), (6, [np.nan]), (10, [300.0]), (10, [np.nan]), (12, [-1e20]), (12, [-np.inf])],
)
def test_a_spoiled_exponential_is_refused(place: int, numbers: list[float]) -> None:
    body = bytearray(through(FitDExp(), CURVE)[1])
    nonfinite = np.array(numbers, "<f4").tobytes()
    nonfinite = nonfinite[2:] if place >= 10 else nonfinite  # rates are the upper halves
    body[place : place + len(nonfinite)] = nonfinite
    with pytest.raises(ValueError):
        FitDExp().decode(memoryview(body), Context("float32", 40, 40))


# --- the same everywhere ---------------------------------------------------------------------------------------


def test_an_exponential_of_ones_own() -> None:
    for x in (-800.0, -699.0, -3.0, -1e-9, 0.0, 0.0625, 1.0, 200.0):
        assert exponential(x) == pytest.approx(math.exp(x), rel=1e-12, abs=1e-300)
    assert powers(-4.0, 101) == pytest.approx(np.exp(np.linspace(0, -4, 101)), rel=1e-12)


SCRIPT = """
import hashlib, sys, numpy as np, sparsewire as sw
x = (np.arange(4000) * 2654435761 % 4093 - 2000.0).astype(np.float32) ** 3
plans = [f"topk(40%) | indices={i} | values={v}" for i in ("raw", "rice") for v in ("fit_poly", "fit_dexp")]
print(hashlib.sha256(b"".join(sw.encode(x, plan) for plan in plans)).hexdigest())
"""


def test_processes_and_backends_agree() -> None:
    environments = [{"SPARSEWIRE_KERNELS": "reference"}, {}, {"NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3"}]
    runs = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", SCRIPT],
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
        )
        for environment in environments
    ]
    assert len({run.stdout for run in runs}) == 1, [run.stderr for run in runs]
    assert len(runs[0].stdout) == 65


WRONG = ["fit_poly(degree=0)", "fit_poly(degree=16)", "fit_poly(segments=0)", "fit_dexp(rank_bits=0)"]


@pytest.mark.parametrize("wrong", WRONG)
def test_settings_out_of_range_are_refused(wrong: str) -> None:
    with pytest.raises(sw.SchemeError):
        sw.scheme(f"values={wrong}")
