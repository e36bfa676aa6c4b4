"""The communication hook that DDP calls. DDP reads its annotations, so they must not be postponed to strings here."""

import sys
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sparsewire.errors import InputError, SparsewireError

BUCKETS = (
    "torch.compile's python_reducer gives hooks one gradient at a time, without names or an end, and an exchange needs "
    'DDP\'s buckets: write torch._dynamo.config.optimize_ddp = "ddp_optimizer"'
)


class Attached(Protocol):
    def handle(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]: ...


class HookState:
    """The state that the hook is registered with: DDP takes a hook once, but links may come and go.

    DDP copies and pickles it with the model, but does not register the hook again: a copy knows no link.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.link: Attached | None = None

    def __reduce__(self) -> tuple[type["HookState"], tuple[()]]:
        return HookState, ()


# Not an attribute of the model, which its copies would have, too.
_registered: WeakKeyDictionary[DistributedDataParallel, HookState] = WeakKeyDictionary()


def free_hook(model: DistributedDataParallel) -> HookState:
    """The model's hook, which must be free; registered once, as DDP allows no second."""
    state, dynamo = _registered.get(model), sys.modules.get("torch._dynamo.config")
    if "python_reducer" in str(getattr(dynamo, "optimize_ddp", "")):
        raise InputError(BUCKETS)
    if state is None:
        state = HookState(model.process_group)
        model.register_comm_hook(state, sparsewire_hook)
        _registered[model] = state
    if state.link is not None:
        raise SparsewireError("the model has a link already; call its detach() first")
    return state


def sparsewire_hook(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    if isinstance(bucket, tuple):
        raise InputError(BUCKETS)
    if state.link is not None:
        return state.link.handle(bucket)
    return _all_reduce(state.group, bucket)


def _all_reduce(group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket as DDP does without a hook: for a model whose link was detached."""
    buffer = bucket.buffer().div_(dist.get_world_size(group))
    work: Any = dist.all_reduce(buffer, group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])
