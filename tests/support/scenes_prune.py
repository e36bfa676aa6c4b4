"""Scenes of a pruned model: how the ranks prune, what stays zero, what travels, and how a run resumes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from scenes_attach import Plain
from torch import nn
from torch_ranks import Stage, raises, same_bits

from sparsewire.errors import CommMismatch
from sparsewire.torch import Link, Pruned, attach, load, prune, save

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
}


class Dead(Plain):
    """Half of its hidden units see nothing but zeros: gradients of weights that are left are zero as well."""

    def forward(self, x: torch.Tensor, step: int = 0, rank: int = 0) -> torch.Tensor:
        hidden = self.norm(torch.relu(self.first(x)))
        return self.last(torch.relu(self.middle(hidden) - 1))


def build(seed: int = 7) -> nn.Module:
    torch.manual_seed(seed)
    return Dead()


def train(stage: Stage, model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        stage.seed(step)
        optimizer.zero_grad()
        (model(torch.randn(8, 20)) - 1).square().mean().backward()
        optimizer.step()


def weights(module: nn.Module) -> dict[str, torch.Tensor]:
    """What the layers compute with: `weight` itself is as of the last forward."""
    pruned = {name: layer for name, layer in module.named_modules() if hasattr(layer, "weight_orig")}
    return {name: layer.weight_orig * layer.weight_mask for name, layer in pruned.items()}


def assert_pruned(stage: Stage, module: nn.Module, pruned: Pruned) -> None:
    for name, kept in pruned.masks().items():
        weight = module.get_submodule(name.removesuffix(".weight")).weight_orig
        assert not weight[~kept].any() and bool(weight[kept].all()), name
    stage.assert_same(module)


def stays_pruned(stage: Stage, optimizer: str, scheme: str, **settings: Any) -> dict[str, Any]:
    """Ranks that begin with other weights prune alike after DDP; what is pruned stays zero."""
    model = stage.ddp(build(seed=stage.rank))
    pruned = prune(model, scheme if scheme.startswith("pactrain(ratio") else 0.8)
    stepper = OPTIMIZERS[optimizer](model.parameters())
    with attach(model, scheme, dense_below=200, **settings) as link:
        train(stage, model, stepper, range(6))
        stats = link.stats()
    assert_pruned(stage, model.module, pruned)
    return {**stats, "ratio": pruned.ratio, "survivors": sum(int(mask.sum()) for mask in pruned.masks().values())}


def prunes_more_and_forgets_momentum(stage: Stage) -> None:
    """Pruned again while training: neither momentum nor weight decay brings anything back."""
    model = stage.ddp(build())
    pruned = prune(model, "50%", per="layer", exclude=["last.weight"])
    stepper = OPTIMIZERS["sgd"](model.parameters())
    with attach(model, "pactrain(values=float32)", dense_below=200) as link:
        train(stage, model, stepper, range(3))
        pruned = prune(model, 0.9, per="layer", exclude=["last.weight"], optimizer=stepper)
        train(stage, model, stepper, range(3, 6))
        assert link.stats()["counts"] == {"masks agree": 6 * 3}
    assert_pruned(stage, model.module, pruned)
    assert set(pruned.masks()) == {"middle.weight", "first.weight"}
    expected = {name: weight.detach().clone() for name, weight in weights(model.module).items()}
    pruned.remove()
    for name, weight in expected.items():
        layer = model.module.get_submodule(name)
        assert same_bits(layer.weight.detach(), weight) and not hasattr(layer, "weight_mask")


def masks_do_not_travel(stage: Stage) -> None:
    """DDP sends buffers before each forward; masks, which are as large as the model, are not among them."""
    module = build()
    prune(module, 0.5)
    model = stage.ddp(module)
    assert len(list(module.named_buffers())) == 3
    assert not model.modules_buffers


def refuses_masks_that_differ(stage: Stage) -> str:
    """Pruned before DDP, from other weights."""
    module = build(seed=stage.rank)
    prune(module, 0.5)
    return raises(CommMismatch, lambda: attach(stage.ddp(module), "pactrain"))


def resumes(stage: Stage, folder: str, optimizer: str, scheme: str) -> None:
    """Six steps, or three, a checkpoint, another process's model, and three more: the same bits."""

    def start() -> tuple[nn.Module, torch.optim.Optimizer, Link]:
        model = stage.ddp(build())
        prune(model, 0.6)
        return model, OPTIMIZERS[optimizer](model.parameters()), attach(model, scheme, dense_below=200)

    model, stepper, link = start()
    train(stage, model, stepper, range(3))
    save(link, Path(folder))
    state = copy.deepcopy([model.module.state_dict(), stepper.state_dict()])
    train(stage, model, stepper, range(3, 6))
    link.detach()
    again, stepper, link = start()
    with torch.no_grad():
        again.module.middle.weight_mask.zero_()  # other masks, which the checkpoint's replace
    again.module.load_state_dict(state[0])
    stepper.load_state_dict(state[1])
    load(link, Path(folder))
    train(stage, again, stepper, range(3, 6))
    link.detach()
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert same_bits(one.detach(), other.detach())


class Images(nn.Module):
    """Convolutions whose weights lie in memory in another order than their dimensions say."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)))


def masks_follow_the_order_in_memory(stage: Stage) -> None:
    """With the survivors sent as they are, a pruned model trains as with plain DDP."""
    plain, wired = (stage.ddp(Images().to(memory_format=torch.channels_last)) for _ in range(2))
    wired.module.load_state_dict(plain.module.state_dict())
    for model in (plain, wired):
        prune(model, 0.7)
    link = attach(wired, "pactrain(values=float32)", dense_below=50)
    for step in range(3):
        stage.seed(step)
        x = torch.randn(4, 3, 8, 8)
        for model in (plain, wired):
            model.zero_grad()
            model(x).square().mean().backward()
        for one, other in zip(plain.parameters(), wired.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)
    assert link.stats()["counts"] == {"masks agree": 3 * 2}
    link.detach()
