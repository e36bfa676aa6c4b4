"""A torchft replica is killed and started again: all replicas end with equal bits, and no step is half counted."""

from __future__ import annotations

import pytest
from benchmark import load_benchmark

pytest.importorskip("torch")
pytest.importorskip("torchft", reason="torchft is not installed")

trials = load_benchmark("torchft_trials")
SCHEME = "topk(5%) | memory=residual"


@pytest.mark.parametrize(("method", "async_quorum"), [("ddp", True), ("diloco", False)])
def test_a_killed_replica_comes_back_and_all_are_equal(tmp_path, method, async_quorum):
    facts = trials.run_trial(tmp_path, method, SCHEME, seed=11, async_quorum=async_quorum)
    assert trials.passed(facts), facts
