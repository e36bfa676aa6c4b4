"""`fft` and `dct`: coefficients as they are defined, lengths of all kinds, shapes, and what reaches a training."""

from __future__ import annotations

import numpy as np
import pytest
from strategies import make, work

import sparsewire as sw
from sparsewire.codecs.transform import DCT, FFT
from sparsewire.codecs.transform.chunks import fast_length
from sparsewire.comm import Communicator, run_ranks
from sparsewire.errors import SchemeError
from sparsewire.frames import wire
from sparsewire.training.averager import Averager
from sparsewire.training.schedule import SchemeSchedule, Settings

LENGTHS = [0, 1, 2, 3, 5, 61, 127, 4093, 4095, 4096, 4097, 70_001]


def energy(x: np.ndarray) -> float:
    return float(np.sum(x.astype(np.float64) ** 2))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("numel", LENGTHS)
def test_every_length_comes_back_and_is_hardly_filled_up(numel: int, dtype: str) -> None:
    for t in (FFT(), FFT(chunk=100), DCT(), DCT(block=1000)):
        x = make("normal", numel, dtype)
        coefficients = t.forward(x)
        assert coefficients.dtype == x.dtype and t.size(numel) * t.width == coefficients.size <= 1.12 * numel + 2
        assert energy(coefficients) == pytest.approx(energy(x), rel=1e-5)
        np.testing.assert_allclose(t.inverse(coefficients, numel), x, atol=1e-5)


def test_fft_has_the_real_coefficients_in_one_entry_and_the_others_doubled() -> None:
    x = make("normal", 64, "float64")
    spectrum = np.fft.rfft(x, norm="ortho")
    pairs = FFT(chunk=64).forward(x).reshape(-1, 2)
    np.testing.assert_allclose(pairs[0], [spectrum[0].real, spectrum[-1].real])
    np.testing.assert_allclose(pairs[1:] @ [1, 1j], 2**0.5 * spectrum[1:-1])


def test_the_largest_bins_are_those_of_the_most_energy() -> None:
    t = np.arange(256) / 256
    x = (3 * np.cos(2 * np.pi * 9 * t) + 2 * np.sin(2 * np.pi * 40 * t) + 2.5).astype(np.float32)
    decoded = sw.decode(sw.encode(x, "topk(k=3) | transform=fft | values=raw"))
    assert decoded.indices.tolist() == [0, 9, 40]
    np.testing.assert_allclose(decoded.to_dense(), x, atol=1e-5)


CLOSE = {"float32": 1e-5, "float64": 1e-12}


def cosines(length: int) -> np.ndarray:
    """The transform's matrix, by definition."""
    j, k = np.arange(length), np.arange(length)[:, None]
    return np.cos(np.pi * (2 * j + 1) * k / (2 * length)) * np.where(k == 0, 1, 2**0.5) / length**0.5


@pytest.mark.parametrize("dtype", CLOSE)
def test_dct_is_the_cosine_transform_of_type_two(dtype: str) -> None:
    for length in range(2, 70):
        for blocks in (1, 2, 40):
            x = make("normal", blocks * length, dtype)
            found = DCT(block=length).forward(x)
            expected = (x.reshape(blocks, length) @ cosines(length).T).reshape(-1)
            np.testing.assert_allclose(found, expected, atol=CLOSE[dtype], err_msg=f"{blocks} blocks of {length}")
            np.testing.assert_allclose(DCT(block=length).inverse(found, x.size), x, atol=CLOSE[dtype])


def tiles_of(matrix: np.ndarray, block: int) -> np.ndarray:
    """Coefficients of tiles as docs/reference/format.md has them: whole tiles first, each column by column."""
    whole, cut = [], []
    for top in range(0, matrix.shape[0], block):
        for left in range(0, matrix.shape[1], block):
            tile = matrix[top : top + block, left : left + block].astype(np.float64)
            found = cosines(tile.shape[0]) @ tile @ cosines(tile.shape[1]).T
            (whole if tile.size == block**2 else cut).append(found.T.reshape(-1))
    return np.concatenate([*whole, *cut])


