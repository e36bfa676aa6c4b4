"""`sparsewire lab train`: real trainings over real links, one after another, each a line of results."""

from __future__ import annotations

import argparse
import datetime
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparsewire import __version__
from sparsewire.errors import InputError, SparsewireError

from .. import measure, results
from ..net.command import check_rates, count_nodes, endpoints_for
from ..net.launch import Event, launch_ranks
from ..net.stopping import stoppable
from ..results import Record
from ..tables import number, table
from ..tasks.workloads import WORKLOADS
from .cells import Cell, all_cells
from .progress import Progress

OnStep = Callable[[Event], None]
FLAGS = ("ranks", "ranks_per_node", "steps", "warmup", "batch", "tests", "learning_rate")


def main(args: argparse.Namespace) -> int:
    cells = _cells(args)
    check_rates(cell.rate for cell in cells)
    with stoppable():
        records = run(cells, args.output, args.limit)
    print(show(records, args.output))
    return int(any(record.get("error") for record in records))


def _cells(args: argparse.Namespace) -> list[Cell]:
    flags = _flags(args)
    if not args.file:
        return all_cells(flags, args.data)
    if flags:
        raise InputError(f"flags do not change what {args.file} says: put {', '.join(flags)} into the file")
    try:
        return all_cells(read_file(args.file), args.data)
    except SparsewireError as error:
        raise InputError(f"{args.file}: {error}") from None


def read_file(path: Path) -> dict[str, Any]:
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    if not measure.has(name):
        raise InputError("TOML needs Python 3.11, or tomli: pip install tomli")
    try:
        tables: dict[str, Any] = importlib.import_module(name).loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text: {error}") from None
    except (ValueError, RecursionError) as error:  # no TOML, or a number too long for Python
        raise InputError(str(error)) from None
    return tables


def _flags(args: argparse.Namespace) -> dict[str, Any]:
    lists = {"workloads": args.workload, "methods": args.method, "rates": args.rate, "seeds": args.seed}
    given = {**lists, **{name: getattr(args, name) for name in FLAGS}}
    return {name: value for name, value in given.items() if value is not None}


# --- running -----------------------------------------------------------------------------------------------------


def run(cells: Sequence[Cell], output: Path, limit: float = 3600.0) -> list[Record]:
    """The records of all cells, in their order; what has finished before is taken from the file."""
    known = results.finished(results.read(output)) if output.is_file() else {}
    left = [cell for cell in cells if cell.key not in known]
    progress = Progress(left, len(cells) - len(left))
    if left:
        results.prepare(output)
        with results.alone(output), progress:
            for cell in left:
                progress.start(cell)
                known[cell.key] = record = run_cell(cell, progress.step, limit)
                results.append(output, record)
                progress.finish(record)
    return [known[cell.key] for cell in cells]


def run_cell(cell: Cell, on_step: OnStep = lambda event: None, limit: float = 3600.0) -> Record:
    """Everything needed to repeat it, and what came of it; an error is recorded, too."""
    start, began = time.monotonic(), datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    facts = {
        "key": cell.key, "cell": cell.facts, "name": cell.method.name, "command": cell.command, "started": began,
        "sparsewire": __version__, "machine": measure.machine(),
    }  # fmt: skip
    try:
        outcome = _measured(cell, on_step, limit)
    except (SparsewireError, OSError) as error:
        outcome = {"error": str(error)}
    return {**facts, "wall_seconds": round(time.monotonic() - start, 2), **outcome}


def _measured(cell: Cell, on_step: OnStep, limit: float) -> Record:
    _check_data(cell)
    nodes, facts = count_nodes(cell.ranks, cell.ranks_per_node), cell.facts
    passed = ("workload", "data", "seed", "steps", "warmup", "batch", "tests", "learning_rate")
    order = {**{name: facts[name] for name in passed}, "arm": cell.method.arm(cell.steps)}
    with endpoints_for(nodes, cell.rate, cell.ranks_per_node) as endpoints:
        ranks = launch_ranks("sparsewire.lab.train.job:train_cell", order, endpoints, on_step, limit)
    return summary(cell, ranks)


def _check_data(cell: Cell) -> None:
    """Its file is there, before ranks are started for it."""
    file = WORKLOADS[cell.workload].file
    if file and not Path(cell.data, file).exists():
        raise InputError(f"{Path(cell.data, file)} is not there: name its folder with --data")


def summary(cell: Cell, ranks: Sequence[Mapping[str, Any]]) -> Record:
    """The record of all ranks. Steps are means over the ranks, as all end a step together; a step's time is the median
    after the warm-up, and the mean where only some of the steps exchange anything."""
    seconds, loss = _mean_steps(ranks, "seconds"), _mean_steps(ranks, "loss")
    typical = statistics.fmean if cell.method.periodic else statistics.median
    parts = {name: [part["parts"][name] for part in ranks] for name in ranks[0]["parts"]}
    stages = ranks[0]["stages"]
    return {
        "parameters": ranks[0]["parameters"],
        "score": ranks[0]["score"],
        "score_kind": WORKLOADS[cell.workload].task.score or None,
        "step_ms": 1e3 * typical(seconds[cell.warmup :]),
        "bytes_per_step": statistics.fmean(typical(rank["sent"][cell.warmup :]) for rank in ranks),
        "sent": [sum(rank["sent"]) for rank in ranks],
        "received": [sum(rank["received"]) for rank in ranks],
        "parts_ms": {name: 1e3 * _typical_part(spent, cell.warmup) for name, spent in parts.items()},
        "stages_ms": {name: 1e3 * statistics.fmean(rank["stages"].get(name, 0.0) for rank in ranks) for name in stages},
        "history": _history(ranks[0]["history"], seconds),
        "link": ranks[0]["link"],
        "step_seconds": [round(step, 6) for step in seconds],
        "loss": [round(step, 6) for step in loss],
        "sent_by_step": [round(step) for step in _mean_steps(ranks, "sent")],
    }


def _mean_steps(ranks: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [statistics.fmean(step) for step in zip(*(rank[key] for rank in ranks), strict=True)]


def _typical_part(ranks: Sequence[Sequence[float]], warmup: int) -> float:
    """A mean, so that the parts add up to the mean step."""
    return statistics.fmean(statistics.fmean(rank[warmup:]) for rank in ranks)


def _history(tested: Sequence[tuple[int, float | None]], seconds: Sequence[float]) -> list[list[float]]:
    """[steps, seconds of training, score] of each test on the way."""
    return [[step, round(sum(seconds[:step]), 6), score] for step, score in tested if score is not None]


# --- what is shown -----------------------------------------------------------------------------------------------


def show(records: Sequence[Record], output: Path) -> str:
    headers = ["workload", "method", "ranks", "rate", "seed", "step ms", "bytes a step", "score"]
    failed = [f"failed: {record['cell']['workload']}, {record['name']}: {record['error']}"
              for record in records if record.get("error")]  # fmt: skip
    return "\n".join([table(headers, [_row(record) for record in records]), *failed, f"results: {output}"])


def _row(record: Record) -> list[str]:
    cell = record["cell"]
    facts = [cell["workload"], record["name"], str(cell["ranks"]), cell["rate"], str(cell["seed"])]
    if record.get("error"):
        return [*facts, "", "", "failed"]
    return [*facts, number(record["step_ms"], 1), f"{record['bytes_per_step']:,.0f}", number(record["score"], 4)]
