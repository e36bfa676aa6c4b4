"""Scenes of models around and within DDP: copied, pickled, compiled, set up by Fabric, with complex parameters."""

from __future__ import annotations

import copy
import io
import warnings
from typing import Any

import torch
from scenes_attach import Plain, assert_equal_gradients, backward, build, descend
from torch import nn
from torch.nn import functional as F
from torch_ranks import EXACT, Stage, dense_kept

from sparsewire.torch import attach


def copies(stage: Stage, how: str, when: str) -> None:
    """A copy of a model that has, or had, a link is a model of its own: it trains plainly, and can be attached."""
    plain, wired = stage.ddp(build()), stage.ddp(build())
    link = attach(wired, "topk(1%)", optimizer=None)
    backward(stage, wired, 0)
    wired.zero_grad()
    if when == "detached":
        link.detach()
    other = _copy(wired, how)
    link.detach()
    for model in (plain, other):
        backward(stage, model, 1)
    assert_equal_gradients(other.module, plain.module)
    assert link.step == 1
    with attach(other, "topk(1%)", optimizer=None) as second:
        other.zero_grad()
        backward(stage, other, 2)
        assert second.step == 1
        assert any(kept.any() for kept in dense_kept(second.state_dict()).values())


def _copy(model: nn.Module, how: str) -> Any:
    if how == "deepcopy":
        return copy.deepcopy(model)
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    return torch.load(saved, weights_only=False)


def compiled_within(stage: Stage) -> None:
    """DDP around a compiled module: names are those of the plain one."""
    warnings.simplefilter("ignore")  # torch.compile is not as strict with itself as we are
    plain, wired = stage.ddp(build()), stage.ddp(torch.compile(build(), backend="eager"))
    with attach(wired, EXACT, exclude=["middle.weight"], dense_below=0) as link:
        assert link.settings.dense_names == {"middle.weight"}
        backward(stage, plain, 0)
        backward(stage, wired, 0, plain.module)
        for one, other in zip(wired.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)
    wired.zero_grad()
    with attach(wired, "topk(5%)", dense_below=0, optimizer=None) as link:
        backward(stage, wired, 0, plain.module)
        assert set(dense_kept(link.state_dict())) == {name for name, _ in plain.module.named_parameters()}
    warnings.simplefilter("error")


def compiled_around(stage: Stage) -> None:
    """What torch.compile returns is attached as the model inside."""
    warnings.simplefilter("ignore")
    plain, wired = stage.ddp(build()), stage.ddp(build())
    compiled = torch.compile(wired, backend="eager")
    with attach(compiled, EXACT) as link:
        for step in range(2):
            backward(stage, plain, step)
            backward(stage, compiled, step, plain.module)
            assert_equal_gradients(wired.module, plain.module)
            for model in (plain, wired):
                descend(model.module)
        assert link.step == 2
    warnings.simplefilter("error")


def set_up_by_fabric(stage: Stage) -> None:
    """Fabric's wrapper around DDP."""
    warnings.simplefilter("ignore")
    from lightning.fabric.wrappers import _FabricModule

    class Precision:
        convert_input = convert_output = staticmethod(lambda data: data)
        forward_context = staticmethod(warnings.catch_warnings)

    wired = stage.ddp(build())

    class Strategy:
        precision = Precision()

    fabric = _FabricModule(wired, Strategy(), original_module=wired.module)
    with attach(fabric, EXACT) as link:
        backward(stage, wired, 0)
        assert link.step == 1
    warnings.simplefilter("error")


class Waves(Plain):
    """A complex parameter among real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.wave = nn.Parameter(torch.randn(48, 48, dtype=torch.complex64))

    def forward(self, x: torch.Tensor, step: int = 0, rank: int = 0) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        return self.last((hidden.to(torch.complex64) @ self.wave).abs())


def complex_parameters(stage: Stage) -> list[list[Any]] | None:
    """With everything sent, gradients are plain DDP's, on two ranks to the bit. Returns what DDP hands over; None where
    DDP takes no complex parameters."""
    torch.manual_seed(7)
    try:
        plain = stage.ddp(Waves(), find_unused_parameters=True, bucket_cap_mb=0.005)
    except RuntimeError as error:
        if "Invalid scalar type" in str(error):
            return None
        raise
    wired = stage.ddp(copy.deepcopy(plain.module), find_unused_parameters=True, bucket_cap_mb=0.005)
    with attach(wired, EXACT) as link:
        seen, handle = [], link.handle

        def watch(bucket: Any) -> Any:
            sizes = [[str(one.dtype), one.numel()] for one in bucket.parameters()]
            seen.append([str(bucket.buffer().dtype), bucket.buffer().numel(), sizes])
            return handle(bucket)

        link.handle = watch
        for step in range(3):
            stage.seed(step)
            x = torch.randn(6, 20)
            for model in (plain, wired):
                F.mse_loss(model(x), torch.ones(6, 5)).backward()
            for one, other in zip(wired.parameters(), plain.parameters(), strict=True):
                assert (one.grad is None) == (other.grad is None)
                assert one.grad is None or torch.equal(one.grad, other.grad)
            for model in (plain, wired):
                descend(model.module)
    return seen
