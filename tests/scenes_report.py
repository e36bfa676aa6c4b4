"""Scenes of what a link tells, and of what it costs: schedules, counts, bytes, memory, sparse gradients."""

from __future__ import annotations

import tracemalloc
from typing import Any

import torch
from scenes_attach import Words, assert_equal_gradients, backward, build, descend
from torch import nn
from torch_ranks import EXACT, Stage, sparse_kept

from sparsewire import kernels
from sparsewire.sparse import Sparse
from sparsewire.torch import attach, dgc_schedule


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
        for step in range(4):
            for model in (plain, wired):
                backward(stage, model, step)
            if step < 3:
                assert_equal_gradients(wired.module, plain.module)
                for model in (plain, wired):
                    descend(model.module)
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


def allocates(stage: Stage, scheme: str, **settings: Any) -> tuple[int, int, str]:
    """(peak of NumPy's memory during a step in the steady state, size of the gradients, which kernels)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 2048), nn.Linear(2048, 1024, bias=False))
    wired = stage.ddp(model)
    with attach(wired, scheme, **settings):
        for step in range(5):
            if step == 4:
                tracemalloc.start()
            stage.seed(step)
            wired(torch.randn(2, 1024)).square().mean().backward()
            wired.zero_grad()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak, sum(one.numel() for one in model.parameters()) * 4, kernels.backend()


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
    """(peak, size) of a step with an embedding that is much larger than its gradient."""
    words, width = 200_000, 16
    torch.manual_seed(0)
    model = nn.EmbeddingBag(words, width, sparse=True, mode="sum")
    wired = stage.ddp(model)
    kept = torch.Tensor.to_dense, Sparse.to_dense
    torch.Tensor.to_dense = Sparse.to_dense = _refuse
    try:
        with attach(wired, "topk(1%) | values=qsgd(bits=4) | memory=residual") as link:
            for step in range(4):
                if step == 1:
                    tracemalloc.start()
                stage.seed(step)
                wired(torch.randint(0, words, (20, 5))).square().mean().backward()
                assert model.weight.grad.is_sparse
                model.zero_grad()
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert sparse_kept(link.state_dict())["weight"]["values"].numel() > 0
    finally:
        torch.Tensor.to_dense, Sparse.to_dense = kept
    return peak, words * width * 4


def _refuse(*_: Any) -> Any:
    raise AssertionError("made dense")
