"""`sparsewire advise --model … | --parameters …`: whether compression shortens a training step, and which scheme does.

Measured: the link between the ranks that it is started on (or told: `--rate`), what the model computes in a step (or
told: `--step-ms`), and what the codecs cost on this machine. From these the cost model says how long a step takes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from sparsewire.codecs.scheme import Scheme, scheme
from sparsewire.comm import Communicator
from sparsewire.comm.threads import Hub, ThreadCommunicator
from sparsewire.errors import InputError
from sparsewire.planning.auto import measure_network, read_auto, survey
from sparsewire.planning.cost.model import NetworkSpeed
from sparsewire.planning.cost.step import Codecs, Compute, coding, dense_bytes, dense_step, sparse_bytes, sparse_step

from .. import measure
from ..net.network import bits_per_second
from ..tables import number, publish, table
from . import compute as computing
from . import cores
from .calls import calls, usual_ratio
from .device import Device, on_device
from .risk import OPTIMIZERS, SOURCE, STEPS, risk

PLAIN, HALF = "plain DDP", "torch's fp16 hook"
MORE = ("exchange=shared(support=leader)",)  # what `auto` does not try
MARGIN = 1.05  # times shorter, for a scheme to be worth it
PROBE, LARGEST, PROBES = 0.5, 1 << 25, 3  # seconds of one; bytes, at most; how many count
WIRE = 1514 / 1448  # bytes of a full packet, to those of it that are not headers
COLUMNS = ["", "step ms", "× faster", "MB sent", "own codecs ms", "scheme"]


@dataclass(frozen=True)
class Scene:
    """What is predicted: ranks, their link, what they compute, what codecs cost."""

    size: int
    link: NetworkSpeed
    compute: Compute
    codecs: Mapping[Scheme, Codecs]
    half: float = 0.0  # seconds per element that are rounded to float16, added up as such, and turned back
    device: Device | None = None  # where the gradients lie, if not on the host


def main(args: argparse.Namespace) -> int:
    check(args)
    plans = candidates(args.ratio or [usual_ratio(args.total_steps)], args.scheme or [])
    with ranks() as comm:
        scene = look(comm, plans, args)
    if args.device is not None:
        device = Device(args.device, args.pcie, args.memory)
        scene = replace(scene, codecs=on_device(scene.codecs, device, scene.size), half=device.half, device=device)
    if comm.rank == 0:
        result = run(scene, plans, args.optimizer, args.total_steps)
        result = {
            "machine": measure.machine(),
            "measured": {"link": args.rate is None, "step": bool(args.model)},
            **result,
        }
        publish(show(result), result, args.json)
    return 0


def check(args: argparse.Namespace) -> None:
    """Mistakes are told before the work."""
    if args.files or args.live or args.save or args.picture or args.error:
        raise InputError(
            "advise looks at gradients (files or --live), or at a step (--model or --parameters): one of them"
        )
    if (args.model is None) == (args.parameters is None):
        raise InputError("say what a step computes: --model MODULE:FUNCTION, or --parameters 25M --step-ms 300")
    if (args.parameters is None) != (args.step_ms is None):
        raise InputError(
            "--parameters and --step-ms belong together: how many, and how long a step without exchange is"
        )
    alone = _world() == 1
    if alone and (args.rate is None or args.ranks is None):
        raise InputError("say --rate 100mbit --ranks 4, or start it on the ranks: torchrun … -m sparsewire advise …")
    if not alone and args.rate is None and args.ranks not in (None, _world()):
        raise InputError(f"--ranks {args.ranks}: the link between the {_world()} ranks here is measured; leave it out")


def _world() -> int:
    if "RANK" not in os.environ:
        return 1
    word, missing = os.environ.get("WORLD_SIZE", "1"), {"MASTER_ADDR", "MASTER_PORT"} - {*os.environ}
    if not word.isdecimal() or not int(word):
        raise InputError(f"WORLD_SIZE={word} is not a number of ranks; torchrun sets it")
    if int(word) > 1 and missing:
        raise InputError(
            f"{' and '.join(sorted(missing))} not set beside RANK and WORLD_SIZE={word}; torchrun sets all"
        )
    return int(word)


@contextmanager
def ranks() -> Iterator[Communicator]:
    """The ranks that torchrun started, or one alone."""
    if _world() == 1:
        yield ThreadCommunicator(Hub(1, timeout=60.0), 0)
        return
    if not measure.has("torch"):
        raise InputError("several ranks need torch: pip install torch")
    import torch.distributed as dist

    from sparsewire.comm import TorchCommunicator

    dist.init_process_group("gloo")
    # A group of its own, which ends here with its threads: torch keeps the default one until the process has ended if
    # an optimizer is made while there is one, and a thread of gloo's that frees an array by then aborts.
    comm = TorchCommunicator(dist.new_group())
    try:
        yield comm
        comm.barrier()
    finally:
        comm.close()
        dist.destroy_process_group()


def candidates(ratios: Sequence[float], more: Sequence[str]) -> list[Scheme]:
    """Those of `auto`, an exchange of sums, and what the user names."""
    plans = [scheme(spec) for spec in more]
    for ratio in ratios:
        auto = read_auto(f"auto(ratio={ratio!r})")
        assert auto is not None
        plans += [*auto.plans, *(scheme(f"topk(ratio={ratio!r}) | {exchange}") for exchange in MORE)]
    return list(dict.fromkeys(plans))


def look(comm: Communicator, plans: Sequence[Scheme], args: argparse.Namespace) -> Scene:
    """All ranks at the same time, so that those that share cores are measured as they will be."""
    ranks = cores.ranks_here(comm)
    comm.barrier()
    if args.model is not None:
        made, used, learned = computing.measured(args.model, comm.barrier)
        compute = _slowest(replace(made, spare=cores.spare(used, ranks)), learned, comm)
    else:
        compute = computing.assumed(args.parameters, args.step_ms / 1e3)
    codecs = survey(comm, plans, compute.numel)
    if args.rate is not None:
        link = NetworkSpeed(args.latency, WIRE * 8 / bits_per_second(args.rate))
        return Scene(args.ranks or comm.size, link, compute, codecs, cores.casting(comm, link))
    link = measure_network(comm, PROBE, LARGEST, PROBES)
    return Scene(comm.size, cores.with_busy(link, comm, ranks), compute, codecs, cores.casting(comm, link))


def _slowest(compute: Compute, learned: int, comm: Communicator) -> Compute:
    """As long as on the slowest rank."""
    most = comm.all_reduce(np.array([compute.seconds, -compute.spare, learned, -learned]), "max").tolist()
    if most[2] != -most[3]:
        raise InputError(f"--model: {-most[3]:,.0f} parameters are learned on one rank, {most[2]:,.0f} on another")
    longer = most[0] / compute.seconds
    parts = [replace(part, ready=longer * part.ready) for part in compute.buckets]
    return Compute(longer * compute.rest, parts, -most[1])


def run(
    scene: Scene, plans: Sequence[Scheme], optimizer: str | None = None, total_steps: int | None = None
) -> dict[str, Any]:
    """Every candidate's predicted step, the one to take with its whole call, and what it may cost in accuracy."""
    rows = [_dense(scene, PLAIN, 1.0), _dense(scene, HALF, 0.5, scene.half), *(_row(scene, plan) for plan in plans)]
    plain = rows[0]["seconds"]
    rows = [{**row, "times_faster": plain / row["seconds"]} for row in rows]
    best = min(rows[1:], key=lambda row: float(row["seconds"]))
    chosen = best if best["seconds"] * MARGIN < plain else rows[0]
    return {
        "ranks": scene.size,
        "device": None if scene.device is None else {**asdict(scene.device), "assumed": scene.device.text()},
        "link": {"rate": 8 / scene.link.byte if scene.link.byte else None, "latency": scene.link.latency},
        "compute": {"seconds": scene.compute.seconds, "parameters": scene.compute.numel,
                    "buckets": [asdict(part) for part in scene.compute.buckets]},
        "rows": sorted(rows, key=lambda row: float(row["seconds"])),
        "recommended": chosen["scheme"] or chosen["candidate"],
        "times_faster": chosen["times_faster"],
        "calls": calls(chosen["scheme"], [optimizer] if optimizer else OPTIMIZERS, total_steps),
        "risk": _risk(scene, chosen["scheme"], optimizer, total_steps),
    }  # fmt: skip


