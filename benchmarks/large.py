"""Large models on one machine: seconds a step by stage, and memory, as the number of parameters grows.

    python benchmarks/large.py [--parameters 100M 300M 1000M] [--json FILE]

One rank's own work on gradients in buckets of 2^24 numbers, without a network, weights or a framework: what waits for
nobody. `step` counts finite steps after the first two. Memory is what the rank holds at most beyond the gradients.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import sys
import time
from typing import Any

from sparsewire import scheme
from sparsewire.comm import Communicator, run_ranks
from sparsewire.lab import measure
from sparsewire.lab.arguments import add_json
from sparsewire.lab.tables import number, publish, table
from sparsewire.training.averager import Averager
from sparsewire.training.schedule import SchemeSchedule, Settings

BUCKET, FIRST, STEPS = 2**24, 2, 3
SCHEME = "topk(1%) | indices=rice | values=qsgd(bits=7) | memory=residual"
PAGE = 1024  # ru_maxrss is in kB
SIZES = ("100M", "300M", "1000M")


def resident() -> int:
    return PAGE * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def steps(comm: Communicator, parameters: int) -> dict[str, Any]:
    noise = measure.noise(BUCKET)
    sizes = [min(BUCKET, parameters - start) for start in range(0, parameters, BUCKET)]
    gradients = {f"layer{place}": noise[:size].copy() for place, size in enumerate(sizes)}
    before = resident()
    one = Averager(comm, Settings(SchemeSchedule(scheme(SCHEME))), {name: x.size for name, x in gradients.items()})
    seconds, known = [], {}
    for step in range(FIRST + STEPS):
        for x in gradients.values():
            x[:] = noise[: x.size]
        if step == FIRST:
            known = dict(one.clock.seconds)
        start = time.perf_counter()
        for name, x in gradients.items():  # a bucket at a time, as DDP hands them over
            one.put({name: x})
        assert one.finish()
        seconds.append(time.perf_counter() - start)
    stages = {name: (spent - known[name]) / STEPS for name, spent in one.clock.seconds.items()}
    return {
        "parameters": parameters, "step": statistics.median(seconds[FIRST:]), "stages": stages,
        "bytes_a_parameter": (resident() - before) / parameters,
    }  # fmt: skip


def child(parameters: int, pipe: Any) -> None:
    pipe.send(run_ranks(1, lambda comm: steps(comm, parameters))[0])


def measured(parameters: int) -> dict[str, Any]:
    """In a process of its own, as memory at most is counted from its start."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=child, args=(parameters, there))
    process.start()
    there.close()
    try:
        found: dict[str, Any] = here.recv()
    except EOFError:
        raise SystemExit(f"{parameters:,} parameters: the process ended without a result") from None
    process.join()
    return found


def show(rows: list[dict[str, Any]]) -> str:
    stages = [name for name in rows[0]["stages"] if max(row["stages"][name] / row["step"] for row in rows) > 0.005]
    headers = ["parameters", "step ms", "ns a parameter", *stages, "bytes a parameter"]
    return table(headers, [_cells(row, stages) for row in rows])


def _cells(row: dict[str, Any], stages: list[str]) -> list[str]:
    each = 1e9 / row["parameters"]
    spent = [number(each * row["stages"][name], 3) for name in stages]
    step = [number(1e3 * row["step"], 0), number(each * row["step"], 3)]
    return [f"{row['parameters']:,}", *step, *spent, number(row["bytes_a_parameter"], 2)]


def millions(text: str) -> int:
    return 1_000_000 * int(text.removesuffix("M"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=millions, nargs="+", default=[millions(text) for text in SIZES])
    add_json(parser)
    args = parser.parse_args()
    rows = [measured(parameters) for parameters in args.parameters]
    publish(show(rows), {"machine": measure.machine(), "scheme": SCHEME, "rows": rows}, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
