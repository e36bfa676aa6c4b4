"""The cells of `sparsewire lab train`: every workload with every method, at every rate, with every seed."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sparsewire.codecs.registry import nearest
from sparsewire.errors import InputError

from ..arguments import UNLIMITED
from ..net.command import count_nodes
from ..net.network import checked_rate
from ..results import key_of
from ..tasks.workloads import WORKLOADS
from .methods import Method, read_method

SINGLE = ("steps", "warmup", "batch", "tests", "ranks_per_node", "learning_rate")
KNOWN = {"workloads", "methods", "rates", "seeds", "ranks", *SINGLE}
FROM_ZERO = ("warmup", "tests", "seeds", "learning_rate")
TOO_MUCH = 2**63  # not an integer of torch, and above any float that is meant
REPEATED = "repeat.jsonl"  # not where the cell is finished already
DEFAULTS: dict[str, Any] = {"rates": [UNLIMITED], "seeds": [1], "ranks": [4], "ranks_per_node": 1}


@dataclass(frozen=True)
class Cell:
    """One training. Two cells are the same if everything but the method's name and the folder is."""

    workload: str
    method: Method
    rate: str
    seed: int
    ranks: int
    ranks_per_node: int
    steps: int
    warmup: int
    batch: int
    tests: int
    learning_rate: float
    data: str = field(default=".", compare=False)

    @property
    def facts(self) -> dict[str, Any]:
        """The fields that decide the cell's result, in plain types."""
        return {**asdict(self), "method": self.method.text}

    @property
    def key(self) -> str:
        return key_of(self.facts)

    @property
    def title(self) -> str:
        return f"{self.workload}, {self.method.name}, {self.ranks} ranks, {self.rate}, seed {self.seed}"

    @property
    def command(self) -> str:
        """Runs this cell and no other."""
        words = [[f"--{name.replace('_', '-')}", str(value)] for name, value in self.facts.items()]
        return shlex.join(["sparsewire", "lab", "train", *itertools.chain.from_iterable(words), "-o", REPEATED])


def all_cells(file: Mapping[str, Any], data: Path | None = None) -> list[Cell]:
    """The cells of a file, or of the flags, each once; `data` goes before the file's own."""
    rest = dict(file)
    folder = rest.pop("data", ".")
    if not isinstance(folder, str):
        raise InputError(f"data={folder!r} is not a folder: write its name in quotes")
    return list(dict.fromkeys(cell for grid in _grids(rest) for cell in cells_of(grid, data or Path(folder))))


def _grids(file: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tables of the file; what stands beside them holds for all of them, unless they say otherwise."""
    shared = {name: value for name, value in file.items() if name != "grid"}
    grids = file.get("grid", [{}])
    if not isinstance(grids, list) or not grids or not all(isinstance(grid, Mapping) for grid in grids):
        raise InputError("a grid is a table that starts with [[grid]], in double brackets; there may be several")
    return [{**shared, **grid} for grid in grids]


def cells_of(grid: Mapping[str, Any], data: Path) -> Iterator[Cell]:
    """All cells of a table of the file, or of the flags: lists are combined, what is missing is the workload's own."""
    settings = _checked(grid)
    per_node = settings["ranks_per_node"]
    lists = [settings[name] for name in ("workloads", "rates", "ranks", "seeds", "methods")]
    for workload, rate, ranks, seed, method in itertools.product(*lists):
        count_nodes(ranks, per_node)
        folder = _folder(workload, data)
        yield Cell(workload, method, rate, seed, ranks, per_node, *_settings(workload, settings), folder)


def _folder(workload: str, data: Path) -> str:
    """Wherever its command is repeated; as it is told if nothing is read from there."""
    return str(data.absolute() if WORKLOADS[workload].file else data)


def _settings(workload: str, settings: Mapping[str, Any]) -> tuple[int, int, int, int, float]:
    own = WORKLOADS[workload]
    steps = settings.get("steps", own.task.steps)
    warmup = settings.get("warmup", min(own.warmup, steps - 1))
    if not 0 <= warmup < steps:
        raise InputError(f"warmup={warmup} leaves none of {steps} steps to time: make it less")
    batch, tests = settings.get("batch", own.task.batch), settings.get("tests", own.tests)
    return steps, warmup, batch, tests, float(settings.get("learning_rate", own.rate))


def _checked(grid: Mapping[str, Any]) -> dict[str, Any]:
    for name in grid:
        if name not in KNOWN:
            raise InputError(f"{name} is not a setting of a grid{nearest(name, KNOWN)}")
    settings: dict[str, Any] = {**DEFAULTS, **grid}
    missing = [name for name in ("workloads", "methods") if not settings.get(name)]
    if missing:
        raise InputError(f"{' and '.join(missing)} missing: what is trained, and by which methods")
    settings["workloads"] = [_workload(name) for name in _texts("workloads", settings["workloads"])]
    settings["rates"] = [checked_rate(rate) for rate in _texts("rates", settings["rates"])]
    settings["methods"] = _methods(settings["methods"])
    for name in ("seeds", "ranks"):
        settings[name] = [_number(name, value) for value in _listed(name, settings[name])]
    return {**settings, **{name: _number(name, settings[name]) for name in SINGLE if name in settings}}


def _listed(name: str, given: Any) -> list[Any]:
    values = list(given) if isinstance(given, (list, tuple)) else [given]
    if not values:
        raise InputError(f"{name} is empty: give one at least, or leave {name} out")
    return values


def _texts(name: str, given: Any) -> list[str]:
    texts = _listed(name, given)
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"{name} has {text!r}, which is no text: write it in quotes, several as a list of them")
    return texts


def _number(name: str, value: Any) -> int | float:
    kind, words = ((int, float), "number") if name == "learning_rate" else ((int,), "whole number")
    least = 0 if name in FROM_ZERO else 1
    if isinstance(value, bool) or not isinstance(value, kind) or not least <= value < TOO_MUCH:
        raise InputError(f"{name}={value!r} is not a {words} ≥ {least}")
    return value


def _methods(given: Any) -> list[Method]:
    """Methods from a list, or from a table that gives names to them."""
    if isinstance(given, Mapping):
        texts = _texts("methods", list(given.values()))
        return [read_method(text, name) for name, text in zip(given, texts, strict=True)]
    return [read_method(text) for text in _texts("methods", given)]


def _workload(name: str) -> str:
    if name not in WORKLOADS:
        raise InputError(f"no workload {name!r}; there are {', '.join(WORKLOADS)}")
    return name
