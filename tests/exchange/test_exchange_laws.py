"""The laws of every exchange, row by row of `exchange_rows.py`, between ranks that are threads.

Sent + kept = compensated input, on each rank; Σ sent = ranks × mean; every rank gets the same bits; what is not finite
on one rank is seen by all and nothing is written; nobody waits for a rank that failed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from exchange_damage import gathered
from exchange_rows import ROWS
from failing import errors_of
from strategies import DTYPES, MEMORIES, SELECTS, TRANSFORMS, VALUE_CODECS, make, same_bits, work

import sparsewire as sw
from sparsewire.codecs.scheme import Scheme
from sparsewire.comm import Communicator, run_ranks
from sparsewire.errors import InputError, PeerError
from sparsewire.exchange import ExchangeContext, Outcome, Piece

NUMEL, SIZES = 210, (1, 2, 4, 7, 8)
SUPPORTS = ("disjoint", "identical", "empty", "full", "some")
CODINGS = [f"{SELECTS[at % len(SELECTS)]} | values={values}" for at, values in enumerate(VALUE_CODECS)]
CODINGS += [f"{select} | values=raw" for select in SELECTS]


def gradient(support: str, comm: Communicator, dtype: str, step: int) -> np.ndarray:
    """A rank's gradient whose non-zeros lie where the name says, seen over all ranks."""
    x = make("normal", NUMEL, dtype, seed=100 * step + comm.rank)
    place = np.arange(NUMEL)
    where = {
        "disjoint": place % comm.size == comm.rank,
        "identical": place % 5 == 2,
        "empty": place < 0,
        "full": place >= 0,
        "some": (place * (comm.rank + 3)) % 7 < 3,
    }[support]
    return np.where(where, x, DTYPES[dtype](0)).astype(DTYPES[dtype])


def pieces_of(comm: Communicator, plan: Scheme, states: dict[str, Any], step: int) -> list[Piece]:
    """One tensor of each support; the number types take turns."""
    found = []
    for support, dtype in zip(SUPPORTS, itertools.cycle(DTYPES), strict=False):
        x = work(gradient(support, comm, dtype, step))
        state = states.setdefault(support, {buffer: np.zeros_like(x) for buffer in plan.memory.buffers})
        found.append(Piece(f"{support} {dtype}", x, (NUMEL,), dtype, state))
    return found


def mean_of(outcome: Outcome, piece: Piece) -> np.ndarray:
    out = np.empty(piece.x.size, piece.x.dtype)
    outcome.mean_into(out)
    return out


def check_means(comm: Communicator, pieces: Sequence[Piece], outcomes: Sequence[Outcome], rounding: float) -> None:
    """Σ sent = ranks × mean, and the same bits everywhere, in both forms of the mean."""
    assert all(outcome.finite for outcome in outcomes)
    means = [mean_of(outcome, piece) for outcome, piece in zip(outcomes, pieces, strict=True)]
    told = gathered(comm, np.array([*means, *(outcome.sent.flat() for outcome in outcomes)], np.float64))
    half = len(told[0]) // 2
    assert len({part[:half].tobytes() for part in told}) == 1
    sent = np.array([part[half:].reshape(len(pieces), -1) for part in told])
    for piece, outcome, mean, parts in zip(pieces, outcomes, means, sent.swapaxes(0, 1), strict=True):
        close(comm.size * mean, parts.sum(axis=0), rounding, np.abs(parts).max(), piece.name)
        coarse = max(rounding, {"float16": 1e-3, "bfloat16": 8e-3}.get(piece.dtype, 0.0))  # a `Sparse` has its dtype
        close(outcome.mean_sparse().flat(), mean, coarse, np.abs(mean).max(), piece.name)


def close(actual: np.ndarray, desired: np.ndarray, rounding: float, largest: float, name: str) -> None:
    np.testing.assert_allclose(actual, desired, rtol=0, atol=rounding * (largest + 1e-30), err_msg=name)


