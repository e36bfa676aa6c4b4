"""`sparsewire lab train`: cells are what is asked for, run once, recorded whole; failures too. One real training."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from command_line import fails, run

from sparsewire.lab import measure

if not measure.has("torch"):
    pytest.skip("torch is not installed", allow_module_level=True)

from sparsewire.errors import SparsewireError
from sparsewire.lab import results
from sparsewire.lab.net.launch import RankError
from sparsewire.lab.tasks.workloads import WORKLOADS
from sparsewire.lab.train import command as train
from sparsewire.lab.train.cells import all_cells

OURS = "topk(1%) | memory=dgc(momentum=0.9); select_per=model; falling=true"


def made(method: str, steps: int) -> dict[str, Any]:
    """What a rank would report."""
    sent = 10 if method == "none" else 1
    return {
        "parameters": 5, "loss": [1.0] * steps, "seconds": [9.0, 1.0, 3.0, *[2.0] * (steps - 3)], "score": 0.5,
        "parts": {"forward": [0.5] * steps}, "sent": [sent] * steps, "received": [sent] * steps, "link": {},
        "stages": {"select": 0.25}, "history": [[2, 0.25]],
    }  # fmt: skip


@pytest.fixture
def fake(monkeypatch) -> list[dict[str, Any]]:
    """Ranks that report at once; what they were told."""
    told: list[dict[str, Any]] = []

    def launch(job: str, order: dict[str, Any], endpoints: Any, on_event: Any, limit: float) -> list[Any]:
        told.append({**order, "endpoints": len(endpoints)})
        if order["arm"]["hook"] == "fp16":
            raise RankError("rank 1 failed: RuntimeError: no luck")
        on_event({"step": 1, "loss": 1.0, "seconds": 0.1})
        return [made(order["arm"]["hook"], order["steps"]) for _ in endpoints]

    monkeypatch.setattr(train, "launch_ranks", launch)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return told


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_failed_cell_is_recorded_and_the_rest_goes_on_and_nothing_runs_twice(fake, tmp_path, capsys):
    file, output = tmp_path / "lab.toml", tmp_path / "out" / "lab.jsonl"
    file.write_text(
        '[[grid]]\nworkloads = "synthetic-1m"\nranks = 2\nmethods = ["ddp", "fp16", "topk(1%)"]\nsteps = 8\n'
    )
    assert run("lab", "train", file, "-o", output) == 1
    out, err = capsys.readouterr()
    assert "no luck" in out and "[3/3]" in err
    found = lines(output)
    assert [record.get("error") for record in found] == [None, "rank 1 failed: RuntimeError: no luck", None]
    assert run("lab", "train", file, "-o", output) == 1
    assert [told["arm"]["hook"] for told in fake] == ["none", "fp16", "sparsewire", "fp16"], "only what failed again"
    assert len(lines(output)) == 4 and "finished before: 2 of 3" in capsys.readouterr().err


def test_a_record_has_medians_after_the_warmup_and_a_command_that_repeats_it(fake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab.toml").write_text(
        'workloads = "synthetic-1m"\nmethods = "ddp"\nranks = 2\nsteps = 8\nwarmup = 1\nlearning_rate = 1\n'
    )
    assert run("lab", "train", "lab.toml", "--data", "here") == 0
    (record,) = lines(tmp_path / "out" / "lab.jsonl")
    assert record["step_ms"] == 2000 and record["bytes_per_step"] == 10 and record["sent"] == [80, 80]
    assert record["stages_ms"] == {"select": 250} and record["history"] == [[2, 10.0, 0.25]]
    assert {"sparsewire", "machine", "started", "loss", "step_seconds", "received", "score"} <= set(record)
    again = shlex.split(record["command"])
    assert again[0] == "sparsewire" and run(*again[1:]) == 0
    assert lines(tmp_path / again[-1])[0]["key"] == record["key"] and fake[0] == fake[1], "it ran once more"
    assert len(lines(tmp_path / "out" / "lab.jsonl")) == 1


def test_flags_may_be_repeated_and_have_several_values(fake, tmp_path):
    words = ["--workload", "synthetic-1m", "--method", "ddp", "topk(1%)", "--method", "bf16", "--seed", 1, "--seed", 2]
    assert run("lab", "train", *words, "--ranks", 1, "--ranks", 2, "-o", tmp_path / "a.jsonl") == 0
    assert len(lines(tmp_path / "a.jsonl")) == 3 * 2 * 2


def test_without_its_data_a_cell_fails_before_ranks_are_started(fake, tmp_path, capsys):
    words = ["--workload", "lenet-mnist", "synthetic-1m", "--method", "ddp", "--data", tmp_path]
    assert run("lab", "train", *words, "-o", tmp_path / "a.jsonl") == 1
    out, err = capsys.readouterr()
    assert f"{tmp_path / 'mnist.npz'} is not there: name its folder with --data" in out
    assert " s left" not in err, "a failure says nothing about the time that others take"
    assert len(fake) == 1 and [bool(record.get("error")) for record in lines(tmp_path / "a.jsonl")] == [True, False]


@pytest.mark.parametrize("workload", [name for name, known in WORKLOADS.items() if known.file])
def test_the_files_that_workloads_name_are_those_that_they_read(tmp_path, workload):
    with pytest.raises((OSError, SparsewireError), match=str(WORKLOADS[workload].file)):
        WORKLOADS[workload].task.load(tmp_path)


def test_of_periodic_methods_the_mean_step_is_told(fake, tmp_path):
    words = ["--workload", "synthetic-1m", "--method", "local:sbc(level=2)", "--steps", 4, "--warmup", 1]
    assert run("lab", "train", *words, "-o", tmp_path / "a.jsonl") == 0
    assert lines(tmp_path / "a.jsonl")[0]["step_ms"] == 2000, "the mean of 1, 3 and 2 s"


GRID = 'workloads = "synthetic-1m"\nmethods = "ddp"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"methods = [", "at end of document"),
        (b"\xff", "not UTF-8"),
        (b"grid = 5", "starts with [[grid]]"),
        (b"grid = []", "starts with [[grid]]"),
        (b'[grid]\nworkloads = "mlp-digits"\nmethods = "ddp"', "starts with [[grid]]"),
        (f"data = 5\n{GRID}".encode(), "data=5"),
        (f"{GRID}learning_rate = nan".encode(), "learning_rate=nan"),
    ],
)
def test_mistakes_in_the_file_are_said(tmp_path, capsys, fake, text, said):
    (tmp_path / "lab.toml").write_bytes(text)
    words = fails(capsys, "lab", "train", tmp_path / "lab.toml", "-o", tmp_path / "a.jsonl")
    assert "lab.toml: " in words and said in words and not fake


def test_flags_beside_a_file_are_refused(fake, tmp_path, capsys):
    (tmp_path / "lab.toml").write_text(GRID)
    flags = ["--steps", 2, "--seed", 7, "--ranks", 4, "--method", "fp16"]
    words = fails(capsys, "lab", "train", tmp_path / "lab.toml", *flags, "-o", tmp_path / "a.jsonl")
    assert "put methods, seeds, ranks, steps into the file" in words and not fake
    allowed = ["--data", tmp_path, "--limit", 9, "-o", tmp_path / "a.jsonl"]
    assert run("lab", "train", tmp_path / "lab.toml", *allowed) == 0 and fake[0]["data"] == str(tmp_path)


def test_results_that_cannot_be_written_are_refused_before_anything_runs(fake, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    words = ["--workload", "synthetic-1m", "--method", "ddp", "-o", tmp_path / "file" / "a.jsonl"]
    assert "name another file" in fails(capsys, "lab", "train", *words) and not fake


def test_training_goes_on_where_a_crash_left_only_part_of_a_line(fake, tmp_path):
    (tmp_path / "a.jsonl").write_bytes('{"key": "…'.encode()[:-1])
    assert run("lab", "train", "--workload", "synthetic-1m", "--method", "ddp", "-o", tmp_path / "a.jsonl") == 0
    assert len(fake) == len(results.read(tmp_path / "a.jsonl")) == 1


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no devices here")
def test_devices_are_written_and_not_read(fake, capsys):
    words = ["lab", "train", "--workload", "synthetic-1m", "--method", "ddp", "-o"]
    assert run(*words, "/dev/zero") == run(*words, "/dev/null") == 0 and len(fake) == 2


def test_without_root_limits_are_refused_before_anything_runs(fake, tmp_path, capsys):
    words = ["--workload", "synthetic-1m", "--method", "ddp", "--rate", "unlimited", "1mbit", "-o"]
    assert "without limits" in fails(capsys, "lab", "train", *words, tmp_path / "a.jsonl")
    assert not fake and not (tmp_path / "a.jsonl").exists()


def test_ranks_train_and_report(tmp_path, monkeypatch):
    """Real ones, on 127.0.0.1: our method on the digits, tested on the way and at the end."""
    if not measure.has("sklearn"):
        pytest.skip("scikit-learn is not installed")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    words = ["--workload", "mlp-digits", "--method", OURS, "--ranks", 2, "--steps", 30, "--tests", 2]
    assert run("lab", "train", *words, "-o", tmp_path / "a.jsonl") == 0
    (record,) = lines(tmp_path / "a.jsonl")
    assert len(record["loss"]) == 30 and record["loss"][-1] < record["loss"][0] and 0.2 < record["score"] < 1
    assert [step for step, _, _ in record["history"]] == [10, 20, 30]
    assert set(record["stages_ms"]) >= {"select", "encode", "exchange", "decode"}
    assert len(record["sent"]) == 2 and min(record["received"]) > 1000
    assert 0 < record["bytes_per_step"] < 4 * record["parameters"] / 20


def test_a_step_is_accounted_for(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    words = ["--workload", "synthetic-10k", "--method", "ddp", "topk(1%)", "attach; total_steps=2000", "--ranks", 2,
             "--steps", 4, "--warmup", 1]  # fmt: skip
    assert run("lab", "train", *words, "-o", tmp_path / "a.jsonl") == 0
    plain, ours, chosen = lines(tmp_path / "a.jsonl")
    assert chosen["bytes_per_step"] < plain["bytes_per_step"] / 10
    assert chosen["link"]["recipe"] == 'attach(model, "topk(ratio=0.01) | memory=residual", optimizer=optimizer)'
    assert len(plain["step_seconds"]) == len(ours["step_seconds"]) == 4 and not plain["stages_ms"]
    assert all(ours["stages_ms"][name] > 0 for name in ("select", "encode", "exchange", "decode", "accumulate"))
    assert plain["bytes_per_step"] > 5 * ours["bytes_per_step"] > 0


GRIDS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("path", sorted(GRIDS.glob("*.toml")), ids=lambda path: path.name)
def test_every_grid_of_the_benchmarks_can_be_read(path):
    assert all_cells(train.read_file(path))


def test_what_make_lab_runs_can_be_read():
    cells = all_cells(train.read_file(GRIDS / "lab.toml"))
    for rate in ("100mbit", "1gbit"):
        timed = {cell.method.name for cell in cells if (cell.workload, cell.rate) == ("synthetic-25m", rate)}
        assert {"plain DDP", "fp16 hook", "PowerSGD rank 4", "local steps, SBC(2)"} < timed
    assert len({cell.key for cell in cells}) == len(cells) == 33
