"""Scenes of ranks that share a machine: other machines than were saved, ranks that fail."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from scenes_attach import backward, build
from scenes_failures import fails_to_encode
from scenes_state import Run, read_all
from torch_ranks import EXACT, Stage, dense_kept, raises, sparse_kept, spread

from sparsewire.comm.torch import TorchCommunicator
from sparsewire.errors import CommError, InputError, PeerError, SparsewireError
from sparsewire.exchange import ExchangeContext
from sparsewire.torch import attach, load, load_dcp, reshard, save, save_dcp

SCHEME = "topk(5%) | values=qsgd(bits=5) | memory=residual"


def unsent(folder: Path, name: str) -> torch.Tensor:
    """The mean of what the ranks that saved still owe of a parameter."""
    (whole,) = reshard(read_all(folder), 1)
    return spread(sparse_kept(whole)[name]) if name in sparse_kept(whole) else dense_kept(whole)[name]


def moves_between_machines(stage: Stage, folder: str) -> None:
    """What is unsent stays, entry by entry, with machines and without; and what was saved alike is loaded as it is."""
    before = None
    for turn, nodes in enumerate((2, None, 4, 2)):
        run, here, there = Run(stage, kind="words", nodes=nodes), Path(folder) / f"{turn}", Path(folder) / f"{turn - 1}"
        if turn:
            load(run.link, there)
        else:
            run.train(3)
        save(run.link, here)
        stage.group.barrier().wait()
        found = [unsent(here, name) for name in ("dense.middle.weight", "words.weight")]
        assert all(kept.any() for kept in found)
        for one, other in zip(found, before or found, strict=True):
            torch.testing.assert_close(one, other)
        before = found
        run.train(run.step + 2)
        stage.assert_same(run.model.module)
        run.link.detach()


def moves_through_dcp(stage: Stage, folder: str) -> None:
    first, second = Run(stage, kind="words", nodes=2), Run(stage, kind="words")
    first.train(3)
    save_dcp(first.link, folder)
    load_dcp(second.link, folder)
    text = raises(InputError, lambda: second.link.load_state_dict(first.link.state_dict()))
    assert "has part" in text and "load(link, folder)" in text
    again = Run(stage, kind="words", nodes=2)
    load_dcp(again.link, folder)
    for name, kept in dense_kept(first.link.state_dict()).items():
        assert torch.equal(kept, dense_kept(again.link.state_dict())[name])
    assert second.link.step == again.link.step == 3
    for run in (first, second, again):
        run.link.detach()


def refuses_what_makes_no_machines(stage: Stage) -> list[str]:
    """On every rank, and the model is free afterwards."""
    model = stage.ddp(build())
    wrong: list[Any] = [3, "each", 2 if stage.rank == 1 else 4]
    texts = [raises(SparsewireError, lambda one=one: attach(model, EXACT, nodes=one)) for one in wrong]
    with attach(model, EXACT, nodes=2) as link:
        backward(stage, model, 0)
        assert link.stats()["nodes"]["machines"] == stage.size // 2
    return texts


def one_cannot_encode(stage: Stage) -> str:
    """Rank 2 fails on its own: no rank waits for it, whichever part it has and wherever it is."""
    return fails_to_encode(stage, (MemoryError, CommError, PeerError), within=15, nodes=2)


def is_killed(stage: Stage, victim: int, timeout: float, inside: bool = False) -> float:
    """One rank dies in its third step, in the middle of it, or while its machine adds up on devices; how long the
    others took to notice."""
    run = Run(stage, scheme=SCHEME, nodes=2, timeout=timeout)
    run.train(2)
    if stage.rank == victim:
        where, name = (TorchCommunicator, "start_all_to_all") if inside else (ExchangeContext, "encode")
        setattr(where, name, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    begin = time.monotonic()
    raises((CommError, PeerError), lambda: run.train(3))
    seconds = time.monotonic() - begin
    run.link.detach()
    return seconds