def check_kept(piece: Piece, plan: Scheme, outcome: Outcome) -> None:
    """Sent + kept = compensated input."""
    before = {name: buffer.copy() for name, buffer in piece.state.items()}
    total = plan.memory.total(before, piece.x).copy()
    piece.keep(plan, outcome)
    if plan.memory.id == "residual":
        expected = total - outcome.sent.flat().astype(total.dtype)
        close(piece.state["residual"], expected, 1e-6, np.abs(total).max(), piece.name)


def hold(comm: Communicator, s: str, rounding: float, steps: int = 2) -> None:
    plan, states = sw.scheme(s), {}
    for step in range(steps):
        pieces = pieces_of(comm, plan, states, step)
        before = [{name: buffer.copy() for name, buffer in piece.state.items()} for piece in pieces]
        outcomes = ExchangeContext(plan, comm, step, seed=5).average(pieces)
        for piece, old in zip(pieces, before, strict=True):
            assert all(same_bits(piece.state[name], buffer) for name, buffer in old.items()), "written too early"
        check_means(comm, pieces, outcomes, rounding)
        for piece, outcome in zip(pieces, outcomes, strict=True):
            check_kept(piece, plan, outcome)


def schemes(exchange: str, every: int = 1, start: int = 0) -> Iterator[str]:
    return (f"{coding} | exchange={exchange}" for coding in CODINGS[start :: every * ROWS[exchange].every])


@pytest.mark.parametrize("exchange", ROWS)
def test_three_ranks_with_every_selection_and_value_codec(exchange: str) -> None:
    def fn(comm: Communicator) -> None:
        for s in schemes(exchange):
            hold(comm, f"{s} | memory=residual", ROWS[exchange].rounding)

    run_ranks(3, fn, timeout=120)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("exchange", ROWS)
def test_any_number_of_ranks(exchange: str, size: int) -> None:
    def fn(comm: Communicator) -> None:
        for s in schemes(exchange, every=8 + size, start=size):  # the more ranks, the fewer
            hold(comm, f"{s} | memory=residual", ROWS[exchange].rounding)

    run_ranks(size, fn, timeout=120)


@pytest.mark.parametrize("exchange", ROWS)
def test_every_number_type_with_every_support(exchange: str) -> None:
    def fn(comm: Communicator) -> None:
        plan = sw.scheme(f"topk(20%) | memory=none | exchange={exchange}")
        for dtype in DTYPES:
            arrays = {support: work(gradient(support, comm, dtype, 0)) for support in SUPPORTS}
            pieces = [Piece(support, x, (NUMEL,), dtype) for support, x in arrays.items()]
            check_means(comm, pieces, ExchangeContext(plan, comm).average(pieces), ROWS[exchange].rounding)

    run_ranks(4, fn, timeout=60)


@pytest.mark.parametrize("exchange", ROWS)
def test_every_memory_and_transform(exchange: str) -> None:
    def fn(comm: Communicator) -> None:
        for memory in [*MEMORIES, "none"][:: min(3, ROWS[exchange].every)]:
            hold(comm, f"topk(10%) | memory={memory} | exchange={exchange}", ROWS[exchange].rounding, steps=3)
        for transform in TRANSFORMS[:: min(3, ROWS[exchange].every)]:
            hold(comm, f"topk(20%) | transform={transform} | exchange={exchange}", 10 * ROWS[exchange].rounding)

    run_ranks(3, fn, timeout=120)


@pytest.mark.parametrize("exchange", ROWS)
def test_the_number_of_collectives_is_the_same_for_one_tensor_and_for_many(exchange: str) -> None:
    most = ROWS[exchange].collectives

    def fn(comm: Communicator) -> list[int]:
        plan, counts = sw.scheme(f"topk(10%) | memory=none | exchange={exchange}"), []
        for step in range(4):  # the first calls of a channel also agree on its size
            pieces = pieces_of(comm, plan, {}, step)
            before = comm.collectives
            ExchangeContext(plan, comm, step).average(pieces if step < 2 else pieces[:1])
            counts.append(comm.collectives - before)
        return counts[1::2]

    for many, one in run_ranks(4, fn, timeout=60):
        assert many <= one + 2, (many, one)
        assert most is None or many <= most


