"""The README's figures come from docs/results, files that commands wrote: `python benchmarks/figures.py`.

Prints the sentences that these files give, and says which of them a document has not (exit status 1). With files of
results, `figures.py accuracy.json …`, it copies them there first, without their long lists (curves, steps).
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import headline

from sparsewire.lab import results
from sparsewire.lab.report.command import read_runs
from sparsewire.lab.report.data import Group, group_runs
from sparsewire.lab.report.headline import headline_text
from sparsewire.lab.tables import write_file

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
README, LAB, METHOD = "README.md", "docs/results/lab.txt", "docs/start/which-method.md"
LONG = 100  # numbers of a list that are kept
METHODS = {  # by their names in lab.jsonl: those in the README
    "plain DDP": "plain DDP",
    "fp16 hook": "torch's fp16 hook",
    "PowerSGD rank 4": "torch's PowerSGD hook, rank 4",
    "top 1 %, default codecs": "`attach(…)`, top 1 %",
    "local steps, SBC(2)": '`local_steps(…, "sbc(level=2)")`',
}


# --- the files ---------------------------------------------------------------------------------------------------


def keep(path: Path) -> None:
    """A copy in docs/results: of lines of results as it is, of JSON without its long lists."""
    text = path.read_text(encoding="utf-8")
    kept = text if path.suffix == ".jsonl" else f"{json.dumps(_short(json.loads(text)), indent=1)}\n"
    write_file(RESULTS / path.name, lambda file: file.write(kept.encode()))


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _short(one) for name, one in value.items() if not _is_long(one)}
    return [_short(one) for one in value] if isinstance(value, list) else value


def _is_long(value: Any) -> bool:
    return isinstance(value, list) and len(value) > LONG and not isinstance(value[0], dict)


def _rows(name: str, **wanted: Any) -> list[Mapping[str, Any]]:
    ((_, found),) = results.read(RESULTS / name)
    return [row for row in found["rows"] if all(row[key] == value for key, value in wanted.items())]


# --- the sentences -----------------------------------------------------------------------------------------------


def sentences() -> dict[str, list[str]]:
    """By document."""
    groups = group_runs(read_runs([RESULTS / "lab.jsonl"]))
    return {README: [*_headline(), *_steps(groups), _local()], METHOD: [_accuracy()], LAB: [headline_text(groups)]}


def _headline() -> list[str]:
    """Rows of the README's first table: of that of headline.py, without bytes, seeds and differences."""
    table = headline.show(headline.read(RESULTS / "headline.jsonl")).splitlines()
    rows = [row for row in (line.strip("| ").split(" | ") for line in table) if len(row) > 6 and row[1].endswith("ms")]
    return [f"| {' | '.join([*row[:5], row[6].partition(' (')[0]])} |" for row in rows]


def _steps(groups: Sequence[Group]) -> list[str]:
    """Rows of the README's table: seconds a step by rate, and megabytes."""
    by_rate = [
        {group.name: group for group in groups if group.setting[:2] == ("synthetic-25m", rate)}
        for rate in ("100mbit", "1gbit", "unlimited")
    ]
    return [_row(name, [some.get(method) for some in by_rate]) for method, name in METHODS.items()]


def _row(name: str, found: Sequence[Group | None]) -> str:
    seconds = [_seconds(group) if group else "" for group in found]
    assert found[0]
    megabytes = found[0].typical("bytes_per_step") / 1e6
    cells = [name, *seconds, f"{megabytes:.0f}" if megabytes >= 10 else f"{megabytes:.2f}"]
    return " ".join(f"| {cell}" if cell else "|" for cell in cells) + " |"


def _seconds(group: Group) -> str:
    found = group.typical("step_ms") / 1e3
    return f"{found:.1f} s" if found >= 10 else f"{found:.2f} s"


def _accuracy() -> str:
    def lost(task: str, rule: str) -> float:
        rows = _rows("accuracy.json", task=task, rule=rule, ratio=0.01)
        return statistics.fmean(row["difference"] for row in rows)

    mnist, cifar = (-100 * lost(task, "ours") for task in ("mnist", "cifar"))
    plain, nats = [-100 * lost(task, "residual") for task in ("mnist", "cifar")], lost("text", "residual")
    assert lost("lstm", "ours") <= 0 and lost("text", "ours") <= 0
    return (
        f"lost {mnist:.1f} points on MNIST, {cifar:.1f} on CIFAR-10 and nothing on an LSTM, nor, with AdamW, on a "
        f"transformer; a plain residual lost {plain[0]:.1f} and {plain[1]:.1f} points, and {nats:.1f} nats "
        "with AdamW"
    )


def _local() -> str:
    ours, dense = (_rows("local.json", task="mlp", rule=rule) for rule in ("SBC(2)", "dense"))
    fewer = statistics.fmean(row["fewer"] for row in ours)
    below = statistics.fmean(row["score"] for row in dense) - statistics.fmean(row["score"] for row in ours)
    return f"{fewer:,.0f} times fewer bits than dense training and {100 * below:.2f} points below it on MNIST"


# --- the documents -----------------------------------------------------------------------------------------------


def missing() -> list[str]:
    """The sentences that their documents have not, wherever their lines are broken."""
    return [
        f"{document}: {sentence}"
        for document, some in sentences().items()
        for sentence in some
        if _words(sentence) not in _words((ROOT / document).read_text(encoding="utf-8"))
    ]


def _words(text: str) -> str:
    return " ".join(text.split())


def main(argv: Sequence[str] | None = None) -> int:
    for path in sys.argv[1:] if argv is None else argv:
        keep(Path(path))
    for document, some in sentences().items():
        print(f"{document}:", *some, sep="\n")
    absent = missing()
    print(*(f"MISSING in {one}" for one in absent), sep="\n", file=sys.stderr)
    return int(bool(absent))


if __name__ == "__main__":
    sys.exit(main())
