"""All that is read of FSDP2 beyond its public interface: its units, their parameters, and how gradients are divided.

Checked with torch 2.13. torch.distributed.fsdp is imported when it is used, as that takes a second.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from sparsewire.errors import InputError

NEEDS = 'write fully_shard(module, mesh=mesh["shard"]) for each block and for the model, with a mesh of one dimension'
Hook = Callable[[torch.Tensor], None]


@dataclass(frozen=True)
class ShardSpan:
    """Where a parameter's shard lies in the tensor that FSDP hands to its hook; padding comes behind it."""

    param: Any  # FSDPParam
    name: str
    start: int
    size: int

    @property
    def gradient(self) -> torch.Tensor:
        """This rank's shard of `.grad`, flat."""
        local: torch.Tensor = self.param.sharded_param.grad.to_local()
        return local.view(-1)


class Unit:
    """One FSDPModule: its parameters' gradients are reduced and scattered together, once in each backward."""

    def __init__(self, name: str, module: Any, group: Any, names: dict[int, str]) -> None:
        self.name, self._module, self._group = name, module, group
        self._named = [(param, names[id(param.sharded_param)]) for param in group.fsdp_params]

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        return {name: param.sharded_param for param, name in self._named}

    @property
    def shard_group(self) -> dist.ProcessGroup:
        """The ranks that hold this unit's shards."""
        group: dist.ProcessGroup = self._group.mesh_info.shard_process_group
        return group

    @property
    def shards(self) -> int:
        return int(self._group.mesh_info.shard_mesh_size)

    @property
    def shard(self) -> int:
        return int(self._group.mesh_info.shard_mesh_rank)

    @property
    def hook(self) -> Hook | None:
        hook: Hook | None = self._group._all_reduce_hook
        return hook

    def listen(self, hook: Hook) -> None:
        """The hook gets this unit's reduced shards; parameters without a gradient come as zeros, so that one layout
        serves all steps and ranks."""
        self._module.set_all_reduce_hook(hook)
        self._module.set_reduce_scatter_unused_params(True, recurse=False)

    @property
    def is_last_micro_step(self) -> bool:
        """False behind `set_requires_all_reduce(False)`."""
        return bool(self._group.all_reduce_grads)

    @property
    def is_nested(self) -> bool:
        """Whether FSDP's own end of backward is still to come."""
        return bool(self._group_state.post_backward_final_callback_queued)

    @property
    def _group_state(self) -> Any:
        return self._module._get_fsdp_state()._state_ctx

    def places(self, numel: int) -> list[ShardSpan]:
        """Each shard's place in a hook's tensor of so many elements."""
        places, start = [], 0
        for param, name in self._named:
            if param.sharded_param.requires_grad:
                places.append(ShardSpan(param, name, start, param.sharded_size.numel()))
                start += param.padded_sharded_param_size.numel()
        if start != numel:
            raise InputError(
                f"FSDP reduced {numel} numbers of {self.name!r}, its parameters have {start}: leave requires_grad and "
                "set_reduce_scatter_unused_params(True) as attach found and set them"
            )
        return places

    def divisor(self, dtype: torch.dtype, replicas: int) -> float:
        """What FSDP divides a reduced shard by once its hook has returned, so that a mean over the replicas comes to
        what its own all-reduce would give: with `set_gradient_divide_factor` that is a sum over them."""
        from torch.distributed.fsdp._fully_shard._fsdp_collectives import _get_gradient_divide_factors

        group, factor = self._group, self._group.gradient_divide_factor
        later = _get_gradient_divide_factors(
            group._reduce_scatter_process_group, None, dtype, group.device.type, factor,
            group.force_sum_reduction_for_comms,
        )[1]  # fmt: skip
        return float(later or 1.0) / (1 if factor is None else replicas)


