"""Runs a test file as a script on several ranks, with the environment that torchrun sets; helpers for such scripts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

SCHEME = "topk(5%) | indices=rice | values=qsgd(bits=5) | memory=residual"
MOMENTUM_SCHEME = SCHEME.replace("residual", "dgc(momentum=0.9)")  # for SGD with momentum
RANKS = 2


def environment() -> dict[str, str]:
    """The children import what we import, and talk over the loopback only."""
    path = os.pathsep.join(filter(None, sys.path))
    return os.environ | {"PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def missing(module: str, *packages: str) -> str:
    """The error of importing the module where the packages are not installed."""
    return failure(f"import sys; sys.modules.update(dict.fromkeys({packages!r})); import {module}")


def failure(code: str) -> str:
    """The last line that a program which ends with an exception writes."""
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60)
    return done.stderr.splitlines()[-1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_script(script: str, folder: Path, *args: str, ranks: int = RANKS) -> list[dict[str, Any]]:
    """What each rank of `python script folder args…` wrote with `write_facts`."""
    job = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "TORCHELASTIC_RUN_ID": "test",
        "GROUP_RANK": "0",
    }
    job |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    children = []
    for rank in range(ranks):
        log = (folder / f"{rank}.log").open("w")
        mine = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        command = [sys.executable, script, str(folder), *args]
        children.append(subprocess.Popen(command, env=environment() | job | mine, stdout=log, stderr=log))
        log.close()
    try:
        for rank, child in enumerate(children):
            assert child.wait(timeout=80) == 0, (folder / f"{rank}.log").read_text()
    finally:
        for child in children:
            child.kill()
            child.wait()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def write_facts(folder: str, facts: dict[str, Any]) -> None:
    (Path(folder) / f"{os.environ['RANK']}.json").write_text(json.dumps(facts))


def same_bits(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two state_dicts of tensors are equal, bit for bit."""
    return one.keys() == other.keys() and all(
        kept.numpy().tobytes() == other[name].numpy().tobytes() for name, kept in one.items()
    )
