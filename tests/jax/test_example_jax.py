"""examples/jax_optax.py runs as its first lines say, and what it prints is true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from host_ranks import environment

MISSING = [name for name in ("jax", "optax") if find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
EXAMPLE = Path(__file__).parents[2] / "examples" / "jax_optax.py"


@pytest.mark.timeout(200)
def test_the_example_trains_two_ranks() -> None:
    facts = environment() | {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    child = subprocess.Popen(
        [sys.executable, str(EXAMPLE)], env=facts, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        text, told = child.communicate(timeout=180)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, 9)
            child.wait()
    assert child.returncode == 0, told
    losses = [float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", text)]
    assert losses[-1] < losses[0]
    (accuracy,) = re.findall(r"accuracy ([\d.]+)%", text)
    assert float(accuracy) > 75
    ((sent, dense),) = re.findall(r"sent ([\d.]+) MB instead of ([\d.]+) MB", text)
    assert float(sent) * 8 < float(dense)
    sums = re.findall(r"sum of weights (\S+)", text)
    assert len(sums) == 2 and len(set(sums)) == 1
    assert 'exchange("topk(ratio=0.1) | memory=gain(momentum=0.9)", optimizer="sgd(momentum=0.9)")' in text
