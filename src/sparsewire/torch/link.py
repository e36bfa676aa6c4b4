"""`Link`: a model's connection to the other ranks: DDP's hook and the courier on top of an `Averager`.

DDP hands over a bucket; on the courier's thread the averager exchanges it. After the last bucket of a step the averager
finishes the step, the means are in the buckets, and DDP goes on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from ..averager import Averager, Settings
from ..comm import Communicator
from ..errors import InputError
from ..host import to_host
from ..kernels.scratch import Kept
from ..sparse import Sparse
from .bucket import Bucket, to_coo
from .courier import Courier, Parcel
from .hook import Socket
from .tensors import to_arrays, to_tensors


class Link:
    """Made by `attach`; `stats()`, `state_dict()`, `detach()`; as a context manager it detaches at the end."""

    def __init__(
        self, names: dict[torch.Tensor, str], comm: Communicator, settings: Settings, socket: Socket, close: Any,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:  # fmt: skip
        self.comm = comm
        self.averager = Averager(comm, settings)
        self._names, self._socket, self._close, self.scaler = names, socket, close, scaler
        self._staging = Kept()
        self._step: list[Parcel[Bucket]] = []
        self._follow_scaler()
        self._courier: Courier[Bucket] = Courier(self._work, "sparsewire-courier")
        socket.link = self

    # --- what users call ---

    @property
    def step(self) -> int:
        return self.averager.step

    @property
    def attached(self) -> bool:
        return self._socket.link is self

    def stats(self) -> dict[str, Any]:
        """Totals since `attach`: steps, bytes handed to and got from the engine, what dense steps would have sent,
        and seconds by stage on the courier's thread."""
        return self.averager.stats()

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: tensors and plain types only. Every rank saves its own."""
        return to_tensors(self.averager.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from this rank's saved state. For another number of ranks, `sparsewire.torch.load` deals it out."""
        arrays = to_arrays(state)
        self._check_sizes(arrays)
        self.averager.load_state_dict(arrays)

    def detach(self) -> None:
        """Ends the courier; from now on the model's gradients are averaged dense, as without a link."""
        self._end(in_order=True)

    def _end(self, in_order: bool) -> None:
        if self._socket.link is self:
            self._socket.link = None
            self._courier.stop()
            self._close(in_order and self._courier.error is None)

    def __enter__(self) -> Link:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error here the others may never come to the barrier that ends a link in order.
        self._end(in_order=kind is None)

    def handle(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """What the hook calls, on autograd's thread."""
        return self._courier.send(Bucket.of(bucket, self._names))

    def _check_sizes(self, state: Mapping[str, Any]) -> None:
        sizes = {name: parameter.numel() * (1 + parameter.is_complex()) for parameter, name in self._names.items()}
        for name, buffers in state.get("buffers", {}).items():
            for kept in buffers.values():
                found = math.prod(kept["shape"]) if isinstance(kept, Mapping) else kept.size
                if sizes.get(name) != found:
                    raise InputError(f"the state has {found} numbers for {name!r}, the model {sizes.get(name)}")

    # --- what the courier does ---

    def _work(self, parcel: Parcel[Bucket]) -> None:
        try:
            self._put(parcel)
        except BaseException:
            self._step = []
            self.averager.abandon()
            raise

    def _put(self, parcel: Parcel[Bucket]) -> None:
        bucket = parcel.task
        if not self._step:
            self._follow_scaler()
        self._step.append(parcel)
        if bucket.is_sparse:
            x = to_host(bucket.buffer)
            assert isinstance(x, Sparse)
            self.averager.put_sparse(bucket.slices[0].name, x)
        else:
            self.averager.put_buffer(bucket.as_buffer(self._staging))
        if bucket.is_last:
            self._finish()

    def _follow_scaler(self) -> None:
        if self.scaler is not None:
            self.averager.follow(self.scaler.get_scale())

    def _finish(self) -> None:
        parcels, self._step = self._step, []
        self.averager.finish()
        # Only now: once DDP has its futures, the user may save or read what this step has left behind.
        for parcel in parcels:
            parcel.promise.set_result(self._result(parcel.task))

    def _result(self, bucket: Bucket) -> torch.Tensor:
        if not bucket.is_sparse:
            return bucket.buffer
        return to_coo(self.averager.sparse_means[bucket.slices[0].name], bucket.buffer)
