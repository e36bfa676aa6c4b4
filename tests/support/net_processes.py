"""Processes of `sparsewire lab net` that tests start, watch and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

LIMIT = 30.0
SAY = "import json, os; print(json.dumps(dict(os.environ)))"
WAIT = "import os, time; print(os.getpid()); time.sleep(100)"
NO_ROOT = "import os, sys; os.geteuid = lambda: 1000; from sparsewire.cli import main; sys.exit(main(sys.argv[1:]))"


def until(true: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        if found := true():
            return found
        time.sleep(0.005)
    raise AssertionError(f"not within {LIMIT:g} s: {what}")


def namespaces(lab: int) -> list[str]:
    """Those of a process."""
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.split()
    return [name for name in names if name.startswith(f"sparsewire-{lab}-")]


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def started(*words: object, prefix: tuple[str, ...] = (), root: bool = True) -> subprocess.Popen[str]:
    program = ["-m", "sparsewire"] if root else ["-c", NO_ROOT]
    command = [*prefix, sys.executable, *program, "lab", "net", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes, env=environment, preexec_fn=_hears_signals)  # type: ignore[call-overload]


def _hears_signals() -> None:
    """Whatever the tests were started with: shells ignore SIGINT for jobs in the background, nohup SIGHUP."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def ended(lab: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = lab.communicate(timeout=LIMIT)
    finally:
        lab.kill()
    return lab.returncode, out, err


def line_of(lab: subprocess.Popen[str]) -> str:
    assert lab.stdout is not None
    return lab.stdout.readline()


def pids(lab: subprocess.Popen[str], ranks: int) -> list[int]:
    """What the ranks of WAIT print."""
    return [int(line_of(lab).split()[1]) for _ in range(ranks)]
