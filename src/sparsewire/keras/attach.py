"""`attach`: switches compression on for a Keras model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparsewire.codecs.contract import Memory
from sparsewire.codecs.scheme import Spec
from sparsewire.comm import Communicator
from sparsewire.training.recipe import COVERAGE
from sparsewire.training.schedule import Ratios
from sparsewire.training.settings import Exclude

from .link import Link
from .opening import Options, open_link

TIMEOUT = 300.0  # seconds; a rank that ends is noticed at once, this is for one that is late


def attach(
    model: Any, scheme: Spec | None = None, *, optimizer: Any = None, total_steps: int | None = None,
    coverage: float = COVERAGE, ratio: float | None = None, memory: str | Memory | None = None,
    select_per: str | None = None, dense_below: int = 1024, exclude: Exclude = (), warmup_steps: int = 0,
    ratio_schedule: Ratios | None = None, clip_norm: float | None = None, seed: int = 0,
    on_step: Callable[[dict[str, Any]], None] | None = None, timeout: float = TIMEOUT, nodes: int | str | None = None,
    comm: Communicator | None = None,
) -> Link:  # fmt: skip
    """Averages the model's gradients over all ranks, compressed, from the next step on.

    Every rank calls it, with the same arguments, after `compile` and before `fit`, and gets rank 0's weights and
    optimizer state. The link is a callback: as the first one, `fit(callbacks=[link, …])`, it makes the metrics those
    of all ranks, and all ranks end their epochs and their training together.

    model: built and compiled, without gradient accumulation. Its layers and weights stay as they are, and so does what
        `model.save` writes.
    scheme: None chooses everything by the optimizer and total_steps, and rank 0 logs the choice (`link.recipe`). Or a
        string, dict or `Scheme`, e.g. "topk(1%) | indices=rice | values=qsgd(bits=7)", whose memory is chosen if it
        names none; "nonzero | memory=none" sends everything.
    optimizer: the one that a custom `train_step` or a loop of your own applies; None: the one of `compile`.
    total_steps: optimizer steps of the whole run. The ratio is coverage / total_steps, within 0.1 % … 100 %: a coverage
        is how often each coordinate is sent on average. Without it the ratio is 5 %.
    ratio, memory: instead of those that would be chosen; ratio is the mean, where a schedule is chosen.
    select_per: "parameter", or "model" for one threshold over all variables (with topk). None: as chosen.
    dense_below, exclude: variables smaller than this, or whose path matches a pattern such as "*/bias" (or for which a
        function of path and variable is true), travel dense, all in one all_reduce.
    warmup_steps: dense steps at the beginning. ratio_schedule: a function of the step after them, or (until, ratio)
        pairs such as `dgc_schedule` gives.
    clip_norm: clips each rank's gradient to clip_norm/√ranks before what was not sent is added. The optimizer's own
        clipnorm would clip the compensated sum.
    seed: for everything random. on_step: called after each step with a dict.
    timeout: seconds that a collective may wait for a rank, where the communicator is made here.
    nodes: "auto", or how many ranks one after another share a machine: these average dense among themselves first.
    comm: the ranks. None: those of TF_CONFIG with TensorFlow, of jax.distributed with JAX, of torch.distributed with
        torch; a program that is started once works alone.

    A setting that one rank refuses is an error on every rank, at once.
    """
    return open_link(model, Options(
        scheme=scheme, optimizer=optimizer, total_steps=total_steps, coverage=coverage, ratio=ratio, memory=memory,
        select_per=select_per, dense_below=dense_below, exclude=exclude, warmup_steps=warmup_steps,
        ratio_schedule=ratio_schedule, clip_norm=clip_norm, seed=seed, on_step=on_step, timeout=timeout, nodes=nodes,
        comm=comm,
    ))  # fmt: skip
