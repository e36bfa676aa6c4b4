"""The cells of `sparsewire lab train`: every workload in every way, at every rate, with every seed."""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError
from .arguments import UNLIMITED, read_rate
from .net import count_nodes
from .ways import Way, read_way
from .workloads import WORKLOADS

LISTS = ("workloads", "ways", "rates", "seeds", "ranks")
WHOLE = ("steps", "warmup", "batch", "tests", "ranks_per_node", "seeds", "ranks")
KNOWN = {*LISTS, *WHOLE, "learning_rate"}
DEFAULTS: dict[str, Any] = {"rates": [UNLIMITED], "seeds": [1], "ranks": [4], "ranks_per_node": 1}


@dataclass(frozen=True)
class Cell:
    """One training. Two cells are the same if everything but the way's name and the folder is."""

    workload: str
    way: Way
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
        return {**asdict(self), "way": self.way.text}

    @property
    def key(self) -> str:
        return key_of(self.facts)

    @property
    def title(self) -> str:
        return f"{self.workload}, {self.way.name}, {self.ranks} ranks, {self.rate}, seed {self.seed}"

    @property
    def command(self) -> str:
        """Runs this cell and no other."""
        words = [[f"--{name.replace('_', '-')}", str(value)] for name, value in self.facts.items()]
        return shlex.join(["sparsewire", "lab", "train", *itertools.chain.from_iterable(words)])


def key_of(facts: Mapping[str, Any]) -> str:
    return json.dumps({name: value for name, value in facts.items() if name != "data"}, sort_keys=True)


def cells_of(grid: Mapping[str, Any], data: Path) -> Iterator[Cell]:
    """All cells of a table of the file, or of the flags: lists are combined, what is missing is the workload's own."""
    told = _checked(grid)
    lists = [told[name] for name in ("workloads", "rates", "ranks", "seeds", "ways")]
    for workload, rate, ranks, seed, way in itertools.product(*lists):
        count_nodes(ranks, told["ranks_per_node"])
        yield Cell(workload, way, rate, seed, ranks, told["ranks_per_node"], *_settings(workload, told), str(data))


def _settings(workload: str, told: Mapping[str, Any]) -> tuple[int, int, int, int, float]:
    own = WORKLOADS[workload]
    steps = told.get("steps", own.task.steps)
    warmup = told.get("warmup", min(own.warmup, steps - 1))
    if not 0 <= warmup < steps:
        raise InputError(f"warmup={warmup} leaves none of {steps} steps to time: make it less")
    batch, tests = told.get("batch", own.task.batch), told.get("tests", own.tests)
    return steps, warmup, batch, tests, told.get("learning_rate", own.rate)


def _checked(grid: Mapping[str, Any]) -> dict[str, Any]:
    for name in grid:
        if name not in KNOWN:
            raise InputError(f"{name} is not a setting of a grid; known: {', '.join(sorted(KNOWN))}")
    told: dict[str, Any] = {**DEFAULTS, **grid}
    missing = [name for name in ("workloads", "ways") if not told.get(name)]
    if missing:
        raise InputError(f"{' and '.join(missing)} missing: what is trained, and in which ways")
    told["ways"] = _ways(told["ways"])
    for name in ("workloads", "rates", "seeds", "ranks"):
        told[name] = list(told[name]) if isinstance(told[name], (list, tuple)) else [told[name]]
    told["rates"] = [_rate(rate) for rate in told["rates"]]
    _check_numbers(told)
    unknown = [name for name in told["workloads"] if name not in WORKLOADS]
    if unknown:
        raise InputError(f"no workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    return told


def _ways(told: Any) -> list[Way]:
    """Of a list, or of a table that gives names to them."""
    if isinstance(told, Mapping):
        return [read_way(str(text), str(name)) for name, text in told.items()]
    return [way if isinstance(way, Way) else read_way(str(way)) for way in ([told] if isinstance(told, str) else told)]


def _check_numbers(told: Mapping[str, Any]) -> None:
    for name in (*WHOLE, "learning_rate"):
        kind = (int,) if name in WHOLE else (int, float)
        least = 0 if name in ("warmup", "tests", "seeds", "learning_rate") else 1
        given = told.get(name, [])
        for value in given if isinstance(given, list) else [given]:
            if isinstance(value, bool) or not isinstance(value, kind) or value < least:
                raise InputError(f"{name}={value!r} is not a number ≥ {least}")


def _rate(word: object) -> str:
    try:
        return read_rate(str(word))
    except argparse.ArgumentTypeError as error:
        raise InputError(str(error)) from None
