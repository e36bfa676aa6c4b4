"""The benchmarks on slow links, at their smallest: namespaces are made, ranks meet through them, nothing is left."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import warm
from benchmark import FOLDER, load_benchmark
from command_line import run

from sparsewire.errors import SparsewireError
from sparsewire.lab.net import ranks
from sparsewire.lab.net.network import Network, burst, obstacle

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)


TINY = ("--model-size", "tiny")


@pytest.fixture(scope="module", autouse=True)
def links():
    """Links can be limited here."""
    problem = obstacle()
    try:
        with contextlib.nullcontext() if problem else Network(1, "1mbit"):
            pass
    except SparsewireError as error:
        problem = str(error)
    return problem


@pytest.fixture(autouse=True)
def limited(request, links):
    if links and request.node.get_closest_marker("root"):
        pytest.skip(links)


def namespaces() -> str:
    return subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout


def measured(name: str, out: Path, *words: str):
    """What a benchmark finds for the smallest model; it leaves no namespace behind."""
    said = out.with_suffix(".txt")
    process = warm.start_script(FOLDER / name, "--ranks", "2", *words, "--json", out, out=said)
    assert warm.end(process, warm.LIMIT) == 0, said.read_text()
    assert f"sparsewire-{process.pid}-" not in namespaces()
    return json.loads(out.read_text())


def trained(folder: Path, *words: object) -> list[dict[str, Any]]:
    """The results of trainings of the smallest model."""
    tiny = ("--workload", "synthetic-10k", "--warmup", 1, *words)
    with mock.patch.object(ranks, "subprocess", warm.WORKERS):
        assert run("lab", "train", *tiny, "-o", folder / "a.jsonl") == 0
    assert f"sparsewire-{os.getpid()}-" not in namespaces()
    return [json.loads(line) for line in (folder / "a.jsonl").read_text().splitlines()]


@pytest.mark.root
def test_a_slow_link_is_as_slow_as_it_says_and_compressed_steps_send_less(tmp_path):
    plain, ours = trained(tmp_path, "--method", "ddp", "topk(1%)", "--rate", "1mbit", "--ranks", 2, "--steps", 8)
    assert plain["bytes_per_step"] > 5 * ours["bytes_per_step"]
    assert sum(plain["step_seconds"]) >= (min(plain["sent"]) - 2 * burst("1mbit")) / 125_000


@pytest.mark.root
def test_of_a_pruned_model_only_the_survivors_cross_the_link(tmp_path):
    methods = ("ddp; pruned=0.8", "pactrain(values=float32); pruned=0.8")
    plain, ours = trained(tmp_path, "--method", *methods, "--rate", "10mbit", "--ranks", 2, "--steps", 4)
    assert 3 < plain["bytes_per_step"] / ours["bytes_per_step"] < 5


@pytest.mark.root
def test_ranks_in_one_namespace_are_a_machine(tmp_path):
    places = ("--rate", "10mbit", "--ranks", 4, "--ranks-per-node", 2, "--steps", 3)
    flat, nodes = trained(tmp_path, "--method", "topk(10%)", "topk(10%); nodes=auto", *places)
    facts = nodes["link"]["nodes"]
    assert (facts["machines"], facts["ranks"], facts["shared_memory"]) == (2, 2, True)
    assert "inside" in nodes["stages_ms"] and not flat["link"].get("nodes")


@pytest.mark.root
def test_advice_stands_beside_what_is_measured(tmp_path):
    found = measured("predictions.py", tmp_path / "p.json", *TINY, "--rate", "10mbit")
    methods = [cell["method"] for cell in found["cells"]]
    assert {"plain DDP", "torch's fp16 hook", "topk(ratio=0.01)"} < set(methods) and len(methods) == len(set(methods))
    assert all(cell["predicted_ms"] > 0 < cell["measured_ms"] for cell in found["cells"])


@pytest.mark.root
def test_auto_is_timed_and_follows_the_link(tmp_path):
    words = ("--cases", "tiny-unlimited", "--changes", "synthetic-1m", "--fall", "12", "--rise", "34", "--steps", "36")
    timed, changed = measured("auto.py", tmp_path / "a.json", *words)
    assert set(timed["arms"]) == {"plain DDP", "auto"} and timed["ratio"] > 0
    assert changed["alike"] and changed["followed"]["100mbit"] is not None and len(changed["seconds"]) == 36


def test_steps_from_a_change_to_the_switch_are_counted():
    auto = load_benchmark("auto")
    switches = [{"step": step, "after": after} for step, after in ((5, "topk"), (9, "dense"), (70, "topk"), (75, "x"))]
    followed = [auto._followed(switches, *turn, 100) for turn in ((60, "100mbit"), (6, "100mbit"), (80, "unlimited"))]
    assert followed == [10, 0, None]


@pytest.mark.parametrize("name", ["auto", "predictions"])
def test_without_root_it_says_so(name, monkeypatch, capsys):
    script = load_benchmark(name)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert script.main([]) == 77
    assert "root" in capsys.readouterr().err


@pytest.mark.parametrize("rate", ["fast", "mbit", "0mbit", "gbit", "1.5 of 100mbit"])
def test_a_rate_that_is_none_is_refused(rate, capsys):
    with pytest.raises(SystemExit):
        run("lab", "train", "--workload", "synthetic-10k", "--method", "ddp", "--rate", rate)
    assert "is not a rate" in capsys.readouterr().err