def _risk(
    scene: Scene, chosen: str | None, optimizer: str | None, total_steps: int | None
) -> list[dict[str, Any]]:  # fmt: skip
    if chosen is None:
        return []
    density = scene.codecs[coding(scheme(chosen))].density
    coverage = None if total_steps is None else density * total_steps
    return risk(density, [optimizer] if optimizer else OPTIMIZERS, coverage)


def _dense(scene: Scene, name: str, share: float, work: float = 0.0) -> dict[str, Any]:
    parts = [replace(part, nbytes=round(share * part.nbytes)) for part in scene.compute.buckets]
    compute = replace(scene.compute, buckets=parts)
    seconds, sent = dense_step(compute, scene.link, scene.size, work), dense_bytes(compute, scene.size)
    own = work * compute.numel
    return {"candidate": name, "scheme": None, "seconds": seconds, "bytes": sent, "codecs": own}


def _row(scene: Scene, plan: Scheme) -> dict[str, Any]:
    codecs = scene.codecs[coding(plan)]
    seconds = sparse_step(plan, codecs, scene.compute, scene.link, scene.size)
    sent, name = sparse_bytes(plan, codecs, scene.compute, scene.size), f"{plan.select.id}, {plan.exchange.id}"
    own = codecs.seconds(scene.compute.numel)
    return {"candidate": name, "scheme": plan.brief, "seconds": seconds, "bytes": sent, "codecs": own}


