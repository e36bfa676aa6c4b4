"""`sparsewire advise`: what kind of gradients these are, and which schemes send the fewest bytes at equal error.

The errors are those of one step; what is missing stays in the residual and is sent later. Equal errors are not equal
accuracies, so the ranking says what to try first.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sparsewire.errors import InputError
from sparsewire.kernels import Array
from sparsewire.training.schedule import Settings

from .. import measure
from ..arrays import load_gradients
from ..tables import number, publish, table, write_file
from . import step as advise_step
from .candidates import CANDIDATES, FREQUENCY, Bench, rank
from .facts import CORRELATED, FLAT, NEITHER, SHARES, UNCORRELATED, describe
from .live import live_gradients

DENSE_BELOW = Settings.dense_below  # as in training: smaller tensors travel dense
NAMED = 5  # tensors in a sentence, at most
OF_STEPS = ("step_ms", "ranks", "ratio", "total_steps", "scheme", "optimizer", "device")
FACTS = ["tensor", "arrays", "elements", "non-zero", "mean run", "random", "index bits", "random", "neighbours"]
FACTS += [
    "kurtosis",
    "values",
    *(f"time {part:.0%}" for part in SHARES),
    *(f"freq. {part:.0%}" for part in SHARES),
    "kind",
]
RANKS = ["", "candidate", "bytes", "× smaller", "error", "sent", "scheme"]
SENTENCES = {
    CORRELATED: "Correlated gradients, frequency keeps more: {}. Compare fft and dct below.",
    UNCORRELATED: "Gradients that are not correlated, time keeps more: {}. No transform, unless one is first below.",
    FLAT: "Values of about one size: frequency keeps more, as of any noise: {}. Compare fft and dct below.",
    NEITHER: "Time and frequency keep as much: {}. No transform, unless one is first below.",
}
CAUTION = (
    "Errors are those of one step: memory=residual sends later what is missing. Equal errors are not equal accuracy: "
    "try the first few in training."
)


def main(args: argparse.Namespace) -> int:
    if args.model is not None or args.parameters is not None or args.rate is not None:
        return advise_step.main(args)
    of_steps = [name for name in OF_STEPS if getattr(args, name) is not None]
    if of_steps:
        raise InputError(f"--{of_steps[0].replace('_', '-')} is for predicted steps: give --model or --parameters, too")
    measure.need_for_picture(args.picture)
    arrays = _gradients(args)
    result = run(arrays, args.error or [0.5])
    picture = "" if args.picture is None else _draw(result, args.picture)
    publish(show(result) + picture, result, args.json)
    return 0


def _gradients(args: argparse.Namespace) -> dict[str, Array]:
    if bool(args.files) == (args.live is not None):
        raise InputError(
            "advise takes files of gradients, or --live MODULE:FUNCTION, one of them; "
            "or, to predict a step, --model or --parameters"
        )
    if args.live is None:
        if (args.save, args.steps, args.skip) != (None, None, None):
            raise InputError("--steps, --skip and --save are of --live; these gradients are in files already")
        return load_gradients(args.files)
    if args.save is not None:
        args.save.parent.mkdir(parents=True, exist_ok=True)
    arrays = live_gradients(args.live, args.steps or 1, args.skip or 0)
    if args.save is not None:
        write_file(args.save, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
    return arrays


def run(arrays: Mapping[str, Array], errors: Sequence[float] = (0.5,)) -> dict[str, Any]:
    """The facts of every tensor, a verdict in words, and a ranking for each error."""
    large = {name: array for name, array in arrays.items() if array.size >= DENSE_BELOW} or arrays
    facts, bench = describe(arrays, large), Bench(large)
    with measure.progress(len(errors) * len(CANDIDATES)) as advance:
        rankings = [{"error": error, "rows": rank(bench, error, advance)} for error in errors]
    return {
        "tensors": facts,
        "verdict": _verdict(facts),
        "numel": bench.numel,
        "dense_bytes": 4 * bench.numel,
        "small": len(arrays) - len(large),
        "rankings": rankings,
    }


def _verdict(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sentences: over all that is ranked, and which tensors of it are of another kind."""
    whole, share = facts[-1], SHARES[-1]
    if not whole["nonzero"]:
        return [f"All elements are zero: {whole['numel']:,} of them. There is nothing to compare."]
    kept = {kind: whole[kind][f"{share:g}"] for kind in ("frequency", "time")}
    figures = f"the largest {share:.0%} of the Fourier coefficients hold {kept['frequency']:.0%} of the energy, "
    figures += f"the largest {share:.0%} of the elements {kept['time']:.0%}"
    sentences = [SENTENCES[whole["kind"]].format(figures)]
    ranked = [row for row in facts[:-1] if row["ranked"]]
    for kind in (CORRELATED, FLAT, UNCORRELATED):
        other = [row["tensor"] for row in ranked if row["kind"] == kind != whole["kind"]]
        if other:
            sentences.append(f"{kind.capitalize()}: {len(other)} of {len(ranked)} tensors ({_some(other)}).")
    return sentences


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")


