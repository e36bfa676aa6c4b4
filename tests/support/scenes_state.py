"""Scenes of saving, resuming, resharding, and steps that are not finite."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import torch
from scenes_attach import Plain, backward, build
from torch import nn
from torch_ranks import Stage, assert_same_state, dense_kept, same_bits, sparse_kept, spread

from sparsewire.core.statefile import read_state
from sparsewire.errors import InputError
from sparsewire.torch import Link, attach, load, reshard, save
from sparsewire.torch.tensors import to_tensors
from sparsewire.training.checkpoints import KIND

SCHEME = "topk(5%) | indices=rice | values=qsgd(bits=5) | memory=residual"
BUCKETS = {"one": {"bucket_cap_mb": 25}, "two": {"bucket_cap_mb": 0.005}}


class Run:
    """A training run that can be stopped, saved and taken up again."""

    def __init__(self, stage: Stage, buckets: str = "two", kind: str = "plain", scheme: str = SCHEME, **settings: Any):
        self.stage, self.step = stage, 0
        self.model = stage.ddp(build(kind), **BUCKETS[buckets])
        sparse = {"params": [one for name, one in self.model.named_parameters() if "words" in name], "momentum": 0}
        dense = {"params": [one for name, one in self.model.named_parameters() if "words" not in name]}
        groups = [dense, sparse] if sparse["params"] else [dense]
        self.optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
        self.link: Link = attach(self.model, scheme, **settings)

    def train(self, until: int) -> None:
        while self.step < until:
            self.optimizer.zero_grad()
            backward(self.stage, self.model, self.step)
            self.optimizer.step()
            self.step += 1

    def save(self, folder: str) -> None:
        save(self.link, folder)
        everything = [self.model.module.state_dict(), self.optimizer.state_dict(), self.step]
        torch.save(everything, Path(folder) / f"model-{self.stage.rank}.pt")

    def load(self, folder: str) -> None:
        model, optimizer, self.step = torch.load(Path(folder) / f"model-{self.stage.rank}.pt", weights_only=True)
        self.model.module.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        load(self.link, folder)

    def assert_same(self, other: Run) -> None:
        for name, parameter in self.model.module.state_dict().items():
            assert same_bits(parameter, other.model.module.state_dict()[name]), name
        assert_same_state(self.link.state_dict(), other.link.state_dict())


def resumes_exactly(stage: Stage, folder: str, stop: int, end: int, **settings: Any) -> int:
    """Stopped, saved and resumed in a new model = never stopped: parameters, residuals, bit for bit."""
    whole, first, second = (Run(stage, **settings) for _ in range(3))
    whole.train(end)
    first.train(stop)
    first.save(folder)
    second.load(folder)
    first.assert_same(second)
    second.train(end)
    whole.assert_same(second)
    for run in (whole, first, second):
        run.link.detach()
    state = whole.link.state_dict()
    assert any(kept.any() for kept in dense_kept(state).values())
    return len(sparse_kept(state))


def sends_what_waited_once(stage: Stage, folder: str, memory: str, **change: Any) -> None:
    """Resumed with more parameters dense, among others in their bucket: the second gradient is the plain mean again."""
    scheme = f"topk(5%) | values=raw | memory={memory}"
    first = Run(stage, "one", scheme=scheme, dense_below=10)
    first.train(3)
    first.save(folder)
    first.link.detach()
    second = Run(stage, "one", scheme=scheme, **{"dense_below": 10, **change})
    second.load(folder)
    kept = set(second.link.averager.states.by_name)
    for step in range(3, 7):
        expected = _plain_mean(stage, second.model, step)
        second.model.zero_grad()
        _loss(stage, second.model, step).backward()
        same = torch.allclose(second.model.module.middle.bias.grad, expected, atol=1e-6)
        assert same == (step > 3), step
    assert "middle.bias" in kept and "middle.bias" not in second.link.averager.states.by_name
    assert "middle.weight" in second.link.averager.states.by_name
    second.link.detach()


def _plain_mean(stage: Stage, model: nn.Module, step: int) -> torch.Tensor:
    """The mean gradient of one bias, without DDP."""
    model.zero_grad()
    with model.no_sync():
        _loss(stage, model, step).backward()
    mean = model.module.middle.bias.grad / stage.size
    stage.group.allreduce([mean]).wait()
    return mean


def state_is_plain(stage: Stage) -> None:
    """It loads under weights_only, and it is a copy: training on does not change it."""
    run = Run(stage, kind="words")
    run.train(3)
    state, buffer = run.link.state_dict(), io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=True)
    assert_same_state(state, loaded)
    run.train(6)
    assert_same_state(state, loaded)
    run.link.load_state_dict(loaded)
    assert_same_state(state, run.link.state_dict())
    run.link.detach()


def recovers_from_overflow(stage: Stage, scheme: str, where: str, kind: str = "plain", **settings: Any) -> None:
    """One rank's inf is seen by all, skipped by all, and forgotten."""
    run = Run(stage, kind=kind, scheme=scheme, dense_below=100, **settings)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    target = dict(run.model.module.named_parameters())[where]
    seen: list[dict[str, Any]] = []
    object.__setattr__(run.link.averager.settings, "on_step", seen.append)
    for step in range(12):
        before, parameters = run.link.state_dict(), [one.detach().clone() for one in run.model.parameters()]
        bad = step in (0, 5, 6) and stage.rank == stage.size - 1
        overflow = target.register_hook(lambda grad: grad * float("inf")) if bad else None
        loss = _loss(stage, run.model, step)
        run.optimizer.zero_grad()
        scaler.scale(loss).backward()
        if overflow is not None:
            overflow.remove()
        gradient = target.grad.coalesce().values() if target.grad.is_sparse else target.grad
        assert bool(torch.isfinite(gradient).all()) == (step not in (0, 5, 6))
        scale = scaler.get_scale()
        scaler.step(run.optimizer)
        scaler.update()
        after = run.link.state_dict()
        if step in (0, 5, 6):
            assert scaler.get_scale() == scale / 2
            assert_same_state(_kept(before), _kept(after))
            assert all(map(same_bits, parameters, (one.detach() for one in run.model.parameters())))
        assert all(kept.isfinite().all() for kept in dense_kept(after).values())
    assert [one["finite"] for one in seen] == [step not in (0, 5, 6) for step in range(12)]
    assert all(one.isfinite().all() for one in run.model.parameters())
    stage.assert_same(run.model.module)
    run.link.detach()