# --- sparse tensors ---


def sparse_piece(comm: Communicator, width: int, step: int) -> Piece:
    indices = np.unique(np.random.default_rng([step, comm.rank]).integers(0, 50, 20)) * 10**9
    values = make("normal", indices.size * width, "float32", seed=step + comm.rank)
    x = sw.Sparse(indices, values, (50 * 10**9, width) if width > 1 else (50 * 10**9,), width=width)
    return Piece("table", x, x.shape, "float32")


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("exchange", ROWS)
def test_sparse_tensors_stay_sparse(exchange: str, width: int) -> None:
    def fn(comm: Communicator) -> None:
        plan = sw.scheme(f"nonzero | values=raw | memory=none | exchange={exchange}")
        piece = sparse_piece(comm, width, 1)
        (outcome,) = ExchangeContext(plan, comm, 1).average([piece])
        mean, sent = outcome.mean_sparse(), outcome.sent
        assert len({bytes(part) for part in comm.all_gather(mean.indices.tobytes() + mean.values.tobytes())}) == 1
        dense = [np.zeros((50, width)) for _ in range(2)]
        for one, array in zip((mean, sent), dense, strict=True):
            assert not (one.indices % 10**9).any()
            array[one.indices // 10**9] = one.work_values.reshape(-1, width)
        total = np.sum(gathered(comm, dense[1].reshape(-1)), axis=0)
        np.testing.assert_allclose(comm.size * dense[0].reshape(-1), total, atol=10 * ROWS[exchange].rounding)

    run_ranks(3, fn, timeout=60)


# --- what goes wrong ---


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("exchange", ROWS)
def test_what_is_not_finite_on_one_rank_is_seen_by_all(exchange: str, bad: float) -> None:
    def fn(comm: Communicator) -> None:
        plan = sw.scheme(f"topk(5%) | memory=residual | exchange={exchange}")
        pieces = pieces_of(comm, plan, {}, 0)
        if comm.rank == 1:
            pieces[-1].x[77] = bad
        with np.errstate(all="ignore"):
            outcomes = ExchangeContext(plan, comm).average(pieces)
            assert not all(outcome.finite for outcome in outcomes)
            assert not np.isfinite(mean_of(outcomes[-1], pieces[-1])).all()
        told = {bytes(part) for part in comm.all_gather(bytes(outcome.finite for outcome in outcomes))}
        assert len(told) == 1
        assert not any(buffer.any() for piece in pieces for buffer in piece.state.values())

    run_ranks(3, fn, timeout=60)


class Refused(Piece):
    def context(self, *args: Any, **settings: Any) -> Any:
        raise InputError("this piece cannot be sent")


@pytest.mark.parametrize("exchange", ROWS)
def test_a_rank_that_cannot_take_part_tells_the_others(exchange: str) -> None:
    def fn(comm: Communicator) -> None:
        plan = sw.scheme(f"topk(5%) | memory=none | exchange={exchange}")
        pieces = pieces_of(comm, plan, {}, 0)
        if comm.rank == 1:
            pieces[3] = Refused(pieces[3].name, pieces[3].x, pieces[3].shape, pieces[3].dtype)
        ExchangeContext(plan, comm).average(pieces)

    errors = errors_of(3, fn)
    assert isinstance(errors[1], InputError)
    assert all(isinstance(errors[rank], PeerError) for rank in (0, 2)), errors


@pytest.mark.parametrize("exchange", ROWS)
def test_tensors_of_other_shapes_are_an_error_on_every_rank(exchange: str) -> None:
    def fn(comm: Communicator) -> None:
        x = np.ones(100 + comm.rank // 2, np.float32)
        plan = sw.scheme(f"topk(50%) | memory=none | exchange={exchange}")
        ExchangeContext(plan, comm).average([Piece("w", x, x.shape, "float32")])

    errors = errors_of(3, fn)
    assert all(isinstance(error, PeerError) for error in errors), errors
