"""Scenes of a link at work: against plain DDP, on every kind of model."""

from __future__ import annotations

import copy
import warnings
import zlib
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch_ranks import EXACT, Stage, dense_kept, sparse_kept, spread

from sparsewire.torch import attach

WIDTH = 48


class Plain(nn.Module):
    """Used in another order than declared, so DDP's rebuilt buckets differ from its first ones."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(WIDTH, 5)
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.first = nn.Linear(20, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor, step: int = 0, rank: int = 0) -> torch.Tensor:
        return self.last(torch.tanh(self.middle(self.norm(torch.tanh(self.first(x))))))


class Branches(Plain):
    """`left` only on even ranks, `never` nowhere, `sometimes` in every second step."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.never, self.sometimes = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor, step: int = 0, rank: int = 0) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        if rank % 2 == 0:
            hidden = hidden + self.left(hidden)
        if step % 2 == 0:
            hidden = hidden + self.sometimes(hidden)
        return self.last(torch.tanh(self.middle(self.norm(hidden))))


class Mixed(Plain):
    """Three number types in one model."""

    def __init__(self) -> None:
        super().__init__()
        self.middle.to(torch.bfloat16)
        self.last.to(torch.float64)

    def forward(self, x: torch.Tensor, step: int = 0, rank: int = 0) -> torch.Tensor:
        hidden = self.norm(torch.tanh(self.first(x)))
        return self.last(torch.tanh(self.middle(hidden.bfloat16())).double())


class Words(nn.Module):
    """An embedding with sparse gradients below dense layers."""

    def __init__(self, words: int = 500, width: int = 8, sparse: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width, sparse=sparse)
        self.dense = Plain()
        self.dense.first = nn.Linear(width, WIDTH)

    def forward(self, x: torch.Tensor, step: int = 0, rank: int = 0) -> torch.Tensor:
        return self.dense(self.words(x).mean(1))


MODELS = {"plain": Plain, "branches": Branches, "mixed": Mixed, "words": Words}


def build(kind: str = "plain", dtype: str = "") -> nn.Module:
    torch.manual_seed(7)
    model = MODELS[kind]()
    return model.to(getattr(torch, dtype)) if dtype else model


def batch(model: nn.Module) -> torch.Tensor:
    if isinstance(model, Words):
        return torch.randint(0, 60, (6, 4))  # few words: repeated within a batch and between ranks
    return torch.randn(6, 20, dtype=model.first.weight.dtype)


def backward(stage: Stage, model: nn.Module, step: int, module: nn.Module | None = None) -> torch.Tensor:
    """One forward and backward of `model` (DDP or plain) on this rank's batch of a step."""
    stage.seed(step)
    x = batch(module or model.module)
    loss = F.mse_loss(model(x, step, stage.rank).float(), torch.ones(len(x), 5))
    loss.backward()
    return loss.detach()


def descend(model: nn.Module, rate: float = 0.05) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.add_(parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad, alpha=-rate)
    model.zero_grad()


def step_alike(stage: Stage, plain: nn.Module, wired: nn.Module, step: int) -> None:
    """A step of two DDP models, which must give both the same gradients."""
    for model in (plain, wired):
        backward(stage, model, step)
    assert_equal_gradients(wired.module, plain.module)
    for model in (plain, wired):
        descend(model.module)


def assert_equal_gradients(one: nn.Module, other: nn.Module, **tolerance: float) -> None:
    names = dict(other.named_parameters())
    for name, parameter in one.named_parameters():
        expected = names[name].grad
        assert (parameter.grad is None) == (expected is None), name
        if expected is None:
            continue
        assert parameter.grad.layout == expected.layout, name
        mine, theirs = (grad.to_dense() if grad.is_sparse else grad for grad in (parameter.grad, expected))
        torch.testing.assert_close(mine, theirs, **tolerance, msg=lambda text, name=name: f"{name}: {text}")


def equals_plain_ddp(
    stage: Stage,
    kind: str = "plain",
    dtype: str = "",
    ddp: dict[str, Any] | None = None,
    compiled: str = "",
    steps: int = 4,
    tolerance: float = 0.0,
    buckets: int = 0,
    **settings: Any,
) -> None:
    """With everything sent, gradients are those of DDP without a link, step by step."""
    close = {"rtol": tolerance, "atol": tolerance} if tolerance else {}
    plain, wired = (stage.ddp(build(kind, dtype), **(ddp or {})) for _ in range(2))
    with attach(wired, EXACT, **settings) as link:
        seen = watch_buckets(link)
        runs = wired
        if compiled:
            warnings.simplefilter("ignore")  # torch.compile is not as strict with itself as we are
            runs = torch.compile(wired, backend=compiled)
        for step in range(steps):
            backward(stage, plain, step)
            backward(stage, runs, step, wired.module)
            assert_equal_gradients(wired.module, plain.module, **close)
            for model in (plain, wired):
                descend(model.module)
        stage.assert_same(wired.module)
        assert link.step == steps
    warnings.simplefilter("error")
    if buckets:
        assert len(set(seen)) >= buckets, seen


