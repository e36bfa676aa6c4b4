"""ResNet-20 on CIFAR-10 over 4 ranks, one arm per DeepReduce method: `benchmarks/cifar.py DATA.npz`.

DATA.npz holds JPEG images (`train_jpeg`, `train_offsets`, `train_labels`, and the same with `test_`). All arms start
from the same weights and see the same batches, one step of each in turn, over gloo on 127.0.0.1. Exit status 1 with
--check if an arm ends more than a point below plain Top-1 %, averaged over the seeds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from sparsewire.errors import InputError, SparsewireError
from sparsewire.lab import measure
from sparsewire.lab.arguments import add_json
from sparsewire.lab.arrays import load_arrays
from sparsewire.lab.demo.job import batches
from sparsewire.lab.net.launch import launch_ranks
from sparsewire.lab.net.ranks import Endpoint
from sparsewire.lab.net.worker import Worker
from sparsewire.lab.tables import publish, table
from sparsewire.lab.tasks.images import images, resnet20
from sparsewire.lab.tasks.task import MOMENTUM
from sparsewire.lab.train.arms import Arm, seeded

MOST_LOST = 0.01
DENSE, TOP = "dense", "Top-1 %"
BLOOM = "bloom(fpr=0.001, policy={})"
SCHEMES = {
    TOP: "deepreduce(indices=raw, values=raw)",
    "BF-P0": f"deepreduce(indices={BLOOM.format('p0')})",
    "BF-P2": f"deepreduce(indices={BLOOM.format('p2')})",
    "Fit-Poly": "deepreduce(indices=rice, values=fit_poly)",
    "BF-P2+QSGD": f"deepreduce(indices={BLOOM.format('p2')}, values=qsgd(bits=7))",
    "ours": "topk(1%) | indices=best | values=entropy(error=0.05) | memory=residual",
}
SCHEDULE = ((40, 0.25), (80, 0.0625))  # (until step, ratio); then the scheme's 1 %
# The 1 % is selected from the whole gradient, as in the paper's volumes.
SETTINGS = {"hook": "sparsewire", "ratio_schedule": SCHEDULE, "select_per": "bucket", "dense_below": 0}
RANKS = 4


# --- what a rank does ----------------------------------------------------------------------------------------------


def train(worker: Worker, arms: dict[str, Any], data: str, count: int, test: int, steps: int, batch: int, rate: float,
          seed: int) -> dict[str, Any]:  # fmt: skip
    """Trains all arms; the rate rises linearly for a tenth of the steps, then decays to 0."""
    arrays = load_arrays(Path(data))
    x, y = images(arrays, "train", count)
    made = {name: Arm(seeded(resnet20, seed), settings, rate, MOMENTUM) for name, settings in arms.items()}
    flips = torch.Generator().manual_seed(100 * seed + worker.rank)
    for step, chosen in enumerate(batches(count, steps, batch, worker, seed)):
        some = augmented(x[chosen], flips)
        for arm in made.values():
            arm.optimizer.param_groups[0]["lr"] = rate * min(10 * (step + 1) / steps, (1 - step / steps) / 0.9)
            arm.step(some, y[chosen])
        worker.emit(step=step, loss={name: arm.losses[-1] for name, arm in made.items()})
    others = images(arrays, "test", test)
    return {name: report(arm, *others, worker) for name, arm in made.items()}


def augmented(x: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """Random horizontal flips, and a shift by up to 2 pixels, the same for the whole batch."""
    across, down = torch.randint(5, (2,), generator=draw).tolist()
    mirrored = torch.where(torch.rand(len(x), 1, 1, 1, generator=draw) < 0.5, x.flip(3), x)
    return functional.pad(mirrored, (2, 2, 2, 2))[:, :, down : down + 16, across : across + 16]


def report(arm: Arm, x: torch.Tensor, y: torch.Tensor, worker: Worker) -> dict[str, Any]:
    """Accuracy, each rank testing its share; and the mean volume after the ratio schedule (or of all steps)."""
    module = arm.module.eval()
    for buffer in module.buffers():
        dist.broadcast(buffer, 0)
    with torch.no_grad():
        right = sum((module(some).argmax(1) == wanted).sum()
                    for some, wanted in zip(x[worker.rank :: RANKS].split(250), y[worker.rank :: RANKS].split(250),
                                            strict=True))  # fmt: skip
    total = torch.as_tensor(right)
    dist.all_reduce(total)
    settled = arm.handed[SCHEDULE[-1][0] + 2 :]  # a link's byte count is one step late
    arm.close()
    return {"accuracy": int(total) / len(y), "loss": statistics.fmean(arm.losses[-20:]),
            "volume": statistics.fmean(settled or arm.handed) / arm.dense_bytes if arm.link else 1.0}  # fmt: skip


# --- the whole -----------------------------------------------------------------------------------------------------


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--train", type=int, default=20_000, help="how many images to train on")
    parser.add_argument("--test", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch", type=int, default=32, help="per rank")
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--dense", action="store_true", help="train without compression as well")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    add_json(parser)
    return parser.parse_args(argv)


def run(options: argparse.Namespace) -> dict[str, Any]:
    arms: dict[str, Any] = {DENSE: {"hook": "none"}} if options.dense else {}
    arms |= {name: {**SETTINGS, "scheme": text} for name, text in SCHEMES.items()}
    facts = {"count": options.train, "test": options.test, "steps": options.steps, "batch": options.batch,
             "rate": options.rate}  # fmt: skip
    order = {"arms": arms, "data": str(checked(options.data)), **facts}
    with measure.progress(options.steps * options.seeds) as advance:
        found = [launch_ranks("cifar:train", {**order, "seed": seed}, [Endpoint()] * RANKS,
                           lambda event: advance(f"step {event['step'] + 1}"), limit=24 * 3600)[0]
                 for seed in range(options.seeds)]  # fmt: skip
    rows = [{"arm": name, "scheme": SCHEMES.get(name, ""), **mean([one[name] for one in found])} for name in arms]
    return {"machine": measure.machine(), **facts, "seeds": options.seeds, "rows": rows}


def checked(path: Path) -> Path:
    missing = {f"{part}_{kind}" for part in ("train", "test") for kind in ("jpeg", "offsets", "labels")}
    missing -= set(load_arrays(path))
    if missing:
        raise InputError(f"{path} has no {', '.join(sorted(missing))}")
    return path.resolve()


def mean(reports: Sequence[dict[str, float]]) -> dict[str, Any]:
    means = {key: statistics.fmean(one[key] for one in reports) for key in reports[0]}
    return {**means, "accuracies": [one["accuracy"] for one in reports]}


def show(result: dict[str, Any]) -> str:
    top = next(row["accuracy"] for row in result["rows"] if row["arm"] == TOP)
    headers = ["", "accuracy", "points from Top-1 %", "by seed", "% of dense volume", "loss", "scheme"]
    rows = [[row["arm"], f"{row['accuracy']:.2%}", f"{100 * (row['accuracy'] - top):+.2f}",
             " ".join(f"{one:.2%}" for one in row["accuracies"]), f"{100 * row['volume']:.3f}", f"{row['loss']:.3f}",
             row["scheme"]] for row in result["rows"]]  # fmt: skip
    what = f"ResNet-20, {result['count']:,} images of CIFAR-10, {result['test']:,} to test; {result['steps']} steps"
    what += f" of {RANKS} ranks × {result['batch']} images, {result['seeds']} seeds"
    return f"{measure.machine_line(result['machine'])}\n{what}\n\n{table(headers, rows)}"


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    try:
        result = run(options)
    except (SparsewireError, OSError) as error:
        print(f"cifar.py: {error}", file=sys.stderr)
        return 2
    publish(show(result), result, options.json)
    accuracies = {row["arm"]: row["accuracy"] for row in result["rows"]}
    return int(options.check and min(accuracies.values()) < accuracies[TOP] - MOST_LOST)


if __name__ == "__main__":
    sys.exit(main())
