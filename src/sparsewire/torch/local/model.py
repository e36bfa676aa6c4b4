"""A model trained by itself for some steps: its weights as flat arrays, and the optimizer's state beside them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping

import torch
from torch.nn.parallel import DistributedDataParallel

from sparsewire.comm import Communicator
from sparsewire.core.host import Dense, to_host, write_back
from sparsewire.core.sparse import Sparse, elements
from sparsewire.errors import InputError
from sparsewire.kernels import Array

from ..checks import named_parameters, uncompiled
from ..fsdp.private import has_units
from ..tensors import local

MOMENTA = ("momentum_buffer", "exp_avg")  # of SGD and RMSprop; of Adam and its relatives


class LocalModel:
    """The parameters that the optimizer steps, and the model's floating-point buffers if they are to be averaged.

    Of a model that is sharded over the ranks of a replica, it is this rank's shards.
    """

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, buffers: bool, sharded: bool = False
    ) -> None:
        self.optimizer: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)  # Accelerate wraps it
        if not isinstance(self.optimizer, torch.optim.Optimizer):
            raise InputError(f"optimizer is a torch.optim.Optimizer, not {optimizer!r}")
        if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
            raise InputError(
                "the model is inside DistributedDataParallel, which averages gradients in every step: give the plain "
                "module to local_steps and train that, or use attach"
            )
        if has_units(model) and not sharded:
            raise InputError(
                "a model that FSDP2 has sharded needs its replicas: write local_steps(model, optimizer, …, "
                'replicas=mesh["replicate"])'
            )
        self._stepped = _stepped(model, self.optimizer)
        self.parameters = {name: x for name, x in self._stepped.items() if local(x).numel() or not x.numel()}
        self._model, self.averaged = model, _averaged(model) if buffers else frozenset()
        taking_part = self.tensors
        everything = {**named_parameters(model), **_buffers(model)}
        self.rest = {name: tensor for name, tensor in everything.items() if name not in taking_part}

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors that meetings exchange. Buffers are looked up: modules may put other tensors in their place."""
        buffers = {name: tensor for name, tensor in _buffers(self._model).items() if name in self.averaged}
        return {**self.parameters, **buffers}

    @property
    def agreed(self) -> dict[str, torch.Tensor]:
        """All tensors, in an order that is the same on every rank, whichever shards it holds."""
        return {**self._stepped, **self.tensors, **self.rest}

    def dtypes(self) -> dict[str, str]:
        return {name: str(_real(tensor).dtype).removeprefix("torch.") for name, tensor in self.tensors.items()}

    def read(self) -> dict[str, Array]:
        """All weights, in their own memory where that is possible."""
        return {name: _flat(tensor) for name, tensor in self.tensors.items()}

    def write(self, weights: Mapping[str, Array]) -> None:
        tensors = self.tensors
        for name, array in weights.items():
            write_back(_real(tensors[name]), array)

    def rest_bytes(self) -> bytes:
        """The bytes of the tensors that meetings do not exchange."""
        return b"".join(_bits(tensor).cpu().numpy().tobytes() for tensor in self.rest.values())

    def take_rest(self, data: bytes) -> None:
        start = 0
        for tensor in self.rest.values():
            bits = _bits(tensor)
            theirs = torch.frombuffer(bytearray(data[start : start + bits.numel()]), dtype=torch.uint8)
            held = local(tensor.detach())
            held.copy_(theirs.view(held.dtype).view(held.shape))
            start += bits.numel()

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

    def reset_nonfinite(self) -> None:
        """Zeroes the optimizer's state of every parameter for which it has become non-finite."""
        for state in self.optimizer.state.values():
            held = (kept for kept in state.values() if isinstance(kept, torch.Tensor) and kept.is_floating_point())
            tensors = [local(kept) for kept in held]
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
    trained = {name: tensor for name, tensor in named.items() if id(tensor) in stepped and tensor.requires_grad}
    if not trained:
        raise InputError("the optimizer steps no parameter of the model; make it with model.parameters()")
    return dict(trained)


def _buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {uncompiled(name): buffer for name, buffer in model.named_buffers()}


def _averaged(model: torch.nn.Module) -> frozenset[str]:
    """Floating-point buffers that a checkpoint has: not masks of pruning or with -inf, nor tables only kept at hand."""
    saved = {uncompiled(name) for name in model.state_dict(keep_vars=True)}
    masks = {name.removesuffix("_orig") + "_mask" for name in named_parameters(model) if name.endswith("_orig")}
    return frozenset(
        name
        for name, buffer in _buffers(model).items()
        if name in saved - masks and buffer.is_floating_point() and bool(buffer.isfinite().all())
    )


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs, of what this rank holds."""
    held = local(tensor.detach())
    return torch.view_as_real(held) if held.is_complex() else held


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return local(tensor.detach()).contiguous().view(-1).view(torch.uint8)


def _flat(tensor: torch.Tensor) -> Array:
    dense = to_host(_real(tensor))
    assert isinstance(dense, Dense)
    return dense.flat


def share_rest(model: LocalModel, comm: Communicator, new: bool) -> None:
    """New ranks take what is not trained, such as frozen weights, from the first rank that is not new."""
    mine = model.rest_bytes()
    message = json.dumps([new, zlib.crc32(mine)]).encode()
    ranks = [json.loads(bytes(received)) for received in comm.all_gather(message, "rest")]
    leader = next((rank for rank, (fresh, _) in enumerate(ranks) if not fresh), 0)
    late = [fresh and digest != ranks[leader][1] for fresh, digest in ranks]
    if any(late):
        theirs = comm.broadcast(mine if comm.rank == leader else None, leader)
        if late[comm.rank]:
            model.take_rest(theirs)
