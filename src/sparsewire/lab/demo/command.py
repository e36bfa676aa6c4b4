"""`sparsewire demo`: two ranks on a slow link train a network on handwritten digits, by plain DDP and by sparsewire.

Both trainings start from the same weights and see the same batches. All that they send crosses the same emulated link.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparsewire.codecs.scheme import scheme as read_scheme
from sparsewire.errors import InputError

from .. import measure
from ..arguments import UNLIMITED
from ..net.launch import Event, launch_ranks
from ..net.stopping import stoppable
from ..tables import publish, table
from .link import RANKS, slow_link

PLAIN, COMPRESSED = "plain DDP", "sparsewire"
STEPS, HIDDEN, RATE, BATCH, LEARNING_RATE = 200, 640, "100mbit", 32, 0.15
YOURS = """In your own script, after `model = DDP(model)` and the optimizer:
    from sparsewire.torch import attach
    link = attach(model, optimizer=optimizer, total_steps=N)    # N: the optimizer steps of the whole training
    print(link.stats())                                         # whenever you like: bytes, seconds by stage"""


def main(args: argparse.Namespace) -> int:
    if args.scheme is not None:
        read_scheme(args.scheme)  # an error is reported here, before any rank starts
    with stoppable():
        result = run(args.steps, args.seed, args.scheme, [args.hidden] * 2, rate=args.rate)
    picture = _draw(result, args.output)
    publish(f"{show(result)}\n\n{picture}\n\n{YOURS}", result, args.json)
    return 0


def choose_arms(scheme: str | None, steps: int) -> dict[str, dict[str, Any]]:
    ours = {"total_steps": steps} if scheme is None else {"scheme": scheme}
    return {PLAIN: {"hook": "none"}, COMPRESSED: {"hook": "sparsewire", **ours}}


def run(
    steps: int = STEPS, seed: int = 0, scheme: str | None = None, hidden: Sequence[int] = (HIDDEN, HIDDEN),
    batch: int = BATCH, learning_rate: float = LEARNING_RATE, rate: str = RATE,
) -> dict[str, Any]:  # fmt: skip
    """Both trainings: a summary of each, and its loss, seconds and bytes step by step."""
    _require("torch", "scikit-learn")
    settings = {"steps": steps, "seed": seed, "hidden": hidden, "batch": batch}
    arms = choose_arms(scheme, steps)
    order = {"arms": arms, **settings, "rate": learning_rate}
    with slow_link(rate) as (endpoints, limiter), measure.progress(len(arms) * steps) as advance:
        ranks = launch_ranks(
            "sparsewire.lab.demo.job:train", order, endpoints, lambda event: advance(_line(event, steps))
        )
    facts = {"parameters": ranks[0]["parameters"], "test": ranks[0]["test"], "ranks": RANKS}
    link = {"rate": rate, "limiter": limiter, "learning_rate": learning_rate, "line": line_of(scheme, steps)}
    curves = {name: _curves([rank["arms"][name] for rank in ranks]) for name in arms}
    summary = {name: _summary(curve, ranks[0]["arms"][name]["accuracy"]) for name, curve in curves.items()}
    ratios = {
        key: summary[PLAIN][of] / summary[COMPRESSED][of] for key, of in (("ratio", "bytes"), ("faster", "seconds"))
    }
    return {"machine": measure.machine(), **settings, **facts, **link, **ratios, "arms": summary, "curves": curves}


def line_of(scheme: str | None, steps: int) -> str:
    """The call that compresses."""
    rest = f"optimizer=optimizer, total_steps={steps}" if scheme is None else f'"{scheme}", optimizer=optimizer'
    return f"attach(model, {rest})"


def _require(*packages: str) -> None:
    missing = [name for name in packages if not measure.has({"scikit-learn": "sklearn"}.get(name, name))]
    if missing:
        raise InputError(f"this needs {' and '.join(missing)}: pip install {' '.join(missing)}")


def _line(event: Event, steps: int) -> str:
    return f"{event['name']}: step {event['step']} of {steps}, loss {event['loss']:.3f}"


def _curves(reports: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Step by step, the mean over the ranks."""
    return {key: [statistics.fmean(step) for step in zip(*(report[key] for report in reports), strict=True)]
            for key in ("loss", "seconds", "bytes")}  # fmt: skip


def _summary(curve: dict[str, list[float]], accuracy: float) -> dict[str, float]:
    return {
        "accuracy": accuracy,
        "bytes": sum(curve["bytes"]),
        "seconds": sum(curve["seconds"]),
        "step_ms": 1e3 * statistics.median(curve["seconds"]),
        "loss": statistics.fmean(curve["loss"][-20:]),
    }


def show(result: dict[str, Any]) -> str:
    what = f"{result['parameters']:,} parameters, {result['steps']} steps of {RANKS} × {result['batch']} digits"
    title = f"{what}\n{link_of(result)}\n{COMPRESSED}: {result['line']}"
    headers = ["", f"accuracy on {result['test']} others", "training", "median step", "bytes sent per rank"]
    rows = [_cells(name, facts) for name, facts in result["arms"].items()]
    gain = f"{COMPRESSED}: {gain_of(result)}, {result['ratio']:.1f} × fewer bytes, the same steps"
    return f"{measure.machine_line(result['machine'])}\n{title}\n\n{table(headers, rows)}\n\n{gain}"


def gain_of(result: dict[str, Any]) -> str:
    """Plain DDP's seconds by ours.

    >>> gain_of({"faster": 8.04}), gain_of({"faster": 0.5})
    ('8.0 × faster', '2.0 × slower')
    """
    faster = result["faster"]
    return f"{faster:.1f} × faster" if faster >= 1 else f"{1 / faster:.1f} × slower"


def link_of(result: dict[str, Any]) -> str:
    """The link in words."""
    if result["rate"] == UNLIMITED:
        return f"{RANKS} ranks on {result['limiter']}"
    return f"{RANKS} ranks, a link of {result['rate']} both ways: {result['limiter']}"


def _cells(name: str, facts: dict[str, float]) -> list[str]:
    spent = [f"{facts['seconds']:.1f} s", f"{facts['step_ms']:.1f} ms"]
    return [name, f"{facts['accuracy']:.2%}", *spent, f"{facts['bytes']:,.0f}"]


def _draw(result: dict[str, Any], path: Path) -> str:
    """Draws the picture if matplotlib is installed; a line for the report."""
    if not measure.has("matplotlib"):
        return "no picture: pip install matplotlib"
    from .picture import draw_training

    titles = f"The same {result['steps']} steps, {gain_of(result)}", f"With {result['ratio']:.0f} × fewer bytes"
    draw_training(result, titles, f"{result['parameters']:,} parameters; {link_of(result)}\n{result['line']}", path)
    return f"picture: {path}"
