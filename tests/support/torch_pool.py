"""Gloo ranks that start once and then play scenes by name: the parent's side of tests/support/torch_ranks.py."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Collection, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import warm

RANKS = 3
START = 75.0  # seconds, on top of a scene's own limit, for processes that have yet to import torch


class Child:
    """One rank's process: orders go in and answers come out as lines of JSON."""

    def __init__(self, rank: int, size: int, store: Path) -> None:
        self._orders, its = warm.pipe()
        self.process = warm.start(_be_rank, rank, size, str(store), its)
        its.close()

    def order(self, line: str) -> None:
        self._orders.send(line)

    def answer(self, timeout: float) -> dict[str, Any]:
        try:
            if self._orders.poll(timeout):
                found: dict[str, Any] = json.loads(self._orders.recv())
                return found
        except (EOFError, ConnectionResetError):
            return {"error": "the process has ended"}
        assert self.process.pid
        os.kill(self.process.pid, signal.SIGUSR1)  # to stderr: where it hangs
        return {"error": "no answer in time"}

    def leave(self, timeout: float) -> int | None:
        """Its exit status once there are no more orders."""
        self._orders.close()
        self.process.join(timeout)
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self._orders.close()


def _be_rank(rank: int, size: int, store: str, orders: Any) -> None:
    import torch_ranks

    torch_ranks.main(rank, size, store, orders)


class Pool:
    """A group of ranks. A scene that fails may leave them in any state, so the next one gets new processes."""

    def __init__(self, folder: Path, size: int = RANKS) -> None:
        self.children: list[Child] = []
        self._folder, self._size, self._starts = folder, size, 0

    def play(self, scene: str, *, limit: float = 40.0, lost: Collection[int] = (), **settings: Any) -> list[Any]:
        """Runs `module.function` on every rank; their results. Ranks in `lost` are expected to die."""
        patience = limit if self.children else limit + START
        if not self.children:
            self._start()
        for child in self.children:
            child.order(json.dumps({"scene": scene, "settings": settings}))
        deadline = time.monotonic() + patience
        answers = [child.answer(max(0.5, deadline - time.monotonic())) for child in self.children]
        failed = {rank: answer["error"] for rank, answer in enumerate(answers) if "error" in answer}
        if failed and not lost:
            time.sleep(0.2)
            self.close()
        if set(failed) != set(lost):
            pytest.fail("\n".join(f"rank {rank}: {text}" for rank, text in failed.items()), pytrace=False)
        return [answer.get("result") for answer in answers]

    def close(self) -> None:
        for child in self.children:
            child.kill()
        self.children = []

    def _start(self) -> None:
        self._starts += 1
        store = self._folder / f"store {self._starts}"
        self.children = [Child(rank, self._size, store) for rank in range(self._size)]


def fsdp_pool(size: int, folder: pytest.TempPathFactory) -> Iterator[Pool]:
    """So many ranks for a module's tests of FSDP2."""
    found = metadata.version("torch").split(".") if find_spec("torch") else ["0", "0"]
    if (int(found[0]), int(found[1])) < (2, 13):
        pytest.skip("torch ≥ 2.13 is not installed")
    pool = Pool(folder.mktemp(f"{size} ranks"), size)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def two_by_two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    yield from fsdp_pool(4, tmp_path_factory)


@pytest.fixture(scope="module")
def two_by_three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    yield from fsdp_pool(6, tmp_path_factory)


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Three ranks for the whole session."""
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    pool = Pool(tmp_path_factory.mktemp("ranks"))
    yield pool
    pool.close()
