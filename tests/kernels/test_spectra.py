"""Transforms on a device, on CPU tensors: norms and `fft` have the host's bits where torch computes the spectra."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from sparsewire.codecs.contract import Transform  # noqa: E402
from sparsewire.codecs.transform import DCT, FFT, Rows, computed_by  # noqa: E402
from sparsewire.kernels import reference  # noqa: E402
from sparsewire.kernels.device import torch_spectra  # noqa: E402
from sparsewire.kernels.device.array import DeviceArray  # noqa: E402
from sparsewire.torch.ddp.fourier import TorchFourier  # noqa: E402

ENGINE = TorchFourier(torch.device("cpu"), on_device=True)
SIZES = [0, 1, 3, 61, 4093, 4097, 70_001]
DTYPES = ["float32", "float64"]


def noise(size: int, dtype: str) -> np.ndarray:
    return np.random.default_rng(size).normal(size=size).astype(dtype)


def there(x: np.ndarray) -> DeviceArray:
    return DeviceArray(torch.from_numpy(x.copy()))


def both(t: Transform, x: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Coefficients, norms and what is transformed back, of the host and of the device."""
    with computed_by(ENGINE):
        coefficients, norms = (part.copy() for part in t.forward_norms(x))
        theirs: Any = t.forward_norms(there(x))
        pairs = [*zip((coefficients, norms), theirs, strict=True)]
        pairs.append((t.inverse(coefficients, x.size).copy(), t.inverse(there(coefficients), x.size)))
    return [(host, device.tensor.numpy()) for host, device in pairs]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_fft_and_rows_have_the_bits_of_the_host(size: int, dtype: str) -> None:
    for t in (FFT(), FFT(chunk=100), Rows(), Rows(width=7)):
        for host, device in both(t, noise(size, dtype)):
            assert host.dtype == device.dtype and host.tobytes() == device.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_dct_is_the_hosts_but_for_rounding(size: int, dtype: str) -> None:
    for t in (DCT(), DCT(block=1000)):
        assert_close(both(t, noise(size, dtype)), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_so_are_tiles_of_a_matrix(dtype: str) -> None:
    assert_close(both(DCT(two_dimensional=True).fitted((130, 70)), noise(9100, dtype)), dtype)


def assert_close(pairs: list[tuple[np.ndarray, np.ndarray]], dtype: str) -> None:
    for host, device in pairs:
        np.testing.assert_allclose(device, host, atol={"float32": 1e-5, "float64": 1e-12}[dtype])


@pytest.mark.parametrize("t", [FFT(), DCT()])
def test_sums_that_overflow_do_no_harm(t: Transform) -> None:
    x = np.random.default_rng(1).choice([-5e37, 5e37], 8192).astype(np.float32)
    for host, device in both(t, x):
        assert np.isfinite(device).all()
        np.testing.assert_allclose(device, host, rtol=1e-4, atol=1e33)


def test_what_is_not_finite_is_seen_in_the_norms() -> None:
    x = noise(8192, "float32")
    x[5000] = np.inf
    with computed_by(ENGINE):
        _, norms = FFT().forward_norms(there(x))
    assert np.isfinite(norms.tensor.numpy()).sum() == 2048, "the first chunk's alone"


def test_half_precision_is_transformed_in_float32() -> None:
    x = torch.from_numpy(noise(5000, "float32")).bfloat16()
    with computed_by(ENGINE):
        found, wide = FFT().forward(DeviceArray(x)), FFT().forward(DeviceArray(x.float()))
    assert torch.equal(found.tensor, wide.tensor) and found.tensor.dtype == torch.float32


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 2, 3, 64])
def test_norms_have_the_bits_of_the_reference(width: int, dtype: str) -> None:
    draw = np.random.default_rng(width)
    x = (draw.normal(size=3000 * width) * 10.0 ** draw.integers(-44, 38, 3000 * width)).astype(dtype)
    x[7], x[700], x[900 : 900 + 3 * width], x[2000] = np.nan, -np.inf, 0.0, -0.0
    expected = np.empty(3000, dtype)
    reference.row_norms(expected, x, width)
    found = torch_spectra.row_norms(torch.from_numpy(x), width).numpy()
    assert np.isnan(expected).sum() == np.isnan(found).sum() == 1
    assert np.nan_to_num(found, nan=-1).tobytes() == np.nan_to_num(expected, nan=-1).tobytes()
