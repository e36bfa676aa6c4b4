"""`sparsewire bench codecs`: size, error and speed of every codec in the registry."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparsewire import kernels
from sparsewire.codecs.contract import Context
from sparsewire.codecs.registry import codecs
from sparsewire.codecs.scheme import scheme
from sparsewire.core import host
from sparsewire.errors import SchemeError, SparsewireError
from sparsewire.frames.codec import bound_bits
from sparsewire.kernels import Array

from .. import measure
from ..arrays import load_gradients
from ..measure import Advance
from ..tables import number, publish, table

UNIFORM = (0.001, 0.01, 0.1)
CHAINS = ("qsgd+deflate", "half+zstd")


@dataclass(frozen=True)
class Input:
    """Selected indices, their values (None for index codecs only), and the name of the input."""

    name: str
    numel: int
    indices: Array
    values: Array | None = None
    dtype: str = "float32"

    @property
    def context(self) -> Context:
        return Context(self.dtype, self.numel, int(self.indices.size), key=1, own_key=2)


def main(args: argparse.Namespace) -> int:
    arrays = load_gradients(args.files)
    result = run(args.size, args.ratio, arrays)
    publish(show(result), result, args.json)
    return 0


def run(size: int, ratio: float, arrays: dict[str, Array]) -> dict[str, Any]:
    """Machine, settings, a row per index codec and input, and a row per value codec and input."""
    uniform = [_uniform(size, share) for share in UNIFORM]
    dense = [top(name, array, ratio) for name, array in {"normal": measure.noise(size), **arrays}.items()]
    index_jobs = [(item, name) for item in (*uniform, *dense[1:]) for name in names("indices")]
    value_jobs = [(item, name) for item in dense for name in (*names("values"), *CHAINS)]
    with measure.progress(len(index_jobs) + len(value_jobs)) as advance:
        index_rows = [_index_row(item, name, advance) for item, name in index_jobs]
        value_rows = [_value_row(item, name, advance) for item, name in value_jobs]
    settings = {"size": size, "ratio": ratio}
    return {"machine": measure.machine(), **settings, "indices": index_rows, "values": value_rows}


def names(slot: str) -> Iterator[str]:
    """The slot's codecs that work without settings."""
    for name in codecs(slot):
        try:
            scheme(f"topk | {slot}={name}")
        except (SchemeError, TypeError):
            continue
        yield name


def _uniform(size: int, share: float) -> Input:
    indices = measure.uniform_indices(size, measure.share(share, size))
    return Input(f"uniform {share:.1%}", size, indices)


def top(name: str, array: Array, ratio: float) -> Input:
    tensor = host.to_host(array)
    assert isinstance(tensor, host.Dense)
    indices, values = kernels.topk(tensor.flat, measure.share(ratio, tensor.flat.size))
    return Input(f"{name} top {ratio:.1%}", tensor.flat.size, indices, values, tensor.dtype)


# --- rows --------------------------------------------------------------------------------------------------------


def _index_row(item: Input, name: str, advance: Advance) -> dict[str, Any]:
    advance(f"indices={name}, {item.name}")
    codec = scheme(f"topk | indices={name}").indices
    row, realised = _timed(codec, item.indices, item)
    bound = bound_bits(item.numel, item.indices.size) / max(1, item.indices.size)
    exact = realised is not None and np.array_equal(realised, item.indices)
    return {
        **row,
        "codec": str(codec),
        "bound": bound,
        "times_bound": _ratio(row["bits"], bound),
        "exact": exact,
    }


def _value_row(item: Input, name: str, advance: Advance) -> dict[str, Any]:
    advance(f"values={name}, {item.name}")
    chain = scheme(f"topk | values={name}").values
    assert item.values is not None
    row, approx = _timed(chain, item.values, item)
    return {
        **row,
        "codec": str(chain),
        "error": None if approx is None else relative_error(item.values, approx),
    }


def _timed(codec: Any, array: Array, item: Input) -> tuple[dict[str, Any], Array | None]:
    """The columns common to both slots, and what a receiver decodes; a note instead if the codec is not installed."""
    row: dict[str, Any] = {"input": item.name, "bits": None, "encode_ns": None, "decode_ns": None, "note": ""}
    try:
        body, seen = codec.encode(array, item.context)
    except SparsewireError as error:
        return {**row, "note": str(error)}, None
    facts = replace(item.context, count=int(seen.size))
    if not np.array_equal(codec.decode(memoryview(body), facts), seen, equal_nan=True):
        raise SparsewireError(f"{codec} does not decode to what it promised on {item.name}")
    per = 1e9 / max(1, array.size)
    encode = per * measure.least(lambda: codec.encode(array, item.context))
    decode = per * measure.least(lambda: codec.decode(memoryview(body), facts))
    return {**row, "bits": 8 * len(body) / max(1, array.size), "encode_ns": encode, "decode_ns": decode}, seen


def relative_error(exact: Array, seen: Array) -> float:
    """‖exact − seen‖ / ‖exact‖."""
    wide = exact.astype(np.float64)
    norm = float(np.linalg.norm(wide))
    return float(np.linalg.norm(wide - seen)) / norm if norm else 0.0


def _ratio(part: float | None, whole: float) -> float | None:
    return part / whole if part is not None and whole else None


# --- the tables --------------------------------------------------------------------------------------------------


def show(result: dict[str, Any]) -> str:
    indices = table(
        ["indices", "of", "bits/entry", "× bound", "encode ns", "decode ns", ""],
        [_index_cells(row) for row in result["indices"]],
    )
    values = table(
        ["values", "of", "bits/value", "rel. error", "encode ns", "decode ns", ""],
        [_value_cells(row) for row in result["values"]],
    )
    return f"{measure.machine_line(result['machine'])}\nd = {result['size']:,}\n\n{indices}\n\n{values}"


def _index_cells(row: dict[str, Any]) -> list[str]:
    note = row["note"] or ("" if row["exact"] else "lossy")
    return [
        row["codec"],
        row["input"],
        number(row["bits"]),
        number(row["times_bound"], 3),
        *_times(row),
        note,
    ]


def _value_cells(row: dict[str, Any]) -> list[str]:
    error = "" if row["error"] is None else f"{row['error']:.2g}"
    return [row["codec"], row["input"], number(row["bits"]), error, *_times(row), row["note"]]


def _times(row: dict[str, Any]) -> list[str]:
    return [number(row["encode_ns"], 1), number(row["decode_ns"], 1)]
