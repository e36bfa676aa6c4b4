"""What `sparsewire advise` says of gradients: known ones are told apart."""

from __future__ import annotations

import numpy as np
import pytest
from known_gradients import SIZE, correlated, laplace

import sparsewire as sw
from sparsewire.lab.advise.candidates import Bench
from sparsewire.lab.advise.facts import describe, tensor_name
from sparsewire.lab.arrays import load_gradients


def facts(x: np.ndarray) -> dict:
    (row,) = describe({"x": x})
    return row


def test_correlated_gradients_keep_more_in_frequency():
    row = facts(correlated())
    assert row["kind"] == "correlated" and row["neighbour_correlation"] == pytest.approx(0.9, abs=0.03)
    assert row["frequency"]["0.15"] == pytest.approx(0.90, abs=0.03)
    assert row["time"]["0.15"] == pytest.approx(0.56, abs=0.03)
    assert row["mean_run"] > 1.3 * row["mean_run_random"] and row["index_bits"] < 0.9 * row["index_bits_random"]


def test_uncorrelated_gradients_keep_more_in_time():
    row = facts(laplace())
    assert row["kind"] == "not correlated" and abs(row["neighbour_correlation"]) < 0.05
    assert row["time"]["0.15"] == pytest.approx(0.71, abs=0.03)
    assert row["frequency"]["0.15"] == pytest.approx(0.43, abs=0.03)
    assert row["mean_run"] == pytest.approx(row["mean_run_random"], rel=0.1)


def test_values_of_one_size_are_not_called_correlated():
    x = np.random.default_rng(0).uniform(-1, 1, 50_000).astype(np.float32)
    (facts,) = describe({"w": x})
    assert facts["kind"] == "flat" and facts["frequency"]["0.15"] > facts["time"]["0.15"]


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e200])
def test_numbers_whose_squares_are_out_of_range_have_the_same_errors(scale):
    x = np.random.default_rng(0).normal(size=3000)
    plain, scaled = (Bench({"w": some}).try_scheme("topk(5%) | values=raw").error for some in (x, x * scale))
    assert scaled == pytest.approx(plain, rel=0.02)


def test_equal_names_in_several_files_stay_steps_of_one_tensor(tmp_path):
    paths = [tmp_path / f"r{rank}.npz" for rank in range(2)]
    for path in paths:
        np.savez(path, **{f"w@{step}": np.ones(4, np.float32) for step in range(2)})
    names = [tensor_name(name) for name in load_gradients([*paths, paths[0]])]
    assert names == ["w", "w", f"{paths[1]}[w]", f"{paths[1]}[w]"]


@pytest.mark.parametrize("share", [0.01, 0.05, 0.15])
@pytest.mark.parametrize(("domain", "transform"), [("time", "identity"), ("frequency", "fft(chunk=4096)")])
def test_the_energy_that_is_kept_is_that_of_a_frame(share, domain, transform):
    x = correlated(4096 + 900).astype(np.float64)  # the last chunk has a length that is not filled up
    seen = sw.decode(sw.encode(x, f"topk(ratio={share}) | transform={transform} | values=raw")).to_dense()
    assert facts(x)[domain][f"{share:g}"] == pytest.approx(1 - np.sum((x - seen) ** 2) / np.sum(x**2), abs=1e-9)


@pytest.mark.parametrize(
    ("label", "values"),
    [
        ("flat", np.random.default_rng(0).uniform(-1, 1, SIZE)),
        ("Gaussian", np.random.default_rng(0).standard_normal(SIZE) + 5),
        ("Laplace", laplace()),
        ("heavy-tailed", np.random.default_rng(0).standard_t(3, SIZE)),
        ("constant", np.full(SIZE, 3.0)),
        ("constant", np.zeros(SIZE)),
    ],
)
def test_values_are_named_by_their_kurtosis(label, values):
    assert facts(values.astype(np.float32))["values"] == label


def test_zeros_count_as_sparsity_not_as_values():
    x = laplace()
    x[np.arange(SIZE) % 10 > 0] = 0
    row = facts(x)
    assert row["nonzero"] == pytest.approx(0.1, abs=0.001) and row["values"] == "Laplace"


def test_values_are_counted_by_octaves_below_the_largest_of_all():
    rows = describe({"a": np.array([8, -4, 5, 0, 2.0**-60]), "b": np.array([2.0, 1.0, -1.0])})
    counts = [np.array(row["octaves"]) * round(row["nonzero"] * row["numel"]) for row in rows]
    assert counts[0][:4].tolist() == [3, 0, 0, 0] and counts[0][-1] == 1 and counts[1][:4].tolist() == [0, 1, 2, 0]
    assert np.array_equal(counts[2], counts[0] + counts[1]) and sum(rows[2]["octaves"]) == pytest.approx(1)


def test_only_what_is_not_zero_has_a_place():
    """Where less than 1 % is not zero, zeros at the start would look like a cluster."""
    rng = np.random.default_rng(0)
    row = facts(np.where(rng.random(100_000) < 0.002, rng.standard_normal(100_000), 0).astype(np.float32))
    assert row["nonzero"] < 0.003 and row["mean_run"] == pytest.approx(row["mean_run_random"], rel=0.02)
    assert row["index_bits"] == pytest.approx(row["index_bits_random"], rel=0.05)
    assert facts(np.zeros(2000, np.float32))["mean_run"] is None


def test_steps_of_a_tensor_are_one_row_and_all_tensors_the_last():
    one, other = correlated(), correlated(seed=1)
    rows = describe({"w@0": one, "w@1": other, "b": laplace(2048)})
    assert [(row["tensor"], row["arrays"]) for row in rows] == [("w", 2), ("b", 1), ("all 2 tensors", 3)]
    assert rows[0]["numel"] == 2 * SIZE and rows[-1]["numel"] == 2 * SIZE + 2048
    energies = [float(np.sum(x.astype(np.float64) ** 2)) for x in (one, other)]
    kept = [facts(x)["time"]["0.05"] for x in (one, other)]
    assert rows[0]["time"]["0.05"] == pytest.approx(np.average(kept, weights=energies))
    assert tensor_name("user@home") == "user@home"
