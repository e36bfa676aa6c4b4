"""Text tables and JSON files: the output of every command."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparsewire.core.files import write_file

NUMBER = re.compile(r"[-−]?\d(?!\d*\.[^\d])")  # how a number starts; `0.weight` is a name


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need to be, numbers to the right.

    >>> print(table(["codec", "bits"], [["rice", "8.1"], ["raw", "32.0"]]))
    codec  bits
    -----  ----
    rice    8.1
    raw    32.0
    >>> print(table(["tensor", "mean"], [["0.weight", "-0.5"], ["0.bias", "12.0"]]))
    tensor    mean
    --------  ----
    0.weight  -0.5
    0.bias    12.0
    """
    columns = [_column(header, cells) for header, *cells in zip(headers, *rows, strict=True)]
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def _column(header: str, cells: Sequence[str]) -> list[str]:
    width = max(map(len, (header, *cells)))
    numbers = all(NUMBER.match(cell) for cell in cells if cell)
    lines = [header, "-" * width, *cells]
    return [line.rjust(width) if numbers else line.ljust(width) for line in lines]


def number(value: float | None, digits: int = 2) -> str:
    """A number for a table; nothing for None."""
    return "" if value is None else f"{value:,.{digits}f}"


def publish(text: str, data: Any, target: str | None) -> None:
    """Prints the text and writes the data to a JSON file; target "-" prints the JSON instead of the text."""
    if target == "-":
        print(_json(data))
        return
    print(text)
    if target is not None:
        write_file(Path(target), lambda file: file.write(f"{_json(data)}\n".encode()))


def _json(data: Any) -> str:
    return json.dumps(as_json(data), indent=2, ensure_ascii=False, allow_nan=False)


def as_json(data: Any) -> Any:
    """JSON has no NaN and no infinity: both become null."""
    if isinstance(data, dict):
        return {str(key): as_json(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [as_json(item) for item in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
