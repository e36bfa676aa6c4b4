"""Scenes of what a link tells, and of what it costs: schedules, counts, bytes, memory, sparse gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from scenes_attach import Words, backward, build, descend, step_alike
from torch import nn
from torch_ranks import EXACT, Stage, sparse_kept

from sparsewire.core.sparse import Sparse
from sparsewire.torch import attach, dgc_schedule
from sparsewire.training.layout import Buffer


def follows_its_schedule(stage: Stage) -> list[str]:
    """Which scheme each step had: dense at first, then by the schedule, then the scheme's own."""
    wired, told = stage.ddp(build()), []
    with attach(wired, "topk(1%) | memory=residual", warmup_steps=2, ratio_schedule=dgc_schedule(2, stages=2),
                on_step=told.append):  # fmt: skip
        for step in range(8):
            backward(stage, wired, step)
            assert len(told) == step + 1
            assert told[-1]["steps"] == step + 1
            descend(wired.module)
    return [one["scheme"].split(" |")[0] for one in told]


def dense_steps_equal_plain(stage: Stage) -> None:
    """As long as the warm-up lasts; and not after it, which shows that it has an end."""
    plain, wired = stage.ddp(build()), stage.ddp(build())
    with attach(wired, "topk(1%) | memory=residual", warmup_steps=3):
        for step in range(3):
            step_alike(stage, plain, wired, step)
        backward(stage, wired, 3)
    assert (wired.module.middle.weight.grad == 0).float().mean() > 0.9


def counts(stage: Stage) -> dict[str, Any]:
    """Statistics before and after; with the dense size and the number of collectives in the steady state."""
    told: list[dict[str, Any]] = []
    wired = stage.ddp(build(), bucket_cap_mb=0.005)
    with attach(wired, "topk(5%) | memory=residual", on_step=told.append) as link:
        start = link.stats()
        for step in range(6):
            before = link.comm.collectives
            backward(stage, wired, step)
            collectives = link.comm.collectives - before
            descend(wired.module)
        large = [one for one in wired.parameters() if one.numel() >= 1024]
        return {
            "start": start,
            "told": told,
            "end": link.stats(),
            "dense": sum(one.numel() for one in wired.parameters()) * 4,
            "large": len(large),
            "collectives": collectives,
        }


def travels_dense_in_one(stage: Stage, exclude: list[str], dense_below: int) -> int:
    """All collectives of a step, when everything travels dense."""
    wired = stage.ddp(build(), bucket_cap_mb=0.005)
    with attach(wired, EXACT, exclude=exclude, dense_below=dense_below) as link:
        for step in range(3):
            before = link.comm.collectives
            backward(stage, wired, step)
            wired.zero_grad()
        return link.comm.collectives - before


def hands_over_buckets(stage: Stage, scheme: str, **settings: Any) -> list[bool]:
    """Whether what the averager gets of each bucket is the bucket's own memory, and what comes back is, too."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 64, bias=False))
    wired, same, buckets = stage.ddp(model), [], []
    with attach(wired, scheme, **settings) as link:
        put, handle = link.averager.put_buffers, link.handle
        link.handle = lambda bucket: (buckets.append(bucket.buffer()), handle(bucket))[1]

        def look(buffers: Sequence[Buffer]) -> None:
            same.extend(one.take().ctypes.data == buckets.pop(0).data_ptr() and not one.copies for one in buffers)
            put(buffers)

        link.averager.put_buffers = look
        for step in range(3):
            stage.seed(step)
            wired(torch.randn(2, 64)).square().mean().backward()
            wired.zero_grad()
    return same


def sparse_equals_dense(stage: Stage) -> None:
    """An embedding's gradient is the mean of what one dense computation gives, duplicates and all."""
    torch.manual_seed(7)
    sparse, dense = stage.ddp(build("words")), Words(sparse=False)
    dense.load_state_dict(sparse.module.state_dict())
    with attach(sparse, EXACT):
        backward(stage, sparse, 0)
    backward(stage, dense, 0, dense)
    expected = sum(stage.everyones(dense.words.weight.grad)) / stage.size
    found = sparse.module.words.weight.grad
    assert found.is_sparse
    assert found.is_coalesced()
    assert found._nnz() < 61
    torch.testing.assert_close(found.to_dense(), expected)


def never_dense(stage: Stage) -> tuple[int, int]:
    """(most numbers of an array that was made, numbers of the table) in steps with an embedding that is much larger
    than its gradient."""
    words, width = 200_000, 16
    torch.manual_seed(0)
    model = nn.EmbeddingBag(words, width, sparse=True, mode="sum")
    wired = stage.ddp(model)
    kept = torch.Tensor.to_dense, Sparse.to_dense
    torch.Tensor.to_dense = Sparse.to_dense = _refuse
    try:
        with attach(wired, "topk(1%) | values=qsgd(bits=4) | memory=residual") as link, ExitStack() as watching:
            for step in range(4):
                if step == 1:  # the first makes the residual
                    made = watching.enter_context(made_arrays())
                stage.seed(step)
                wired(torch.randint(0, words, (20, 5))).square().mean().backward()
                assert model.weight.grad.is_sparse
                model.zero_grad()
            watching.close()
            assert sparse_kept(link.state_dict())["weight"]["values"].numel() > 0
    finally:
        torch.Tensor.to_dense, Sparse.to_dense = kept
    return max(made), words * width


MAKERS = [(np, name) for name in ("empty", "zeros", "ones", "full", "arange", "bincount", "empty_like", "zeros_like")]
MAKERS += [(torch, name) for name in ("empty", "zeros", "ones", "full", "arange", "empty_like", "zeros_like")]


@contextmanager
def made_arrays() -> Iterator[list[int]]:
    """The sizes of arrays as they are made, on all threads: nothing sparse becomes dense without one of these.

    Not `tracemalloc`, which crashes the interpreter when it starts or stops beside the engine's threads.
    """
    sizes: list[int] = []

    def watched(make: Callable[..., Any]) -> Callable[..., Any]:
        def watch(*args: Any, **settings: Any) -> Any:
            found = make(*args, **settings)
            if getattr(found, "layout", torch.strided) == torch.strided:
                sizes.append(math.prod(found.shape))
            return found

        return watch

    with ExitStack() as patches:
        for module, name in MAKERS:
            patches.enter_context(mock.patch.object(module, name, watched(getattr(module, name))))
        yield sizes


def _refuse(*_: Any) -> Any:
    raise AssertionError("made dense")
