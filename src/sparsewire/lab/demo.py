"""`sparsewire demo`: one gradient through every index codec and a few value codecs."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from ..codec import compress, decode, inspect
from ..kernels import Array
from . import measure
from .bench_codecs import names, relative_error
from .tables import number, publish, table

ROWS, COLUMNS = 2_000, 500
VALUES = ("raw", "half", "qsgd", "qsgd+deflate")


def main(args: argparse.Namespace) -> int:
    x = gradient()
    result = [_row(x, indices, values) for values in VALUES for indices in names("indices")]
    publish(_show(result), result, args.json)
    return 0 if all(row["conserved"] and (row["restored"] or row["error"]) for row in result) else 1


def gradient() -> Array:
    """A gradient of a million elements as layers have them: a few rows are large, and within a row tails are heavy."""
    rng = np.random.default_rng(0)
    rows = np.exp(1.5 * rng.standard_normal((ROWS, 1)))
    return (1e-3 * rows * rng.standard_t(4, (ROWS, COLUMNS))).astype(np.float32)


def _row(x: Array, indices: str, values: str) -> dict[str, Any]:
    frame, residual = compress(x, f"topk(1%) | indices={indices} | values={values}", name="demo")
    info, sent = inspect(frame), decode(frame)
    return {
        "indices": indices,
        "values": values,
        "bytes": len(frame),
        "ratio": info["ratio"],
        "bits_per_index": info["bits_per_entry"]["indices"],
        "bits_per_value": info["bits_per_entry"]["values"],
        "error": relative_error(x.reshape(-1)[sent.indices], sent.values),
        "conserved": bool((x - sent.to_dense() == residual).all()),
        "restored": bool((sent.to_dense() + residual == x).all()),
    }


def _show(result: list[dict[str, Any]]) -> str:
    headers = [
        "indices",
        "values",
        "bytes",
        "× smaller",
        "bits/index",
        "bits/value",
        "rel. error",
        "input − sent = residual",
    ]
    title = f"A gradient of {ROWS} × {COLUMNS} float32 ({4 * ROWS * COLUMNS:,} bytes), its top 1 %"
    return f"{measure.machine_line(measure.machine())}\n{title}\n\n{table(headers, list(map(_cells, result)))}"


def _cells(row: dict[str, Any]) -> list[str]:
    law = "yes, and sent + residual = input" if row["restored"] else "yes" if row["conserved"] else "NO"
    sizes = [
        f"{row['bytes']:,}",
        number(row["ratio"], 1),
        number(row["bits_per_index"]),
        number(row["bits_per_value"]),
    ]
    return [row["indices"], row["values"], *sizes, f"{row['error']:.2g}", law]
