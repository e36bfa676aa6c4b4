"""`range_float` and `error_budget`: what their settings promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import BACKENDS, DTYPES, make, tensors, using, work

import sparsewire as sw
from sparsewire.codecs.contract import Context
from sparsewire.codecs.values import RangeFloat
from sparsewire.errors import SchemeError
from sparsewire.training.schedule import SchemeSchedule, theta_schedule

every_backend = pytest.mark.parametrize("backend", BACKENDS)


def decoded(x: np.ndarray, **settings: object) -> np.ndarray:
    """What receivers see of flat numbers."""
    codec, ctx = RangeFloat(**settings), Context(x.dtype.name, x.size, x.size)
    return codec.decode(memoryview(codec.encode(work(x), ctx)[0]), ctx)


def relative(x: np.ndarray, found: np.ndarray) -> float:
    off = x.astype(np.float64) - found
    return float(np.linalg.norm(off) / np.linalg.norm(x.astype(np.float64)))


def samples(size: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {
        "laplace": rng.laplace(size=size),
        "gaussian": rng.normal(size=size),
        "student, 3": rng.standard_t(3, size),
        "cauchy": rng.standard_cauchy(size),
        "lognormal": rng.lognormal(0, 3, size),
    }


@given(x=tensors(), bits=st.integers(2, 16), data=st.data())
def test_zero_and_both_extremes_are_exact_and_no_order_is_reversed(
    x: np.ndarray, bits: int, data: st.DataObject
) -> None:
    assume(x.size)
    x = work(x)
    found = decoded(x, bits=bits, mantissa=data.draw(st.integers(0, bits - 1)))
    assert (found[x == 0] == 0).all()
    assert x.max() < 0 or found[x.argmax()] == x.max()
    assert x.min() > 0 or found[x.argmin()] == x.min()
    assert (np.diff(found[np.argsort(x)]) >= 0).all()
    assert np.unique(found).size <= 2**bits


@pytest.mark.parametrize(("dtype", "kind"), [*((dtype, "magnitudes") for dtype in DTYPES), ("float32", "tiny")])
@pytest.mark.parametrize("bits", range(2, 17))
def test_the_relative_error_is_that_of_the_mantissa(bits: int, dtype: str, kind: str) -> None:
    """For numbers from the smallest code on; below it, that or zero is the nearest."""
    x = work(make("magnitudes", 3000, dtype) if kind != "tiny" else make("normal", 3000, dtype) * np.float32(1e-36))
    for mantissa in {0, bits // 2, bits - 1}:
        found = decoded(x, bits=bits, mantissa=mantissa).astype(np.float64)
        for side in (x > 0, x < 0):
            lowest = np.abs(found[side & (found != 0)]).min()
            above = side & (np.abs(x) >= lowest)
            off = np.abs(found[above] - x[above]) / np.abs(x[above])
            assert off.max() <= 2.0 ** -(mantissa + 1)
            below = side & (np.abs(x) < lowest)
            nearest = np.where(np.abs(x[below]) >= lowest / 2, lowest, 0)
            assert np.array_equal(np.abs(found[below]), nearest)


@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_of_one_sign_have_all_codes(sign: int) -> None:
    x = (sign * np.linspace(1, 2, 4000)).astype(np.float32)
    assert np.unique(decoded(x, bits=8, mantissa=7)).size > 120
    assert np.unique(decoded(x, bits=8, mantissa=7)).size <= 2**8


def test_the_smallest_number_of_a_sign_is_exact_beside_large_ones() -> None:
    x = np.array([1.0, 0.5, -1e-45, 0.0], np.float32)
    assert np.array_equal(decoded(x, bits=4, mantissa=2), x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_subnormal_numbers_are_numbers_as_others(dtype: str) -> None:
    x = make("denormal", 500, dtype)
    assert np.array_equal(decoded(x, bits=12, mantissa=7), x)


@pytest.mark.parametrize("name", samples(1))
@pytest.mark.parametrize("bits", [4, 8, 10, 13])
def test_auto_is_about_the_best_mantissa(name: str, bits: int) -> None:
    x = samples(150_000)[name].astype(np.float32)
    errors = [relative(x, decoded(x, bits=bits, mantissa=mantissa)) for mantissa in range(bits)]
    assert relative(x, decoded(x, bits=bits)) <= 1.05 * min(errors)


def test_auto_sees_values_that_have_a_period() -> None:
    x = make("normal", 256_000, "float32").reshape(-1, 64)
    x[:, 1] *= 1000
    errors = [relative(x, decoded(x.reshape(-1), bits=8, mantissa=mantissa).reshape(x.shape)) for mantissa in range(8)]
    assert relative(x, decoded(x.reshape(-1), bits=8).reshape(x.shape)) <= 1.05 * min(errors)


@pytest.mark.parametrize("error", [0.3, 0.1, 0.01])
@pytest.mark.parametrize("name", ["outlier", *samples(1)])
def test_bits_are_the_fewest_of_all(name: str, error: float) -> None:
    x = (samples(150_000) | {"outlier": np.r_[make("normal", 150_000, "float32"), 1e6]})[name].astype(np.float32)
    frame = sw.encode(x, f"nonzero | values=range_float(bits=auto, error={error})")
    bits = int(sw.inspect(frame)["notes"]["values.bits"])
    assert relative(x[x != 0], sw.decode(frame).values) <= error
    fewer = [relative(x, decoded(x, bits=bits - 1, mantissa=m)) for m in range(bits - 1)] if bits > 2 else [1.0]
    assert min(fewer) > error


def test_auto_sees_numbers_whose_squares_leave_float64() -> None:
    x = make("normal", 2000, "float64")
    errors = [relative(x, decoded(x * scale, bits=8) / scale) for scale in (1.0, 2.0**900, 2.0**-900)]
    assert errors[0] == pytest.approx(errors[1]) == pytest.approx(errors[2])


@pytest.mark.parametrize("error", [0.2, 0.05, 0.01, 0.001])
def test_bits_are_as_few_as_the_wanted_error_allows(error: float) -> None:
    x = make("normal", 80_000, "float32")
    frame = sw.encode(x, f"topk(100%) | values=range_float(bits=auto, error={error})")
    bits = sw.inspect(frame)["notes"]["values.bits"]
    assert relative(x, sw.decode(frame).values) <= error
    assert bits == 2 or relative(x, decoded(x, bits=int(bits) - 1)) > error


def test_settings_that_make_no_float_are_refused() -> None:
    for settings in ({"bits": 1}, {"bits": 17}, {"bits": "few"}, {"mantissa": 10}, {"mantissa": -1}, {"error": 0.0}):
        with pytest.raises(SchemeError, match="range_float"):
            RangeFloat(**settings)


@pytest.mark.parametrize("body", [
    bytes([10, 10]), bytes([1, 0]), bytes([10, 3]) + np.array([-1, 0], "<f4").tobytes(),
    bytes([10, 3]) + np.array([1, 1], "<f4").tobytes(), bytes([10, 3]) + np.array([np.inf, 0], "<f4").tobytes(),
    bytes([10, 3]) + np.array([np.nan, 0], "<f4").tobytes(), bytes([9, 3]) + np.array([1, 0], "<f4").tobytes(),
])  # fmt: skip
def test_sections_that_no_encoder_writes_are_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        RangeFloat().decode(memoryview(body.ljust(10, b"\0") + bytes(5)), Context("float32", 4, 4))


def test_a_code_beyond_the_grid_is_refused() -> None:
    """Where all is zero, most codes stand for nothing."""
    x = np.zeros(2, np.float32)
    body = bytearray(RangeFloat(bits=8, mantissa=2).encode(x, Context("float32", 2, 2))[0])
    body[-1] = 255
    with pytest.raises(ValueError):
        RangeFloat(bits=8, mantissa=2).decode(memoryview(body), Context("float32", 2, 2))


# --- error_budget and θ --------------------------------------------------------------------------------------------


@every_backend
@pytest.mark.parametrize("transform", ["identity", "fft", "dct", "rows(width=4)"])
@pytest.mark.parametrize("bound", [0.9, 0.5, 0.1, 0.01])
def test_a_budget_is_kept_by_as_few_entries_as_can_be(transform: str, bound: float, backend: str) -> None:
    x = make("magnitudes", 8192, "float32")
    scheme = "{} | transform=" + transform + " | values=raw"
    with using(backend):
        found = sw.decode(sw.encode(x, scheme.format(f"error_budget(bound={bound})")))
        fewer = sw.decode(sw.encode(x, scheme.format(f"topk(k={found.count - 1})")))
    assert relative(x, found.to_dense()) <= bound * (1 + 1e-5) < relative(x, fewer.to_dense()) * (1 + 1e-4)


@given(x=tensors(("float32", "float64")), bound=st.floats(1e-6, 0.99) | st.just(0.0))
def test_a_budget_holds_for_any_tensor(x: np.ndarray, bound: float) -> None:
    found = sw.decode(sw.encode(x, f"error_budget(bound={bound}) | values=raw")).to_dense()
    off, norm = (np.linalg.norm(part.astype(np.longdouble).reshape(-1)) for part in (x - found, x))
    assert off <= bound * norm * (1 + 1e-9) + 1e-300


def test_theta_is_the_share_that_is_dropped() -> None:
    for thetas in ([(10, 0.95), (20, 0.9)], lambda step: 0.95 if step < 10 else 0.9):
        schedule = SchemeSchedule(sw.scheme("superneurons"), ratios=theta_schedule(thetas))
        ratios = [schedule.at(step).select.ratio for step in (0, 9, 10, 500)]
        assert ratios == pytest.approx([0.05, 0.05, 0.1, 0.1])


@pytest.mark.parametrize("thetas", [[], [(10, 1.0)], [(10, -0.1)], [(10, 0.5), (5, 0.4)], 0.85])
def test_a_theta_schedule_that_is_none_is_refused(thetas: object) -> None:
    with pytest.raises(SchemeError):
        theta_schedule(thetas)
