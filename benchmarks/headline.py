"""The table and picture of `benchmarks/headline.toml`: `benchmarks/headline.py RESULTS.jsonl --picture OUT.png`.

Step times are those of the runs on limited links; the time to the target is that of as many of their steps as the run
that was tested on the way needed. Scores are of all seeds, one run of each.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from sparsewire.errors import InputError, SparsewireError
from sparsewire.lab import results
from sparsewire.lab.arguments import output_file
from sparsewire.lab.curves import smooth, thinned
from sparsewire.lab.pictures import SERIES, label_axes, new_figure, save_figure
from sparsewire.lab.report.data import CLOSE, PLAIN

RATES = {"100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s"}
Record = results.Record
Methods = dict[str, list[Record]]


def read(path: Path) -> Methods:
    """The runs of each method by its name, plain DDP first."""
    known: Methods = {}
    for record in results.finished(results.read(path)).values():
        known.setdefault(record["name"], []).append(record)
    if not any(runs[0]["cell"]["method"] == PLAIN for runs in known.values()):
        raise InputError(f"{path} has no run of plain DDP, with which the others are compared")
    return dict(sorted(known.items(), key=lambda item: item[1][0]["cell"]["method"] != PLAIN))


def limited(runs: Sequence[Record], rate: str) -> Record | None:
    return next((run for run in runs if run["cell"]["rate"] == rate), None)


def scores(runs: Sequence[Record]) -> dict[int, float]:
    """The score of each seed; of a seed that ran on several links, the first's."""
    found: dict[int, float] = {}
    for run in runs:
        found.setdefault(run["cell"]["seed"], run["score"])
    return found


def steps_to(run: Record, target: float) -> float | None:
    """The steps until the validation loss came down to the target, on a line between the tests."""
    points = [(step, score) for step, _, score in run["history"]]
    for (before, high), (after, low) in pairwise([(0, run["loss"][0]), *points]):
        if low <= target:
            return before + (after - before) * max(0.0, (high - target) / (high - low))
    return None


def seconds_of(run: Record, steps: float) -> float:
    """The seconds of the first so many steps, as they were measured."""
    whole, part = divmod(steps, 1)
    spent = run["step_seconds"]
    return float(sum(spent[: int(whole)]) + (part * spent[int(whole)] if part else 0.0))


def target_of(plain: Sequence[Record]) -> float:
    """Within 2 % of plain DDP's last validation loss, as in the report, of the run that was tested on the way."""
    return (1 + CLOSE) * float(max(plain, key=lambda run: len(run["history"]))["history"][-1][2])


# --- the table ---------------------------------------------------------------------------------------------------


def show(methods: Methods) -> str:
    """Markdown."""
    target, plain = target_of(next(iter(methods.values()))), next(iter(methods.values()))
    headers = [
        "",
        *(f"step, {name}" for name in RATES.values()),
        *(f"to the target, {name}" for name in RATES.values()),
    ]
    headers += ["bytes a step", "test loss", "against plain DDP"]
    rows = [[name, *_times(runs, target), *_scores(runs, plain)] for name, runs in methods.items()]
    lines = [headers, ["---", *["---:"] * (len(headers) - 1)], *rows]
    facts = plain[0]
    words = f"{facts['parameters']:,} parameters, {facts['cell']['ranks']} ranks, {facts['cell']['steps']} steps; "
    words += f"target: validation loss {target:.3f}"
    return "\n".join([words, "", *("| " + " | ".join(line) + " |" for line in lines)])


def _times(runs: Sequence[Record], target: float) -> list[str]:
    found = [limited(runs, rate) for rate in RATES]
    steps = ["" if run is None else f"{run['step_ms']:,.0f} ms" for run in found]
    need = steps_to(max(runs, key=lambda run: len(run["history"])), target)
    spent = [None if run is None or need is None else seconds_of(run, need) for run in found]
    missed = ["" if run is None else "not reached" for run in found]
    reached = [word if one is None else f"{one:.0f} s" for one, word in zip(spent, missed, strict=True)]
    sent = next((f"{run['bytes_per_step']:,.0f}" for run in found if run), "")
    return [*steps, *reached, sent]


def _scores(runs: Sequence[Record], plain: Sequence[Record]) -> list[str]:
    """The mean loss and what it varies by; the difference from plain DDP's with the same seeds."""
    ours, theirs = scores(runs), scores(plain)
    both = sorted({*ours} & {*theirs})
    found = f"{statistics.fmean(ours.values()):.3f}{_spread([*ours.values()])} ({len(ours)})"
    if runs[0]["cell"]["method"] == PLAIN:
        return [found, ""]
    losses = [ours[seed] - theirs[seed] for seed in both]
    return [found, f"{statistics.fmean(losses):+.3f}{_spread(losses)}" if losses else ""]


def _spread(values: Sequence[float]) -> str:
    return f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""


# --- the picture -------------------------------------------------------------------------------------------------


def draw(methods: Mapping[str, Sequence[Record]], path: Path) -> None:
    """Training loss over seconds, a panel for each rate."""
    figure = new_figure(12, 4.8)
    for axes, (rate, title) in zip(figure.subplots(1, len(RATES), sharey=True), RATES.items(), strict=True):
        for (name, runs), colour in zip(methods.items(), SERIES, strict=False):
            if run := limited(runs, rate):
                _draw_run(axes, name.replace("`", ""), run, colour)
        label_axes(axes, "seconds of training", "training loss (smoothed)", title, "best")
    save_figure(figure, path)


def _draw_run(axes: Any, name: str, run: Record, colour: str) -> None:
    spent, points = [*accumulate(run["step_seconds"])], thinned(smooth(run["loss"]))
    seconds = [spent[step] for step, _ in points]
    losses = [float("nan") if loss is None else loss for _, loss in points]
    axes.plot(seconds, losses, color=colour, label=f"{name}: {spent[-1]:,.0f} s")
    axes.plot(seconds[-1:], losses[-1:], "o", color=colour)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path, metavar="RESULTS.jsonl")
    parser.add_argument("--picture", type=output_file, metavar="OUT.png")
    options = parser.parse_args(argv)
    try:
        methods = read(options.results)
        print(show(methods))
        if options.picture:
            draw(methods, options.picture)
    except (SparsewireError, OSError) as error:
        print(f"headline.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
