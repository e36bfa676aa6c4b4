"""`local_steps`: ranks train alone and meet every H optimizer steps."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from sparsewire.codecs.scheme import Spec
from sparsewire.comm import Communicator
from sparsewire.errors import InputError
from sparsewire.planning.auto import read_auto
from sparsewire.training.agree import refuse
from sparsewire.training.local.outer import OuterSpec
from sparsewire.training.local.recipe import COVERAGE, LocalRecipe
from sparsewire.training.local.round_schedule import Every
from sparsewire.training.local.rounds import Plan
from sparsewire.training.local.settings import LocalSettings, OnRound
from sparsewire.training.schedule import Ratios, Settings
from sparsewire.training.settings import Exclude

from .groups import Group, open_group
from .link import LocalLink
from .model import LocalModel
from .shards import ShardGroup, ShardLink, open_shards

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

AUTO = "local_steps has no auto: name a scheme or a preset; attach(model, 'auto') is for DDP"
logger = logging.getLogger("sparsewire")


def local_steps(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, scheme: Spec | None = None, *,
    every: Every | None = None, total_steps: int | None = None, coverage: float = COVERAGE,
    outer: OuterSpec | None = None, mean: str | None = None, mask_momentum: bool | None = None, dense_rounds: int = 0,
    ratio_schedule: Ratios | None = None, dense_below: int = 0, exclude: Exclude = (), buffers: str = "mean",
    fragments: int = 1, overlap: int = 0, mix: float = 1.0, seed: int = 0,
    group: dist.ProcessGroup | Communicator | None = None, on_round: OnRound | None = None,
    timeout: float | None = None, replicas: DeviceMesh | dist.ProcessGroup | None = None,
) -> LocalLink:  # fmt: skip
    """Lets every rank train alone; after `every` optimizer steps its weights' change is exchanged like a gradient.

    The model is not wrapped in DDP, the loop stays as it is. Every rank calls it, with the same arguments. Weights that
    differ are made those of rank 0 first.

    scheme: how a change is compressed: string, dict or `Scheme`, or a preset that also says every, outer, mean and
        mask_momentum. None chooses top-k with error feedback and mean="sqrt"; rank 0 logs it (`link.recipe`).
    total_steps: optimizer steps of the whole run on each rank: without a scheme the ratio is coverage / rounds, within
        0.1 % … 100 %, and 5 % where total_steps is not known.
    every: optimizer steps in a round: a number, a function of the round, or (until_round, every) pairs. Steps that a
        GradScaler skips do not count.
    outer: the rule that moves the common weights by the mean change: "sgd(rate=1.0, momentum=0, nesterov=false)".
    mean: what the sum of a coordinate is divided by: "all" ranks, its "senders", or "sqrt" of their product.
    mask_momentum: the optimizer's momentum is zeroed at the coordinates that this rank has sent sparse.
    dense_rounds: rounds at the beginning that are sent in full. ratio_schedule: as in `attach`, by rounds.
    dense_below, exclude: as in `attach`; here small tensors are compressed, too, as rounds are rare.
    buffers: "mean" averages floating-point buffers (BatchNorm's) in full at each meeting, "keep" leaves them alone.
    fragments: the model is exchanged in so many parts, which take turns: meetings are every/fragments steps apart.
    overlap: an exchange goes on during so many further steps; mix is how much of their progress is kept.
    group: a process group (a group of the same ranks is made beside it) or a `Communicator`; None: the default group.
    seed: for everything random. on_round: called after each meeting with a dict. timeout: seconds that a collective may
        wait for a rank.
    replicas: for a model that FSDP2 has sharded within each replica: the mesh (or group) of the ranks that hold the
        same shard, mesh["replicate"]. Each replica trains alone, and the change of each shard is exchanged.

    A setting that one rank refuses is an error on every rank, at once.
    """
    opened = (
        open_group(group, timeout, "local_steps") if replicas is None else open_shards(model, replicas, group, timeout)
    )
    try:
        try:
            if read_auto(scheme) is not None:
                raise InputError(AUTO)
            recipe = LocalRecipe.of(scheme, every, total_steps, coverage)
            options = LocalSettings(
                recipe.scheme, every, outer, mean, mask_momentum, dense_rounds, ratio_schedule, dense_below, exclude,
                buffers, fragments, overlap, mix, seed, on_round, timeout,
            )  # fmt: skip
            inner = LocalModel(model, optimizer, buffers != "keep", isinstance(opened, ShardGroup))
            settings, plan = options.read(inner.parameters, inner.averaged)
        except Exception as error:
            refuse(opened.everyone, error)
            raise
        if scheme is None and opened.everyone.rank == 0:
            logger.info("%s", recipe.text())
        return _connect(inner, opened, options, settings, plan, recipe)
    except BaseException:
        opened.leave()
        raise


def _connect(
    inner: LocalModel, opened: Group, options: LocalSettings, settings: Settings, plan: Plan, recipe: LocalRecipe
) -> LocalLink:
    if isinstance(opened, ShardGroup):
        return ShardLink(inner, opened, options, opened.of_shard(settings), plan, recipe)
    return LocalLink(inner, opened, options, settings, plan, recipe)