def follows_the_scale(stage: Stage) -> None:
    """Residuals in a changing loss scale (powers of two) are those without one, times the scale, bit for bit."""
    scheme = "topk(5%) | indices=rice | values=raw | memory=residual"
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.zeros(1))  # a scaler has no scale before its first use
    plain, scaled = Run(stage, scheme=scheme), Run(stage, scheme=scheme, scaler=scaler)
    for step, scale in enumerate([4.0, 8.0, 8.0, 0.5, 2.0]):
        scaler.update(new_scale=scale)
        for run, factor in ((plain, 1.0), (scaled, scale)):
            run.model.zero_grad()
            (_loss(stage, run.model, step) * factor).backward()
        expected = {name: kept * scale for name, kept in dense_kept(plain.link.state_dict()).items()}
        got = dense_kept(scaled.link.state_dict())
        assert all(same_bits(got[name], kept) for name, kept in expected.items())
    assert any(kept.any() for kept in got.values())
    plain.link.detach()
    scaled.link.detach()


def _loss(stage: Stage, model: nn.Module, step: int) -> torch.Tensor:
    stage.seed(step)
    inner = model.module
    x = torch.randn(6, 20) if isinstance(inner, Plain) else torch.randint(0, 60, (6, 4))
    return model(x, step, stage.rank).square().mean()


def _kept(state: dict[str, Any]) -> dict[str, Any]:
    """The residuals; one that is missing is the same as zeros."""
    dense = {name: kept for name, kept in dense_kept(state).items() if kept.any()}
    return {"dense": dense, "sparse": {name: kept for name, kept in sparse_kept(state).items() if kept["values"].any()}}


