"""Programs that start at once: all are forked from one process, which has imported torch, and what else they need.

A fresh interpreter computes for seconds before it has torch, and the tests start a hundred of them. Those that test how
a program starts (tests/package/test_package.py, command lines of launchers) still start one.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any
from unittest import mock

LIMIT = 110.0  # seconds
QUIET = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
CLONE_NEWNET = 0x40000000
_context = multiprocessing.get_context("forkserver")
_modules = ["torch", "torch._dynamo", "sparsewire.torch"]


def needs(*modules: str) -> None:
    """What else a test file's programs import, said when the file is collected; what is not installed is left out."""
    _modules.extend(modules)


def pipe() -> tuple[Any, Any]:
    """Two connections, of which one can be given to a program."""
    return _context.Pipe()


def start(function: Callable[..., object], *args: Any) -> ForkServerProcess:
    """Calls a module's function in a process of its own."""
    _context.set_forkserver_preload(_modules)
    process = _context.Process(target=function, args=args)
    with mock.patch.dict(os.environ, QUIET):  # of the process that imports; torch reads the first only once
        process.start()
    return process


def start_script(
    script: Path | str, *words: object, out: Path, err: Path | None = None, environment: Mapping[str, str] | None = None
) -> ForkServerProcess:
    """`python script words… >out 2>err`, in a session of its own; one file for both by default."""
    facts = dict(environment or os.environ) | QUIET
    return start(_be_script, str(script), [*map(str, words)], facts, str(out), str(err or out))


def run(script: Path | str, *words: object, limit: float = LIMIT) -> subprocess.CompletedProcess[str]:
    """`subprocess.run([python, script, words…], capture_output=True, text=True)`."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        process = start_script(script, *words, out=out, err=err)
        status = end(process, limit)
        return subprocess.CompletedProcess([script, *words], status, out.read_text(), err.read_text())


def end(process: ForkServerProcess, limit: float = 0.0) -> int:
    """The exit status of a program; when the time is up, it and what it started are killed."""
    process.join(limit)
    if process.exitcode is None:
        _kill_session(process)
    assert process.exitcode is not None
    return process.exitcode


def _kill_session(process: ForkServerProcess) -> None:
    assert process.pid
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:  # it has ended, or no session yet
        process.kill()
    process.join()


def _be_script(script: str, words: list[str], environment: dict[str, str], out: str, err: str) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    for stream, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), stream)
    sys.argv = [script, *words]
    sys.path.insert(0, os.path.dirname(script))
    _fork_what_is_spawned()
    runpy.run_path(script, run_name="__main__")


def _fork_what_is_spawned() -> None:
    """Ranks that a script starts, with torch or `lab/net/ranks.py`, are not to import torch again."""
    if "torch" in sys.modules:
        from torch import multiprocessing as spawned

        from sparsewire.lab.net import ranks

        spawned.spawn = functools.partial(spawned.start_processes, start_method="fork")
        ranks.subprocess = WORKERS


class Worker:
    """Stands in for the `subprocess.Popen` of `python -m module words…` that `lab/net/ranks.py` calls."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], **_: Any) -> None:
        at, namespace = command.index("-m") + 1, command[3] if _in_namespace(command) else None
        theirs, ours = zip(_context.Pipe(duplex=False), *(_context.Pipe(duplex=False)[::-1] for _ in "oe"), strict=True)
        self._process = start(_be_module, command[at], command[at + 1 :], dict(env), theirs, namespace)
        self.stdin, self.stdout, self.stderr = (_file(one, "wb" if one.writable else "rb") for one in ours)
        for its in theirs:
            its.close()
        assert self._process.pid
        self.pid = self._process.pid
        _await_session(self.pid)

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode


def _await_session(pid: int) -> None:
    """Until the process has a group of its own, by which it is killed: `Popen` returns no sooner."""
    deadline = time.monotonic() + 30
    with contextlib.suppress(ProcessLookupError):
        while os.getpgid(pid) != pid and time.monotonic() < deadline:
            time.sleep(0.001)


def _file(connection: Any, mode: str) -> IO[Any]:
    with connection:
        return os.fdopen(os.dup(connection.fileno()), mode, buffering=0)


def _be_module(
    module: str, words: Sequence[str], environment: dict[str, str], streams: Sequence[Any], namespace: str | None
) -> None:
    os.setsid()
    if namespace is not None:
        _enter(namespace)
    os.environ.clear()
    os.environ.update(environment)
    for number, connection in enumerate(streams):
        os.dup2(connection.fileno(), number)
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _in_namespace(command: Sequence[str]) -> bool:
    return list(command[:3]) == ["ip", "netns", "exec"] and command[4] == sys.executable


def _enter(namespace: str) -> None:
    """The process moves into the network namespace; ranks need no more of what `ip netns exec` does."""
    with open(f"/var/run/netns/{namespace}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")


def start_worker(command: Sequence[str], **settings: Any) -> Any:
    """As `subprocess.Popen`: forked, if it is Python that is started, in a namespace of its own or not."""
    ours = command[0] == sys.executable or _in_namespace(command)
    return (Worker if ours else subprocess.Popen)(command, **settings)


WORKERS = SimpleNamespace(Popen=start_worker, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
