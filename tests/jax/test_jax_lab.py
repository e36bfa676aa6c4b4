"""`sparsewire lab train` has a method that trains a workload's network by optax."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_ranks import environment

MISSING = [name for name in ("jax", "optax", "torch") if find_spec(name) is None]
if MISSING:
    pytest.skip(f"not installed: {', '.join(MISSING)}", allow_module_level=True)

import torch  # noqa: E402

from sparsewire.comm import ThreadCommunicator  # noqa: E402
from sparsewire.comm.threads import Hub  # noqa: E402
from sparsewire.errors import InputError  # noqa: E402
from sparsewire.lab.train import jax_hook  # noqa: E402

SCHEME = "topk(10%) | memory=gain(momentum=0.9)"


@pytest.mark.timeout(200)
def test_a_jax_cell_trains_as_torch_does_and_sends_as_little(tmp_path: Path) -> None:
    out = tmp_path / "lab.jsonl"
    words = ["--workload", "synthetic-10k", "--ranks", "2", "--steps", "6", "--warmup", "2", "--learning-rate", "0.2"]
    command = [sys.executable, "-m", "sparsewire", "lab", "train", *words, "-o", str(out)]
    command += ["--method", SCHEME, f"jax:{SCHEME}"]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=180)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    torchs, optaxs = (json.loads(line) for line in out.read_text().splitlines())
    assert optaxs["loss"] == pytest.approx(torchs["loss"], rel=1e-4)
    assert optaxs["bytes_per_step"] == pytest.approx(torchs["bytes_per_step"], rel=0.2)


def trained(make: Any, hooked: bool, monkeypatch: pytest.MonkeyPatch, scheme: str, steps: int = 5) -> list[Any]:
    """The weights after each step of a rank alone, whose rate changes."""
    monkeypatch.setattr(jax_hook, "TorchCommunicator", lambda: ThreadCommunicator(Hub(1, 60.0), 0))
    torch.manual_seed(3)
    module = torch.nn.Sequential(torch.nn.Linear(40, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5))
    optimizer: Any = make(module.parameters())
    if hooked:
        module, optimizer = jax_hook.trained_by_optax(module, optimizer, scheme, dense_below=256)  # type: ignore[assignment]
    x, seen = torch.randn(steps, 16, 40), []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.05 / (step + 1)
        optimizer.zero_grad()
        module(x[step]).square().sum().backward()
        optimizer.step()
        seen.append([one.detach().numpy().copy() for one in module.parameters()])
    return seen


@pytest.mark.parametrize("make", [
    lambda weights: torch.optim.SGD(weights, 0.05),
    lambda weights: torch.optim.SGD(weights, 0.05, momentum=0.9, nesterov=True),
    lambda weights: torch.optim.AdamW(weights, 0.05, weight_decay=0.1),
], ids=["sgd", "nesterov", "adamw"])  # fmt: skip
def test_optax_steps_are_those_of_torchs_optimizer(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent whole leaves the optimizer as it is."""
    theirs = trained(make, False, monkeypatch, "")
    ours = trained(make, True, monkeypatch, "nonzero | values=raw | memory=none")
    for one, two in zip(ours, theirs, strict=True):
        for mine, due in zip(one, two, strict=True):
            np.testing.assert_allclose(mine, due, rtol=2e-4, atol=2e-5)


def test_adamw_has_no_first_moment_where_a_part_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is sent: the steps are AdamW's, with β1 = 0 for what is large and as given for what is not."""

    def parts(weights: Any) -> torch.optim.Optimizer:
        weights = list(weights)
        large = [one for one in weights if one.numel() >= 256]
        small = [one for one in weights if one.numel() < 256]
        return torch.optim.AdamW([{"params": large, "betas": (0.0, 0.999)}, {"params": small}], 0.05)

    def at_once(weights: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(weights, 0.05)

    theirs = trained(lambda weights: _together(parts(weights)), False, monkeypatch, "")
    ours = trained(at_once, True, monkeypatch, "topk(100%) | values=raw | memory=residual")
    for mine, due in zip(ours[-1], theirs[-1], strict=True):
        np.testing.assert_allclose(mine, due, rtol=2e-4, atol=2e-5)


def _together(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """All groups have the first one's rate."""

    def follow(*_: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] = optimizer.param_groups[0]["lr"]

    optimizer.register_step_pre_hook(follow)
    return optimizer


def test_other_optimizers_are_refused() -> None:
    module = torch.nn.Linear(3, 2)
    with pytest.raises(InputError, match=r"jax: is for workloads with SGD .* or AdamW, not Adagrad"):
        jax_hook.trained_by_optax(module, torch.optim.Adagrad(module.parameters()), SCHEME)
