"""`bench exchange`: what crosses the wire is counted by rule, and the cost model says the same without counting."""

from __future__ import annotations

import json

import numpy as np
import pytest
import warm
from command_line import fails, run
from seen import colours

from sparsewire.codecs.registry import codecs
from sparsewire.comm import run_ranks
from sparsewire.lab import measure
from sparsewire.lab.bench.exchange import command as bench_exchange
from sparsewire.lab.bench.exchange import tables as exchange_tables
from sparsewire.lab.bench.exchange.steps import DENSE, SUPPORTS, Workload, run_step
from sparsewire.lab.net import ranks
from sparsewire.lab.pictures import SERIES
from sparsewire.planning.cost import volume
from sparsewire.planning.cost.coded import Coded, Speeds
from sparsewire.planning.cost.model import DISJOINT, IDENTICAL, MODELS, Cost, NetworkSpeed
from sparsewire.planning.cost.volume import Tally, Volume

LOAD = Workload(200_000, 2000, "indices=rice | values=qsgd(bits=7)")
EXCHANGES = [
    name for name in bench_exchange.usual() if LOAD.scheme(name).exchange.wire_id
]  # others may register theirs
FLAT = [name for name in EXCHANGES if name not in ("allgather", "root")]
SPEEDS = Speeds(1e-9, 2e-9, 1e-5, 2e-5, 3e-9, 4e-9, 6e-9, 7e-9, 8e-9, 5e-9, 1e-10)


@pytest.fixture(scope="module")
def bench():
    coded = Coded(LOAD.scheme("allgather"))
    return bench_exchange.Bench(LOAD, [], coded, SPEEDS, dict.fromkeys([DENSE, *EXCHANGES], 0.0))


def counted(bench, exchange, supports, size):
    return bench_exchange.count(bench, (exchange, supports), size, lambda name: None)


# --- what a collective moves -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8])
def test_what_ranks_send_is_what_ranks_receive(size):
    sizes = [10.0 * rank + 5 for rank in range(size)]
    gathered = [volume.all_gather(sizes, rank) for rank in range(size)]
    spread = [volume.broadcast(7.0, size, place) for place in range(size)]
    parts = np.arange(size * size, dtype=float).reshape(size, size)
    swapped = [volume.all_to_all(list(parts[rank]), list(parts[:, rank]), rank) for rank in range(size)]
    for moved in (gathered, spread, swapped):
        assert sum(one.sent for one in moved) == sum(one.received for one in moved)
    assert [one.received for one in gathered] == [sum(sizes) - own for own in sizes]
    assert [one.received for one in spread] == [0.0] + [7.0] * (size - 1)


def test_a_ring_moves_an_array_twice_and_a_tree_has_a_round_per_doubling():
    assert volume.all_reduce(800.0, 8) == Volume(1400.0, 1400.0, 700.0, 14, 6)
    assert [volume.broadcast(1.0, 7, place).sent for place in range(7)] == [3, 2, 1, 0, 0, 0, 0]


def test_a_tally_changes_nothing_and_counts_every_collective():
    def talk(comm):
        tally = Tally(comm)
        assert [bytes(part) for part in tally.all_gather(b"ab" * (comm.rank + 1))] == [b"ab", b"abab"]
        assert [bytes(part) for part in tally.all_to_all([b"a", b"bcd"])] == [[b"a"] * 2, [b"bcd"] * 2][comm.rank]
        assert tally.all_reduce(np.ones(4, np.float32)).tolist() == [2.0] * 4
        assert tally.broadcast(b"xyz" if comm.rank == 1 else None, 1) == b"xyz"
        if comm.rank == 0:
            tally.send(b"hello", 1)
        else:
            assert tally.recv(0) == b"hello"
        assert tally.split(0).sum_bfloat16(np.full(3, 0x3F80, np.uint16)).tolist() == [0x4000] * 3  # 1 + 1 = 2
        tally.barrier()
        return tally

    zero, one = run_ranks(2, talk)
    assert (zero.total.sent, zero.total.received) == (2 + 3 + 16 + 0 + 5 + 14, 4 + 1 + 16 + 3 + 14)
    assert (one.total.sent, one.total.received) == (4 + 1 + 16 + 3 + 14, 2 + 3 + 16 + 0 + 5 + 14)
    assert zero.kinds["send"] == Volume(5, 0, 0, 1, 1) and one.kinds["recv"] == Volume(0, 5, 0, 1, 1)


# --- the model ---------------------------------------------------------------------------------------------------


def test_every_built_in_exchange_has_a_model():
    assert set(MODELS) == {name for name, found in codecs("exchange").items() if found.wire_id}


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("supports", SUPPORTS)
@pytest.mark.parametrize("exchange", [DENSE, *EXCHANGES])
def test_predicted_bytes_are_those_counted(bench, exchange, supports, size):
    row = counted(bench, exchange, supports, size)
    assert row["model"]["both"] == pytest.approx(row["both"], rel=0.06)
    for way in ("sent", "received"):
        assert row["model"][way] == pytest.approx(row[way], rel=0.06, abs=0.03 * row["both"])


def test_all_gathered_bytes_grow_fivefold_from_4_to_16_ranks(bench):
    few, many = (counted(bench, "allgather", IDENTICAL, size)["both"] for size in (4, 16))
    assert many / few == pytest.approx(5, rel=0.01)