# --- the text ----------------------------------------------------------------------------------------------------


def show(result: Mapping[str, Any]) -> str:
    rows = [
        [row["candidate"], number(1e3 * row["seconds"], 1), number(row["times_faster"]), number(row["bytes"] / 1e6, 2),
         number(1e3 * row["codecs"], 1), row["scheme"] or ""]
        for row in result["rows"]
    ]  # fmt: skip
    parts = [f"{measure.machine_line(result['machine'])}\n{_facts(result)}", table(COLUMNS, rows), _verdict(result)]
    return "\n\n".join([*parts, *_risks(result["risk"])])


def _facts(result: Mapping[str, Any]) -> str:
    link, compute, measured = result["link"], result["compute"], result["measured"]
    source, wire = ("measured", 1.0) if measured["link"] else ("given", WIRE)  # what is given counts headers, too
    rate = "not limited" if link["rate"] is None else f"{wire * link['rate'] / 1e6:,.0f} Mbit/s"
    step = "measured" if measured["step"] else "given"
    return (
        f"{result['ranks']} ranks; link {source}: {rate}, {1e6 * link['latency']:,.0f} µs a round; "
        f"{compute['parameters']:,} parameters, {1e3 * compute['seconds']:,.1f} ms a step without exchange ({step}), "
        f"in {len(compute['buckets'])} buckets" + _device(result["device"])
    )


def _device(device: Mapping[str, Any] | None) -> str:
    return "" if device is None else f"\ngradients on {device['assumed']}"


def _verdict(result: Mapping[str, Any]) -> str:
    if result["recommended"] == PLAIN:
        return (
            "Plain DDP is faster, or as fast: no scheme is predicted to shorten its step by 5 %. Do not compress here."
        )
    head = f"Predicted {result['times_faster']:.1f} × faster than plain DDP: {result['recommended']}"
    if result["recommended"] == HALF:
        return f"{head}; no scheme is predicted to be faster. What float16 costs in accuracy is not known here."
    return (
        "\n".join([head, *_calls(result["calls"])]) + "\nPredictions are for these machines as they are; "
        'attach(model, "auto", optimizer=optimizer) measures as it trains, and falls back.'
    )


def _calls(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        expected = "" if row["coverage"] is None else f"    # coverage {row['coverage']:.3g}: {row['expected']}"
        yield f"  {row['optimizer']}: {row['call']}{expected}"


def _risks(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if rows:
        lines = [f"  {row['optimizer']}, {row['meaning']}: {'; '.join(row['changes'])}" for row in rows]
        at, asked = rows[0]["density"], rows[0]["asked"]
        nearest = "" if 0.5 < asked / at < 2 else f", the nearest to {STEPS * asked:.2g} that there is,"
        where = f"in runs of about {STEPS} steps at {at:.1%}, a coverage of {rows[0]['coverage']:.2g}{nearest}"
        head = f"What each memory cost in accuracy {where} against dense in the same steps ({SOURCE}):"
        yield "\n".join([head, *lines])