SHAPES = [
    (64, 64),
    (64, 3),
    (70, 130),
    (130, 2, 35),
    (65, 4099),
    (1000, 7),
    (1024, 3),
    (67, 128),
    (67, 67),
    (3000, 130),
]


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("shape", SHAPES)
def test_tiles_are_transformed_in_both_directions(shape: tuple[int, ...], dtype: str) -> None:
    x = make("normal", int(np.prod(shape)), dtype)
    for block in (64, 8) if x.size < 10_000 else (64,):
        t = DCT(block, two_dimensional=True).fitted(shape)
        coefficients = t.forward(x)
        np.testing.assert_allclose(coefficients, tiles_of(x.reshape(shape[0], -1), block), atol=4 * CLOSE[dtype])
        np.testing.assert_allclose(t.inverse(coefficients, x.size), x, atol=4 * CLOSE[dtype])


def test_narrow_matrices_are_transformed_many_tiles_at_once() -> None:
    parts = [part.size for part in DCT(two_dimensional=True).fitted((100_000, 3))._parts()]
    assert sum(parts) == 300_000 and len(parts) < 6


@pytest.mark.parametrize("transform", ["fft", "dct", "dct(two_dimensional=true)"])
def test_coefficients_of_float16_gradients_are_not_clipped_in_training(transform: str) -> None:
    def fn(comm: Communicator) -> np.ndarray:
        plan = sw.scheme(f"nonzero | transform={transform} | values=raw | memory=none")
        shapes = {"w": (64, 64)}
        one = Averager(comm, Settings(SchemeSchedule(plan), dense_below=0, shapes=shapes))
        x = np.full(4096, 2000, np.float32)
        one.put({"w": x}, {"w": "float16"})
        assert one.finish()
        return x

    for found in run_ranks(2, fn):
        np.testing.assert_allclose(found, 2000, rtol=1e-5)


def test_a_smooth_matrix_takes_few_coefficients_of_tiles() -> None:
    x = np.add.outer(np.linspace(0, 1, 128), np.linspace(2, 3, 128)).astype(np.float32) ** 2
    errors = {}
    for transform in ("identity", "dct", "dct(two_dimensional=true)"):
        left = sw.compress(x, f"topk(1%) | transform={transform} | values=raw")[1]
        errors[transform] = energy(left) / energy(x)
    assert errors["dct(two_dimensional=true)"] < errors["dct"] / 100
    assert errors["dct"] < errors["identity"] / 4


@pytest.mark.parametrize("shape", [(), (0,), (5000,), (63, 500)])
def test_what_has_no_rows_of_tiles_goes_in_blocks(shape: tuple[int, ...]) -> None:
    x = make("normal", int(np.prod(shape)), "float32").reshape(shape)
    flat, tiles = (
        sw.decode(sw.encode(x, f"topk(10%) | transform=dct(two_dimensional={two}) | values=raw"))
        for two in ("false", "true")
    )
    assert np.array_equal(flat.indices, tiles.indices) and np.array_equal(flat.to_dense(), tiles.to_dense())


