"""A sketch's tables: the error of what they give back, in one step and behind a residual."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from exchange_damage import gathered
from strategies import make

from sparsewire.comm import Communicator, run_ranks
from sparsewire.core.rng import derive_key
from sparsewire.exchange import mean
from sparsewire.exchange.sketch.table import Table

NNZ = 3000
# columns per entry → what |residual| / |gradient| settles at: docs/guides/exchanges.md
SETTLED = {0.25: 4.7, 0.5: 2.2, 1: 1.1, 2: 0.65, 4: 0.41}


def table(columns: int, rows: int = 1, seed: int = 0, entries: int = NNZ, width: int = 1) -> Table:
    return Table(np.arange(entries), width, columns, tuple(derive_key(seed, row) for row in range(rows)))


def sketched(t: Table, x: np.ndarray) -> np.ndarray:
    out = np.zeros(t.numbers, x.dtype)
    t.insert(out, x)
    return out


def residuals(decode: str, columns: int, fresh: bool, rows: int = 1, steps: int = 300) -> np.ndarray:
    """|residual| / |gradient| of every step, a gradient that stays the same."""
    g, kept, found = make("normal", NNZ, "float64"), np.zeros(NNZ), []
    for step in range(steps):
        t, total = table(columns, rows, step if fresh else 0), g + kept
        kept = total - getattr(t, decode)(sketched(t, total))
        found.append(np.linalg.norm(kept) / np.linalg.norm(g))
    return np.array(found)


@pytest.mark.parametrize("share", SETTLED)
def test_the_error_against_columns_per_entry_is_the_known_one(share: float) -> None:
    x, t = make("normal", NNZ, "float64"), table(round(share * NNZ))
    plain = np.linalg.norm(t.median(sketched(t, x)) - x) / np.linalg.norm(x)
    assert plain == pytest.approx(share**-0.5, rel=0.15)
    settled = residuals("project", round(share * NNZ), fresh=True)[-100:]
    assert settled.mean() == pytest.approx(SETTLED[share], rel=0.15)


def test_with_the_same_hashes_the_median_diverges_and_the_projection_never_ends() -> None:
    with np.errstate(all="ignore"):
        assert residuals("median", NNZ // 4, fresh=False, steps=40)[-1] > 1e6
    same = residuals("project", NNZ // 4, fresh=False)
    assert same[-1] > 2.5 * same[99]


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("width", [1, 3])
def test_projecting_is_linear_and_no_part_is_longer_than_the_whole(rows: int, width: int) -> None:
    t = replace(table(140, rows, entries=400), width=width)
    x, y = (make(kind, 400 * width, "float64", seed=2) for kind in ("normal", "magnitudes"))
    both = t.project(sketched(t, x + 2 * y))
    np.testing.assert_allclose(both, t.project(sketched(t, x)) + 2 * t.project(sketched(t, y)), atol=1e-9)
    found = t.project(sketched(t, x))
    assert 0 < np.linalg.norm(x - found) < np.linalg.norm(x)
    if rows == 1:
        np.testing.assert_allclose(t.project(sketched(t, found)), found, atol=1e-12)


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_more_rows_lose_less_once_there_is_room(rows: int) -> None:
    x = make("normal", NNZ, "float64")
    one, many = (table(2 * NNZ // some, some) for some in (1, rows))
    lost = [np.linalg.norm(x - t.project(sketched(t, x))) for t in (one, many)]
    assert lost[1] < 0.85 * lost[0]


def test_the_median_of_rows_is_the_median() -> None:
    for rows in (3, 4):
        t, x = table(900, rows), make("normal", NNZ, "float64")
        said = [
            replace(t, keys=(key,)).median(part)
            for key, part in zip(t.keys, sketched(t, x).reshape(rows, -1), strict=True)
        ]
        np.testing.assert_allclose(t.median(sketched(t, x)), np.median(said, axis=0), atol=1e-12)


def test_a_row_is_one_bucket() -> None:
    t = Table(np.array([7, 10**15]), 3, 10**4, (1,))
    x = np.array([1, 2, 3, 4, 5, 6], np.float32)
    assert np.array_equal(t.project(sketched(t, x)), x)
    assert np.count_nonzero(sketched(t, x).reshape(-1, 3).any(axis=1)) == 2


def test_the_residual_stays_bounded_and_nothing_is_lost_over_300_steps() -> None:
    def fn(comm: Communicator) -> None:
        g, kept, received = make("normal", 200, "float32", seed=comm.rank), np.zeros(200, np.float32), np.zeros(200)
        for step in range(300):
            average, _ = mean(g, "nonzero | values=raw | exchange=sketch(volume=0.25)", comm, step=step, residual=kept)
            received += average
        total = np.sum(gathered(comm, kept), axis=0, dtype=np.float64)
        gradient = np.sum(gathered(comm, g), axis=0, dtype=np.float64)
        assert np.linalg.norm(total) < 1.4 * SETTLED[0.25] * np.linalg.norm(gradient)
        np.testing.assert_allclose(comm.size * received + total, 300 * gradient, atol=0.02)

    run_ranks(2, fn)
