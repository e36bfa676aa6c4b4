"""What selections choose: exactly what they say, and never less than what is not finite."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from exchange_rows import ROWS
from hypothesis import given
from hypothesis import strategies as st
from kernel_rows import dense
from selections import largest
from strategies import BACKENDS, make, using

import sparsewire as sw
from sparsewire import kernels
from sparsewire.comm import Communicator, run_ranks
from sparsewire.exchange import mean

every_backend = pytest.mark.parametrize("backend", BACKENDS)


def chosen(x: np.ndarray, select: str, **facts: object) -> list[int]:
    return sw.decode(sw.encode(x, select, **facts)).indices.tolist()


@every_backend
@given(x=dense(size=65), k=st.integers(1, 70))
def test_topk_is_exact(backend: str, x: np.ndarray, k: int) -> None:
    with using(backend):
        assert chosen(x, f"topk(k={k})") == largest(x, k)


@every_backend
@pytest.mark.parametrize("size", [5, 64, 5000, 70_000])
def test_ties_go_to_the_lowest_index(size: int, backend: str) -> None:
    x = np.where(np.arange(size) % 2, 1.0, -1.0).astype(np.float32)
    x[size // 2] = 2.0
    with using(backend):
        assert chosen(x, "topk(k=3)") == [0, 1, size // 2]


@pytest.mark.parametrize(
    ("numel", "ratio", "count"), [(1000, "1%", 10), (1000, "0.04%", 1), (150, "1%", 2), (3, "100%", 3), (0, "1%", 0)]
)
def test_a_ratio_is_of_the_elements_rounded_and_at_least_one(numel: int, ratio: str, count: int) -> None:
    x = np.arange(1, numel + 1, dtype=np.float32)
    assert len(chosen(x, f"topk({ratio})")) == len(chosen(x, f"randomk({ratio})")) == count


@pytest.mark.parametrize("select", ["topk(k=99)", "randomk(k=99)", "topk(100%)", "randomk(100%)"])
def test_more_than_there_is_means_all(select: str) -> None:
    assert chosen(np.arange(7.0), select) == list(range(7))


# --- randomk -----------------------------------------------------------------------------------------------------


@given(numel=st.integers(1, 3000), seed=st.integers(0, 2**63), data=st.data())
def test_randomk_draws_k_different_elements(numel: int, seed: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, numel))
    picked = chosen(np.zeros(numel, np.float32), f"randomk(k={k})", seed=seed)
    assert len(set(picked)) == k


def test_ranks_share_a_draw_or_have_their_own() -> None:
    x = make("normal", 1000, "float32")
    shared = [chosen(x, "randomk(5%)", rank=rank) for rank in range(3)]
    own = [chosen(x, "randomk(5%, shared=false)", rank=rank) for rank in range(3)]
    assert shared[0] == shared[1] == shared[2]
    assert len({tuple(picked) for picked in own}) == 3


@pytest.mark.parametrize("change", [{"step": 1}, {"seed": 1}, {"name": "other"}])
def test_every_step_seed_and_name_draws_anew(change: dict[str, object]) -> None:
    x = make("normal", 1000, "float32")
    assert chosen(x, "randomk(5%)", **change) != chosen(x, "randomk(5%)")


def test_randomk_is_fair() -> None:
    x = np.zeros(20, np.float32)
    hits = np.bincount(np.concatenate([chosen(x, "randomk(k=5)", step=step) for step in range(800)]), minlength=20)
    assert abs(hits - 200).max() < 60  # five standard deviations are 61


# --- threshold and nonzero ---------------------------------------------------------------------------------------


@given(x=dense(size=65), low=st.sampled_from([0.0, 0.5, 1.0, 3.0]))
def test_a_threshold_takes_what_reaches_it(x: np.ndarray, low: float) -> None:
    expected = np.flatnonzero((np.abs(x) >= low) | np.isnan(x)).tolist()
    assert chosen(x, f"threshold(value={low})") == expected


@every_backend
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_threshold_above_every_number_takes_none(dtype: str, backend: str) -> None:
    x = make("magnitudes", 100, dtype)
    with using(backend):
        assert chosen(x, "threshold(value=1e300)") == []
        assert chosen(x, "threshold(value=inf)") == []


@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.1])
@pytest.mark.parametrize("kind", ["normal", "magnitudes", "sorted"])
def test_a_sampled_threshold_comes_close_to_its_ratio(kind: str, ratio: float) -> None:
    x = make(kind, 400_000, "float32", 3)
    got = len(chosen(x, f"threshold(ratio={ratio})")) / x.size
    tolerance = 4 * np.sqrt(ratio / 65_536)  # the sample's own spread
    assert abs(got - ratio) < tolerance


def test_a_small_tensors_threshold_is_exact() -> None:
    assert len(chosen(make("normal", 1000, "float32"), "threshold(ratio=10%)")) == 100


@pytest.mark.parametrize("size", [1000, 100_000])
def test_a_ratio_of_a_mostly_zero_tensor_does_not_send_its_zeros(size: int) -> None:
    x = np.zeros(size, np.float32)
    x[::200] = 1.0
    assert chosen(x, "threshold(ratio=1%)") == np.flatnonzero(x).tolist()


@given(x=dense(size=65))
def test_nonzero_takes_all_but_zeros(x: np.ndarray) -> None:
    assert chosen(x, "nonzero") == np.flatnonzero(x).tolist()


def test_nonzero_keeps_the_smallest_number_there_is() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        tiny = np.finfo(dtype).smallest_subnormal
        frame = sw.encode(np.array([0, tiny, -0.0, -tiny], dtype), "nonzero")
        assert sw.decode(frame).indices.tolist() == [1, 3]
        assert sw.decode(frame).values.tolist() == [tiny, -tiny]


@every_backend
def test_a_threshold_too_small_for_the_dtype_sends_no_zeros(backend: str) -> None:
    x = np.array([0, 1e-45, -0.0, 3], np.float32)
    with using(backend):
        assert chosen(x, "threshold(value=1e-60)") == chosen(x, "threshold(value=5e-324)") == [1, 3]
        assert chosen(x, "threshold(value=0)") == chosen(x, "threshold(value=-0.0)") == [0, 1, 2, 3]


@pytest.fixture
def flushing() -> Iterator[None]:
    """A processor that takes subnormal numbers for zero, as some training loops ask for."""
    torch = pytest.importorskip("torch")
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no such mode")
    yield
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("flushing")
@every_backend
@pytest.mark.parametrize("bits", [np.uint32, np.uint64])
@pytest.mark.parametrize("size", [50, 9000, 100_000])
def test_zeros_are_not_sent_where_subnormal_numbers_count_as_zero(size: int, bits: type, backend: str) -> None:
    raw = np.zeros(size, bits)
    raw[7::10] = 1  # the smallest number there is
    raw[9::10] = 3 << (8 * raw.itemsize - 3)  # a large one, with a sign
    x, there = raw.view(f"f{raw.itemsize}"), np.flatnonzero(raw).tolist()
    with using(backend):
        assert chosen(x, "nonzero | values=raw") == there
        assert chosen(x, "threshold(ratio=90%) | values=raw") == there
        assert chosen(x, "threshold(ratio=5%) | values=raw") == there[1::2]
        assert chosen(x, "threshold(value=1e-60) | values=raw") == (there if bits is np.uint32 else there[1::2])


# --- what is not finite ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "select",
    [
        "topk(k=3)",
        "randomk(k=1)",
        "one_sign(k=2)",
        "chunk_topk(k=3, chunk=500)",
        "chunk_topk(k=1, chunk=9)",
        "threshold(value=9)",
        "threshold(ratio=1%)",
        "nonzero",
    ],
)
def test_what_is_not_finite_is_always_chosen(select: str) -> None:
    x = np.full(500, 0.5, np.float32)
    x[[3, 77, 400]] = np.nan, np.inf, -np.inf
    assert {3, 77, 400} <= set(chosen(x, select))


NOTHING = ["topk(k=0)", "randomk(k=0)", "one_sign(k=0)"]


@every_backend
@pytest.mark.parametrize("select", NOTHING)
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_a_selection_of_nothing_chooses_nothing_whatever_is_there(select: str, kind: str, backend: str) -> None:
    x = np.full(500, 0.5, kind)
    x[[3, 77, 400]] = np.nan, np.inf, -np.inf
    with using(backend):
        assert chosen(x, select) == []
        residual = np.ones(500, kind)
        frame, _ = sw.compress(x, select, residual=residual)
        assert sw.decode(frame).indices.size == 0
        assert (residual == 1).all(), "a gradient that is not finite leaves no trace"
        sw.compress(np.ones(500, kind), select, residual=residual)
        assert (residual == 2).all()


@pytest.mark.parametrize("select", NOTHING)
@pytest.mark.parametrize("exchange", ROWS)
def test_all_ranks_see_what_is_not_finite_though_nothing_is_chosen(select: str, exchange: str) -> None:
    """One entry says so, however many are not finite, and no residual changes anywhere."""

    def step(comm: Communicator) -> None:
        x, residual = np.ones(500, np.float32), np.ones(500, np.float32)
        x[comm.rank * 100 :] = np.nan if comm.rank else 1
        found, sent = mean(x, f"{select} | exchange={exchange}", comm, residual=residual, name="w")
        assert not np.isfinite(found).all() and np.count_nonzero(sent) <= 1
        assert (residual == 1).all()
        found, sent = mean(np.ones(500, np.float32), f"{select} | exchange={exchange}", comm, residual=residual)
        assert not found.any() and not sent.any() and (residual == 2).all()

    run_ranks(2, step)


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = make("normal", 500_000, "float32")
    one = sw.encode(x, "topk(1%)")
    monkeypatch.setattr(kernels, "threads", 2)
    assert sw.encode(x, "topk(1%)") == one