@pytest.mark.parametrize("transform", ["fft(chunk=65536)", "fft(chunk=6)", "dct", "dct(block=1000)"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_finite_numbers_stay_finite_where_only_sums_overflow(transform: str, dtype: str) -> None:
    x = np.full(1000, np.finfo(dtype).max / 64, dtype) * np.where(np.arange(1000) % 3, 1, -1).astype(dtype)
    t = sw.scheme(f"nonzero | transform={transform}").transform
    coefficients = t.forward(x)
    assert np.isfinite(coefficients).all()
    np.testing.assert_allclose(t.inverse(coefficients, x.size) / x.max(), x / x.max(), atol=1e-5)


@pytest.mark.parametrize("transform", ["fft", "dct", "dct(two_dimensional=true)"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_reaches_the_receivers(transform: str, bad: float) -> None:
    x = make("normal", 128 * 128, "float32").reshape(128, 128)
    x[77, 5] = bad
    for select in ("topk(1%)", "error_budget(bound=0.5)"):
        frame = sw.encode(x, f"{select} | transform={transform} | values=range_float")
        assert not np.isfinite(sw.decode(frame).to_dense()).all()


def test_sparse_coefficients_are_undone_as_dense_ones() -> None:
    x = make("normal", 300_007, "float32")
    for t in (FFT(), DCT()):
        coefficients = t.forward(x)
        rows = coefficients.reshape(-1, t.width)
        some = np.flatnonzero(np.abs(rows).max(axis=1) > 1.5).astype(np.int32)
        kept = np.zeros_like(rows)
        kept[some] = rows[some]
        expected = t.inverse(kept.reshape(-1), x.size)
        assert np.array_equal(t.inverse_sparse(some, rows[some].reshape(-1), x.size), expected)


def test_settings_out_of_range_are_refused_before_anything_is_allocated() -> None:
    frame = wire.unpack(sw.encode(np.ones(8, np.float32), "topk(100%) | transform=fft(chunk=8)"))
    for chunk in (0, 1, 2**16 + 1, 2**40):
        with pytest.raises(SchemeError, match="chunk lies in"):
            FFT(chunk)
    huge = sw.scheme("topk | transform=fft(chunk=65536)").record.replace(b"\x03\x80\x80\x04", b"\x03\x80\x80\x05")
    with pytest.raises(sw.FrameError, match="chunk lies in"):
        sw.decode(wire.pack(wire.Frame(frame.dtype, (8,), 0, huge, b"", b"", 2)))
    with pytest.raises(SchemeError, match="block lies in"):
        DCT(block=2**20)


def test_lengths_that_are_fast() -> None:
    for least in (1, 7, 11, 13, 97, 1009, 4097, 32749):
        found, rest = fast_length(least), fast_length(least)
        for factor in (2, 3, 5):
            while rest % factor == 0:
                rest //= factor
        assert rest == 1 and least <= found <= 1.15 * least + 1


# --- in a training -------------------------------------------------------------------------------------------------


def test_a_parameters_shape_reaches_its_transform() -> None:
    s = sw.scheme("demo(topk=4, chunk=8) | values=raw | memory=residual")
    x = make("normal", 16 * 24, "float32")
    expected = sw.decode(sw.encode(x.reshape(16, 24), s)).to_dense().reshape(-1)

    def fn(comm: object) -> np.ndarray:
        settings = Settings(SchemeSchedule(s), dense_below=0, shapes={"w": (16, 24), "v": (384,)})
        averager, mine, flat = Averager(comm, settings), x.copy(), x.copy()
        averager.put({"w": mine, "v": flat})
        assert averager.finish()
        assert not np.allclose(mine, flat)
        np.testing.assert_allclose(averager.states.by_name["w"]["residual"] + mine, x, atol=1e-5)
        return mine

    for mean in run_ranks(2, fn, timeout=20):
        np.testing.assert_allclose(mean, expected, atol=1e-6)


def test_a_shape_travels_only_where_the_transform_goes_by_it() -> None:
    for text, shape in (("topk", (384,)), ("topk | transform=fft", (384,)), ("demo(topk=4, chunk=8)", (16, 24))):
        s = sw.scheme(text)
        assert Settings(SchemeSchedule(s), shapes={"w": (16, 24)}).shape("w", 384, s) == shape
        assert Settings(SchemeSchedule(s)).shape("w", 384, s) == (384,)


def test_correlated_gradients_have_their_energy_in_few_coefficients_and_others_have_not() -> None:
    """As published, and as it is: the transform pays only where neighbours resemble each other."""
    noise = make("normal", 2**15, "float32")
    walk = np.zeros_like(noise)
    for i in range(1, noise.size):
        walk[i] = 0.9 * walk[i - 1] + noise[i]
    kept = {}
    for name, x in (("noise", noise), ("walk", walk)):
        for transform in ("identity", "fft"):
            left = sw.compress(x, f"topk(15%) | transform={transform} | values=raw")[1]
            kept[name, transform] = 1 - energy(work(left)) / energy(x)
    assert kept["walk", "fft"] > 0.85 > 0.6 > kept["walk", "identity"]
    assert kept["noise", "fft"] < 0.45 < 0.5 < kept["noise", "identity"]


def test_inspect_names_chunk_bins_theta_bits_and_mantissa() -> None:
    x = make("normal", 8192, "float32")
    for values in ("range_float(bits=9, mantissa=4)", "range_float(bits=9, mantissa=4)+deflate"):
        notes = sw.inspect(sw.encode(x, f"topk(15%) | transform=fft(chunk=512) | values={values}"))["notes"]
        assert notes["transform.chunk"] == 512 and notes["transform.entries"] == 4096
        assert notes["transform.kept"] == 614 and notes["transform.theta"] == pytest.approx(0.85, abs=1e-3)
        assert (notes["values.bits"], notes["values.mantissa"]) == (9, 4)
