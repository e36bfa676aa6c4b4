"""A model trained by itself for some steps: its weights as flat arrays, and the optimizer's state beside them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn.parallel import DistributedDataParallel

from ..errors import InputError
from ..host import Dense, to_host, write_back
from ..kernels import Array
from ..sparse import Sparse, elements
from .checks import named_parameters, plain

MOMENTA = ("momentum_buffer", "exp_avg")  # of SGD and RMSprop; of Adam and its relatives


class LocalModel:
    """The parameters that the optimizer steps, and the model's floating-point buffers if they are to be averaged."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, buffers: bool) -> None:
        self.optimizer: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)  # Accelerate wraps it
        if not isinstance(self.optimizer, torch.optim.Optimizer):
            raise InputError(f"optimizer is a torch.optim.Optimizer, not {optimizer!r}")
        if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
            raise InputError(
                "the model is inside DistributedDataParallel, which averages gradients in every step: give the plain "
                "module to local_steps and train that, or use attach"
            )
        self.parameters = _stepped(model, self.optimizer)
        self.buffers = _buffers(model) if buffers else {}
        self.tensors: dict[str, torch.Tensor] = {**self.parameters, **self.buffers}

    def dtypes(self) -> dict[str, str]:
        return {name: str(_real(tensor).dtype).removeprefix("torch.") for name, tensor in self.tensors.items()}

    def read(self) -> dict[str, Array]:
        """All weights, in their own memory where that is possible."""
        return {name: _flat(tensor) for name, tensor in self.tensors.items()}

    def write(self, weights: Mapping[str, Array]) -> None:
        for name, array in weights.items():
            write_back(_real(self.tensors[name]), array)

    def mask(self, sent: Mapping[str, Sparse]) -> None:
        """Zeroes the optimizer's momentum where this rank has sent something."""
        for name, part in sent.items():
            where = torch.from_numpy(elements(part.indices, part.width)).long()
            for key in MOMENTA:
                momentum = self.optimizer.state.get(self.parameters[name], {}).get(key)
                if momentum is not None:
                    flat = _real(momentum)
                    at = where.to(flat.device)
                    flat.put_(at, torch.zeros(len(at), dtype=flat.dtype, device=flat.device))

    def heal(self) -> None:
        """An optimizer's state of a parameter that has become non-finite starts anew."""
        for state in self.optimizer.state.values():
            tensors = [kept for kept in state.values() if isinstance(kept, torch.Tensor) and kept.is_floating_point()]
            if not all(bool(kept.isfinite().all()) for kept in tensors):
                for kept in tensors:
                    kept.zero_()


def _stepped(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    named = named_parameters(model)
    strangers = stepped - {id(parameter) for parameter in named.values()}
    if strangers:
        raise InputError(
            f"the optimizer steps {len(strangers)} parameters that are not the model's, which would differ between "
            "ranks: give local_steps a module that has all of them"
        )
    found = {name: one for name, one in named.items() if id(one) in stepped and one.requires_grad}
    if not found:
        raise InputError("the optimizer steps no parameter of the model; make it with model.parameters()")
    return dict(found)


def _buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Floating-point buffers that a checkpoint has: not masks with -inf, nor tables that are only kept at hand."""
    saved = model.state_dict(keep_vars=True)
    return {
        plain(name): buffer
        for name, buffer in model.named_buffers()
        if name in saved and buffer.is_floating_point() and bool(buffer.isfinite().all())
    }


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs."""
    return torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()


def _flat(tensor: torch.Tensor) -> Array:
    dense = to_host(_real(tensor))
    assert isinstance(dense, Dense)
    return dense.flat