def show(result: Mapping[str, Any]) -> str:
    parts = [table(FACTS, [_fact_cells(row) for row in result["tensors"]]), "\n".join(result["verdict"])]
    parts += [_show_ranking(one, result) for one in result["rankings"]]
    return "\n\n".join([*parts, CAUTION])


def _fact_cells(row: Mapping[str, Any]) -> list[str]:
    places = [number(row[key]) for key in ("mean_run", "mean_run_random", "index_bits", "index_bits_random")]
    spread = [number(row["neighbour_correlation"]), number(row["kurtosis"], 1), row["values"]]
    kept = [f"{row[kind][f'{part:g}']:.1%}" for kind in ("time", "frequency") for part in SHARES]
    return [
        row["tensor"],
        f"{row['arrays']}",
        f"{row['numel']:,}",
        f"{row['nonzero']:.1%}",
        *places,
        *spread,
        *kept,
        row["kind"],
    ]


def _show_ranking(ranking: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    rows, size = ranking["rows"], f"{result['numel']:,} elements, {result['dense_bytes']:,} bytes as float32"
    small = f"; {result['small']} smaller than {DENSE_BELOW:,}, which training sends dense, left out"
    size += small if result["small"] else ""
    head = f"Bytes with a relative error of at most {ranking['error']:g} ({size})"
    cells = [_rank_cells(place, row) for place, row in enumerate(rows, 1)]
    return "\n".join([head, table(RANKS, cells), *_conclusions(rows, ranking["error"])])


def _rank_cells(place: int, row: Mapping[str, Any]) -> list[str]:
    sizes = [f"{row['bytes']:,}", number(row["times_smaller"], 1)] if row["reached"] else ["", ""]
    order = f"{place}" if row["reached"] else ""
    return [order, row["candidate"], *sizes, f"{row['error']:.3f}", f"{row['kept']:.2%}", row["scheme"]]


def _conclusions(rows: Sequence[Mapping[str, Any]], bound: float) -> Iterable[str]:
    reached = [row for row in rows if row["reached"]]
    missed = [f"{row['candidate']} ({row['error']:.3f})" for row in rows if not row["reached"]]
    if reached:
        first = reached[0]
        yield f"Fewest bytes: {first['scheme']}"
        in_frequency = first["candidate"].startswith(FREQUENCY)
        other = next((row for row in reached if row["candidate"].startswith(FREQUENCY) != in_frequency), None)
        if other is not None:
            where = "without a transform" if in_frequency else "in the frequency domain"
            yield f"Fewest {where}: {other['bytes'] / first['bytes']:.2f} × as many, {other['scheme']}"
    if missed:
        yield f"An error of {bound:g} is out of reach, with the least that was measured, for: {', '.join(missed)}"


def _draw(result: Mapping[str, Any], path: Path) -> str:
    from .picture import draw_advice

    draw_advice(result, path)
    return f"\n\npicture: {path}"
