"""`sparsewire lab train` has a method that trains a workload's network by Keras."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from host_ranks import environment


@pytest.mark.skipif(find_spec("keras") is None, reason="keras is not installed")
@pytest.mark.timeout(300)
def test_a_keras_cell_trains_as_torch_does_and_sends_as_little(tmp_path: Path) -> None:
    out, scheme = tmp_path / "lab.jsonl", "topk(1%) | memory=gain(momentum=0.9)"
    words = ["--workload", "synthetic-1m", "--ranks", "2", "--steps", "6", "--warmup", "2", "-o", str(out)]
    command = [sys.executable, "-m", "sparsewire", "lab", "train", *words, "--method", scheme, f"keras:{scheme}"]
    facts = environment() | {"KERAS_BACKEND": "torch"}
    ended = subprocess.run(command, env=facts, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    torchs, keras = (json.loads(line) for line in out.read_text().splitlines())
    assert keras["loss"] == pytest.approx(torchs["loss"], rel=0.02)
    assert keras["bytes_per_step"] == pytest.approx(torchs["bytes_per_step"], rel=0.2)
