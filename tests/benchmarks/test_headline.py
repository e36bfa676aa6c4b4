"""The headline's table is of the runs on limited links, and of the scores of all seeds."""

from __future__ import annotations

import json

import pytest
from benchmark import load_benchmark

from sparsewire.errors import InputError

headline = load_benchmark("headline")


def record(name, method, rate, seed, final, second=1.0):
    """A run of ten steps, of `second` seconds each, whose validation loss falls on a line from 4 to `final`."""
    cell = {"workload": "w", "method": method, "rate": rate, "seed": seed, "ranks": 4, "steps": 10}
    history = [[step, step * second, 4 + (final - 4) * step / 10] for step in (5, 10)]
    return {
        "key": json.dumps(cell), "name": name, "cell": cell, "history": history, "score": final, "loss": [4.0] * 10,
        "step_seconds": [second] * 10, "step_ms": 1e3 * second, "bytes_per_step": 1234, "parameters": 99,
    }  # fmt: skip


@pytest.fixture
def file(tmp_path):
    runs = [
        record("ours", "attach", "100mbit", 1, 2.02, 0.1), record("ours", "attach", "unlimited", 2, 2.04, 9),
        record("plain", "ddp", "100mbit", 1, 2.0), record("plain", "ddp", "unlimited", 2, 2.0, 9),
        record("poor", "fp16", "100mbit", 1, 3.0),
    ]  # fmt: skip
    path = tmp_path / "headline.jsonl"
    path.write_text("".join(json.dumps(run) + "\n" for run in runs))
    return path


def test_times_are_those_of_the_limited_links_and_scores_of_all_seeds(file):
    rows = [line.strip("| ").split(" | ") for line in headline.show(headline.read(file)).splitlines()[4:]]
    cells = {row[0]: row for row in rows}
    assert [*cells] == ["plain", "ours", "poor"], "plain DDP first"
    assert cells["ours"][1:4] == ["100 ms", "", "1 s"] and cells["plain"][3] == "10 s"
    assert cells["ours"][-2:] == ["2.030 ± 0.014 (2)", "+0.030 ± 0.014"]
    assert cells["poor"][3] == "not reached" and cells["poor"][-1] == "+1.000"


def test_a_target_between_two_tests_is_met_between_them():
    run = record("plain", "ddp", "100mbit", 1, 2.0, second=2.0)
    assert headline.steps_to(run, 2.5) == pytest.approx(7.5)
    assert headline.seconds_of(run, 7.5) == pytest.approx(15.0)
    assert headline.steps_to(run, 1.9) is None


def test_without_plain_ddp_there_is_nothing_to_compare_with(file, capsys):
    file.write_text(file.read_text().replace('"ddp"', '"bf16"'))
    with pytest.raises(InputError, match="plain DDP"):
        headline.read(file)
    assert headline.main([str(file)]) == 2 and "headline.py: " in capsys.readouterr().err
