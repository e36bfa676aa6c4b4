"""Keras on TensorFlow: several `numpy_function`s take the gradients out of the graph, from the last layer to the first,
while backward goes on; one gives the means back. TensorFlow runs them one after another, as all of them are stateful.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from sparsewire.core.sparse import Sparse
from sparsewire.kernels import Array

from . import Step

BUCKET = 2**22  # bytes that are put at once


class RowsGradient(NamedTuple):
    """tf.IndexedSlices in NumPy's arrays."""

    indices: Array
    values: Array
    dense_shape: Array


def exchange(link: Any, names: Sequence[str], gradients: Sequence[Any], scale: Any) -> Step:
    scaled = [] if scale is None else [scale]
    done = [_put(link, names, gradients, bucket, scaled) for bucket in _buckets(gradients)]
    types = [part.dtype for gradient in gradients for part in _taken(gradient)]

    def finish(*_: Any) -> list[Any]:
        means = link.finish()
        parts = [part for name in names for part in _given(means[name])]
        given = [np.asarray(part, kind.as_numpy_dtype) for part, kind in zip(parts, types, strict=True)]
        return [*given, np.float32(link.averager.was_sparse)]

    *parts, sparse = tf.numpy_function(finish, done, [*types, tf.float32], stateful=True)
    sparse.set_shape(())
    arrays = iter(parts)
    return Step([_mean(gradient, arrays) for gradient in gradients], sparse)


def settle() -> None:
    """Steps are over when they return."""


def _buckets(gradients: Sequence[Any]) -> Iterator[list[int]]:
    """Places of gradients, the last ones first."""
    bucket, size = list[int](), 0
    for place in reversed(range(len(gradients))):
        bucket.append(place)
        size += _bytes(gradients[place])
        if size >= BUCKET:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket


def _bytes(gradient: Any) -> int:
    if isinstance(gradient, tf.IndexedSlices):
        return 0
    return int((gradient.shape.num_elements() or 0) * gradient.dtype.size)


def _put(
    link: Any, names: Sequence[str], gradients: Sequence[Any], bucket: Sequence[int], scaled: Sequence[Any]
) -> Any:
    """Hands some gradients to the link; the output is there for what must come after."""
    are_rows = [isinstance(gradients[place], tf.IndexedSlices) for place in bucket]

    def put(*args: Any) -> Array:
        arrays = iter(args[len(scaled) :])
        given = {
            names[place]: RowsGradient(next(arrays), next(arrays), next(arrays)) if rows else next(arrays)
            for place, rows in zip(bucket, are_rows, strict=True)
        }
        link.put(given, args[0] if scaled else None)
        return np.zeros((), np.float32)

    inputs = [tensor for place in bucket for tensor in _inputs(gradients[place])]
    return tf.numpy_function(put, [*scaled, *inputs], tf.float32, stateful=True)


def _inputs(gradient: Any) -> list[Any]:
    if isinstance(gradient, tf.IndexedSlices):
        return [gradient.indices, gradient.values, gradient.dense_shape]
    return [gradient]


def _taken(gradient: Any) -> list[Any]:
    """The tensors whose kind the mean's have."""
    return [gradient.indices, gradient.values] if isinstance(gradient, tf.IndexedSlices) else [gradient]


def _given(mean: Any) -> list[Array]:
    """A mean as arrays: the rows of a sparse one, and their numbers."""
    if isinstance(mean, Sparse):
        return [mean.indices, mean.work_values.reshape(-1, *mean.shape[1:])]
    return [mean]


def _mean(gradient: Any, arrays: Iterator[Any]) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        rows, values = next(arrays), next(arrays)
        rows.set_shape([None])
        values.set_shape([None, *gradient.values.shape[1:]])
        return tf.IndexedSlices(values, rows, gradient.dense_shape)
    mean = next(arrays)
    mean.set_shape(gradient.shape)
    return mean
