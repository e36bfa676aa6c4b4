"""The benchmarks on slow links, at their smallest: namespaces are made, ranks meet through them, nothing is left."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import pytest
import warm
from benchmark import FOLDER, load_benchmark

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)


TINY = ("--model-size", "tiny")


@pytest.fixture(scope="module")
def script():
    return load_benchmark("network")


def why_not(script) -> str | None:
    """What stands in the way of a limited link here."""
    problem = script.obstacle()
    if problem:
        return problem
    try:
        with script.Network(1, "1mbit"):
            return None
    except Exception as error:
        return str(error)


def namespaces() -> str:
    return subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout


def measured(script, name: str, out: Path, *words: str):
    """What a benchmark finds for the smallest model; it leaves no namespace behind."""
    problem = why_not(script)
    if problem:
        pytest.skip(problem)
    said = out.with_suffix(".txt")
    process = warm.start_script(FOLDER / name, "--ranks", "2", *words, "--json", out, out=said)
    assert warm.end(process, warm.LIMIT) == 0, said.read_text()
    assert f"sparsewire-{process.pid}-" not in namespaces()
    return json.loads(out.read_text())


@pytest.mark.root
def test_on_a_slow_link_compressed_steps_are_faster_than_plain_ones(script, tmp_path):
    (found,) = measured(script, "network.py", tmp_path / "n.json", *TINY, "--rate", "1mbit")
    ours = found["arms"]["sparsewire"]
    assert ours["times_fewer_bytes"] > 5 and ours["times_faster"] > 1


@pytest.mark.root
def test_of_a_pruned_model_only_the_survivors_cross_the_link(script, tmp_path):
    words = (*TINY, "--rate", "10mbit", "--prune", "80%", "--scheme", "pactrain(values=float32)")
    (found,) = measured(script, "network.py", tmp_path / "n.json", *words)
    assert 3 < found["arms"]["sparsewire"]["times_fewer_bytes"] < 5 and found["pruned"] == 0.8


@pytest.mark.root
def test_ranks_in_one_namespace_are_a_machine(script, tmp_path):
    few = (*TINY, "--rate", "10mbit", "--steps", "1", "--rounds", "1")
    arms = measured(script, "nodes.py", tmp_path / "n.json", *few)["arms"]
    facts = arms["nodes"]["nodes"]
    assert (facts["machines"], facts["ranks"], facts["shared_memory"]) == (2, 2, True)
    assert "inside" in arms["nodes"]["stages_ms"] and not arms["flat"]["nodes"]


@pytest.mark.root
def test_advice_stands_beside_what_is_measured(script, tmp_path):
    found = measured(script, "predictions.py", tmp_path / "p.json", *TINY, "--rate", "10mbit")
    methods = [cell["method"] for cell in found["cells"]]
    assert {"plain DDP", "torch's fp16 hook", "topk(ratio=0.01)"} < set(methods) and len(methods) == len(set(methods))
    assert all(cell["predicted_ms"] > 0 < cell["measured_ms"] for cell in found["cells"])


@pytest.mark.root
def test_auto_is_timed_and_follows_the_link(script, tmp_path):
    words = ("--cases", "tiny-unlimited", "--changes", "synthetic-1m", "--fall", "12", "--rise", "34", "--steps", "36")
    timed, changed = measured(script, "auto.py", tmp_path / "a.json", *words)
    assert set(timed["arms"]) == {"plain DDP", "auto"} and timed["ratio"] > 0
    assert changed["alike"] and changed["followed"]["100mbit"] is not None and len(changed["seconds"]) == 36


def test_steps_from_a_change_to_the_switch_are_counted():
    auto = load_benchmark("auto")
    switches = [{"step": step, "after": after} for step, after in ((5, "topk"), (9, "dense"), (70, "topk"), (75, "x"))]
    followed = [auto._followed(switches, *turn, 100) for turn in ((60, "100mbit"), (6, "100mbit"), (80, "unlimited"))]
    assert followed == [10, 0, None]


def test_without_root_it_says_so(script, monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert script.main([]) == 77
    assert "root" in capsys.readouterr().err


@pytest.mark.parametrize("rate", ["fast", "mbit", "0mbit", "1.5gbit"])
def test_a_rate_that_is_none_is_refused(script, rate, capsys):
    with pytest.raises(SystemExit):
        script.main(["--rate", rate])
    assert "is not a rate" in capsys.readouterr().err