def trains_long(stage: Stage, steps: int) -> int:
    """Two small buckets: where torch's PowerSGD hook hangs on gloo."""
    run = Run(stage, "two")
    run.train(steps)
    stage.assert_same(run.model.module)
    run.link.detach()
    return run.link.stats()["steps"]


def saves_apart(stage: Stage, folder: str, steps: int = 5, kind: str = "words") -> float:
    """Trains a little and saves. The sum of this rank's residuals, so that others can check the mean over ranks."""
    run = Run(stage, kind=kind)
    run.train(steps)
    run.save(folder)
    run.link.detach()
    return _sum(run.link)


def loads_dealt(stage: Stage, folder: str, step: int = 5) -> float:
    """Takes over what another number of ranks has saved, and trains on."""
    run = Run(stage, kind="words")
    load(run.link, folder)
    assert run.link.step == step
    total = _sum(run.link)
    run.train(3)
    stage.assert_same(run.model.module)
    run.link.detach()
    return total


def _sum(link: Link) -> float:
    state = link.state_dict()
    parts = [*dense_kept(state).values(), *(kept["values"] for kept in sparse_kept(state).values())]
    return sum(part.double().sum().item() for part in parts)


def resharding_keeps_every_mean(stage: Stage, folder: str, size: int) -> None:
    """Entry by entry, dense and sparse: the residuals of all ranks have the same mean."""
    run = Run(stage, kind="words")
    run.train(4)
    run.save(folder)
    stage.group.barrier().wait()
    states = read_all(folder)
    resharded = reshard(states[::-1], size)
    assert [(one["rank"], one["world_size"], one["step"]) for one in resharded] == [(r, size, 4) for r in range(size)]
    for name in dense_kept(states[0]):
        before, after = (sum(dense_kept(one)[name] for one in group) / len(group) for group in (states, resharded))
        torch.testing.assert_close(after, before)
    before, after = (sum(spread(sparse_kept(one)["words.weight"]) for one in group) / len(group)
                     for group in (states, resharded))  # fmt: skip
    assert before.any()
    torch.testing.assert_close(after, before)
    with_gap = states[:-1]
    for group, word in ((with_gap, "all 3 ranks"), ([states[0], states[0], states[1]], "one each"),
                        ([{**states[0], "step": 9}, *states[1:]], "different steps")):  # fmt: skip
        expect(word, lambda group=group: reshard(group, size))
    run.link.detach()


def refuses_what_is_not_its_own(stage: Stage, folder: str) -> None:
    run = Run(stage)
    run.train(2)
    state = run.link.state_dict()
    peer = (stage.rank + 1) % stage.size
    wrong = {
        f"rank {peer} of {stage.size}.*load\\(link, folder\\)": {**state, "rank": peer},
        f"of {stage.size + 1}, here is rank {stage.rank}": {**state, "world_size": stage.size + 1},
        "version 3 is needed, not 99": {**state, "version": 99},
        "3 numbers for 'middle.weight'": {**state, "buffers": {"middle.weight": {"residual": torch.zeros(3)}}},
        "'gone'": {**state, "buffers": {"gone": {"residual": torch.zeros(3)}}},
        "velocity, which memory=residual": {**state, "buffers": {"middle.bias": {"velocity": torch.zeros(48)}}},
    }
    for word, bad in wrong.items():
        expect(word, lambda bad=bad: run.link.load_state_dict(bad))
        assert_same_state(state, run.link.state_dict())
    expect("no complete set", lambda: load(run.link, Path(folder) / "empty"))
    run.link.detach()


def read_all(folder: str | Path) -> list[dict[str, Any]]:
    """The states of all ranks in a folder with one set of them."""
    return [to_tensors(read_state(path, KIND)["state"]) for path in sorted(Path(folder).glob("sparsewire-*.sws"))]


def expect(pattern: str, call: Any) -> None:
    try:
        call()
    except InputError as error:
        assert re.search(pattern, str(error)), error
    else:
        raise AssertionError(f"no error with {pattern!r}")
