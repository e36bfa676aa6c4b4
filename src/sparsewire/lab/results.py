"""Results: a file of JSON lines, each a record that stands for itself; lines are added, none is changed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError
from .tables import plain

Record = dict[str, Any]


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Adds a line, on the disk when this returns; one that was cut off by a crash stays a line of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(plain(record), ensure_ascii=False, allow_nan=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[tuple[int, Record]]:
    """The records with the numbers of their lines; lines that are no JSON objects, as a crash leaves, are passed over.

    A file that is one JSON document over several lines, as `--json` writes, is one record.
    """
    text = path.read_text(encoding="utf-8")
    whole = _record(text)
    if whole is not None:
        return [(1, whole)]
    found = [(number, _record(line)) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    records = [(number, record) for number, record in found if record is not None]
    if found and not records:
        raise InputError(f"{path} holds no results: a line of them is a JSON object, as `sparsewire lab train` writes")
    return records


def finished(records: Sequence[tuple[int, Record]]) -> dict[str, Record]:
    """The cells that came to an end, by their keys; those that failed are to be run again."""
    return {record["key"]: record for _, record in records if "key" in record and not record.get("error")}


def _record(text: str) -> Record | None:
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None
