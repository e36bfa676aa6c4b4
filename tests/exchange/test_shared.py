"""`exchange=shared`: one support for all ranks. The laws are in test_exchange_laws.py; here is what is its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from exchange_rows import SUMS, SUPPORTS
from strategies import make, same_bits

import sparsewire as sw
from sparsewire.comm import Communicator, ThreadCommunicator, run_ranks
from sparsewire.core.mask import Mask
from sparsewire.errors import PeerError
from sparsewire.exchange import Clock, ExchangeContext, Outcome, Piece, mean

NUMEL = 4000


def gradient(comm: Communicator, numel: int = NUMEL) -> np.ndarray:
    return make("normal", numel, "float32", seed=comm.rank)


def exchanged(comm: Communicator, piece: Piece, s: str, step: int = 0, clock: Clock | None = None) -> Outcome:
    plan = sw.scheme(s)
    return ExchangeContext(plan, comm, step, clock=clock or Clock()).average([piece])[0]


def support(outcome: Outcome) -> list[int]:
    return outcome.mean_sparse().indices.tolist()


# --- which entries ---


def test_a_pool_is_the_union_of_every_ranks_largest() -> None:
    def fn(comm: Communicator) -> tuple[list[int], list[int]]:
        x = gradient(comm)
        best = np.argsort(-np.abs(x), kind="stable")[:10]  # 40 entries of 4 ranks
        return support(
            exchanged(comm, Piece("w", x, x.shape, "float32"), "topk(k=40) | exchange=shared")
        ), best.tolist()

    found = run_ranks(4, fn)
    union = sorted(set().union(*(best for _, best in found)))
    assert all(entries == union for entries, _ in found)


def test_leaders_take_turns() -> None:
    def fn(comm: Communicator) -> list[list[int]]:
        x = gradient(comm)
        own = sorted(np.argsort(-np.abs(x), kind="stable")[:40].tolist())
        piece = Piece("w", x, x.shape, "float32")
        return [own, *(support(exchanged(comm, piece, "scalecom(ratio=1%)", step)) for step in range(5))]

    found = run_ranks(3, fn)
    for own in found:
        assert own[1:] == [found[step % 3][0] for step in range(5)]


@pytest.mark.parametrize("how", SUPPORTS)
def test_a_sparse_tensor_is_sent_whole_whatever_the_support(how: str) -> None:
    def fn(comm: Communicator) -> None:
        x = sw.Sparse([0, 3 + comm.rank], np.ones(4, np.float32), (10**12, 2), width=2)
        average, sent = mean(x, f"nonzero | values=raw | exchange=shared(support={how})", comm, step=1)
        assert same_bits(sent.values, x.values)
        assert average.indices.tolist() == [0, 3, 4, 5]

    run_ranks(3, fn)


@pytest.mark.parametrize("indices", ["rice", "bloom(fpr=0.01)", "raw"])
def test_proposals_go_by_the_schemes_index_codec(indices: str) -> None:
    def fn(comm: Communicator) -> bytes:
        average, _ = mean(gradient(comm), f"topk(5%) | indices={indices} | exchange=shared", comm)
        assert np.count_nonzero(average) >= 150
        return average.tobytes()

    assert len(set(run_ranks(3, fn))) == 1


# --- masks ---


def test_masks_that_agree_send_no_index_and_those_that_differ_go_by_the_coded_all_gather() -> None:
    def fn(comm: Communicator) -> list[Any]:
        clock, found = Clock(), []
        for differ in (False, True):
            x = np.where(np.arange(NUMEL) % 5 == 0, gradient(comm), np.float32(0))
            x[0] = 0 if differ and comm.rank == 1 else 1
            before = comm.bytes_sent
            outcome = exchanged(comm, Piece("w", x, x.shape, "float32"), "pactrain(values=float32)", clock=clock)
            assert len(support(outcome)) == NUMEL // 5
            found.append(comm.bytes_sent - before)
        return [*found, clock.counts]

    for agreed, differed, counts in run_ranks(3, fn):
        assert counts == {"masks agree": 1, "masks differ": 1}
        assert agreed == 4 * NUMEL // 5 + 9 != differed


def test_with_the_models_mask_zeros_by_chance_change_nothing() -> None:
    survivors = np.arange(0, NUMEL, 5, dtype=np.int32)

    def fn(comm: Communicator) -> None:
        x, clock = np.zeros(NUMEL, np.float32), Clock()
        x[survivors] = gradient(comm, survivors.size) * (np.arange(survivors.size) % 3 == comm.rank)
        piece = Piece("w", x, x.shape, "float32", mask=Mask.of(survivors))
        assert support(exchanged(comm, piece, "pactrain", clock=clock)) == survivors.tolist()
        assert clock.counts == {"masks agree": 1}

    run_ranks(3, fn)


@pytest.mark.parametrize("where", [5, 6], ids=["survivor", "pruned"])
def test_what_is_not_finite_is_seen_also_where_the_mask_is_empty(where: int) -> None:
    survivors = np.arange(0, 100, 5, dtype=np.int32) if where == 5 else np.empty(0, np.int32)

    def fn(comm: Communicator) -> None:
        x = np.zeros(100, np.float32)
        x[where] = np.nan if comm.rank == 1 else 1
        outcome = exchanged(comm, Piece("w", x, x.shape, "float32", mask=Mask.of(survivors)), "pactrain")
        out = np.empty(100, np.float32)
        outcome.mean_into(out)
        assert not outcome.finite and not np.isfinite(out).all()

    run_ranks(2, fn)


# --- sums ---


def test_numbers_take_the_bytes_that_they_promise() -> None:
    survivors = np.arange(0, NUMEL, dtype=np.int32)

    def fn(comm: Communicator, values: str) -> float:
        before, x = comm.bytes_sent, gradient(comm)
        exchanged(comm, Piece("w", x, x.shape, "float32", mask=Mask.of(survivors)), f"pactrain(values={values})")
        return 8 * (comm.bytes_sent - before - 9 - 8 * (values in ("int8", "ternary"))) / NUMEL

    bits = {values: run_ranks(4, lambda comm, values=values: fn(comm, values))[0] for values in SUMS}
    assert {values: bits[values] for values in ("float32", "bfloat16", "int8")} == {
        "float32": 32,
        "bfloat16": 16,
        "int8": 8,
    }
    assert bits["ternary"] == pytest.approx(64 / 19, rel=0.01)


def test_error_feedback_makes_up_for_coarse_numbers() -> None:
    def fn(comm: Communicator) -> None:
        x, residual = gradient(comm, 300), np.zeros(300, np.float32)
        total = np.zeros(300)
        for step in range(60):
            s = "nonzero | exchange=shared(support=mask, values=ternary)"
            total += mean(x, s, comm, step=step, residual=residual)[0]
        owed = np.mean([np.frombuffer(part, np.float32) for part in comm.all_gather(residual)], axis=0)
        exact = np.mean([np.frombuffer(part, np.float32) for part in comm.all_gather(x)], axis=0)
        np.testing.assert_allclose(total + owed, 60 * exact, atol=1e-3)
        assert np.linalg.norm(owed) < 0.3 * np.linalg.norm(60 * exact)

    run_ranks(2, fn)


# --- bytes ---


def moved(ranks: int, s: str) -> float:
    """Bytes in and out of a rank."""

    def fn(comm: Communicator) -> int:
        x = gradient(comm, 100_000)
        mask = Mask.of(np.arange(0, x.size, 5, dtype=np.int32))
        exchanged(comm, Piece("w", x, x.shape, "float32", mask=mask), s)
        return comm.bytes_sent + comm.bytes_received

    return float(np.mean(run_ranks(ranks, fn)))


@pytest.mark.parametrize("values", SUMS)
@pytest.mark.parametrize("how", ["pool", "leader", "mask"])
def test_bytes_do_not_grow_with_the_ranks(how: str, values: str) -> None:
    select = "nonzero" if how == "mask" else "topk(1%)"
    few, many = (moved(ranks, f"{select} | exchange=shared({how}, {values})") for ranks in (4, 16))
    if values == "ternary":  # a sum of 16 ranks has more values than one of 4; int8 has room for both
        assert few < many < moved(16, f"{select} | exchange=shared({how}, int8)")
    else:
        assert many <= 1.3 * few


def test_those_of_an_all_gather_do() -> None:
    assert moved(16, "topk(1%) | values=raw") > 4 * moved(4, "topk(1%) | values=raw")


# --- peers that misbehave ---

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda data: b"",
    "cut": lambda data: data[:-1],
    "longer": lambda data: data + b"\0",
    "twice": lambda data: data * 2,
    "noise": lambda data: np.random.default_rng(0).bytes(len(data)),
    "a whole frame": lambda data: bytes([51]) + sw.encode(np.ones(NUMEL, np.float32), "topk(k=1)")[:51],
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("how", ["pool", "leader"])
def test_bad_bytes_are_an_error_on_every_rank(how: str, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gather = ThreadCommunicator.all_gather

    def damaged(comm: ThreadCommunicator, data: Any, channel: str = "") -> list[memoryview]:
        return gather(comm, DAMAGE[damage](bytes(data)) if comm.rank == 1 else data, channel)

    def fn(comm: Communicator) -> BaseException | None:
        try:
            mean(gradient(comm), f"topk(1%) | exchange=shared(support={how})", comm)
        except PeerError as error:
            return error
        finally:
            comm.barrier()
        return None

    monkeypatch.setattr(ThreadCommunicator, "all_gather", damaged)
    errors = run_ranks(3, fn, timeout=10)
    assert all(str(error).startswith("rank 1: ") for error in errors), errors


def test_a_leaders_bad_bytes_are_an_error_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    broadcast = ThreadCommunicator.broadcast
    monkeypatch.setattr(ThreadCommunicator, "broadcast", lambda comm, data, root: broadcast(comm, data, root)[:-1])

    def fn(comm: Communicator) -> str:
        with pytest.raises(PeerError, match="rank 2: "):
            mean(gradient(comm), "scalecom", comm, step=2)
        return "told"

    assert run_ranks(3, fn) == ["told"] * 3


# --- settings ---


def test_presets_say_what_they_stand_for() -> None:
    assert sw.scheme("scalecom(ratio=2%)") == sw.scheme("topk(2%) | exchange=shared(support=leader)")
    assert sw.scheme("pactrain(ratio=0.8)") == sw.scheme("nonzero | memory=none | exchange=shared(mask, ternary)")
    for spec, message in {"exchange=shared(support=all)": "pool", "exchange=shared(values=int4)": "ternary"}.items():
        with pytest.raises(sw.SchemeError, match=message):
            sw.scheme(f"topk(1%) | {spec}")
    with pytest.raises(sw.SchemeError, match="share of the weights"):
        sw.scheme("pactrain(ratio=2)")


@pytest.mark.parametrize("policy", ["naive", "p1", "p2"])
def test_what_is_not_finite_is_proposed_by_every_index_codec(policy: str) -> None:
    x = make("normal", 4096, "float32")
    x[77] = np.nan
    s = f"topk(5%) | indices=bloom(policy={policy}, fpr=0.1) | exchange=shared"
    for step in range(20):
        ((found, _),) = run_ranks(1, lambda comm: mean(x, s, comm, step=step, name="w"))  # noqa: B023
        assert not np.isfinite(found).all()
