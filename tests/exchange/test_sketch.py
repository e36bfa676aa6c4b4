"""`exchange=sketch`: the ways to the union, and when coded values are gathered instead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from exchange_damage import DAMAGE, gathered
from failing import errors_of
from strategies import make, same_bits

import sparsewire as sw
from sparsewire.comm import Communicator, ThreadCommunicator, run_ranks
from sparsewire.errors import PeerError, SchemeError
from sparsewire.exchange import ExchangeContext, Outcome, Piece, mean
from sparsewire.exchange.sketch import exchange as sketch
from sparsewire.training.averager import Averager
from sparsewire.training.schedule import SchemeSchedule, Settings

# --- settings ---


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("volume=0.5, cols=9", "one of volume, cols and error"),
        ("volume=0", "larger than 0"),
        ("error=-1.0", "larger than 0"),
        ("rows=0", "rows lies in 1"),
        ("decode=mode", "project or median"),
        ("by=column", "element or row"),
        ("cols=5000000000", "at most"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: str, message: str) -> None:
    with pytest.raises(SchemeError, match=message):
        sw.scheme(f"topk(1%) | exchange=sketch({settings})")


def test_the_preset_is_a_scheme() -> None:
    spelled = "nonzero | indices=best | values=raw | memory=residual | exchange=sketch(volume=0.4, by=row)"
    assert sw.scheme("s2(volume=0.4)") == sw.scheme(spelled) == sw.scheme(str(sw.scheme(spelled)))
    assert sw.scheme("s2(select=topk(1%), rows=3)").exchange.rows == 3


# --- the exchange ---


def taken(comm: Communicator, s: str, x: Any, step: int = 0) -> tuple[Outcome, dict[str, int]]:
    plan = sw.scheme(s)
    context = ExchangeContext(plan, comm, step)
    (outcome,) = context.average([Piece("w", x, x.shape, "float32")])
    return outcome, context.clock.counts


def overlapping(comm: Communicator, numel: int, share: float) -> np.ndarray:
    """A gradient of which half the support is the same on all ranks."""
    place = np.random.default_rng(0).random(numel)
    own = np.random.default_rng(comm.rank + 1).random(numel)
    x = make("normal", numel, "float32", seed=comm.rank)
    return np.where((place < share / 2) | (own < share / 2), x, np.float32(0))


def test_every_way_to_the_union_leads_to_the_same_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    s = "nonzero | values=raw | memory=none | exchange=sketch"

    def fn(comm: Communicator) -> bytes:
        outcome, counts = taken(comm, s, overlapping(comm, 3000, 0.1))
        assert counts == {f"sketch_{by}": 1, "sketch": 1}
        found = outcome.mean_sparse()
        return found.indices.tobytes() + found.values.tobytes()

    results = set()
    for by in ("bits", "coded"):
        monkeypatch.setattr(sketch, "choose_method", lambda notes, bits, by=by: by)
        results |= set(run_ranks(3, fn))
    assert len(results) == 1


@pytest.mark.parametrize(
    ("s", "share", "ranks", "ways"),
    [
        ("nonzero | values=raw", 0.01, 4, {"sketch_coded", "sketch"}),
        ("nonzero | values=raw", 0.5, 4, {"sketch_bits", "sketch"}),
        ("nonzero | values=raw", 0.02, 24, {"sketch_bits", "sketch"}),
        ("randomk(1%) | values=raw", 1.0, 2, {"sketch_same", "sketch"}),
        ("randomk(1%) | values=qsgd(2)", 1.0, 2, {"sketch_same", "sketch_gathered"}),
        ("nonzero | values=qsgd(2)", 0.01, 2, {"sketch_coded", "sketch_gathered"}),
        ("nonzero | values=qsgd(2)", 0.5, 4, {"sketch_gathered"}),
    ],
)
def test_all_ranks_take_the_way_of_the_fewest_bytes(s: str, share: float, ranks: int, ways: set[str]) -> None:
    def fn(comm: Communicator) -> None:
        x = overlapping(comm, 20_000, share)
        _, counts = taken(comm, f"{s} | memory=none | exchange=sketch", x)
        assert set(counts) == ways
        moved, before = comm.bytes_received, comm.bytes_received
        taken(comm, f"{s} | memory=none | exchange=allgather", x)
        if "sketch_gathered" in ways:
            assert moved < 1.05 * (comm.bytes_received - before) + 500
        else:
            assert moved < comm.bytes_received - before

    run_ranks(ranks, fn)


@pytest.mark.parametrize("indices", ["best", "bloom(0.01, p0)", "bloom(0.01, p2)", "raw"])
@pytest.mark.parametrize("values", ["qsgd(2)", "fit_poly"])
def test_gathered_values_are_what_allgather_gives(indices: str, values: str) -> None:
    def fn(comm: Communicator) -> None:
        x, found = overlapping(comm, 4000, 0.05), []
        for exchange in ("sketch(volume=9)", "allgather"):
            outcome, counts = taken(
                comm, f"nonzero | indices={indices} | values={values} | memory=none | exchange={exchange}", x
            )
            found.append((outcome.mean_sparse(), outcome.sent))
        assert counts == {}
        for one, other in zip(*found, strict=True):
            assert np.array_equal(one.indices, other.indices) and same_bits(one.values, other.values)

    run_ranks(3, fn)


def test_with_the_same_supports_bytes_do_not_grow_with_the_ranks() -> None:
    def fn(comm: Communicator) -> int:
        taken(
            comm,
            "randomk(2%) | values=raw | memory=none | exchange=sketch",
            make("normal", 100_000, "float32", comm.rank),
        )
        return comm.bytes_sent + comm.bytes_received

    few, many = (run_ranks(size, fn)[0] for size in (4, 16))
    assert many < 1.3 * few


def test_rows_of_huge_tables_are_sketched_by_row_and_by_element() -> None:
    def fn(comm: Communicator) -> None:
        rows = np.unique(np.random.default_rng(comm.rank).integers(0, 400, 300)) * 10**13
        x = sw.Sparse(rows, make("normal", rows.size * 8, "float32", comm.rank), (10**16, 8), width=8)
        for by in ("row", "element"):
            outcome, counts = taken(comm, f"nonzero | values=raw | memory=none | exchange=sketch(by={by})", x)
            assert set(counts) == {"sketch_coded", "sketch"}
            found, sent = outcome.mean_sparse(), outcome.sent
            assert found.width == 8 and np.array_equal(found.indices, sent.indices)
            total = np.sum(gathered(comm, sent.values), axis=0)
            np.testing.assert_allclose(comm.size * found.values, total, atol=1e-4)
            part = 1 - np.linalg.norm(sent.values - x.at(sent.indices)) ** 2 / np.linalg.norm(x.values) ** 2
            assert part == pytest.approx(0.245, abs=0.05)  # the share of buckets to entries, less the empty ones

    run_ranks(3, fn)


def test_sums_that_overflow_are_seen_by_all() -> None:
    def fn(comm: Communicator) -> None:
        x = np.full(300, 3e38, np.float32)
        with np.errstate(all="ignore"):
            outcome, counts = taken(comm, "nonzero | values=raw | memory=none | exchange=sketch", x)
        assert "sketch" in counts and not outcome.finite

    run_ranks(2, fn)


def test_the_averager_counts_the_ways() -> None:
    def fn(comm: Communicator) -> None:
        one = Averager(comm, Settings(SchemeSchedule(sw.scheme("s2(select=topk(10%))")), dense_below=1))
        for step in range(3):
            one.put({"a": make("normal", 500, "float32", 9 * step + comm.rank), "b": np.ones(90, np.float32)})
            assert one.finish()
        assert one.stats()["counts"]["sketch"] == 3

    run_ranks(2, fn)


# --- peers that misbehave ---


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    ("channel", "s"), [("w", "values=raw"), ("w supports", "values=raw"), ("w values", "values=qsgd(2)")]
)
def test_bad_bytes_are_an_error_on_every_rank(
    damage: str, channel: str, s: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gather = ThreadCommunicator.all_gather

    def damaged(comm: ThreadCommunicator, data: Any, name: str = "") -> list[memoryview]:
        return gather(comm, DAMAGE[damage](bytes(data)) if (comm.rank, name) == (1, channel) else data, name)

    monkeypatch.setattr(ThreadCommunicator, "all_gather", damaged)
    errors = errors_of(
        3, lambda comm: taken(comm, f"nonzero | {s} | memory=none | exchange=sketch", overlapping(comm, 4000, 0.05))
    )
    assert all(isinstance(error, PeerError) and str(error).startswith("rank 1: ") for error in errors), errors


@pytest.mark.parametrize("other", [{"step": 1}, {"seed": 1}])
def test_ranks_with_other_hashes_are_told_apart(other: dict[str, int]) -> None:
    def fn(comm: Communicator) -> None:
        mean(np.ones(100, np.float32), "topk(50%) | exchange=sketch", comm, **(other if comm.rank else {}))

    assert all(isinstance(error, PeerError) for error in errors_of(2, fn))


@pytest.mark.parametrize("select", ["nonzero", "randomk(10%)"])
@pytest.mark.parametrize("values", ["fit_poly", "fit_dexp"])
def test_with_equal_supports_in_an_order_of_their_own_ranks_get_one_mean(select: str, values: str) -> None:
    s = f"{select} | indices=raw | values={values} | memory=none | exchange=sketch"
    found = run_ranks(3, lambda comm: mean(make("normal", 500, "float32", seed=comm.rank), s, comm, name="w"))
    for got, _ in found:
        assert np.array_equal(got, found[0][0])
    np.testing.assert_allclose(sum(sent for _, sent in found), 3 * found[0][0], atol=1e-5)
