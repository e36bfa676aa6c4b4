"""`sparsewire lab report`: results as one page, where every figure leads to the line of results that it comes from."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from sparsewire.errors import InputError

from .. import measure, results
from ..tables import write_file
from .data import Run, group_runs
from .headline import headline, headline_text
from .page import Detail, Links, Section, Table, Value
from .page import render as render_page

TITLE = "sparsewire lab"
LONG = 12  # numbers of a list that are shown
CELL = ("workload", "method", "rate", "ranks", "ranks_per_node", "seed")
MEASURED = (
    "score", "score_kind", "step_ms", "bytes_per_step", "sent", "parts_ms", "stages_ms", "history", "step_seconds",
    "loss",
)  # fmt: skip


def main(args: argparse.Namespace) -> int:
    measure.require("the report", "matplotlib", "jinja2", extra="report")
    _check_apart(args.results, args.output)
    runs = [run for run in read_runs(args.results) if _is_cell(run) or _is_rates(run)]
    args.output.parent.mkdir(parents=True, exist_ok=True)
    text = render(runs, args.results).encode()
    write_file(args.output, lambda file: file.write(text))
    groups = group_runs(filter(_is_cell, runs))
    head = f"{headline_text(groups)}\n\n" if groups else ""
    print(f"{head}{args.output}: {len(runs)} results, {len(text) / 1e3:,.0f} kB")
    return 0


def _check_apart(paths: Iterable[Path], output: Path) -> None:
    if output.exists() and any(path.exists() and output.samefile(path) for path in paths):
        raise InputError(f"{output} is the input, which would be overwritten: name another file with -o")


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs of all files; of a cell that was run several times, the last run that came to an end."""
    runs = []
    for index, path in enumerate(paths):
        prefix = _letter(index) if len(paths) > 1 else ""
        runs += [_checked(Run(f"r{index}-{line}", f"{prefix}{line}", record), f"{path}, line {line}")
                  for line, record in results.read(path)]  # fmt: skip
    if not runs:
        raise InputError(f"{', '.join(map(str, paths))}: no results yet")
    chosen: dict[str, Run] = {}
    for run in filter(_is_cell, runs):
        before = chosen.get(run.key)
        if before is None or before.failed or not run.failed:
            chosen[run.key] = run
    return [run for run in runs if not _is_cell(run) or chosen[run.key] is run]


def _checked(run: Run, where: str) -> Run:
    """A record has what the page shows; without a machine, key or command it is shown as well."""
    if _is_cell(run):
        cell = run.record["cell"]
        missing = [name for name in CELL if not isinstance(cell, dict) or name not in cell]
        missing += [name for name in ("name", *(() if run.failed else MEASURED)) if name not in run.record]
        if missing:
            raise InputError(f"{where} is no result of `lab train`: it has no {', '.join(missing)}")
    return run


def _letter(index: int) -> str:
    """The letter of a file, where there are several."""
    return chr(ord("a") + index) if index < 26 else f"{index}:"


def _is_cell(run: Run) -> bool:
    return "cell" in run.record


def _is_rates(run: Run) -> bool:
    return "inputs" in run.record and not _is_cell(run)


def render(runs: Sequence[Run], paths: Sequence[Path]) -> str:
    cells = [run for run in runs if _is_cell(run)]
    rates = [run for run in runs if _is_rates(run)]
    if not cells and not rates:
        raise InputError(f"{', '.join(map(str, paths))}: no results of `lab train` or `bench rates --json`")
    shown = [*cells, *rates]
    return render_page(TITLE, _about(shown, paths), _machines(shown), _sections(cells, rates), [*map(_detail, shown)])


def _sections(cells: Sequence[Run], rates: Sequence[Run]) -> list[Section]:
    """The sections for which there are results."""
    from .measures import bytes_by_ranks, rate_distortion, stages
    from .sections import accuracy_by_bytes, loss_curves, time_to_accuracy

    parts = (headline, time_to_accuracy, accuracy_by_bytes, loss_curves, stages, bytes_by_ranks)
    groups = group_runs(cells)
    made = [*(part(groups) for part in parts), rate_distortion(rates), _failed(cells)]
    return [section for section in made if section is not None]


def _about(runs: Sequence[Run], paths: Sequence[Path]) -> str:
    several = len(paths) > 1
    names = ", ".join(f"{path.name} ({_letter(index)})" if several else path.name for index, path in enumerate(paths))
    return (
        f"{len(runs)} results of {names}. Every row and every mark leads to its line of results, at the end of this "
        "page, with the command that repeats it. Click on a column's head to sort by it."
    )


def _machines(runs: Sequence[Run]) -> list[str]:
    known = [run.record["machine"] for run in runs if run.record.get("machine")]
    return list(dict.fromkeys(measure.machine_line({**machine, "load": None}) for machine in known))


def _failed(runs: Sequence[Run]) -> Section | None:
    rows: list[list[Value]] = [
        [str(run.setting), str(run.record["name"]), str(run.record["error"]), Links([(run.anchor, run.label)])]
        for run in runs
        if run.failed
    ]
    table = Table(["setting", "method", "error", "line"], rows, "failures")
    return Section("What failed", table=table) if rows else None


# --- the lines of results ------------------------------------------------------------------------------------------


def _detail(run: Run) -> Detail:
    record, what = run.record, "bench rates"
    if _is_cell(run):
        what = f"{run.setting}, {record['name']}, seed {record['cell']['seed']}"
    shown = {name: value for name, value in record.items() if name not in ("key", "command", "inputs")}
    body = json.dumps({name: _cut(value) for name, value in shown.items()}, indent=1, ensure_ascii=False)
    return Detail(run.anchor, f"line {run.label}: {what}", str(record.get("command", "")), body)


def _cut(value: object) -> object:
    if isinstance(value, list) and len(value) > LONG:
        return [*value[: LONG - 2], f"… {len(value)} in all", value[-1]]
    return value