def watch_buckets(link: Any) -> list[tuple[str, ...]]:
    """The names in every bucket that DDP hands over from now on."""
    seen, handle = [], link.handle

    def watch(bucket: Any) -> Any:
        seen.append(tuple(link._names[parameter] for parameter in bucket.parameters()))
        return handle(bucket)

    link.handle = watch
    return seen


def accumulates_without_sync(stage: Stage) -> None:
    plain, wired = stage.ddp(build()), stage.ddp(build())
    with attach(wired, EXACT) as link:
        for round_ in range(3):
            for model in (plain, wired):
                with model.no_sync():
                    for step in range(2):
                        backward(stage, model, 10 * round_ + step)
                backward(stage, model, 10 * round_ + 2)
            assert_equal_gradients(wired.module, plain.module)
            for model in (plain, wired):
                descend(model.module)
        assert link.step == 3


def joins_uneven_inputs(stage: Stage) -> None:
    """Ranks with fewer batches take part in the others' steps, with nothing of their own."""
    plain, wired = stage.ddp(build()), stage.ddp(build())
    with attach(wired, EXACT) as link:
        for model in (plain, wired):
            with model.join():
                for step in range(2 + stage.rank):
                    backward(stage, model, step)
        assert link.step == 1 + stage.size
        for one, other in zip(wired.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)


def stays_in_step(stage: Stage, scheme: str, steps: int = 50, kind: str = "plain", **settings: Any) -> float:
    """After many lossy steps every rank still holds the same bits. Returns how far the loss fell."""
    wired = stage.ddp(build(kind), bucket_cap_mb=0.005)
    with attach(wired, scheme, **settings):
        losses = []
        for step in range(steps):
            losses.append(backward(stage, wired, step).item())
            descend(wired.module)
    stage.assert_same(wired.module)
    return sum(losses[-5:]) / sum(losses[:5])


def sends_messages(stage: Stage) -> dict[str, Any]:
    """Messages of a step with eight buckets that send 328 entries each, and a digest of the weights after four."""
    torch.manual_seed(0)
    wired = stage.ddp(nn.Sequential(*(nn.Linear(128, 128, bias=False) for _ in range(8))), bucket_cap_mb=0.05)
    with attach(wired, "topk(2%) | values=qsgd(bits=4) | memory=residual") as link:
        for step in range(4):
            before, draw = link.comm.collectives, torch.Generator().manual_seed(step + stage.rank)
            wired(torch.randn(4, 128, generator=draw)).square().sum().backward()
            messages = link.comm.collectives - before
            descend(wired.module)
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in wired.parameters())
    return {"a step": messages, "bits": zlib.crc32(weights)}


class Ledger:
    """The gradients that went into a wrapped model's averages, and the means that came out."""

    def __init__(self, stage: Stage, wired: Any) -> None:
        self._stage, self._wired = stage, wired
        self._names = [name for name, _ in wired.module.named_parameters()]
        self._taken, self._given = (dict.fromkeys(self._names, 0.0) for _ in range(2))

    def step(self, step: int) -> None:
        alone = copy.deepcopy(self._wired.module)
        backward(self._stage, alone, step, alone)
        backward(self._stage, self._wired, step)
        for name in self._names:
            self._given[name] += _dense(alone, name)
            self._taken[name] += _dense(self._wired.module, name)
        self._wired.zero_grad()

    def balance(self, state: dict[str, Any]) -> None:
        """What went in = what came out + what waits."""
        for name in self._names:
            kept = _residual(state, name, self._given[name])
            total, given = sum(self._stage.everyones(kept)), sum(self._stage.everyones(self._given[name]))
            found = self._taken[name] * self._stage.size + total
            torch.testing.assert_close(found, given, rtol=1e-4, atol=1e-5, msg=name)


def loses_nothing(stage: Stage, scheme: str, kind: str = "plain", **settings: Any) -> None:
    """Over several steps: the gradients that went in = the means that came out + what the residuals hold."""
    unused = {"find_unused_parameters": True} if kind == "branches" else {}
    wired = stage.ddp(build(kind), **unused)
    ledger = Ledger(stage, wired)
    with attach(wired, scheme, dense_below=0, **settings) as link:
        for step in range(6):
            ledger.step(step)
        state = link.state_dict()
    ledger.balance(state)
    assert any(kept.any() for kept in dense_kept(state).values()), "nothing was held back: this shows nothing"


def _dense(module: nn.Module, name: str) -> torch.Tensor:
    parameter = dict(module.named_parameters())[name]
    if parameter.grad is None:
        return torch.zeros_like(parameter.detach())
    return parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad.clone()


def _residual(state: dict[str, Any], name: str, like: torch.Tensor) -> torch.Tensor:
    kept = torch.zeros_like(like)
    if name in dense_kept(state):
        kept.view(-1)[:] = dense_kept(state)[name]
    elif name in sparse_kept(state):
        kept.view(-1)[:] = spread(sparse_kept(state)[name])
    return kept
