"""The communication hook that DDP calls. DDP reads its annotations, so they must not be postponed to strings here."""

from typing import Protocol

import torch
import torch.distributed as dist


class Attached(Protocol):
    def handle(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]: ...


class Socket:
    """What the hook is registered with: DDP takes a hook once, but links may come and go."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.link: Attached | None = None


def sparsewire_hook(state: Socket, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    if state.link is not None:
        return state.link.handle(bucket)
    return _all_reduce(state.group, bucket)


def _all_reduce(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """What DDP does without a hook: for a model whose link was detached."""
    buffer = bucket.buffer().div_(dist.get_world_size(group))
    work = dist.all_reduce(buffer, group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])
