"""`sparsewire bench kernels`: time of every hot path, as a multiple of one read (or one write) of the array."""

from __future__ import annotations

import argparse
import importlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from sparsewire import kernels
from sparsewire.codecs.contract import Context
from sparsewire.codecs.scheme import scheme
from sparsewire.core.sparse import Sparse, entries
from sparsewire.exchange import Piece
from sparsewire.exchange.allgather import Gathered
from sparsewire.exchange.sketch.table import Table
from sparsewire.frames.codec import decode, encode
from sparsewire.frames.compression import compress
from sparsewire.kernels import Array

from .. import measure
from ..measure import Run
from ..tables import number, publish, table

READ, READ_1M, MEMSET, SORT = "read floor", "read floor, d = 1M", "memset floor", "np.sort of the values"
TORCH = "torch.topk + sort + gather"
SMALL = 1_000_000
PEERS = 8
RANKS = 4
STEP_TARGETS = {  # of each stage, what a velocity may cost, and what a share of the mean and its gain
    ("residual", "pick"): (READ, 2.1),
    ("residual", "keep"): (READ, 3.1),
    ("residual", f"accumulate {RANKS} ranks"): (READ, 1.2),
    ("residual", "all"): (READ, 5.6),
    ("dgc", "all"): ("step, residual: all", 1.35),
    ("gain", "all"): ("step, residual: all", 1.15),
}
SPECTRAL = "superneurons(theta=0.85, bits=10)"
SCHEME = "topk(ratio={ratio}) | indices=rice | values=qsgd(bits=7)"


@dataclass(frozen=True)
class Case:
    """A function to time, its floor (the case it is compared with), and its target: at most so many times the floor."""

    name: str
    run: Run
    floor: str = READ
    target: float | None = None
    versus_torch: float | None = None
    slow: bool = False


@dataclass(frozen=True)
class Data:
    """The input of the cases."""

    x: Array
    k: int
    ratio: float
    threads: int

    @property
    def context(self) -> Context:
        return Context("float32", self.x.size, self.k, key=1, own_key=2)


def main(args: argparse.Namespace) -> int:
    kernels.threads = args.threads
    result = run(args.size, args.ratio, args.repeat)
    publish(show(result), result, args.json)
    return int(args.check and any(row["met"] is False for row in result["rows"]))


def run(size: int, ratio: float, repeat: int) -> dict[str, Any]:
    """Machine, settings and a row per case."""
    data = Data(measure.noise(size), measure.share(ratio, size), ratio, kernels.threads)
    parts = (_floors, _dense, _steps, _sketch, _torch, _codecs, _whole, _spectral)
    cases = [case for part in parts for case in part(data)]
    runs = {case.name: case.run for case in cases}
    slow = frozenset(case.name for case in cases if case.slow)
    with measure.progress(repeat * len(cases)) as advance:
        seconds = measure.interleaved(runs, repeat, advance, slow)
    settings = {"size": size, "ratio": ratio, "k": data.k, "repeat": repeat}
    return {"machine": measure.machine(), **settings, "rows": [_row(case, seconds) for case in cases]}


def _row(case: Case, seconds: dict[str, float]) -> dict[str, Any]:
    own, floor = seconds[case.name], seconds[case.floor]
    faster = seconds[TORCH] / own if case.versus_torch and TORCH in seconds else None
    row = {
        "name": case.name,
        "ms": own * 1e3,
        "floor": case.floor,
        "times_floor": own / floor,
        "target": case.target,
        "faster_than_torch": faster,
        "target_torch": case.versus_torch if faster else None,
    }
    return {**row, "met": _met(row)}


def _met(row: dict[str, Any]) -> bool | None:
    """Whether every target of the row is met; None where it has none."""
    most, least = row["target"], row["target_torch"]
    if most is None and least is None:
        return None
    return row["times_floor"] <= (most or math.inf) and (row["faster_than_torch"] or math.inf) >= (least or 0)


# --- cases -------------------------------------------------------------------------------------------------------


