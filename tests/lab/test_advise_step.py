"""`sparsewire advise` of a step: predictions by the cost model, from what is given or measured."""

from __future__ import annotations

import json
import os
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import warm
from command_line import fails, run

from sparsewire.comm import run_ranks
from sparsewire.errors import InputError
from sparsewire.lab.advise import compute, cores
from sparsewire.lab.advise import step as advise_step
from sparsewire.lab.advise.risk import ADAM, SGD, TABLE, risk
from sparsewire.lab.advise.step import HALF, PLAIN, Scene, candidates
from sparsewire.planning.cost.coded import Speeds
from sparsewire.planning.cost.model import NetworkSpeed
from sparsewire.planning.cost.step import Codecs, coding

SPEEDS = Speeds(3e-9, 3e-9, 2e-5, 5e-5, 1e-8, 1e-8, 2e-9, 2e-9, 1e-8, 1e-9, 0.0)
PLANS = candidates([0.01], [])
MODEL = """
import torch

def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 600), torch.nn.ReLU(), torch.nn.Linear(600, 600))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        model(torch.ones(4, 64)).square().mean().backward()
        optimizer.step()

    return model, step

def lazy():
    return make()[0], lambda: None

def table():
    model = torch.nn.Embedding(100_000, 8, sparse=True)

    def step():
        model.weight.grad = None
        model(torch.arange(5)).sum().backward()

    return model, step
"""


def scene(rate: float, size: int = 4, numel: int = 25_000_000, seconds: float = 0.3) -> Scene:
    codecs = dict.fromkeys(map(coding, PLANS), Codecs(2e-9, 1e-9, 1.0, 0.01, SPEEDS))
    return Scene(size, NetworkSpeed(5e-5, 8 / rate), compute.assumed(numel, seconds), codecs)


def rows(result: dict) -> dict[str, dict]:
    return {row["scheme"] or row["candidate"]: row for row in result["rows"]}


# --- predictions -------------------------------------------------------------------------------------------------


def test_a_slow_link_gets_a_scheme_and_its_risk():
    result = advise_step.run(scene(1e8), PLANS)
    found = rows(result)
    assert found[PLAIN]["seconds"] == pytest.approx(12.1, abs=0.2)  # 150 MB at 12.5 MB/s, and what comes before
    assert found[HALF]["seconds"] == pytest.approx(found[PLAIN]["seconds"] / 2, rel=0.05)
    assert result["recommended"].startswith("topk(ratio=0.01)") and result["times_faster"] > 20
    assert found[result["recommended"]]["seconds"] == min(row["seconds"] for row in result["rows"])
    assert found[PLAIN]["bytes"] == pytest.approx(150e6, rel=1e-3)
    assert found[result["recommended"]]["bytes"] < 2e6
    assert {one["optimizer"] for one in result["risk"]} == {SGD, ADAM}


def test_a_fast_link_is_told_to_stay_with_plain_ddp():
    result = advise_step.run(scene(1e11), PLANS)
    assert result["recommended"] == PLAIN and result["times_faster"] == 1 and result["risk"] == []
    shown = advise_step.show({"machine": advise_step.measure.machine(), "measured": {"link": 1, "step": 1}, **result})
    assert "Plain DDP is faster" in shown and "Accuracy" not in shown


def test_the_whole_call_is_printed_for_each_optimizer():
    result = advise_step.run(scene(1e8), PLANS)
    sgd, adam = result["calls"]
    assert sgd["call"].startswith('attach(model, "topk(ratio=0.01) | ') and "memory=gain(momentum=0.9)" in sgd["call"]
    assert "memory=residual" in adam["call"] and 'select_per="model"' in adam["call"]
    assert sgd["coverage"] is None and sgd["call"] in advise_step._verdict(result)
    (adam,) = advise_step.run(scene(1e8), PLANS, ADAM, total_steps=2000)["calls"]
    assert "ratio_schedule=falling_ratio(total_steps=2000, mean_ratio=0.01" in adam["call"]
    assert adam["coverage"] == 20 and adam["expected"] == "level with dense's loss"


def test_torchs_hook_is_recommended_where_it_is_the_fastest():
    slow = dict.fromkeys(map(coding, PLANS), Codecs(2e-7, 1e-7, 1.0, 0.01, SPEEDS))
    result = advise_step.run(replace(scene(1e9), codecs=slow), PLANS)
    assert result["recommended"] == HALF == result["rows"][0]["candidate"] and result["risk"] == []
    told = {"machine": advise_step.measure.machine(), "measured": {"link": 1, "step": 1}, **result}
    assert f"faster than plain DDP: {HALF}; no scheme" in advise_step.show(told)


