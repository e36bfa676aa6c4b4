"""`sparsewire bench` and what it measures with."""

from __future__ import annotations

import json

import numpy as np
from command_line import run

from sparsewire.codecs.registry import codecs
from sparsewire.lab import measure, tables
from sparsewire.lab.bench import kernels as bench_kernels
from sparsewire.planning.cost import timing


def test_bench_kernels_has_its_rows_and_the_machine(tmp_path, capsys):
    assert run("bench", "kernels", "--size", 3000, "--repeat", 1, "--json", tmp_path / "b.json") == 0
    found = json.loads((tmp_path / "b.json").read_text())
    rows = {row["name"]: row for row in found["rows"]}
    assert {"read floor", "topk", "topk, d = 1M", "accumulate 8 peers", "rice decode", "qsgd encode"} <= set(rows)
    assert all(row["ms"] > 0 for row in rows.values()) and found["k"] == 30
    assert rows["accumulate 8 peers"]["floor"] == "memset floor"
    assert found["machine"]["numpy"] == np.__version__
    out = capsys.readouterr().out
    assert found["machine"]["cpu"] in out and all(name in out for name in rows)


def test_a_missed_target_counts_only_when_asked(monkeypatch, capsys):
    row = {"name": "topk", "ms": 1.0, "floor": "read floor", "times_floor": 1.7, "target": 1.6}
    row |= {"faster_than_torch": 30.0, "target_torch": 25}
    assert bench_kernels._met(row) is False
    assert bench_kernels._met({**row, "times_floor": 1.5}) is True
    assert bench_kernels._met({**row, "times_floor": 1.5, "faster_than_torch": 20.0}) is False
    assert bench_kernels._met({**row, "target": None, "target_torch": None}) is None
    result = {
        "machine": measure.machine(),
        "size": 1,
        "k": 1,
        "repeat": 1,
        "rows": [{**row, "met": False}],
    }
    monkeypatch.setattr(bench_kernels, "run", lambda *_: result)
    assert run("bench", "kernels") == 0
    assert run("bench", "kernels", "--check") == 1
    assert "NO" in capsys.readouterr().out


def test_bench_codecs_measures_the_whole_registry(tmp_path, x, capsys):
    np.savez(tmp_path / "g.npz", mine=x)
    words = ["--size", 2000, "--ratio", "5%", "--json", tmp_path / "b.json", tmp_path / "g.npz"]
    assert run("bench", "codecs", *words) == 0
    found = json.loads((tmp_path / "b.json").read_text())
    inputs = {row["input"] for row in found["indices"]}
    assert inputs == {"uniform 0.1%", "uniform 1.0%", "uniform 10.0%", "mine top 5.0%"}
    seen = {row["codec"].partition("(")[0] for row in found["indices"]}
    assert seen == set(codecs("indices"))
    bits = {(row["codec"], row["input"]): row["bits"] for row in found["values"]}
    assert bits["raw", "mine top 5.0%"] == 32 and bits["half", "mine top 5.0%"] == 16
    errors = {row["codec"]: row["error"] for row in found["values"]}
    assert errors["raw"] == 0 < errors["half"] < errors["bfloat16"] < 0.01
    assert any(name.startswith("qsgd") and "deflate" in name for name in errors)


def test_json_has_no_nan(capsys):
    tables.publish("", {"a": [float("nan"), 1.0]}, "-")
    assert json.loads(capsys.readouterr().out) == {"a": [None, 1.0]}


def test_a_cold_first_call_does_not_count(monkeypatch):
    """On a clock that only the runs move: each takes 100 s the first time, and 1 s from then on."""
    now, calls = [0.0], []

    def run_once(name: str) -> None:
        now[0] += 1 if name in calls else 100
        calls.append(name)

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    runs = {"slow": lambda: run_once("slow"), "fast": lambda: run_once("fast")}
    found = measure.interleaved(runs, 1, lambda name: None, frozenset({"slow"}))
    assert found == {"slow": 1, "fast": 1}