def _floors(data: Data) -> Iterator[Case]:
    read = getattr(kernels.native(), "read", np.max)
    out, small = np.empty_like(data.x), measure.noise(SMALL)
    count = measure.share(data.ratio, SMALL)
    yield Case(READ, lambda: read(data.x))
    yield Case(MEMSET, lambda: out.fill(0), floor=MEMSET)
    yield Case(READ_1M, lambda: read(small), floor=READ_1M)
    yield Case("topk, d = 1M", lambda: kernels.topk(small, count, threads=data.threads), READ_1M, 2.5)


def _dense(data: Data) -> Iterator[Case]:
    x, k, threads = data.x, data.k, data.threads
    edge = int(kernels.magnitude_bits(kernels.topk(x, k)[1]).min())
    bits = np.dtype(np.uint32)
    out = np.empty_like(x)
    parts = [_peer(data, seed) for seed in range(PEERS)]
    yield Case("topk", lambda: kernels.topk(x, k, threads=threads), target=1.6, versus_torch=25)
    yield Case("one_sign", lambda: kernels.one_sign(x, k, threads))
    yield Case("chunk_topk, 64 of 4096", lambda: kernels.chunk_topk(x, 64, 4096, threads))
    yield Case("threshold", lambda: kernels.threshold(x, edge, threads))
    yield Case("all_finite", lambda: kernels.all_finite(x, threads))
    yield Case("NumPy partition", lambda: np.partition(np.abs(x).view(bits), x.size - k), slow=True)
    name = f"accumulate {PEERS} peers"
    yield Case(name, lambda: kernels.accumulate(out, parts, 1 / PEERS, threads), MEMSET, 2.0)


def _steps(data: Data) -> Iterator[Case]:
    """A training step's parts, per tensor: pick from the compensated gradient, keep the rest, accumulate the mean."""
    for memory in ("residual", "dgc", "gain"):
        plan = scheme(f"topk({data.ratio}) | memory={memory}")
        x = data.x.copy()
        state = {name: measure.noise(x.size, seed=3) for name in plan.memory.buffers}
        piece = Piece("w", x, (x.size,), "float32", state)
        ctx = piece.context(plan, 0, 0, 0)
        selection = piece.select(plan, ctx)
        parts = [Sparse.trusted(*_peer(data, seed), (x.size,), "float32") for seed in range(1, RANKS)]
        sent = Sparse.trusted(selection.indices, selection.values, (x.size,), "float32")
        outcome = Gathered(0, [sent, *parts], False)
        stages: dict[str, Run] = {
            "pick": partial(piece.select, plan, ctx),
            "keep": partial(piece.keep, plan, outcome),
            f"accumulate {RANKS} ranks": partial(outcome.mean_into, x),
        }
        stages["all"] = partial(_run_all, list(stages.values()))
        for stage, run in stages.items():
            yield Case(f"step, {memory}: {stage}", run, *STEP_TARGETS.get((memory, stage), ()))


def _run_all(runs: list[Run]) -> None:
    for run in runs:
        run()


def _peer(data: Data, seed: int) -> tuple[Array, Array]:
    return measure.uniform_indices(data.x.size, data.k, seed), measure.noise(data.k, seed)


