"""Torchft with a compressed manager: replicas that are killed, step times beside its dense allreduce, and DiLoCo.

    python benchmarks/torchft_faults.py --trials 10 --data FOLDER --json docs/results/torchft.json

A trial has three replicas, of which one is killed at a random moment and started again. It passes if all replicas end
with equal bits, had equal bits after every step that several of them counted, counted no step twice, and came to their
end in time. Methods and kinds of quorum take turns. FOLDER has tinyshakespeare.txt.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchft_trials import environment, lighthouse, passed, run_trial

from sparsewire.lab.arguments import add_json, count
from sparsewire.lab.measure import machine
from sparsewire.lab.tables import publish

MEASURE = Path(__file__).with_name("torchft_measure.py")
KINDS = (("ddp", False), ("ddp", True), ("diloco", False), ("local", False), ("local", True))
KILLED_SCHEME = "topk(5%) | memory=residual"
SIZES = (1_000_000, 10_000_000)
STEP_SCHEMES = ("dense", "topk(1%) | memory=residual", "topk(0.1%) | memory=residual")
ROUND_SCHEMES = (
    ("dense", 0.9),
    ("topk(10%) | memory=residual", 0.9),
    ("topk(10%) | memory=residual", 0.0),
    ("dense", 0.0),
)
LIMIT = 900  # seconds for a measurement


def kills(trials: int) -> list[dict[str, Any]]:
    """Every trial's facts."""
    rows = []
    for seed, (method, async_quorum) in zip(range(trials), itertools.cycle(KINDS), strict=False):
        with tempfile.TemporaryDirectory() as folder:
            try:
                facts = run_trial(Path(folder), method, KILLED_SCHEME, seed, async_quorum)
                facts["passed"] = passed(facts)
            except (TimeoutError, RuntimeError) as error:
                facts = {"passed": False, "error": str(error)[:2000]}
        rows.append({"seed": seed, "method": method, "async_quorum": async_quorum, **facts})
        print(f"trial {seed}: {'passed' if facts['passed'] else facts}", file=sys.stderr, flush=True)
    return rows


def measure(scheme: str, *words: object) -> dict[str, Any]:
    """What the first of two replicas measured."""
    with tempfile.TemporaryDirectory() as folder, lighthouse() as address:
        outs = [Path(folder, f"{place}.json") for place in range(2)]
        commands = [[sys.executable, str(MEASURE), str(out), f"replica{place}", address, scheme, *map(str, words)]
                    for place, out in enumerate(outs)]  # fmt: skip
        with Path(folder, "log").open("w+") as log:
            children = [subprocess.Popen(one, env=environment(), stdout=log, stderr=log) for one in commands]
            try:
                ended = [child.wait(LIMIT) for child in children]
            finally:
                for child in children:
                    child.kill()
            if any(ended):
                log.seek(0)
                raise RuntimeError(log.read()[-3000:])
        return {"scheme": scheme, **json.loads(outs[0].read_text())}


def show(result: dict[str, Any]) -> str:
    trials = result["trials"]
    lines = [f"{sum(row['passed'] for row in trials)} of {len(trials)} trials passed"]
    lines += [f"{row['elements']:>11,} elements  {row['scheme']:30} {row['median_ms']:8.1f} ms a step"
              for row in result["steps"]]  # fmt: skip
    lines += [f"DiLoCo  {row['scheme']:30} outer momentum {row['outer_momentum']:g}: test loss {row['test_loss']:.3f}, "
              f"{row['bytes_sent']:,} bytes" for row in result["diloco"]]  # fmt: skip
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=count, default=10)
    parser.add_argument("--steps", type=count, default=30, help="for each step time; 0: none")
    parser.add_argument("--rounds", type=count, default=40, help="of DiLoCo, 20 local steps each")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="with tinyshakespeare.txt; without it, no DiLoCo")
    add_json(parser)
    options = parser.parse_args(argv)
    result: dict[str, Any] = {"machine": machine(), "trials": kills(options.trials)}
    result["steps"] = [{"elements": size, **measure(scheme, "steps", size, options.steps)}
                       for size in SIZES for scheme in STEP_SCHEMES]  # fmt: skip
    result["diloco"] = [{"outer_momentum": momentum, "rounds": options.rounds, **measure(scheme, "diloco", options.data,
                         options.rounds, momentum)} for scheme, momentum in ROUND_SCHEMES if options.data]  # fmt: skip
    publish(show(result), result, options.json)
    return 0 if all(row["passed"] for row in result["trials"]) else 1


if __name__ == "__main__":
    sys.exit(main())
