"""The benchmark on slow links, at its smallest: namespaces are made, ranks meet through them, nothing is left."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import pytest
import warm

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "network.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("network_benchmark", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def why_not(script) -> str | None:
    """What stands in the way of a limited link here."""
    problem = script.obstacle()
    if problem:
        return problem
    try:
        with script.network(1, "1mbit"):
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
    before = namespaces()
    words = ("--ranks", "2", "--model-size", "tiny", *words, "--json", str(out))
    done = warm.run(SCRIPT.with_name(name), *words)
    assert done.returncode == 0, done.stderr
    assert namespaces() == before
    return json.loads(out.read_text())


@pytest.mark.root
def test_on_a_slow_link_compressed_steps_are_faster_than_plain_ones(script, tmp_path):
    (found,) = measured(script, "network.py", tmp_path / "n.json", "--rate", "1mbit")
    ours = found["arms"]["sparsewire"]
    assert ours["times_fewer_bytes"] > 5 and ours["times_faster"] > 1


@pytest.mark.root
def test_of_a_pruned_model_only_the_survivors_cross_the_link(script, tmp_path):
    words = ("--rate", "10mbit", "--prune", "80%", "--scheme", "pactrain(values=float32)")
    (found,) = measured(script, "network.py", tmp_path / "n.json", *words)
    assert 3 < found["arms"]["sparsewire"]["times_fewer_bytes"] < 5 and found["pruned"] == 0.8


@pytest.mark.root
def test_ranks_in_one_namespace_are_a_machine(script, tmp_path):
    few = ("--steps", "1", "--rounds", "1")
    arms = measured(script, "nodes.py", tmp_path / "n.json", "--rate", "10mbit", *few)["arms"]
    facts = arms["nodes"]["nodes"]
    assert (facts["machines"], facts["ranks"], facts["shared_memory"]) == (2, 2, True)
    assert "inside" in arms["nodes"]["stages_ms"] and not arms["flat"]["nodes"]


def test_without_root_it_says_so(script, monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert script.main([]) == 77
    assert "root" in capsys.readouterr().err


@pytest.mark.parametrize("rate", ["fast", "mbit", "0mbit", "1.5gbit"])
def test_a_rate_that_is_none_is_refused(script, rate, capsys):
    with pytest.raises(SystemExit):
        script.main(["--rate", rate])
    assert "is not a rate" in capsys.readouterr().err
