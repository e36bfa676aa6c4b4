"""`prune`: a model with fewer weights, by torch's own pruning tools; what they mask carries no gradient.

Torch keeps a pruned `weight` as the parameter `weight_orig` and the buffer `weight_mask`, and multiplies them before
each forward. So an optimizer may do what it likes: pruned weights stay zero. `attach` finds the masks there by itself,
for an exchange with support=mask.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import prune as tools

from sparsewire.codecs.presets import pruned_share
from sparsewire.core.mask import FrameworkMask, Masks
from sparsewire.errors import InputError
from sparsewire.kernels import Array
from sparsewire.training.schedule import Settings
from sparsewire.training.settings import Exclude, excluded

from .checks import uncompiled

LAYERS = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
)  # fmt: skip
ORIGINAL, MASK = "_orig", "_mask"  # what torch appends to a parameter's name


def prune(
    model: nn.Module,
    ratio: float | str,
    *,
    per: str = "model",
    exclude: Exclude = (),
    optimizer: torch.optim.Optimizer | None = None,
) -> Pruned:
    """Prunes the weights of linear and convolution layers by magnitude, until `ratio` of them are zero.

    ratio: 0.8 or "80%", or the scheme that will be attached, such as "pactrain(ratio=80%)".
    per: "model", the smallest of all layers together, or "layer", the same share of each.
    exclude: name patterns such as "head.weight", or a function of name and parameter: these stay whole.
    optimizer: whose momentum at pruned weights is zeroed, if it has stepped already.

    Ranks prune alike if their weights are the same: give the model after DDP has wrapped it, which makes them so, or
    build it from one seed. Call it before `attach`, and again for a larger ratio whenever you like. A checkpoint of a
    pruned model is loaded into a model that was pruned before, at any ratio: the masks come with it.
    """
    root: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
    share = _share(ratio)
    if per not in ("model", "layer"):
        raise InputError(f"per is 'model' or 'layer', not {per!r}")
    layers = _layers(root, exclude)
    _prune(list(layers.values()), share, per)
    pruned = Pruned(layers)
    _leave_to_ranks(root, layers)
    pruned.zero_masked(optimizer)
    return pruned


class Pruned:
    """The pruned layers: their `ratio`, their `masks()`, and `remove()`, which makes the pruning permanent."""

    def __init__(self, layers: Mapping[str, nn.Module]) -> None:
        self._layers = dict(layers)

    @property
    def ratio(self) -> float:
        """The share of the layers' weights that are pruned."""
        masks = self.masks().values()
        return 1 - sum(int(mask.sum()) for mask in masks) / max(1, sum(mask.numel() for mask in masks))

    def masks(self) -> dict[str, torch.Tensor]:
        """Masks by the weight's name, true where a weight is left."""
        return {f"{name}.weight" if name else "weight": _mask(layer) != 0 for name, layer in self._layers.items()}

    def zero_masked(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Zeroes what torch only masks: the weights behind the masks, and an optimizer's momentum there."""
        for layer in self._layers.values():
            weight, gone = _weight(layer), _mask(layer) == 0
            state = optimizer.state.get(weight, {}) if optimizer is not None else {}
            kept = [kept for kept in state.values() if isinstance(kept, torch.Tensor) and kept.shape == weight.shape]
            with torch.no_grad():
                for tensor in (weight, *kept):
                    tensor.masked_fill_(gone, 0)

    def remove(self) -> None:
        """Makes ordinary parameters of the layers' weights again, with zeros where they were pruned; training may then
        change those. Detach a link first, and attach anew: parameters have other names."""
        for layer in self._layers.values():
            tools.remove(layer, "weight")  # type: ignore[no-untyped-call]
        self._layers = {}


def find_masks(named: Mapping[str, torch.Tensor], root: nn.Module) -> Masks | None:
    """The masks of a model that torch's pruning tools have pruned, whoever called them; None if there are none."""
    modules = {uncompiled(name): module for name, module in root.named_modules()}
    owners = {}
    for name in named:
        path, _, leaf = name.rpartition(".")
        owner, mask = modules.get(path), leaf.removesuffix(ORIGINAL) + MASK
        if leaf.endswith(ORIGINAL) and owner is not None and mask in owner._buffers and not named[name].is_complex():
            owners[name] = owner, mask

    def find(name: str) -> FrameworkMask | None:
        if name not in owners:
            return None
        owner, leaf = owners[name]
        mask: Any = owner._buffers.get(leaf)  # looked up each time: pruning again puts another there
        return None if mask is None else FrameworkMask(mask, mask._version, lambda: _flat(mask, named[name]))

    return Masks(find) if owners else None


def masked(settings: Settings, named: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """A digest of the masks, if the exchange uses any, which ranks compare before they train."""
    sizes = {name: parameter.numel() * (1 + parameter.is_complex()) for name, parameter in named.items()}
    return {"masks of the pruned model": settings.masks.digest(sizes) if settings.masks is not None else ""}


def _flat(mask: torch.Tensor, parameter: torch.Tensor) -> Array:
    """The mask in the order of the parameter's memory, as DDP's buckets are: convolutions may be channels_last."""
    shape, strides = parameter.shape, parameter.stride()
    whole = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) == mask.numel()
    laid = torch.empty_strided(shape, strides, dtype=torch.bool) if whole else torch.empty(shape, dtype=torch.bool)
    laid.copy_(mask.detach() != 0)
    kept: Array = laid.as_strided((mask.numel(),), (1,)).numpy()
    return kept


def _share(ratio: float | str) -> float:
    share = pruned_share(ratio) if isinstance(ratio, str) else ratio
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1:
        raise InputError(f"ratio is the share of weights to prune, 0 ≤ ratio < 1, not {ratio!r}")
    return float(share)


def _layers(root: nn.Module, exclude: Exclude) -> dict[str, nn.Module]:
    layers = {uncompiled(name): layer for name, layer in root.named_modules() if isinstance(layer, LAYERS)}
    weights = {f"{name}.weight" if name else "weight": _weight(layer) for name, layer in layers.items()}
    left_out = excluded(weights, exclude)
    chosen: dict[str, nn.Module] = {
        name: layer for (name, layer), full in zip(layers.items(), weights, strict=True) if full not in left_out
    }
    if not chosen:
        raise InputError("the model has no linear or convolution layer to prune, or all of them are excluded")
    _check_tied(root, chosen)
    return chosen


def _check_tied(root: nn.Module, layers: Mapping[str, nn.Module]) -> None:
    """A weight that another module uses as well would get gradients past its mask."""
    everything = [parameter for _, parameter in root.named_parameters(remove_duplicate=False)]
    for name, layer in layers.items():
        if sum(parameter is _weight(layer) for parameter in everything) > 1:
            raise InputError(f"{name}.weight is shared with another module: leave it whole, exclude=['{name}.weight']")


def _prune(layers: Iterable[nn.Module], share: float, per: str) -> None:
    """The share is of all weights, also of those that were pruned before."""
    together = list(layers)
    for group in [together] if per == "model" else [[layer] for layer in together]:
        masks = [_mask(layer) for layer in group]
        total, gone = sum(mask.numel() for mask in masks), sum(int((mask == 0).sum()) for mask in masks)
        if round(share * total) < gone:
            raise InputError(f"{gone / total:.1%} of the weights are pruned already: a pruned model has no way back")
        for layer, left in zip(group, _largest(group, masks, total - round(share * total)), strict=True):
            tools.custom_from_mask(layer, "weight", left)  # type: ignore[no-untyped-call]


def _largest(layers: Sequence[nn.Module], masks: Sequence[torch.Tensor], count: int) -> list[torch.Tensor]:
    """Masks of the layers' largest weights, so many in all; what was pruned before comes last."""
    pairs = zip(layers, masks, strict=True)
    flat = torch.cat([_weight(layer).detach().abs().masked_fill(mask == 0, -1).flatten() for layer, mask in pairs])
    left = torch.zeros_like(flat)
    left[flat.topk(count).indices] = 1
    parts = torch.split_with_sizes(left, [mask.numel() for mask in masks])
    return [part.view(mask.shape) for part, mask in zip(parts, masks, strict=True)]


def _leave_to_ranks(root: nn.Module, layers: Mapping[str, nn.Module]) -> None:
    """Keeps DDP from sending the masks in every forward: they are as large as the weights, and the same everywhere."""
    before = getattr(root, "_ddp_params_and_buffers_to_ignore", ())
    masks = [name for name, module in root.named_modules() if any(module is layer for layer in layers.values())]
    names = [f"{name}.weight{MASK}" if name else f"weight{MASK}" for name in masks]
    ignore: Any = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
    ignore(root, list(dict.fromkeys([*before, *names])))


def _weight(layer: nn.Module) -> nn.Parameter:
    """The parameter itself; `layer.weight` is its product with the mask, as of the last forward."""
    weight = layer._parameters.get("weight" + ORIGINAL, layer._parameters.get("weight"))
    if weight is None:
        raise InputError(f"{layer} has no weight of its own, perhaps by a parametrization: exclude it")
    return weight


def _mask(layer: nn.Module) -> torch.Tensor:
    mask = layer._buffers.get("weight" + MASK)
    return torch.ones_like(_weight(layer)) if mask is None else mask
