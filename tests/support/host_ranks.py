"""Runs a test file as a script on several ranks, with the environment that torchrun sets; helpers for such scripts."""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import warm

SCHEME = "topk(5%) | indices=rice | values=qsgd(bits=5) | memory=residual"
MOMENTUM_SCHEME = SCHEME.replace("residual", "dgc(momentum=0.9)")  # for SGD with momentum
RANKS = 2


def environment() -> dict[str, str]:
    """The children import what we import, and talk over the loopback only."""
    path = os.pathsep.join(filter(None, sys.path))
    return os.environ | {"PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def missing(monkeypatch: pytest.MonkeyPatch, module: str, *packages: str) -> str:
    """The error of importing the module where the packages are not installed."""
    for name in [*sys.modules, *packages]:
        if name.split(".")[0] in packages:
            monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(ImportError) as told:
        importlib.import_module(module)
    return str(told.value)


def failure(code: str) -> str:
    """The last line that a program which ends with an exception writes."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(code)
        script.flush()
        return warm.run(script.name).stderr.splitlines()[-1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_script(script: str, folder: Path, *args: str, ranks: int = RANKS) -> list[dict[str, Any]]:
    """What each rank of `python script folder args…` wrote with `write_facts`."""
    finish(start_ranks(script, folder, folder, *args, ranks=ranks), folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def start_ranks(
    script: Path | str, folder: Path, *args: object, ranks: int = RANKS, environment: Mapping[str, str] = os.environ
) -> list[ForkServerProcess]:
    """`torchrun --nproc-per-node RANKS script args…`; what they print is in `RANK.log` of the folder."""
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    job |= {"LOCAL_WORLD_SIZE": str(ranks), "TORCHELASTIC_RUN_ID": "test", "GROUP_RANK": "0"}
    children = []
    for rank in range(ranks):
        facts = {**environment, **job, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        children.append(warm.start_script(script, *args, out=folder / f"{rank}.log", environment=facts))
    return children


def finish(children: Sequence[ForkServerProcess], folder: Path, limit: float = 80) -> None:
    """Waits for ranks, and ends them if one fails."""
    try:
        for rank, child in enumerate(children):
            child.join(limit)
            assert child.exitcode == 0, (folder / f"{rank}.log").read_text()
    finally:
        for child in children:
            warm.end(child)


def write_facts(folder: str, facts: dict[str, Any]) -> None:
    (Path(folder) / f"{os.environ['RANK']}.json").write_text(json.dumps(facts))


def same_bits(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two state_dicts of tensors are equal, bit for bit."""
    return one.keys() == other.keys() and all(
        kept.numpy().tobytes() == other[name].numpy().tobytes() for name, kept in one.items()
    )