def has_units(model: torch.nn.Module) -> bool:
    """Whether FSDP2 has sharded some of the model."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(fsdp, "FSDPModule", None)
    return kind is not None and any(isinstance(module, kind) for module in model.modules())


def find_units(model: torch.nn.Module, names: Callable[[torch.nn.Module], dict[str, torch.nn.Parameter]]) -> list[Unit]:
    """All units of the model, in its order; `names` names its parameters. What cannot be served is refused."""
    _check_version()
    _check_kinds(model)
    modules = list(_modules(model))
    if not modules:
        raise InputError(
            f"replicas= is for a model that FSDP2 has sharded, and this {type(model).__name__} is not: {NEEDS}"
        )
    for _, module in modules:
        module.reshard()  # parameters are the shards from here on
    named = names(model)
    by_id = {id(parameter): name for name, parameter in named.items()}
    units = [_unit(name, module, by_id) for name, module in modules if module._get_fsdp_state()._fsdp_param_groups]
    _check_covered(named, units)
    return units


def _check_version() -> None:
    kind = getattr(importlib.import_module("torch.distributed.fsdp"), "FSDPModule", None)
    for method in ("set_all_reduce_hook", "set_reduce_scatter_unused_params"):
        if not hasattr(kind, method):
            raise InputError(f"replicas= needs FSDPModule.{method}, which torch {torch.__version__} has not: install "
                             "torch ≥ 2.13")  # fmt: skip


def _check_kinds(model: torch.nn.Module) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    for name, module in model.named_modules():
        registry: Any = getattr(module, "_composable_api_registry", None) or _registry(module) or {}
        if isinstance(module, FullyShardedDataParallel):
            raise InputError(f"{name or 'the model'} is wrapped in FullyShardedDataParallel, FSDP1, which has no place "
                             f"for an exchange: {NEEDS}")  # fmt: skip
        if "replicate" in registry:
            raise InputError(f"{name or 'the model'} has been given to replicate(), which averages over the replicas "
                             f"by itself: leave it out; {NEEDS}")  # fmt: skip


def _registry(module: torch.nn.Module) -> Any:
    from torch.distributed._composable.contract import _get_registry

    return _get_registry(module)


def _modules(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    from torch.distributed.fsdp import FSDPModule

    return ((name, module) for name, module in model.named_modules() if isinstance(module, FSDPModule))


def _unit(name: str, module: Any, names: dict[int, str]) -> Unit:
    groups, where = module._get_fsdp_state()._fsdp_param_groups, name or "the model"
    if len(groups) > 1:
        raise InputError(f"{where} has {len(groups)} groups of parameters on different meshes, as for experts, and "
                         "FSDP's hook cannot tell them apart: give fully_shard no shard_placement_fn that returns a "
                         "mesh, or leave sparsewire out")  # fmt: skip
    (group,) = groups
    if getattr(group.mesh_info, "replicate_mesh_dim", None) is not None:
        raise InputError(f"{where} is on a mesh of two dimensions, so FSDP averages over the replicas itself, before "
                         f"its hook is called: {NEEDS}")  # fmt: skip
    for param in group.fsdp_params:
        _check_parameter(param, names.get(id(param.sharded_param), where))
    return Unit(name, module, group, names)


def _check_parameter(param: Any, name: str) -> None:
    sharded = param.sharded_param
    if sharded.is_meta:
        raise InputError(
            f"{name!r} is on the meta device: initialize the model first (model.to_empty(device=…)), then attach"
        )
    if param.fsdp_placement.dim != 0:
        raise InputError(f"{name!r} is sharded along dimension {param.fsdp_placement.dim}, and shards of dimension 0 "
                         "are needed: give fully_shard no shard_placement_fn")  # fmt: skip
    if sharded.device_mesh.ndim > 1:
        raise InputError(f"{name!r} is a DTensor on a mesh of {sharded.device_mesh.ndim} dimensions, as tensor "
                         f"parallelism makes them, which is not served: {NEEDS}")  # fmt: skip
    if getattr(sharded, "_post_accumulate_grad_hooks", None):
        raise InputError(
            f"{name!r} has a hook behind its gradient, which would run before the replicas' mean is in it: step the "
            "optimizer after backward, without register_post_accumulate_grad_hook"
        )


def _check_covered(named: dict[str, torch.nn.Parameter], units: list[Unit]) -> None:
    covered = {name for unit in units for name in unit.parameters}
    left = [name for name, parameter in named.items() if name not in covered and parameter.requires_grad]
    if left:
        raise InputError(
            f"{len(left)} parameters are in no FSDP unit ({left[0]!r}, …), so no gradient of theirs is reduced: write "
            'fully_shard(model, mesh=mesh["shard"]) for the whole model as well'
        )
    if len({tuple(dist.get_process_group_ranks(unit.shard_group)) for unit in units}) > 1:
        raise InputError("the model's units are sharded over different ranks: give every fully_shard the same mesh, "
                         'mesh["shard"]')  # fmt: skip
