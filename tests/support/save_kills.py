"""Two ranks as real processes, one of which is killed while it saves: `save_kills.py FOLDER MOMENT…`, each RANK:CALL.

A call is one of those that change files: fsync, replace, chmod, unlink; odd ones are killed behind it, even ones before
it. One process imports torch and forks all ranks. For each moment it prints a line of JSON: the digests of the states
that were saved, what the survivor was told, and what two new ranks load.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from local_kills import in_processes, place
from local_runs import MAKES, batch, build, descend

from sparsewire.core.statefile import pack
from sparsewire.errors import CommError
from sparsewire.torch import LocalLink, load, local_steps, save
from sparsewire.torch.tensors import to_arrays

SIZE, TIMEOUT = 2, 15.0
SCHEME = "topk(10%) | indices=rice | values=qsgd(bits=5) | memory=residual"
CALLS = ("fsync", "chmod", "replace", "unlink")


def kill_at(call: int) -> None:
    """Ends this process at the call of that number, from now on: before it if the number is even, behind it if odd."""
    left = call

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **settings: Any) -> Any:
            nonlocal left
            for before in (True, False):
                if left == 0:
                    os._exit(9)  # without a word, as a kill does
                left -= 1
                if before:
                    found = function(*args, **settings)
            return found

        return called

    for name in CALLS:
        setattr(os, name, dying(getattr(os, name)))


def digest(link: LocalLink) -> str:
    state = to_arrays(link.state_dict())
    return hashlib.sha256(pack({**state, "rank": 0})).hexdigest()


def start(rank: int, folder: Path, store: str) -> tuple[LocalLink, Callable[[int], None]]:
    method = f"file://{folder}/{store}"
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=SIZE, timeout=timedelta(seconds=TIMEOUT))
    model = build()
    optimizer = MAKES["momentum"](model.parameters())

    def train(step: int) -> None:
        descend(model, optimizer, batch(rank, step))

    return local_steps(model, optimizer, SCHEME, every=2, timeout=TIMEOUT), train


def saves(rank: int, folder: Path, victim: int, call: int) -> dict[str, Any]:
    link, train = start(rank, folder, "store")
    found: dict[str, Any] = {}
    for step in range(1, 4):
        train(step)
        found[str(step)] = digest(link)
        (folder / f"digests-{rank}").write_text(json.dumps(found))
        if step == 3 and rank == victim:
            kill_at(call)
        if step != 2:
            try:
                save(link, folder / "state")
            except CommError as error:
                return {"told": type(error).__name__}
    return {"told": None}


def loads(rank: int, folder: Path) -> dict[str, Any]:
    link, train = start(rank, folder, "store of the new ones")
    load(link, folder / "state")
    found = {"step": link.step, "digest": digest(link)}
    train(link.step + 1)
    save(link, folder / "state")
    link.detach()
    dist.destroy_process_group()
    return found


def main(folder: Path, moments: list[str]) -> None:
    torch.set_num_threads(1)
    for moment in moments:
        victim, call = map(int, moment.split(":"))
        here = place(folder / moment.replace(":", "-"))
        told = in_processes(lambda rank, at=(here, victim, call): saves(rank, *at), here, SIZE)
        loaded = in_processes(lambda rank, at=here: loads(rank, at), here, SIZE)
        digests = [json.loads((here / f"digests-{rank}").read_text()) for rank in range(SIZE)]
        left = sorted(path.name for path in (here / "state").iterdir())
        print(json.dumps({"moment": moment, "told": told, "digests": digests, "loaded": loaded, "left": left}))
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
