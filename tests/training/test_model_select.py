"""`select_per="model"`: the K largest of all tensors together, whatever was known about them beforehand."""

from __future__ import annotations

import numpy as np
import pytest
from competing import brute_force, compete, spy
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import BACKENDS, EXCHANGES, KINDS, PAIRS, make, same_bits, using
from trainings import NAMES, gradients, residuals

import sparsewire as sw
from sparsewire.comm import Communicator, run_ranks
from sparsewire.errors import InputError, SchemeError
from sparsewire.exchange import Clock, ExchangeContext, Piece
from sparsewire.training.layout import Buffer, PendingBuffer, lay_out
from sparsewire.training.model_select import Candidates, ModelSelect
from sparsewire.training.schedule import SchemeSchedule, Settings

Arrays = dict[str, np.ndarray]
RAW = "topk(5%) | values=raw"


# --- what is selected ---


@st.composite
def models(draw: st.DrawFn) -> Arrays:
    """Tensors of all sizes, kinds and scales, in any order; some empty, some with NaN and infinities."""
    kind = draw(st.sampled_from(["float32", "float64", "mixed"]))
    arrays: Arrays = {}
    for name in draw(st.permutations("badc"))[: draw(st.integers(1, 4))]:
        dtype = draw(st.sampled_from(["float32", "float64"])) if kind == "mixed" else kind
        size = draw(st.sampled_from([0, 1, 7, 64, 300, 5003]))
        scale = draw(st.sampled_from([1.0, 1.0, 1e-6, 1e4]))
        x = make(draw(st.sampled_from(KINDS)), size, dtype, draw(st.integers(0, 99))) * np.dtype(dtype).type(scale)
        if size and draw(st.integers(0, 3)) == 0:
            x[np.random.default_rng(size).integers(0, size, 3)] = np.array([np.nan, np.inf, -np.inf], dtype)
        arrays[name] = x
    return arrays


COUNTS = ["topk(1%)", "topk(30%)", "topk(k=1)", "topk(k=64)", "topk(100%)"]


def pending(name: str, x: np.ndarray) -> PendingBuffer:
    """A tensor that has come."""
    buffer = Buffer.of(name, x, x.dtype.name)
    layout = lay_out(buffer.slices, frozenset(), 0, by_bucket=False)
    return PendingBuffer(buffer, layout, [Piece(name, x, x.shape, x.dtype.name)], [], frozenset())


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_selection_is_that_of_a_sort_whatever_the_edge(backend: str) -> None:
    @settings(max_examples=150)
    @given(models(), st.sampled_from(COUNTS), st.data())
    def law(arrays: Arrays, select: str, data: st.DataObject) -> None:
        plan, total = sw.scheme(f"{select} | memory=none"), sum(x.size for x in arrays.values())
        count = plan.select.largest_of(total)
        expected = brute_force(arrays, count)
        model = ModelSelect()
        own = [float(m) for x in arrays.values() for m in np.abs(x[:9]) if np.isfinite(m)]
        model.edge = data.draw(st.sampled_from([0.0, 1e-40, 1.0, 1e30, *own]))
        model.size = data.draw(st.sampled_from([0, 1, total // 2, total, 9 * total]))
        for name, x in arrays.items():
            model.scan([pending(name, x)], plan, Clock())
        context = ExchangeContext(plan, run_ranks(1, lambda comm: comm)[0])
        offers = [offer for _, some in model.selected(context) for offer in some]
        chosen = {offer.piece.name: (offer.selection.indices, offer.selection.values) for offer in offers}
        model.keep(finite=True)
        for name, x in arrays.items():
            assert chosen[name][0].tolist() == expected[name].tolist()
            assert same_bits(chosen[name][1], x[expected[name]])
        assert model.size == total

    with using(backend):
        law()


@settings(max_examples=50)
@given(models(), st.integers(1, 500), st.floats(0, 2, allow_subnormal=False))
def test_candidates_take_the_room_of_a_few_times_what_is_chosen(arrays: Arrays, most: int, low: float) -> None:
    found, seen = Candidates(most, low), []
    for name, x in arrays.items():
        found.scan(Piece(name, x, x.shape, x.dtype.name), sw.scheme("topk | memory=none"))
        seen.append(sum(indices.size for indices, _ in found.entries.values()))
    assert max(seen) <= 2 * most and found.size == seen[-1]


# --- what is sent ---


@pytest.mark.parametrize(("indices", "values"), PAIRS)
def test_a_tensor_may_have_no_entries(indices: str, values: str) -> None:
    scheme = f"topk(k=2) | indices={indices} | values={values}"

    def fn(comm: Communicator) -> None:
        one = compete(comm, scheme)
        x = {"a": np.zeros(500, np.float32), "b": np.full(400, 0.01, np.float32)}
        x["a"][[7, 9]] = 5 + comm.rank, -5
        sent = spy(one)
        one.put(x)
        assert one.finish() and sent["a"].count >= 2
        assert sent["b"].count == 0 and not x["b"].any() and (residuals(one)["b"] == np.float32(0.01)).all()

    run_ranks(2, fn)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_every_exchange_takes_a_selection_that_was_made_before(exchange: str) -> None:
    def fn(comm: Communicator) -> None:
        one = compete(comm, f"topk(k=9) | values=raw | exchange={exchange}")
        unsent = {name: np.zeros(size) for name, size in NAMES.items() if name != "b"}
        for step in range(4):
            x = gradients(comm, step)
            given = {name: comm.all_reduce(x[name]) for name in unsent}
            one.put(x)
            assert one.finish()
            for name in unsent:
                unsent[name] += given[name] - comm.size * x[name]
        for name, left in unsent.items():
            np.testing.assert_allclose(comm.all_reduce(residuals(one)[name]), left, atol=1e-4)

    run_ranks(3, fn)


# --- what is refused ---


@pytest.mark.parametrize(
    ("scheme", "error"),
    [
        ("randomk(1%)", r"write topk\(ratio=…\) or topk\(k=…\), 1 or more, instead of randomk"),
        ("threshold(ratio=1%)", "instead of threshold"),
        ("nonzero", "instead of nonzero"),
        ("topk(k=0)", "1 or more, instead of topk"),
        ("topk(1%) | transform=rows(width=4)", r"leave transform=rows\(width=4\) out, or select_per"),
    ],
)
def test_a_scheme_without_a_common_measure_is_refused(scheme: str, error: str) -> None:
    with pytest.raises(SchemeError, match=error):
        Settings(SchemeSchedule(sw.scheme(scheme)), select_per="model")


def test_a_selection_per_anything_else_is_refused() -> None:
    with pytest.raises(InputError, match="select_per is 'parameter', 'bucket' or 'model', not 'layer'"):
        Settings(SchemeSchedule(sw.scheme("topk")), select_per="layer")


def test_stats_tell_how_it_is_selected() -> None:
    assert run_ranks(1, lambda comm: compete(comm).stats()["select_per"]) == ["model"]