@pytest.mark.parametrize("exchange", FLAT)
def test_bytes_of_the_others_do_not_grow_with_the_ranks(exchange):
    load = Workload(400_000, 20_000, LOAD.codecs)
    bench = bench_exchange.Bench(load, [], Coded(load.scheme("allgather")), SPEEDS, {})
    few, many = (counted(bench, exchange, IDENTICAL, size) for size in (4, 16))
    assert many["mean"] <= 1.3 * few["mean"] and many["received"] <= 1.3 * few["received"]


def test_seconds_are_latency_bytes_and_work():
    cost = Cost(Volume(3e6, 1e6, 2e6, 14, 6), {"decode": 1000, "decode_frame": 3, "add": 500})
    link = NetworkSpeed(1e-3, 1e-8, burst=1e6)
    work = 0.5 + 2e-6 + 6e-5 + 2.5e-6 + 2e-4
    assert cost.seconds(link, SPEEDS, 0.5) == pytest.approx(work + 14e-3 + 2e-2)
    assert cost.seconds(link, SPEEDS, 0.5, sharing=4, ring=False) == pytest.approx(4 * work + 6e-3 + 2e-2)
    assert cost.decode_seconds(SPEEDS, 4) == pytest.approx(4 * 6.2e-5)


def test_an_exchange_without_a_model_has_no_prediction(bench, monkeypatch):
    monkeypatch.delitem(MODELS, "allgather")
    row = counted(bench, "allgather", IDENTICAL, 2)
    assert row["model"] is None and row["both"] > 0
    assert " / –" in exchange_tables._bytes_table([row])


# --- gradients ---------------------------------------------------------------------------------------------------


def test_supports_lie_as_they_are_called():
    same, apart = ([np.flatnonzero(LOAD.gradient(how, rank, 3)) for rank in range(3)] for how in SUPPORTS)
    assert all(np.array_equal(one, same[0]) and one.size == LOAD.entries for one in same)
    assert np.unique(np.concatenate(apart)).size == 3 * LOAD.entries


@pytest.mark.parametrize("exchange", [DENSE, *EXCHANGES])
def test_a_step_leaves_the_gradient_as_it_was(exchange):
    x = LOAD.gradient(DISJOINT, 0, 1)
    before = x.copy()
    run_ranks(1, lambda comm: run_step(x, LOAD.plan(exchange), comm))
    assert np.array_equal(x, before)


# --- the command -------------------------------------------------------------------------------------------------


def test_bytes_times_and_the_way_to_10000_ranks(tmp_path, capsys, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(ranks, "subprocess", warm.WORKERS)
    words = ["--numel", 5000, "--ranks", 2, 4, 16, "--processes", 2, "--links", "unlimited", "--steps", 1]
    words += ["--exchanges", "allgather", "--json", tmp_path / "x.json", "--picture", tmp_path / "new" / "x.png"]
    assert run("bench", "exchange", *words) == 0
    found = json.loads((tmp_path / "x.json").read_text())
    cases = {(DENSE, IDENTICAL), ("allgather", IDENTICAL), ("allgather", DISJOINT)}
    for part in ("bytes", "times", "ahead"):
        assert {(row["exchange"], row["supports"]) for row in found[part]} == cases
    assert [row["ranks"] for row in found["bytes"]][:3] == [2, 4, 16]
    assert all(row["seconds"] > 0 and row["model"]["seconds"] > 0 for row in found["times"])
    timed = {row["exchange"]: row for row in found["times"]}
    assert timed[DENSE]["sent"] == pytest.approx(timed[DENSE]["model"]["sent"], rel=0.05)  # as the kernel counts
    assert max(row["ranks"] for row in found["ahead"]) == 10_000
    out = capsys.readouterr().out
    assert "16 : 4" in out and "10,000 ranks" in out and "x.png" in out
    assert colours(tmp_path / "new" / "x.png") >= set(SERIES[:2]), "dense, and allgather"


def test_links_that_cannot_be_limited_are_named_with_the_reason(monkeypatch, capsys):
    monkeypatch.setattr(bench_exchange, "obstacle", lambda: "network namespaces need root")
    monkeypatch.setattr(bench_exchange, "time_link", lambda *_: [])
    words = ["--numel", 1000, "--ranks", 2, "--exchanges", "allgather", "--processes", 2]
    assert run("bench", "exchange", *words) == 0
    assert "100mbit: not timed, network namespaces need root" in capsys.readouterr().out


def test_without_processes_nothing_is_timed(monkeypatch):
    assert bench_exchange.choose_links(None, []) == ([], {})
    monkeypatch.setattr(measure, "has", lambda package: False)
    assert bench_exchange.choose_links(["1gbit"], [2]) == ([], {"1gbit": "torch is not installed"})


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--exchanges", "algather"], "allgather"),
        (["--ratio", "5%"], "smaller --ratio"),
        (["--codecs", "indices=ryce"], "rice"),
    ],
)
def test_mistakes_are_told_before_the_work(words, reason, capsys, monkeypatch):
    monkeypatch.setattr(bench_exchange, "run", None)
    assert reason in fails(capsys, "bench", "exchange", *words)


@pytest.mark.parametrize("words", [["--latency", "slow"], ["--bandwidth", "fast"], ["--ranks", "0"]])
def test_settings_that_are_none_are_refused(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        run("bench", "exchange", *words)
    assert words[1] in capsys.readouterr().err
