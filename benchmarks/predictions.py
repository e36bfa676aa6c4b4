"""What `sparsewire advise` predicts beside what is measured, on real links: `sudo python benchmarks/predictions.py`.

At every rate `advise` is started on the ranks, as a user would, and measures the link, the model and the codecs; then
the steps of plain DDP, torch's fp16 hook and each scheme of its table are timed on the same links. Exit status: 1 if
fewer than 9 of 10 predictions are within 20 % and --check is given, 77 if it cannot run here (no root, no `ip`, `tc`).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from interleaved import guarded, time_arms

from sparsewire.errors import SparsewireError
from sparsewire.lab import measure
from sparsewire.lab.advise.step import HALF
from sparsewire.lab.advise.step import PLAIN as PREDICTED_PLAIN
from sparsewire.lab.arguments import UNLIMITED, add_json, count, read_rate
from sparsewire.lab.net.commands import Commands
from sparsewire.lab.net.network import Network, bits_per_second
from sparsewire.lab.net.ranks import Endpoint
from sparsewire.lab.tables import number, publish, table
from sparsewire.lab.tasks.task import loss_of, mlp
from sparsewire.lab.tasks.workloads import BATCH, MODELS

CLOSE, SHARE = 0.2, 0.9
SLOW = 1e9  # bit/s: on slower links a plain step takes seconds, so fewer are run
Result = dict[str, Any]


# --- the model, as advise is given it ------------------------------------------------------------------------------


def model_25m() -> tuple[torch.nn.Module, Callable[[], object]]:
    return _model("25M")


def model_small() -> tuple[torch.nn.Module, Callable[[], object]]:
    return _model("small")


def model_tiny() -> tuple[torch.nn.Module, Callable[[], object]]:
    return _model("tiny")


def _model(size: str) -> tuple[torch.nn.Module, Callable[[], object]]:
    """The model that is timed, and a training step of it."""
    sizes = MODELS[size]
    model = mlp(sizes)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x, y = torch.randn(BATCH, sizes[0]), torch.randint(sizes[-1], (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(loss_of(model, (x, y)))
        optimizer.step()

    return model, step


# --- predicted, and measured ---------------------------------------------------------------------------------------


def predict(endpoints: Sequence[Endpoint], size: str) -> Result:
    """What advise says on these ranks."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "advice.json"
        python = ["env", f"PYTHONPATH={Path(__file__).parent}", sys.executable]
        words = ["advise", "--model", f"predictions:model_{size.lower()}", "--json", str(out)]
        with _quietly() as said, Commands([*python, "-m", "sparsewire", *words], endpoints) as ranks:
            status = ranks.run()
        if status:
            raise SparsewireError(f"advise ended with status {status}: {said.getvalue()[-500:]}")
        found: Result = json.loads(out.read_text())
        return found


@contextlib.contextmanager
def _quietly() -> Iterator[io.StringIO]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        yield said


def arm_of(row: Result) -> dict[str, Any]:
    if row["scheme"]:
        return {"hook": "sparsewire", "scheme": row["scheme"]}
    return {PREDICTED_PLAIN: {"hook": "none"}, HALF: {"hook": "fp16"}}[row["candidate"]]


def compare(rate: str, size: str, ranks: int) -> list[Result]:
    slow = bits_per_second(rate) < SLOW
    with Network(ranks, rate) as endpoints:
        advice = predict(endpoints, size)
        rows = {row["scheme"] or row["candidate"]: row for row in advice["rows"]}
        arms = {name: arm_of(row) for name, row in rows.items()}
        steps = {name: 2 if slow and row["scheme"] is None else 5 for name, row in rows.items()}
        found = time_arms(MODELS[size], arms, endpoints, 2, steps, rounds=1 if slow else 3, limit=1800)
    return [
        {"rate": rate, "model": size, "ranks": ranks, "method": name, "predicted_ms": 1e3 * row["seconds"],
         "measured_ms": found["arms"][name]["step_ms"],
         "ratio": 1e3 * row["seconds"] / found["arms"][name]["step_ms"]}
        for name, row in rows.items()
    ]  # fmt: skip


def run(options: argparse.Namespace) -> list[Result]:
    rates = options.rate or ["100mbit", "1gbit", UNLIMITED]
    cells = [cell for rate in rates for cell in compare(rate, options.model_size, options.ranks)]
    close = sum(abs(cell["ratio"] - 1) <= CLOSE for cell in cells)
    return [{"machine": measure.machine(), "cells": cells, "close": close, "met": close >= SHARE * len(cells)}]


def show(result: Result) -> str:
    rows = [[cell["rate"], cell["method"], number(cell["predicted_ms"], 1), number(cell["measured_ms"], 1),
             number(cell["ratio"])] for cell in result["cells"]]  # fmt: skip
    headers = ["links", "method", "predicted ms", "measured ms", "predicted / measured"]
    met = "met" if result["met"] else "MISSED"
    verdict = f"{result['close']} of {len(rows)} within {CLOSE:.0%} (target: {SHARE:.0%} of them: {met})"
    return f"{measure.machine_line(result['machine'])}\n\n{table(headers, rows)}\n{verdict}"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", type=read_rate, action="append", help="100mbit, 1gbit, unlimited; may be repeated")
    parser.add_argument("--ranks", type=count, default=4)
    parser.add_argument("--model-size", choices=MODELS, default="25M")
    parser.add_argument("--check", action="store_true", help="exit with 1 if the target is missed")
    add_json(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    status, results = guarded("predictions.py", lambda: run(options))
    for result in results:
        publish(show(result), result, options.json)
    return status or int(options.check and any(not result["met"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
