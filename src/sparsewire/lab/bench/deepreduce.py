"""`sparsewire bench deepreduce`: the paper's methods on real gradients, beside the paper's own figures.

Volumes are in percent of the dense tensor. The error is ‖x − decoded‖ over all entries that were selected or sent,
relative to ‖x‖ over the selected ones: 0 where the sent values are exact, even if a filter adds entries.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from sparsewire import kernels
from sparsewire.codecs.contract import Context, IndexCodec
from sparsewire.codecs.scheme import scheme
from sparsewire.core import host
from sparsewire.frames.codec import decode, encode, inspect
from sparsewire.kernels import Array

from .. import measure
from ..arrays import load_gradients
from ..tables import number, publish, table

CONVOLUTION = 36_864
RATES, LAYOUTS, KEYS = (0.1, 0.02, 0.001), ("blocked", "classic"), 8
HEADERS = ["method", "values %", "indices %", "map %", "total %", "paper: values", "indices", "rel. error"]
HEADERS += ["enc ms", "dec ms"]


@dataclass(frozen=True)
class Method:
    """A row: the scheme, and the paper's value and index volume for one convolution's gradient (none: not given)."""

    name: str
    scheme: str
    values: float | None = None
    indices: float | None = None


BLOOM = "bloom(fpr=0.001, policy={})"
METHODS = (
    Method("Top-r", "deepreduce(indices=raw, values=raw)", 1.00, 1.00),
    Method("Huffman", "deepreduce(indices=huffman, values=raw)", 1.00, 0.62),
    Method("RLE", "deepreduce(indices=run_length, values=raw)", 1.00, 0.59),
    Method("BF-naive", f"deepreduce(indices={BLOOM.format('naive')})"),
    Method("BF-P0", f"deepreduce(indices={BLOOM.format('p0')})"),
    Method("BF-P1", f"deepreduce(indices={BLOOM.format('p1')})"),
    Method("BF-P2", f"deepreduce(indices={BLOOM.format('p2, layout=classic')})", 1.00, 0.45),
    Method("Deflate", "deepreduce(indices=raw, values=deflate)", 0.90, 1.00),
    Method("QSGD", "deepreduce(indices=raw, values=qsgd(bits=7))", 0.25, 1.00),
    Method("Fit-Poly", "deepreduce(indices=raw, values=fit_poly)", 0.17, 1.00),
    Method("Fit-DExp", "deepreduce(indices=raw, values=fit_dexp)", 0.02, 1.00),
    Method("Fit-Poly, rice", "deepreduce(indices=rice, values=fit_poly)"),
    Method("Fit-Poly, rice, 4 rank bits", "deepreduce(indices=rice, values=fit_poly(rank_bits=4))"),
    Method("BF-P2+DExp", f"deepreduce(indices={BLOOM.format('p2, layout=classic')}, values=fit_dexp)", 0.02, 0.73),
    Method("BF-P2+QSGD", f"deepreduce(indices={BLOOM.format('p2, layout=classic')}, values=qsgd(bits=7))", 0.25, 0.45),
    Method("SKCompress, 2 levels", "skcompress(levels=2)", 0.04, 0.30),
    Method("SKCompress, 16 levels", "skcompress(levels=16)"),
    Method("ours, 1 % error", "topk(1%) | indices=best | values=entropy(error=0.01)"),
    Method("ours, 5 % error", "topk(1%) | indices=best | values=entropy(error=0.05)"),
    Method("ours, 20 % error", "topk(1%) | indices=best | values=entropy(error=0.2)"),
)
NATURAL = (
    Method("BF-P0+QSGD", "nonzero | indices=bloom(fpr=0.6, policy=p0) | values=qsgd(bits=7)"),
    Method("SKCompress, 16 levels", "nonzero | indices=huffman | values=quantile"),
    Method("ours, 5 % error", "nonzero | indices=best | values=entropy(error=0.05)"),
)


def main(args: argparse.Namespace) -> int:
    arrays = load_gradients(args.files)
    result = run(arrays or {"made": made()})
    publish(show(result), result, args.json)
    return 0


def made(size: int = 269_722, seed: int = 0) -> Array:
    """A synthetic gradient, used when no file is given: layers of different scales, heavy tails."""
    rng = np.random.default_rng(seed)
    scales = np.repeat(rng.lognormal(0, 1.5, 32), -(-size // 32))[:size]
    return (rng.standard_t(4, size) * scales * 1e-3).astype(np.float32)


def run(arrays: dict[str, Array]) -> dict[str, Any]:
    """A table per input: a part of the first array as large as one convolution, all arrays, naturally sparse arrays."""
    dense = {name: flat(array) for name, array in arrays.items()}
    first = next(iter(dense))
    jobs: list[tuple[str, Array, tuple[Method, ...]]] = [(f"{first}, one convolution", busiest(dense[first]), METHODS)]
    jobs += [(f"{name}, whole", x, METHODS) for name, x in dense.items()]
    jobs += [(f"{name}, sparse by nature", x, NATURAL) for name, x in dense.items() if np.count_nonzero(x) < x.size / 2]
    steps = sum(len(methods) for _, _, methods in jobs) + len(dense) * len(RATES) * len(LAYOUTS)
    with measure.progress(steps) as advance:
        tables = [
            {"input": name, "numel": x.size, "rows": [_row(x, m, advance) for m in methods]}
            for name, x, methods in jobs
        ]
        filters = [row for name, x in dense.items() for row in _filters(name, x, advance)]
    return {"machine": measure.machine(), "tables": tables, "filters": filters}


def flat(array: Array) -> Array:
    tensor = host.to_host(array)
    assert isinstance(tensor, host.Dense)
    return tensor.flat


def busiest(x: Array) -> Array:
    """The part with the largest sum of magnitudes, as long as one convolution of ResNet-20."""
    starts = range(0, max(1, x.size - CONVOLUTION + 1), CONVOLUTION)
    return max((x[start : start + CONVOLUTION] for start in starts), key=lambda part: float(np.abs(part).sum()))


def _row(x: Array, method: Method, advance: measure.Advance) -> dict[str, Any]:
    advance(method.name)
    plan = scheme(method.scheme)
    frame = encode(x, plan)
    facts = inspect(frame, max_entries=sys.maxsize)
    dense, maps = facts["dense_bytes"], facts["parts"].get("values.map", 0)
    return {
        "method": method.name,
        "scheme": str(plan),
        "values": 100 * (facts["sections"]["values"] - maps) / dense,
        "indices": 100 * facts["sections"]["indices"] / dense,
        "map": 100 * maps / dense,
        "total": 100 * facts["bytes"] / dense,
        "error": _error(x, frame, plan.select),
        "encode_ms": 1e3 * measure.least(lambda: encode(x, plan)),
        "decode_ms": 1e3 * measure.least(lambda: decode(frame, max_entries=sys.maxsize)),
        "paper_values": method.values,
        "paper_indices": method.indices,
    }


def _error(x: Array, frame: bytes, select: Any) -> float:
    seen = decode(frame, max_entries=sys.maxsize)
    wanted = select.pick(x, Context(x.dtype.name, x.size))[0]
    every = np.union1d(wanted, seen.indices)
    approx = seen.to_dense().reshape(-1)[every]
    wide = x.astype(np.float64)
    norm = float(np.linalg.norm(wide[wanted]))
    return float(np.linalg.norm(wide[every] - approx)) / norm if norm else 0.0


def _filters(name: str, x: Array, advance: measure.Advance) -> Iterator[dict[str, Any]]:
    """False positive rates of Bloom filters, on the top 1 % and on as many uniformly random indices."""
    count = measure.share(0.01, x.size)
    supports = {"real": kernels.topk(x, count)[0], "uniform": measure.uniform_indices(x.size, count)}
    for rate, layout in product(RATES, LAYOUTS):
        advance(f"bloom({rate}, {layout})")
        codec = scheme(f"topk | indices=bloom(fpr={rate}, policy=p0, layout={layout})").indices
        shares = {kind: _false_positives(codec, support, x.size) for kind, support in supports.items()}
        yield {"input": name, "fpr": rate, "layout": layout, **shares}


def _false_positives(codec: IndexCodec, support: Array, numel: int) -> float:
    """The share of the other indices that the filter reports, averaged over several keys."""
    contexts = (Context("float32", numel, support.size, key=key) for key in range(KEYS))
    more = sum(codec.encode(support, ctx)[1].size - support.size for ctx in contexts)
    return float(more / (KEYS * (numel - support.size)))


def show(result: dict[str, Any]) -> str:
    parts = [measure.machine_line(result["machine"])]
    for one in result["tables"]:
        parts.append(f"{one['input']}: d = {one['numel']:,}\n" + table(HEADERS, [_cells(row) for row in one["rows"]]))
    rows = [[row["input"], row["layout"], f"{row['fpr']:g}", *(_times(row, kind) for kind in ("real", "uniform"))]
            for row in result["filters"]]  # fmt: skip
    headers = ["Bloom filters: top 1 % of", "layout", "nominal FPR", "measured × nominal", "uniform indices"]
    return "\n\n".join([*parts, table(headers, rows)])


def _times(row: dict[str, Any], kind: str) -> str:
    return number(row[kind] / row["fpr"], 3)


def _cells(row: dict[str, Any]) -> list[str]:
    volumes = [number(row[key], 3) for key in ("values", "indices", "map", "total")]
    paper = [number(row["paper_values"]), number(row["paper_indices"])]
    return [
        row["method"],
        *volumes,
        *paper,
        f"{row['error']:.3f}",
        number(row["encode_ms"], 3),
        number(row["decode_ms"], 3),
    ]
