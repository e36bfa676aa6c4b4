"""`attach`: switches compression on for a DDP model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from sparsewire.codecs.contract import Memory
from sparsewire.codecs.scheme import Spec
from sparsewire.planning.auto import Auto
from sparsewire.training.recipe import COVERAGE
from sparsewire.training.schedule import Ratios
from sparsewire.training.settings import Exclude

from ..optimizers import NOT_GIVEN, Given
from .link import Link
from .opening import Options, open_link

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def attach(
    model: torch.nn.Module, scheme: Spec | Auto | None = None, *, optimizer: Given = NOT_GIVEN,
    total_steps: int | None = None, coverage: float = COVERAGE, ratio: float | None = None,
    memory: str | Memory | None = None, select_per: str | None = None, dense_below: int = 1024,
    exclude: Exclude = (), warmup_steps: int = 0, ratio_schedule: Ratios | None = None, follow_rate: bool = False,
    clip_norm: float | None = None, scaler: torch.amp.GradScaler | None = None, seed: int = 0,
    on_step: Callable[[dict[str, Any]], None] | None = None, timeout: float | None = None,
    nodes: int | str | None = None, on_divergence: str | None = "warn",
    replicas: DeviceMesh | dist.ProcessGroup | None = None,
) -> Link:  # fmt: skip
    """Compresses the model's gradients from the next backward on. Every rank calls it, with the same arguments.

    model: wrapped in DistributedDataParallel, or with `replicas` sharded by FSDP2's fully_shard; torch.compile or
        Lightning Fabric may be around that.
    scheme: None chooses everything by the optimizer and total_steps, and rank 0 logs the choice (`link.recipe`). Or a
        string, dict or `Scheme`, e.g. "topk(1%) | indices=rice | values=qsgd(bits=7)", whose memory is chosen if it
        names none; or "auto" (`Auto`): dense or compressed, whichever is faster here, measured while it runs.
    optimizer: the one that trains the model, or a list of them. It decides on the memory, as exactly one of the two may
        hold the momentum. SGD stays as it is; the first moment of Adam and its relatives is left out within their
        steps for parameters that travel sparse. None: not known; may be left out if the scheme names its memory.
    total_steps: optimizer steps of the whole run. The ratio is coverage / total_steps, within 0.1 % … 100 %: a coverage
        is how often each coordinate is sent on average. Without it the ratio is 5 %.
    ratio, memory: instead of those that would be chosen; ratio is the mean, where a schedule is chosen.
    select_per: "parameter", or "bucket" to let parameters in one DDP bucket compete for the selection, or "model" for
        one threshold over all of them (with topk); the exchange then waits for the last bucket. None: as chosen.
    dense_below, exclude: parameters smaller than this, or whose name matches a pattern (or for which a function of
        name and parameter is true), travel dense: behind messages, or all in one all_reduce.
    warmup_steps: dense steps at the beginning. ratio_schedule: a function of the step after them, or (until, ratio)
        pairs such as `dgc_schedule` gives, which do not go below the scheme's own ratio; None or beyond the last pair:
        that ratio.
    follow_rate: what waits to be sent moves the weights as far as it would have done, whatever the optimizer's learning
        rate is when it is sent; for SGD with memory=residual or dgc.
    clip_norm: clips each rank's gradient to clip_norm/√ranks before what was not sent is added, as DGC does; the
        exchange then waits for the last bucket. Clipping after backward would clip the compensated sum.
    scaler: the GradScaler that the loss goes through, if one does: residuals then follow its scale as it changes.
    seed: for everything random. on_step: called after each step with a dict, on the communication thread.
    timeout: seconds that a collective may wait for a rank; by default as long as the model's own process group.
    nodes: "auto", or how many ranks one after another share a machine: these average dense among themselves first, and
        each compresses and exchanges one part of every parameter with its like on the other machines.
    on_divergence: "warn" has rank 0 log once if what waits runs away beside the gradient; "dense" also sends it and
        goes on dense for a while; None: nobody looks.
    replicas: for a model that FSDP2 has sharded over a mesh of one dimension: the mesh (or group) of the ranks that
        hold the same shard, mesh["replicate"]. Shards are averaged by FSDP, replicas by sparsewire.

    A setting that one rank refuses is an error on every rank, at once.
    """
    options = Options(
        scheme=scheme, optimizer=optimizer, total_steps=total_steps, coverage=coverage, ratio=ratio, memory=memory,
        select_per=select_per, dense_below=dense_below, exclude=exclude, warmup_steps=warmup_steps,
        ratio_schedule=ratio_schedule, follow_rate=follow_rate, clip_norm=clip_norm, scaler=scaler, seed=seed,
        on_step=on_step, timeout=timeout, nodes=nodes, on_divergence=on_divergence, replicas=replicas,
    )  # fmt: skip
    if replicas is None:
        return open_link(model, options)
    from ..fsdp.opening import open_fsdp

    return open_fsdp(model, options)
