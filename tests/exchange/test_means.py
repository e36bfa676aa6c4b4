"""What the sum of an entry is divided by, against brute force; and `root`, which must come to the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import DTYPES, TRANSFORMS, make, same_bits, work

import sparsewire as sw
from sparsewire.codecs.scheme import from_record
from sparsewire.comm import Communicator, ThreadCommunicator, run_ranks
from sparsewire.core.sparse import elements
from sparsewire.errors import InputError, PeerError, SchemeError
from sparsewire.exchange import mean

SIZE, NUMEL = 4, 240
RULES = ("all", "senders", "sqrt")
EXCHANGES = ("allgather(mean={})", "root(mean={})", "root(rank=2, mean={})")


def divided(parts: list[np.ndarray], sent: list[np.ndarray], rule: str) -> np.ndarray:
    """The definition: `sent` says where each rank sent something."""
    total, senders = np.sum(parts, axis=0, dtype=np.float64), np.sum(sent, axis=0)
    divisor = {"all": len(parts) + 0 * senders, "senders": senders, "sqrt": np.sqrt(len(parts) * senders)}[rule]
    return total / np.maximum(divisor, 1e-9)


def entries(sent: sw.Sparse) -> tuple[np.ndarray, np.ndarray]:
    """(coefficients, whether they were sent), dense."""
    values, there = np.zeros((2, sent.size * sent.width))
    places = elements(sent.indices, sent.width)
    values[places], there[places] = sent.work_values, 1
    return values, there


def outcome(comm: Communicator, s: str, dtype: str, seed: int) -> Any:
    """(the mean's own outcome, what every rank sent)"""
    from sparsewire.core.host import to_host
    from sparsewire.exchange import ExchangeContext
    from sparsewire.frames.codec import piece_of

    x = make(["normal", "clustered", "magnitudes"][comm.rank % 3], NUMEL, dtype, seed + comm.rank)
    plan, tensor = sw.scheme(s), to_host(x)
    (found,) = ExchangeContext(plan, comm).average([piece_of(tensor, "w")])
    out = np.empty(NUMEL, work(x).dtype)
    found.mean_into(out)
    return found.sent, out, found.mean_sparse()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("select", ["topk(10%)", "nonzero", "randomk(20%, shared=false)", "topk(k=0)"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_the_mean_is_the_sum_by_the_rules_divisor(rule: str, exchange: str, select: str, transform: str) -> None:
    s = f"{select} | transform={transform} | values=qsgd(6) | exchange={exchange.format(rule)}"
    ranks = run_ranks(SIZE, lambda comm: outcome(comm, s, "float32", 3), timeout=20)
    parts = [entries(sent) for sent, _, _ in ranks]
    expected = divided([values for values, _ in parts], [there for _, there in parts], rule)
    t = sw.scheme(s).transform
    dense = t.inverse(expected.astype(np.float32), NUMEL)
    close = {"rtol": 0, "atol": 1e-6 * float(np.abs(expected).max() + 1e-9)}
    for _, out, sparse in ranks:
        assert same_bits(out, ranks[0][1]) and same_bits(sparse.values, ranks[0][2].values)
        np.testing.assert_allclose(out, dense, **close)
        np.testing.assert_allclose(entries(sparse)[0], expected, **close)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("indices", ["rice", "bloom(0.05, p2)", "best"])
def test_root_comes_to_the_bits_of_allgather(dtype: str, rule: str, indices: str) -> None:
    ends = [
        run_ranks(SIZE, lambda comm, e=e: outcome(comm, f"topk(9%) | indices={indices} | exchange={e}", dtype, 5))
        for e in (f"allgather(mean={rule})", f"root(mean={rule})", f"root(rank=3, mean={rule})")
    ]
    for ranks in ends[1:]:
        for (sent, out, sparse), (first, expected, union) in zip(ranks, ends[0], strict=True):
            assert same_bits(sent.values, first.values)
            assert same_bits(out, expected)
            assert same_bits(sparse.values, union.values) and same_bits(sparse.indices, union.indices)


def test_what_comes_down_from_the_root_is_one_small_message() -> None:
    """Ranks that each send one magnitude: the mean is a few numbers, and costs a few bits an entry."""

    def fn(comm: Communicator, exchange: str) -> int:
        x = np.zeros(100_000, np.float32)
        x[np.random.default_rng(comm.rank).choice(x.size, 1000, replace=False)] = 0.25 * (1 + comm.rank)
        mean(x, f"nonzero | indices=rice | values=raw | exchange={exchange}", comm)
        return comm.bytes_received

    down, all_ = (run_ranks(SIZE, lambda comm, e=e: fn(comm, e)) for e in ("root", "allgather"))
    assert len(set(down[1:])) == 1 and down[0] > 3 * 4000
    assert down[1] * 8 < 4000 * (6.5 + 4) and down[1] * 2 < all_[1]


def test_every_rank_hears_what_went_wrong_at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    send = ThreadCommunicator.send

    def damaged(comm: ThreadCommunicator, data: Any, peer: int, tag: int = 0) -> None:
        send(comm, bytes(data)[:-1] if comm.rank == 1 else data, peer, tag)

    def fn(comm: Communicator) -> str:
        with pytest.raises(PeerError, match=r"^rank 1: ") as told:
            mean(make("normal", NUMEL, "float32", comm.rank), "topk(9%) | exchange=root(rank=2)", comm)
        return str(told.value)

    monkeypatch.setattr(ThreadCommunicator, "send", damaged)
    assert len(set(run_ranks(SIZE, fn, timeout=10))) == 1


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SchemeError, match="mean is one of all, senders, sqrt"):
        sw.scheme("topk | exchange=allgather(mean=most)")
    with pytest.raises(SchemeError, match="rank is 0 or more"):
        sw.scheme("topk | exchange=root(rank=-1)")
    with pytest.raises(InputError, match="only 1 ranks"):
        run_ranks(1, lambda comm: mean(np.ones(3), "nonzero | exchange=root(rank=1)", comm))


@pytest.mark.parametrize("exchange", ["allgather", "allgather(mean=sqrt)", "root", "root(rank=3, mean=senders)"])
def test_frames_still_carry_the_scheme(exchange: str) -> None:
    s = sw.scheme(f"topk(1%) | exchange={exchange}")
    assert from_record(s.record) == s == sw.scheme(str(s))
    plain = sw.scheme("topk(1%)")
    assert (len(s.record) == len(plain.record)) == (exchange in ("allgather", "root"))


@given(st.lists(st.sampled_from([0.0, -0.0, 1.5, -2.0, float("inf"), float("nan"), 1e-40]), max_size=300))
def test_numbers_that_repeat_keep_their_bits(values: list[float]) -> None:
    x = sw.Sparse(np.arange(len(values)), np.array(values, np.float32), (max(1, len(values)),))
    frame = sw.encode(x, "nonzero | indices=bitmap | values=distinct")
    assert same_bits(sw.decode(frame).values, x.values)
    if len(values) > 150:
        assert sw.inspect(frame)["sections"]["values"] < len(values)
