"""`sparsewire lab report`: results as one page, where every figure leads to the line of results that it comes from."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from ...errors import InputError
from .. import results
from ..measure import machine_line
from ..tables import write_file
from .data import Run, group_runs
from .measures import bytes_by_ranks, rate_distortion, stages
from .page import Links, Value, html_table, page, paragraph, section
from .sections import accuracy_by_bytes, headline, headline_text, loss_curves, time_to_accuracy

TITLE = "sparsewire lab"
LONG = 12  # numbers of a list that are shown
CELL = ("workload", "method", "rate", "ranks", "ranks_per_node", "seed")
MEASURED = (
    "score", "score_kind", "step_ms", "bytes_per_step", "sent", "parts_ms", "stages_ms", "history", "step_seconds",
    "loss",
)  # fmt: skip


def main(args: argparse.Namespace) -> int:
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
    """All records; of a cell that failed and was run again, or is in several files, the last that came to an end."""
    found = []
    for place, path in enumerate(paths):
        prefix = _letter(place) if len(paths) > 1 else ""
        found += [_checked(Run(f"r{place}-{line}", f"{prefix}{line}", record), f"{path}, line {line}")
                  for line, record in results.read(path)]  # fmt: skip
    if not found:
        raise InputError(f"{', '.join(map(str, paths))}: no results yet")
    chosen: dict[str, Run] = {}
    for run in filter(_is_cell, found):
        before = chosen.get(run.key)
        if before is None or before.failed or not run.failed:
            chosen[run.key] = run
    return [run for run in found if not _is_cell(run) or chosen[run.key] is run]


def _checked(run: Run, where: str) -> Run:
    """A record has what the page shows; without a machine, key or command it is shown as well."""
    if _is_cell(run):
        cell = run.record["cell"]
        missing = [name for name in CELL if not isinstance(cell, dict) or name not in cell]
        missing += [name for name in ("name", *(() if run.failed else MEASURED)) if name not in run.record]
        if missing:
            raise InputError(f"{where} is no result of `lab train`: it has no {', '.join(missing)}")
    return run


def _letter(place: int) -> str:
    """Of a file, where there are several."""
    return chr(ord("a") + place) if place < 26 else f"{place}:"


def _is_cell(run: Run) -> bool:
    return "cell" in run.record


def _is_rates(run: Run) -> bool:
    return "inputs" in run.record and not _is_cell(run)


def render(runs: Sequence[Run], paths: Sequence[Path]) -> str:
    cells = [run for run in runs if _is_cell(run)]
    rates = [run for run in runs if _is_rates(run)]
    if not cells and not rates:
        raise InputError(f"{', '.join(map(str, paths))}: no results of `lab train` or `bench rates --json`")
    groups = group_runs(cells)
    made = [
        part(groups) for part in (headline, time_to_accuracy, accuracy_by_bytes, loss_curves, stages, bytes_by_ranks)
    ]
    sections = [*made, rate_distortion(rates), _failed(cells), _lines([*cells, *rates])]
    return page(TITLE, _about([*cells, *rates], paths), sections)


def _about(runs: Sequence[Run], paths: Sequence[Path]) -> str:
    known = [run.record["machine"] for run in runs if run.record.get("machine")]
    machines = dict.fromkeys(machine_line({**machine, "load": None}) for machine in known)
    several = len(paths) > 1
    names = ", ".join(f"{path.name} ({_letter(place)})" if several else path.name for place, path in enumerate(paths))
    words = (
        f"{len(runs)} results of {names}. Every row and every mark leads to its line of results, at the end of this "
    )
    words += "page, with the command that repeats it. Click on a column's head to sort by it."
    return paragraph(words) + "".join(f'<p class="soft">{escape(line)}</p>\n' for line in machines)


def _failed(runs: Sequence[Run]) -> str:
    rows: list[list[Value]] = [
        [str(run.setting), str(run.record["name"]), str(run.record["error"]), Links([(run.place, run.label)])]
        for run in runs
        if run.failed
    ]
    return section("What failed", html_table(["setting", "method", "error", "line"], rows, "failures")) if rows else ""


# --- the lines of results ------------------------------------------------------------------------------------------


def _lines(runs: Sequence[Run]) -> str:
    return section("Lines of results", paragraph("Long lists are cut here; the file has all of them."),
                   *map(_line, runs))  # fmt: skip


def _line(run: Run) -> str:
    record, what = run.record, "bench rates"
    if _is_cell(run):
        what = f"{run.setting}, {record['name']}, seed {record['cell']['seed']}"
    command = f"<pre>{escape(record['command'])}</pre>" if "command" in record else ""
    shown = {name: value for name, value in record.items() if name not in ("key", "command", "inputs")}
    body = json.dumps({name: _cut(value) for name, value in shown.items()}, indent=1, ensure_ascii=False)
    head = f"<summary>line {escape(run.label)}: {escape(what)}</summary>"
    return f'<details id="{run.place}">{head}{command}<pre>{escape(body)}</pre></details>\n'


def _cut(value: object) -> object:
    if isinstance(value, list) and len(value) > LONG:
        return [*value[: LONG - 2], f"… {len(value)} in all", value[-1]]
    return value
