"""`sparsewire demo`: two ranks train a network on handwritten digits with SGD and momentum, by three methods.

Plain DDP; compressed with error feedback in front of the optimizer's momentum, which costs accuracy on most tasks; and
compressed with the momentum in front of the selection. Both select alike: one threshold for the model, and a ratio that
falls as training goes on, with the scheme's own as its mean.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparsewire.codecs.memory import Residual
from sparsewire.codecs.scheme import Scheme
from sparsewire.codecs.scheme import scheme as read_scheme
from sparsewire.errors import InputError

from .. import measure
from ..arguments import DEMO_SCHEME
from ..net.launch import Event, launch_ranks
from ..net.ranks import Endpoint
from ..tables import publish, table

SCHEME = DEMO_SCHEME
PLAIN, RESIDUAL, COMPRESSED = "plain DDP", "residual only", "sparsewire"
RANKS = 2
STEPS, RATE = 250, 0.1


def main(args: argparse.Namespace) -> int:
    read_scheme(args.scheme)  # an error is reported here, before any rank starts
    result = run(args.steps, args.seed, args.scheme, hidden=[args.hidden] * 2)
    picture = _draw(result, args.output)
    publish(f"{show(result)}\n\n{picture}", result, args.json)
    return 0


def choose_arms(scheme: str, steps: int) -> dict[str, dict[str, Any]]:
    plan = read_scheme(scheme)
    ours = {"hook": "sparsewire", "scheme": scheme, **_selection(plan, steps)}
    residual = str(replace(plan, memory=Residual()))
    return {PLAIN: {"hook": "none"}, RESIDUAL: {**ours, "scheme": residual, "fitted": False}, COMPRESSED: ours}


def _selection(plan: Scheme, steps: int) -> dict[str, Any]:
    """Settings that suit the scheme's selection: a ratio can fall, and a top-k can be taken over the whole model."""
    ratio = getattr(plan.select, "ratio", None)
    if ratio is None:
        return {}
    per = "model" if plan.select.largest_of(1) and plan.transform.is_identity else "parameter"
    return {"falling": [steps, ratio], "select_per": per}


def run(
    steps: int = STEPS,
    seed: int = 0,
    scheme: str = SCHEME,
    hidden: Sequence[int] = (1024, 1024),
    data: str = "digits",
    batch: int = 32,
    rate: float = RATE,
) -> dict[str, Any]:
    """All trainings on two ranks of this machine: a summary of each, and its loss, seconds and bytes step by step."""
    _require("torch", "scikit-learn" if data == "digits" else "torch")
    settings = {"data": data, "steps": steps, "seed": seed, "hidden": hidden, "batch": batch, "rate": rate}
    order = {"arms": choose_arms(scheme, steps), **settings}
    with measure.progress(steps) as advance:
        ranks = launch_ranks(
            "sparsewire.lab.demo.job:train", order, [Endpoint()] * RANKS, lambda event: advance(_line(event))
        )
    facts = {"parameters": ranks[0]["parameters"], "test": ranks[0]["test"], "ranks": RANKS, "scheme": scheme}
    facts["selection"] = _selection(read_scheme(scheme), steps)
    curves = {name: _curves([rank["arms"][name] for rank in ranks]) for name in (PLAIN, RESIDUAL, COMPRESSED)}
    summary = {name: _summary(curve, ranks[0]["arms"][name]["accuracy"]) for name, curve in curves.items()}
    ratio = summary[PLAIN]["bytes"] / summary[COMPRESSED]["bytes"]
    return {"machine": measure.machine(), **settings, **facts, "ratio": ratio, "arms": summary, "curves": curves}


def _require(*packages: str) -> None:
    missing = [name for name in packages if not measure.has({"scikit-learn": "sklearn"}.get(name, name))]
    if missing:
        raise InputError(f"this needs {' and '.join(missing)}: pip install {' '.join(missing)}")


def _line(event: Event) -> str:
    losses = ", ".join(f"{name} {loss:.3f}" for name, loss in event["loss"].items())
    return f"step {event['step'] + 1}, loss: {losses}"


def _curves(reports: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Step by step, the mean over the ranks."""
    return {key: [statistics.fmean(step) for step in zip(*(report[key] for report in reports), strict=True)]
            for key in ("loss", "seconds", "bytes")}  # fmt: skip


def _summary(curve: dict[str, list[float]], accuracy: float) -> dict[str, float]:
    return {
        "accuracy": accuracy,
        "bytes": sum(curve["bytes"]),
        "step_ms": 1e3 * statistics.median(curve["seconds"]),
        "loss": statistics.fmean(curve["loss"][-20:]),
    }


def show(result: dict[str, Any]) -> str:
    what = (
        f"{result['parameters']:,} parameters, {result['steps']} steps of {result['ranks']} × {result['batch']} digits"
    )
    title = f"{what}, {result['ranks']} ranks over gloo on 127.0.0.1\n{COMPRESSED}: {result['scheme']}"
    title += _selection_words(result["selection"])
    headers = ["", f"accuracy on {result['test']} others", "bytes sent per rank", "× fewer", "median step"]
    rows = [_cells(name, facts, result["arms"][PLAIN]) for name, facts in result["arms"].items()]
    return f"{measure.machine_line(result['machine'])}\n{title}\n\n{table(headers, rows)}"


def _selection_words(selection: dict[str, Any]) -> str:
    words = ["one threshold for the model"] if selection.get("select_per") == "model" else []
    words += ["a ratio that falls, with the scheme's as its mean"] if "falling" in selection else []
    return f"\nboth compressed: {', '.join(words)}" if words else ""


def _cells(name: str, facts: dict[str, float], plain: dict[str, float]) -> list[str]:
    ratio = plain["bytes"] / facts["bytes"]
    return [name, f"{facts['accuracy']:.2%}", f"{facts['bytes']:,.0f}", f"{ratio:.1f}", f"{facts['step_ms']:.1f} ms"]


def _draw(result: dict[str, Any], path: Path) -> str:
    """Draws the picture if matplotlib is installed; a line for the report."""
    if not measure.has("matplotlib"):
        return "no picture: pip install matplotlib"
    from .picture import draw_training

    draw_training(result, path)
    return f"picture: {path}"