def _sketch(data: Data) -> Iterator[Case]:
    """The work of `exchange=sketch` for k entries: writing its own table, and reading estimates from a table."""
    values, table = (
        measure.noise(data.k, 1),
        Table(measure.uniform_indices(data.x.size, data.k), 1, data.k // 4 + 1, (7,)),
    )
    numbers = np.zeros(table.numbers, np.float32)
    yield Case("sketch insert", lambda: table.insert(numbers, values))
    yield Case("sketch project", lambda: replace(table).project(numbers))  # a new one counts its loads again


def _torch(data: Data) -> Iterator[Case]:
    if not measure.has("torch"):
        return
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    x = torch.from_numpy(data.x)

    def select() -> object:
        chosen = torch.topk(x.abs(), data.k, sorted=False).indices.sort().values
        return chosen, x[chosen]

    yield Case(TORCH, select, slow=True)


def _codecs(data: Data) -> Iterator[Case]:
    indices, values = kernels.topk(data.x, data.k)
    yield from _codec("indices", "rice", indices, data, encode=0.25, decode=0.12)
    for name in ("elias_fano", "bitmap", "huffman"):
        yield from _codec("indices", name, indices, data)
    yield from _codec("indices", "bloom(fpr=0.001, policy=p0)", indices, data, encode=14, decode=12)
    yield from _codec("indices", "bloom(fpr=0.001, policy=p2)", indices, data)
    yield from _codec("values", "qsgd", values, data)
    yield from _codec("values", "entropy", values, data)
    yield Case(SORT, lambda: np.sort(values), floor=SORT)
    yield from _codec("values", "fit_poly", values, data, encode=8, floor=SORT)


def _codec(
    slot: str, name: str, array: Array, data: Data, encode: float | None = None, decode: float | None = None,
    floor: str = READ,
) -> Iterator[Case]:  # fmt: skip
    codec, ctx = getattr(scheme(f"topk | {slot}={name}"), slot), data.context
    body, seen = codec.encode(array, ctx)
    facts = replace(ctx, count=seen.size)
    yield Case(f"{name} encode", lambda: codec.encode(array, ctx), floor, encode)
    yield Case(f"{name} decode", lambda: codec.decode(memoryview(body), facts), floor, decode)


def _whole(data: Data) -> Iterator[Case]:
    plan = scheme(SCHEME.format(ratio=data.ratio))
    residual = measure.noise(data.x.size, seed=2)
    frame = compress(data.x, plan)[0]
    yield Case("compress: topk, residual, rice, qsgd", lambda: compress(data.x, plan, residual=residual), target=4)
    yield Case("decode: rice, qsgd", lambda: decode(frame))


def _spectral(data: Data) -> Iterator[Case]:
    """SuperNeurons: whole, and what it consists of."""
    x, plan = data.x, scheme(SPECTRAL)
    coefficients, norms = plan.transform.forward_norms(x)
    chosen, ctx = plan.select.choose(norms, data.context)[0], replace(data.context, numel=norms.size)
    frame = encode(x, plan)
    yield Case(f"{SPECTRAL} encode", lambda: encode(x, plan), target=30)
    yield Case(f"{SPECTRAL} decode, to_dense", lambda: decode(frame).to_dense(), target=28)
    yield Case("fft forward, norms", lambda: plan.transform.forward_norms(x))
    yield Case("fft inverse", lambda: plan.transform.inverse(coefficients, x.size))
    yield Case("topk, 15 % of the pairs", lambda: plan.select.choose(norms, ctx))
    yield Case("error_budget, half of the norm", lambda: scheme("error_budget(50%)").select.choose(norms, ctx))
    values, facts = entries(coefficients, 2)[chosen].view(x.dtype), replace(ctx, count=2 * chosen.size)
    body, rice = plan.values.encode(values, facts)[0], replace(ctx, count=chosen.size)
    yield Case("range_float encode, 15 % of d", lambda: plan.values.encode(values, facts))
    yield Case("range_float decode, 15 % of d", lambda: plan.values.decode(memoryview(body), facts))
    yield Case("rice encode, 15 % of the pairs", lambda: plan.indices.encode(chosen, rice))


# --- the table ---------------------------------------------------------------------------------------------------


def show(result: dict[str, Any]) -> str:
    title = f"d = {result['size']:,} float32, k = {result['k']:,}, least of {result['repeat']} rounds"
    headers = ["", "ms", "× floor", "target", "met", "× faster than torch"]
    cells = [_cells(row) for row in result["rows"]]
    return f"{measure.machine_line(result['machine'])}\n{title}\n\n{table(headers, cells)}"


def _cells(row: dict[str, Any]) -> list[str]:
    met = {True: "yes", False: "NO", None: ""}[row["met"]]
    own = row["floor"] if row["floor"] != READ and row["floor"] != row["name"] else ""
    name = f"{row['name']}  (× {own})" if own else row["name"]
    times = number(row["times_floor"], 3 if row["times_floor"] < 0.1 else 2)
    return [name, number(row["ms"], 3), times, _target(row), met, number(row["faster_than_torch"], 1)]


def _target(row: dict[str, Any]) -> str:
    most = f"≤ {row['target']:g}" if row["target"] else ""
    return f"{most}, ≥ {row['target_torch']:g}× torch" if row["target_torch"] else most
