"""Ranks of TensorFlow's own cluster (TF_CONFIG, grpc), through its collective operations."""

from __future__ import annotations

import itertools
import time
import zlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from sparsewire.errors import CommError, CommTimeout

from .base import Communicator
from .buffers import Array, Bytes
from .checks import check_reducible

FIRST_KEY = 1 << 20  # of groups; tf.distribute counts its own from 1
LINGER = 0.2  # seconds: a peer may still read the last answer when this rank has everything it needs
SUMMED = frozenset(np.dtype(name) for name in ("float32", "float64", "int32", "int64"))
FIRST = "write `tf.distribute.MultiWorkerMirroredStrategy()` as the first TensorFlow call of the program"
_made = itertools.count()  # communicators of this process: every rank makes them in the same order


class TensorFlowCommunicator(Communicator):
    """A rank of the cluster that TF_CONFIG describes.

    `tf.distribute.MultiWorkerMirroredStrategy()` starts the cluster, and must be the first TensorFlow call of the
    program. It is made here where the program has not done so.
    One collective that fails ends all collectives of the process: that is how TensorFlow works.
    """

    def __init__(self, timeout: float = 60.0) -> None:
        rank, size = start_cluster()
        super().__init__(rank, size)
        self._timeout, self._number = timeout, next(_made)
        self._calls: defaultdict[int, int] = defaultdict(int)  # by group

    def all_reduce(self, array: Array, op: str = "sum") -> Array:
        """TensorFlow adds up floats and wide integers; all else is gathered and combined here."""
        check_reducible(array, op)
        if op != "sum" or array.dtype not in SUMMED or self.size == 1 or not array.size:
            return super().all_reduce(array, op)
        self._begin("all_reduce", array.nbytes)
        self.bytes_received += array.nbytes
        flat = np.ascontiguousarray(array).reshape(-1)
        group = {"merge_op": "Add", "final_op": "Id", **self._in_order(range(self.size))}
        total = self._call("all_reduce", tf.raw_ops.CollectiveReduceV2, input=flat, **group)
        return np.array(total.numpy()).reshape(array.shape)

    def _broadcast_equal(self, buffer: Bytes, root: int) -> None:
        self._begin("broadcast", buffer.size if root == self.rank else 0)
        if self.size == 1:
            return
        words, group = _words(buffer), self._group(range(self.size), f"broadcast {root}")
        if root == self.rank:
            self._call("broadcast", tf.raw_ops.CollectiveBcastSendV2, input=words, **group)
            return
        shape = {"T": tf.int32, "shape": words.shape}
        got = self._call("broadcast", tf.raw_ops.CollectiveBcastRecvV2, **shape, **group)
        buffer[:] = got.numpy().view(np.uint8)[: buffer.size]

    def _gather_equal(self, call: str, mine: Bytes, everyone: Bytes, members: Sequence[int]) -> None:
        words = _words(mine)
        rows = self._call(call, tf.raw_ops.CollectiveGatherV2, input=words, **self._in_order(members)).numpy()
        found = rows.view(np.uint8).reshape(len(members), words.nbytes)
        everyone.reshape(len(members), -1)[:] = found[:, : mine.size]

    def _release_group(self) -> None:
        """A rank that ends its process at once would cut off what a peer is still reading."""
        if self.size > 1 and self.collectives:
            time.sleep(LINGER)

    def _in_order(self, members: Sequence[int]) -> dict[str, Any]:
        return {**self._group(members), "ordering_token": []}

    def _group(self, members: Sequence[int], kind: str = "") -> dict[str, Any]:
        """Which ranks take part, and the number of this call among theirs: the same on each of them."""
        name = f"{self._number} {kind} {list(members)}"
        key = FIRST_KEY + zlib.crc32(name.encode()) % 2**30
        self._calls[key] += 1
        return {
            "group_size": len(members),
            "group_key": key,
            "instance_key": self._calls[key],
            "timeout_seconds": self._timeout,
        }

    def _call(self, name: str, operation: Any, **settings: Any) -> Any:
        self._check_usable(name)
        try:
            with tf.init_scope(), tf.device("CPU:0"):
                return operation(**settings)
        except tf.errors.OpError as error:
            self._unusable = f"an earlier {name} failed, which ends all collectives of TensorFlow in this process"
            raise _translated(name, error) from None


def start_cluster() -> tuple[int, int]:
    """(rank, size) in the cluster, which is started unless the program has done so."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    workers = resolver.cluster_spec().as_dict().get("worker", [])
    if not workers or resolver.task_type != "worker":
        raise CommError(
            'TF_CONFIG names no workers: set it as {"cluster": {"worker": ["host:port", …]}, '
            '"task": {"type": "worker", "index": 0}} before TensorFlow is imported'
        )
    if context.context()._collective_ops_server_def is None and len(workers) > 1:
        _start_strategy()
    return int(resolver.task_id), len(workers)


def _start_strategy() -> None:
    try:
        tf.distribute.MultiWorkerMirroredStrategy()
    except RuntimeError as error:
        raise CommError(f"TensorFlow's cluster can no longer be started ({error}); {FIRST}") from error


def _words(data: Bytes) -> Array:
    """TensorFlow gathers no uint8: the bytes as whole int32, padded with zeros."""
    padded = np.zeros(max(1, -(-data.size // 4)) * 4, np.uint8)
    padded[: data.size] = data
    return padded.view(np.int32)


def _translated(name: str, error: tf.errors.OpError) -> CommError:
    late = isinstance(error, tf.errors.DeadlineExceededError) or "timed out" in str(error).lower()
    return (CommTimeout if late else CommError)(f"{name}: {str(error)[:500]}")
