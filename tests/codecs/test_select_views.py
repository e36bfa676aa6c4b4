"""A selection whose arrays are views of the tensor gives the bits of one that copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from strategies import make

import sparsewire as sw
from sparsewire import kernels
from sparsewire.codecs import registry
from sparsewire.codecs.contract import Context, Select
from sparsewire.comm import Communicator, run_ranks
from sparsewire.exchange import ExchangeContext, Piece, mean


@dataclass(frozen=True)
class First(Select):
    """The first entries, as a view of what they are selected from."""

    id = "first"

    k: int = 3

    def pick(self, x: np.ndarray, ctx: Context) -> tuple[np.ndarray, np.ndarray]:
        return np.arange(self.k, dtype=kernels.index_dtype(x.size)), x[: self.k]


@dataclass(frozen=True)
class FirstCopied(First):
    id = "first_copied"

    def pick(self, x: np.ndarray, ctx: Context) -> tuple[np.ndarray, np.ndarray]:
        return super().pick(x.copy(), ctx)


@pytest.fixture
def views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_added", {slot: dict(known) for slot, known in registry._added.items()})
    sw.register(First)
    sw.register(FirstCopied)


def alike(run: Callable[[str], list[np.ndarray]]) -> None:
    for values in ("raw", "qsgd(2)"):
        views, copies = (run(f"{select} | values={values}") for select in ("first", "first_copied"))
        assert list(map(np.ndarray.tolist, views)) == list(map(np.ndarray.tolist, copies))


@pytest.mark.usefixtures("views")
def test_a_selection_of_views_leaves_the_same_residual() -> None:
    def compressed(s: str) -> list[np.ndarray]:
        x, residual = make("normal", 9, "float32"), make("normal", 9, "float32", 1)
        frames = [sw.compress(x, s, residual=residual, name="w")[0] for _ in range(2)]
        return [x, residual, *(sw.decode(frame).values for frame in frames)]

    def averaged(s: str) -> list[np.ndarray]:
        def step(comm: Communicator) -> list[np.ndarray]:
            x, residual = make("normal", 9, "float32", comm.rank), make("normal", 9, "float32", 7)
            return [x, residual, *mean(x, s, comm, residual=residual, name="w")]

        return [array for arrays in run_ranks(2, step) for array in arrays]

    alike(compressed)
    alike(averaged)


@pytest.mark.usefixtures("views")
def test_a_selection_of_views_gives_the_same_means_in_place() -> None:
    def averaged(s: str) -> list[np.ndarray]:
        plan = sw.scheme(s)

        def step(comm: Communicator) -> list[np.ndarray]:
            pieces = [piece("a", comm.rank, False), piece("b", comm.rank, True), piece("c", comm.rank, True)]
            for one, outcome in zip(pieces, ExchangeContext(plan, comm).average(pieces), strict=True):
                one.keep(plan, outcome)
                outcome.mean_into(one.x)
            return [array for one in pieces for array in (one.x, *one.state.values())]

        return [array for arrays in run_ranks(2, step) for array in arrays]

    alike(averaged)


def piece(name: str, rank: int, kept: bool) -> Piece:
    x, residual = (make("normal", 9, "float32", seed + ord(name)) for seed in (rank, 7))
    return Piece(name, x, x.shape, "float32", {"residual": residual} if kept else {})
