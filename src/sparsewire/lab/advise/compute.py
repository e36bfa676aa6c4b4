"""What a model computes in a training step: seconds, and when its gradients are ready, in buckets as DDP makes them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sparsewire.errors import InputError
from sparsewire.planning.cost.step import BucketTiming, Compute

from .. import measure
from .live import is_distributed, make_live

FIRST, CAP = 1 << 20, 25 << 20  # bytes of DDP's first bucket, and of the others
FORWARD = 1 / 3  # of a step of which nothing else is known: a backward takes twice as long as a forward
WARMUP, STEPS = 2, 9
Gradient = tuple[float, int, int]  # when it is ready, elements, bytes


def measured(spec: str, meet: Callable[[], object] = lambda: None) -> tuple[Compute, float, int]:
    """Of the model and training step that `MODULE:FUNCTION` returns, with the cores that it used, and how many numbers
    it learns: of tables a step has gradients of some rows only, which differ from rank to rank.

    meet: lets the ranks that are measured at the same time wait for each other, as every exchange does.
    """
    if not measure.has("torch"):
        raise InputError("--model needs torch: pip install torch")
    model, step = make_live(spec, "--model")
    if is_distributed(model):
        raise InputError(f"--model {spec}: the model exchanges gradients itself; return it as it is before DDP")
    buckets: dict[str, Any] = {}
    for _ in range(WARMUP):
        _step(model, step, spec, buckets, meet)
    start, used = time.perf_counter(), time.process_time()
    steps = [_step(model, step, spec, buckets, meet) for _ in range(STEPS)]
    used = (time.process_time() - used) / (time.perf_counter() - start)
    return _middle(steps), used, sum(one.numel() for one in model.parameters() if one.requires_grad)


def assumed(parameters: int, seconds: float) -> Compute:
    """A step of which only its length is known: gradients are ready evenly during backward."""
    rest, count = seconds * FORWARD, 64
    shares = [(place + 1) * parameters // count - place * parameters // count for place in range(count)]
    ready = [rest + (seconds - rest) * (place + 1) / count for place in range(count)]
    return in_buckets([(at, size, 4 * size) for at, size in zip(ready, shares, strict=True) if size], seconds)


def _step(
    model: Any, step: Callable[[], object], spec: str, buckets: dict[str, Any], meet: Callable[[], object]
) -> tuple[float, list[Gradient]]:
    """One step: its seconds, and its gradients as they became ready.

    As in DDP, each is copied into its bucket as soon as it is ready, and back when all ranks have come so far.
    """
    ready: dict[str, Gradient] = {}

    def note(name: str, parameter: Any) -> None:
        if not parameter.grad.is_sparse:
            buckets[name] = buckets[name].copy_(parameter.grad) if name in buckets else parameter.grad.clone()
        numel = (parameter.grad._values() if parameter.grad.is_sparse else parameter).numel()
        ready[name] = (time.perf_counter() - start, numel, numel * parameter.element_size())

    learned = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    hooks = [one.register_post_accumulate_grad_hook(partial(note, name)) for name, one in learned.items()]
    start = time.perf_counter()
    try:
        step()
    finally:
        for hook in hooks:
            hook.remove()
    if not ready:
        raise InputError(f"--model {spec}: no parameter of the model got a gradient: step() calls backward")
    meet()
    for name, bucket in buckets.items():
        if learned[name].grad is not None:
            learned[name].grad.copy_(bucket)
    return time.perf_counter() - start, sorted(ready.values())


def _middle(steps: Sequence[tuple[float, list[Gradient]]]) -> Compute:
    """The step of middle length."""
    seconds = statistics.median_low(seconds for seconds, _ in steps)
    return in_buckets(next(ready for spent, ready in steps if spent == seconds), seconds)


def in_buckets(gradients: Sequence[Gradient], seconds: float) -> Compute:
    """Gradients in the order in which they are ready, as DDP bundles them from the second step on.

    >>> found = in_buckets([(0.25, 1 << 18, 1 << 20), (0.5, 10, 40), (0.75, 10, 40)], 1.0)
    >>> found.rest, [(part.ready, part.numel) for part in found.buckets]
    (0.5, [(0.0, 262144), (0.5, 20)])
    """
    parts: list[BucketTiming] = []
    numel = nbytes = 0
    for place, (at, size, length) in enumerate(gradients):
        numel, nbytes = numel + size, nbytes + length
        if nbytes >= (CAP if parts else FIRST) or place == len(gradients) - 1:
            parts.append(BucketTiming(at, numel, nbytes))
            numel = nbytes = 0
    first, last = parts[0].ready, parts[-1].ready
    return Compute(
        seconds - last + first, [BucketTiming(part.ready - first, part.numel, part.nbytes) for part in parts]
    )  # fmt: skip
