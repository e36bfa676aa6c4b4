"""Ranks as real processes, one of which is killed at some moment: `local_kills.py FOLDER MOMENT…`, each RANK:TICK.

A tick is an optimizer step, or a collective's beginning or end. One process imports torch and forks all ranks. For each
moment it prints a line of JSON: what the survivors came to, which go on as a smaller group, and what three new ranks
came to that took up the last checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from local_counts import count_calls
from local_runs import MAKES, batch, bits, build, descend

from sparsewire.comm import ThreadCommunicator
from sparsewire.comm.threads import Hub
from sparsewire.errors import CommError
from sparsewire.torch import load, local_steps, save

SIZE, STEPS, SAVED, TIMEOUT = 3, 10, 3, 15.0
GROUPS = 4  # of ranks, at the same time
SETTINGS: dict[str, Any] = {"every": 4, "outer": "sgd(rate=0.9, momentum=0.5)", "timeout": TIMEOUT}
SCHEME = "topk(10%) | indices=rice | values=qsgd(bits=5) | memory=residual"


class Rank:
    """One process of a run: trains, saves every few steps, and may be killed at a tick."""

    def __init__(self, rank: int, folder: Path, last_tick: int | None) -> None:
        self.rank, self.folder, self.step, self.left = rank, folder, 0, last_tick
        self.connect("store", rank, SIZE)
        self.model = build()
        self.optimizer = MAKES["momentum"](self.model.parameters())
        self.link = local_steps(self.model, self.optimizer, SCHEME, **SETTINGS)
        count_calls(self.link.comm, lambda number, before: self.tick())

    def connect(self, store: str, rank: int, size: int) -> None:
        method, limit = f"file://{self.folder}/{store}", timedelta(seconds=60)
        dist.init_process_group("gloo", init_method=method, rank=rank, world_size=size, timeout=limit)

    def tick(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def train(self, until: int) -> None:
        while self.step < until:
            self.tick()
            self.step += 1
            descend(self.model, self.optimizer, batch(self.rank, self.step))
            if self.step % SAVED == 0:
                self.save()

    def save(self) -> None:
        folder = self.folder / f"step-{self.step}"
        folder.mkdir(exist_ok=True)
        torch.save([self.optimizer.state_dict(), self.model.state_dict()], folder / f"own-{self.rank}.pt")
        save(self.link, folder)

    def take_up(self) -> None:
        """The last checkpoint that all ranks have finished."""
        for step in range(STEPS, 0, -1):
            folder = self.folder / f"step-{step}"
            if len(list(folder.glob("sparsewire-*.sws"))) == SIZE:
                optimizer, model = torch.load(folder / f"own-{self.rank}.pt", weights_only=True)
                self.optimizer.load_state_dict(optimizer)
                self.model.load_state_dict(model)
                load(self.link, folder)
                self.step = step
                return

    def end(self) -> str:
        self.link.detach()
        dist.destroy_process_group()
        return hashlib.sha256(bits(self.model)).hexdigest()


def survive(rank: int, folder: Path, victim: int, tick: int) -> dict[str, Any]:
    """Trains until a rank is lost, then goes on with the others."""
    run = Rank(rank, folder, tick if rank == victim else None)
    begin = time.monotonic()
    try:
        run.train(STEPS)
        run.link.meet()
        run.link.meet()
    except CommError as error:
        told, seconds = type(error).__name__, time.monotonic() - begin
    else:
        raise AssertionError("nobody was lost")
    dist.destroy_process_group()
    others = [one for one in range(SIZE) if one != victim]
    run.connect("store of the others", others.index(rank), len(others))
    run.link.resume()
    assert run.link.comm.size == len(others)
    run.train(STEPS + 6)
    return {"told": told, "seconds": seconds, "end": run.end(), "meetings": run.link.stats()["meetings"]}


def resume(rank: int, folder: Path) -> dict[str, Any]:
    run = Rank(rank, folder, None)
    run.take_up()
    begin = run.step
    run.train(STEPS)
    return {"begin": begin, "end": run.end()}


def in_processes(work: Callable[[int], Any], folder: Path, size: int = SIZE) -> list[Any]:
    """Every rank's result; None for one that was killed."""
    children = {}
    for rank in range(size):
        pid = os.fork()
        if not pid:
            status = 1
            try:
                (folder / f"result-{rank}").write_text(json.dumps(work(rank)))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        children[rank] = pid
    statuses = [os.waitpid(children[rank], 0)[1] for rank in range(size)]
    return [
        json.loads((folder / f"result-{rank}").read_text()) if not status else None
        for rank, status in enumerate(statuses)
    ]


def place(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def warm_up() -> None:
    """What is slow the first time is done before the ranks are forked; but no backward, which may start threads."""
    model = build()
    optimizer = MAKES["momentum"](model.parameters())
    with local_steps(model, optimizer, SCHEME, group=ThreadCommunicator(Hub(1, TIMEOUT), 0), every=1):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()


def main(folder: Path, moments: list[str]) -> None:
    torch.set_num_threads(1)
    warm_up()
    whole = in_processes(lambda rank: resume(rank, folder / "whole"), place(folder / "whole"))
    print(json.dumps({"whole": whole}), flush=True)
    children = []
    for group in range(GROUPS):
        children.append(os.fork())
        if not children[-1]:
            try:
                for moment in moments[group::GROUPS]:
                    live_through(folder / moment.replace(":", "-"), moment)
            finally:
                os._exit(0)
    for pid in children:
        os.waitpid(pid, 0)


def live_through(folder: Path, moment: str) -> None:
    victim, tick = map(int, moment.split(":"))
    survivors = in_processes(lambda rank: survive(rank, folder, victim, tick), place(folder))
    place(folder, "store", *(f"result-{rank}" for rank in range(SIZE)))
    resumed = in_processes(lambda rank: resume(rank, folder), folder)
    line = json.dumps({"moment": moment, "survivors": survivors, "resumed": resumed})
    os.write(1, line.encode() + b"\n")  # at once, as others write, too


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
