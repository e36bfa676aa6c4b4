"""The cells of `sparsewire lab train`: every workload with every method, at every rate, with every seed."""

from __future__ import annotations

import argparse
import itertools
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sparsewire.codecs.registry import nearest
from sparsewire.errors import InputError

from ..arguments import UNLIMITED, read_rate
from ..net.command import count_nodes
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
        """What decides its result, in plain types."""
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


def all_cells(told: Mapping[str, Any], data: Path | None = None) -> list[Cell]:
    """Of a file, or of the flags, each once; `data` goes before the file's own."""
    rest = dict(told)
    folder = rest.pop("data", ".")
    if not isinstance(folder, str):
        raise InputError(f"data={folder!r} is not a folder: write its name in quotes")
    return list(dict.fromkeys(cell for grid in _grids(rest) for cell in cells_of(grid, data or Path(folder))))


def _grids(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tables of the file; what stands beside them holds for all of them, unless they say otherwise."""
    shared = {name: value for name, value in told.items() if name != "grid"}
    grids = told.get("grid", [{}])
    if not isinstance(grids, list) or not grids or not all(isinstance(grid, Mapping) for grid in grids):
        raise InputError("a grid is a table that starts with [[grid]], in double brackets; there may be several")
    return [{**shared, **grid} for grid in grids]


def cells_of(grid: Mapping[str, Any], data: Path) -> Iterator[Cell]:
    """All cells of a table of the file, or of the flags: lists are combined, what is missing is the workload's own."""
    told = _checked(grid)
    lists = [told[name] for name in ("workloads", "rates", "ranks", "seeds", "methods")]
    for workload, rate, ranks, seed, method in itertools.product(*lists):
        count_nodes(ranks, told["ranks_per_node"])
        folder = _folder(workload, data)
        yield Cell(workload, method, rate, seed, ranks, told["ranks_per_node"], *_settings(workload, told), folder)


def _folder(workload: str, data: Path) -> str:
    """Wherever its command is repeated; as it is told if nothing is read from there."""
    return str(data.absolute() if WORKLOADS[workload].file else data)


def _settings(workload: str, told: Mapping[str, Any]) -> tuple[int, int, int, int, float]:
    own = WORKLOADS[workload]
    steps = told.get("steps", own.task.steps)
    warmup = told.get("warmup", min(own.warmup, steps - 1))
    if not 0 <= warmup < steps:
        raise InputError(f"warmup={warmup} leaves none of {steps} steps to time: make it less")
    batch, tests = told.get("batch", own.task.batch), told.get("tests", own.tests)
    return steps, warmup, batch, tests, float(told.get("learning_rate", own.rate))


def _checked(grid: Mapping[str, Any]) -> dict[str, Any]:
    for name in grid:
        if name not in KNOWN:
            raise InputError(f"{name} is not a setting of a grid{nearest(name, KNOWN)}")
    told: dict[str, Any] = {**DEFAULTS, **grid}
    missing = [name for name in ("workloads", "methods") if not told.get(name)]
    if missing:
        raise InputError(f"{' and '.join(missing)} missing: what is trained, and by which methods")
    told["workloads"] = [_workload(name) for name in _texts("workloads", told["workloads"])]
    told["rates"] = [_rate(rate) for rate in _texts("rates", told["rates"])]
    told["methods"] = _methods(told["methods"])
    for name in ("seeds", "ranks"):
        told[name] = [_number(name, value) for value in _listed(name, told[name])]
    return {**told, **{name: _number(name, told[name]) for name in SINGLE if name in told}}


def _listed(name: str, told: Any) -> list[Any]:
    found = list(told) if isinstance(told, (list, tuple)) else [told]
    if not found:
        raise InputError(f"{name} is empty: give one at least, or leave {name} out")
    return found


def _texts(name: str, told: Any) -> list[str]:
    found = _listed(name, told)
    for one in found:
        if not isinstance(one, str):
            raise InputError(f"{name} has {one!r}, which is no text: write it in quotes, several as a list of them")
    return found


def _number(name: str, value: Any) -> int | float:
    kind, words = ((int, float), "number") if name == "learning_rate" else ((int,), "whole number")
    least = 0 if name in FROM_ZERO else 1
    if isinstance(value, bool) or not isinstance(value, kind) or not least <= value < TOO_MUCH:
        raise InputError(f"{name}={value!r} is not a {words} ≥ {least}")
    return value


def _methods(told: Any) -> list[Method]:
    """Of a list, or of a table that gives names to them."""
    if isinstance(told, Mapping):
        texts = _texts("methods", list(told.values()))
        return [read_method(text, name) for name, text in zip(told, texts, strict=True)]
    return [read_method(text) for text in _texts("methods", told)]


def _workload(name: str) -> str:
    if name not in WORKLOADS:
        raise InputError(f"no workload {name!r}; there are {', '.join(WORKLOADS)}")
    return name


def _rate(word: str) -> str:
    try:
        return read_rate(word)
    except argparse.ArgumentTypeError as error:
        raise InputError(str(error)) from None