def test_more_ranks_favour_exchanges_that_do_not_grow():
    few, many = (rows(advise_step.run(scene(1e9, size), PLANS)) for size in (4, 256))
    gathered, scattered = "topk(ratio=0.01)", "topk(ratio=0.01) | exchange=reduce_scatter"
    assert few[gathered]["seconds"] < few[scattered]["seconds"]
    assert many[scattered]["seconds"] < many[gathered]["seconds"]


# --- what a step computes ----------------------------------------------------------------------------------------


def test_a_step_of_which_only_the_length_is_known_has_ddps_buckets():
    found = compute.assumed(25_000_000, 0.3)
    assert found.seconds == pytest.approx(0.3) and found.numel == 25_000_000
    sizes = [part.nbytes for part in found.buckets]
    assert sizes[0] < 2e6 and all(25e6 < size < 29e6 for size in sizes[1:-1]) and len(sizes) == 5
    assert found.rest == pytest.approx(0.1 + 0.2 / 64)


def test_a_models_gradients_are_timed(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    (tmp_path / "timed_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    met = []
    found, used, learned = compute.measured("timed_model:make", lambda: met.append(1))
    assert used > 0 and learned == found.numel and len(met) == compute.WARMUP + compute.STEPS
    assert found.numel == 64 * 600 + 600 + 600 * 600 + 600
    assert [part.nbytes for part in found.buckets] == [4 * (600 * 600 + 600), 4 * (64 * 600 + 600)]
    assert 0 < found.rest < found.seconds and found.buckets[0].ready == 0 < found.buckets[1].ready


def test_of_a_sparse_gradient_only_its_rows_count(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    (tmp_path / "table_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    found, _, learned = compute.measured("table_model:table")
    assert found.numel == 5 * 8 and learned == 100_000 * 8


def test_models_that_differ_between_ranks_are_refused():
    def look(comm):
        with pytest.raises(InputError, match=r"1,000 parameters .* 2,000"):
            advise_step._slowest(compute.assumed(1000, 0.1), 1000 * (1 + comm.rank), comm)

    run_ranks(2, look)


def test_ranks_may_have_gradients_of_different_rows():
    found = run_ranks(2, lambda comm: advise_step._slowest(compute.assumed(40 * (1 + comm.rank), 0.1), 800_000, comm))
    assert [one.numel for one in found] == [40, 80]


@pytest.mark.parametrize(
    ("told", "said"), [({"WORLD_SIZE": "x"}, "WORLD_SIZE=x"), ({"WORLD_SIZE": "2"}, "MASTER_ADDR")]
)
def test_what_launchers_have_not_set_is_named(told, said, monkeypatch, capsys):
    for name, value in {"RANK": "0", **told}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert said in fails(capsys, "advise", "--parameters", "1M", "--step-ms", 100)


def test_cores_are_shared_by_the_ranks_of_a_machine(monkeypatch):
    assert run_ranks(3, cores.ranks_here) == [3, 3, 3]
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert [cores.spare(used, 4) for used in (0.0, 1.0, 1.5, 2.0, 3.0)] == [1.0, 1.0, 0.5, 0.0, 0.0]


def test_an_engine_that_computes_keeps_the_cores_busy(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    busy = {link.busy for link in run_ranks(2, lambda comm: cores.with_busy(NetworkSpeed(0.0, 1e-9), comm, 2))}
    assert len(busy) == 1 and 0 < busy.pop() <= 1
    monkeypatch.setattr(os, "cpu_count", lambda: 10**6)
    assert all(
        link.busy < 0.01 for link in run_ranks(2, lambda comm: cores.with_busy(NetworkSpeed(0.0, 1e-9), comm, 2))
    )


# --- accuracy ----------------------------------------------------------------------------------------------------


def test_the_figures_are_those_of_the_document():
    table = (Path(__file__).parents[2] / "docs" / "results" / "accuracy-ratios.txt").read_text()
    tasks = {"MLP, MNIST": "mnist", "ResNet-20, CIFAR-10": "cifar", "LSTM, WikiText-2": "lstm"}
    for row in TABLE:
        task = tasks.get(row.task, "text")
        line = re.search(rf"^{task} +{100 * row.ratio:.1f}% +{row.rule} +[\d.]+ +([+-][\d.]+)", table, re.MULTILINE)
        assert line is not None and float(line[1]) == row.change, row


def test_the_risk_is_that_of_the_nearest_density_and_the_optimizer():
    assert {one["density"] for one in risk(0.02)} == {0.01} and {one["density"] for one in risk(0.002)} == {0.001}
    (plain, front, ours) = risk(0.01, [SGD])
    assert (
        plain["worst"] == "-4.21 points (ResNet-20, CIFAR-10)"
        and "-0.48 points (ResNet-20, CIFAR-10)" in ours["changes"]
    )
    assert [one["worst"] for one in risk(0.01, [ADAM])][:2] == [
        "+0.300 nats (transformer, characters)",
        "-0.009 nats (transformer, characters)",
    ]
    assert "dgc" in front["meaning"]


def test_where_the_length_is_known_the_risk_is_that_of_the_nearest_coverage():
    """A density of 0.2 % sends each coordinate 20 times in 10,000 steps, more often than 1 % did in 700."""
    assert {one["density"] for one in risk(0.002, coverage=20)} == {0.01}
    assert {one["density"] for one in risk(0.01, coverage=1.0)} == {0.001}
    for steps, at in (
        (2_000, "at 1.0%, a coverage of 7, the nearest to 20 that there is,"),
        (70, "at 0.1%, a coverage of 0.7 "),
    ):
        result = advise_step.run(scene(1e8), PLANS, SGD, total_steps=steps)
        told = {"machine": advise_step.measure.machine(), "measured": {"link": 1, "step": 1}, **result}
        assert f"in runs of about 700 steps {at}" in advise_step.show(told)


# --- the command -------------------------------------------------------------------------------------------------


def test_the_command_predicts_what_it_is_told(tmp_path, capsys):
    out = tmp_path / "a.json"
    words = ["--parameters", "0.2M", "--step-ms", 5, "--rate", "10mbit", "--ranks", 8, "--optimizer", "momentum"]
    assert run("advise", *words, "--scheme", "sbc", "--json", out) == 0
    text, found = capsys.readouterr().out, json.loads(out.read_text())
    assert found["ranks"] == 8 and found["measured"] == {"link": False, "step": False}
    assert found["compute"]["parameters"] == 200_000 and found["recommended"] in text
    assert "one_sign(ratio=0.01) | indices=golomb | values=mean" in rows(found)
    assert "CIFAR-10" in text and "transformer" not in text


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--parameters", "1M"], "--step-ms"),
        (["--rate", "1gbit", "--ranks", 2], "--model MODULE:FUNCTION"),
        (["--parameters", "1M", "--step-ms", 3], "--rate 100mbit --ranks 4"),
        (["--parameters", "1M", "--step-ms", 3, "--rate", "1gbit"], "--ranks"),
        (["--parameters", "1M", "--step-ms", 3, "--live", "a:b"], "one of them"),
        (["--model", "nowhere", "--rate", "1gbit", "--ranks", 2], "MODULE:FUNCTION"),
        (["--model", "no_such_module:make", "--rate", "1gbit", "--ranks", 2], "no module no_such_module"),
        (["--parameters", "1M", "--step-ms", 3, "--rate", "1gbit", "--ranks", 2, "--scheme", "tpk"], "topk"),
    ],
)
def test_mistakes_are_told(words, reason, capsys):
    assert reason in fails(capsys, "advise", *words)


@pytest.mark.parametrize("words", [["--parameters", "many"], ["--step-ms", "0"], ["--rate", "fast"]])
def test_words_that_are_no_numbers_are_refused(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        run("advise", *words)
    assert words[1] in capsys.readouterr().err


def test_a_model_that_does_no_backward_is_told(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    (tmp_path / "lazy_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    words = ["--model", "lazy_model:lazy", "--rate", "1gbit", "--ranks", 2]
    assert "step() calls backward" in fails(capsys, "advise", *words)


def test_ranks_measure_their_own_link(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "ranked_model.py").write_text(MODEL)
    script = tmp_path / "advise.py"
    script.write_text("from sparsewire.cli import main\nraise SystemExit(main())")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    words = ["advise", "--model", "ranked_model:make", "--json"]
    outs, errs = ([tmp_path / f"{kind}{rank}" for rank in range(2)] for kind in ("out", "err"))
    started = [
        warm.start_script(
            script, *words, out=outs[rank], err=errs[rank], environment=os.environ | shared | {"RANK": str(rank)}
        )
        for rank in range(2)
    ]
    assert [warm.end(process, warm.LIMIT) for process in started] == [0, 0], errs[0].read_text() + errs[1].read_text()
    found = json.loads(outs[0].read_text())
    assert outs[1].read_text() == "" and found["ranks"] == 2 and found["link"]["rate"] > 1e6
    assert found["measured"] == {"link": True, "step": True} and found["compute"]["seconds"] > 0
