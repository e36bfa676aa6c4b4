"""Results: a file of JSON lines, each a record that stands for itself; lines are added, none is changed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparsewire.errors import InputError

from .tables import as_json

if sys.platform != "win32":
    import fcntl

Record = dict[str, Any]


def key_of(facts: Mapping[str, Any]) -> str:
    """A cell's key: all that decides its result, without the folder of its data."""
    return json.dumps({name: value for name, value in facts.items() if name != "data"}, sort_keys=True)


def prepare(path: Path) -> None:
    """Makes sure that lines can be added, before there is one to lose."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab"):
            pass
    except OSError as error:
        raise InputError(f"{path}: no results can be written there ({error.strerror}): name another file") from None


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """No other start adds to the file meanwhile, which would run the same cells, and disturb ours. The kernel ends this
    with the process, however that ends."""
    with open(path, "ab") as file:
        if sys.platform != "win32" and path.is_file():
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(f"{path}: another start adds to it: wait for its end, or name another file") from None
        yield


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Adds a line, on the disk when this returns; one that was cut off by a crash stays a line of its own."""
    line = json.dumps(as_json(record), ensure_ascii=False, allow_nan=False).encode() + b"\n"
    try:
        regular = path.is_file()
        with open(path, "ab") as file:
            file.write(b"\n" + line if regular and _is_cut_off(path) else line)
            file.flush()
            if regular:
                os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def _is_cut_off(path: Path) -> bool:
    with open(path, "rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def read(path: Path) -> list[tuple[int, Record]]:
    """The records with the numbers of their lines; lines that are no JSON objects, as a crash leaves, are passed over.

    A file that is one JSON document over several lines, as `--json` writes, is one record.
    """
    data = path.read_bytes()
    whole = _record(data)
    if whole is not None:
        return [(1, whole)]
    lines = [(number, line) for number, line in enumerate(data.split(b"\n"), 1) if line.strip()]
    records = [(number, record) for number, line in lines if (record := _record(line)) is not None]
    if not records and not all(line.startswith(b"{") for _, line in lines):
        raise InputError(f"{path} holds no results: a line of them is a JSON object, as `sparsewire lab train` writes")
    return records


def finished(records: Sequence[tuple[int, Record]]) -> dict[str, Record]:
    """The cells that came to an end, by their keys; those that failed are to be run again."""
    ended = [record for _, record in records if not record.get("error")]
    return {record["key"]: record for record in ended if isinstance(record.get("key"), str)}


def _record(line: bytes) -> Record | None:
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
