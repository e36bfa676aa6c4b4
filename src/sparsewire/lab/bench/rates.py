"""`sparsewire bench rates`: bits per value against relative error, every value codec over the range of its settings.

Measured on the top entries of each gradient, with an index codec that keeps indices sorted, so that reorder maps are
included. The verdicts compare, for errors from 1 % to 30 %, the size of `entropy` with the smallest other codec that
stays within the error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from sparsewire.codecs.scheme import scheme
from sparsewire.errors import SparsewireError
from sparsewire.kernels import Array

from .. import measure
from ..arrays import load_gradients
from ..measure import Advance
from ..tables import number, publish, table
from .codecs import Input, relative_error, top
from .deepreduce import busiest, flat, made

LEVELS = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3)
OURS, FURTHER = "entropy", (0.001, 0.002, 0.005, 0.4, 0.5)
RANK_BITS = ("full", *range(1, 11))


def others() -> Iterator[tuple[str, str]]:
    """Pairs of a curve's name and a codec with settings, one point of that curve."""
    yield from ((name, name) for name in ("raw", "half", "bfloat16", "deflate", "zstd"))
    for bits, bucket in product(range(1, 13), (32, 128, 512, 2048)):
        yield "qsgd", f"qsgd(bits={bits}, bucket={bucket})"
        yield "qsgd+deflate", f"qsgd(bits={bits}, bucket={bucket})+deflate"
    for levels in (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256):
        yield "quantile", f"quantile(levels={levels})"
    for degree, segments, bits in product((1, 3, 5), ("auto", 1, 4, 32), RANK_BITS):
        yield "fit_poly", f"fit_poly(degree={degree}, segments={segments}, rank_bits={bits})"
    for bits in RANK_BITS:
        yield "fit_dexp", f"fit_dexp(rank_bits={bits})"


def main(args: argparse.Namespace) -> int:
    measure.need_for_picture(args.picture)
    arrays = load_gradients(args.files)
    result = run(arrays or {"made": made()}, args.ratio)
    publish(show(result), result, args.json)
    if args.picture is not None:
        from .rates_picture import draw_rates

        draw_rates(result, args.picture)
        print(f"\npicture: {args.picture}", file=sys.stderr if args.json == "-" else sys.stdout)
    return int(args.check and not all(row["smallest"] for one in result["inputs"] for row in one["verdicts"]))


def run(arrays: dict[str, Array], ratio: float = 0.01) -> dict[str, Any]:
    """The points of every codec and the verdicts, for each gradient and a part of it as large as one convolution."""
    dense = {name: flat(array) for name, array in arrays.items()}
    dense |= {f"{name}, one convolution": busiest(x) for name, x in dense.items()}
    jobs = [*others(), *((OURS, f"{OURS}(error={level})") for level in (*LEVELS, *FURTHER))]
    with measure.progress(len(dense) * len(jobs)) as advance:
        inputs = [_measured(top(name, x, ratio), jobs, advance) for name, x in dense.items()]
    return {"machine": measure.machine(), "ratio": ratio, "inputs": inputs}


def _measured(item: Input, jobs: Sequence[tuple[str, str]], advance: Advance) -> dict[str, Any]:
    tried = [_point(item, curve, text, advance) for curve, text in jobs]
    points = [point for point in tried if point is not None]
    return {"input": item.name, "count": item.indices.size, "points": points,
            "verdicts": [_verdict(points, level) for level in LEVELS]}  # fmt: skip


def _point(item: Input, curve: str, text: str, advance: Advance) -> dict[str, Any] | None:
    """None for a codec whose package is not installed."""
    advance(f"{text}, {item.name}")
    assert item.values is not None
    try:
        body, approx = scheme(f"topk | values={text}").values.encode(item.values, item.context)
    except SparsewireError:
        return None
    bits = 8 * len(body) / item.values.size
    return {"curve": curve, "codec": text, "bits": bits, "error": relative_error(item.values, approx)}


def _verdict(points: list[dict[str, Any]], level: float) -> dict[str, Any]:
    """The smallest size with at most this error: of `entropy`, and of all other codecs."""
    within = [point for point in points if point["error"] <= level]
    ours = min((point for point in within if point["curve"] == OURS), key=lambda point: point["bits"])
    other = min((point for point in within if point["curve"] != OURS), key=lambda point: point["bits"])
    return {"error": level, "ours": ours, "other": other, "smallest": ours["bits"] < other["bits"]}


def show(result: dict[str, Any]) -> str:
    headers = ["error ≤", f"{OURS}: bits/value", "error", "next: bits/value", "error", "which", ""]
    parts = [measure.machine_line(result["machine"])]
    for one in result["inputs"]:
        rows = [_cells(verdict) for verdict in one["verdicts"]]
        parts.append(f"{one['input']}: {one['count']:,} values\n{table(headers, rows)}")
    return "\n\n".join(parts)


def _cells(verdict: dict[str, Any]) -> list[str]:
    ours, other = verdict["ours"], verdict["other"]
    columns = [cell for one in (ours, other) for cell in (number(one["bits"]), f"{one['error']:.4f}")]
    return [f"{verdict['error']:.0%}", *columns, other["codec"], "" if verdict["smallest"] else "LARGER"]
