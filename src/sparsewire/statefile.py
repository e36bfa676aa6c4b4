"""A state of arrays, bytes and plain types ⇄ one file, written whole or not at all; nothing in it is executed.

The file is NumPy's .npz. Its array `tree` is JSON text; in there {"$array": 3} stands for the array `a3`, {"$bytes": 3}
for the bytes of it, and a mapping is a list of pairs, so that keys may be numbers.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .errors import InputError
from .kernels import Array

PathLike = str | os.PathLike[str]


def write_state(path: PathLike, state: Mapping[str, Any]) -> None:
    """Replaces the file at once: whoever is killed in between leaves the old one."""
    target, (tree, arrays) = Path(path), pack_state(state)
    part = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(part, "wb") as file:
            np.savez(file, tree=np.frombuffer(tree.encode(), np.uint8), **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
        _sync_folder(target.parent)
    finally:
        part.unlink(missing_ok=True)


def read_state(path: PathLike, kind: str) -> dict[str, Any]:
    """The state in a file of this kind."""
    try:
        with np.load(path, allow_pickle=False) as file:
            state: Any = unpack_state(file["tree"].tobytes(), {name: file[name] for name in file.files})
    except (KeyError, ValueError, EOFError, zipfile.BadZipFile, TypeError, IndexError) as error:
        raise InputError(f"{path} holds no state that sparsewire has written: {error}") from error
    if not isinstance(state, dict) or state.get("kind") != kind:
        raise InputError(f"{path} holds no state of a {kind}")
    return state


def pack_state(state: Mapping[str, Any]) -> tuple[str, dict[str, Array]]:
    """(the tree as JSON text, the arrays that it names)."""
    arrays = list[Array]()
    tree = json.dumps(_to_tree(state, arrays))
    return tree, {f"a{number}": array for number, array in enumerate(arrays)}


def unpack_state(tree: str | bytes, arrays: Mapping[str, Array]) -> Any:
    return _from_tree(json.loads(tree), arrays)


def copied(tree: Any) -> Any:
    """A state whose arrays, lists and mappings are its own."""
    if isinstance(tree, Mapping):
        return {key: copied(item) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return [copied(item) for item in tree]
    return tree.copy() if isinstance(tree, np.ndarray) else tree


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _to_tree(value: Any, arrays: list[Array]) -> Any:
    match value:
        case np.ndarray():
            arrays.append(value)
            return {"$array": len(arrays) - 1}
        case bytes():
            arrays.append(np.frombuffer(value, np.uint8))
            return {"$bytes": len(arrays) - 1}
        case Mapping():
            return {"$map": [[_to_tree(key, arrays), _to_tree(item, arrays)] for key, item in value.items()]}
        case list() | tuple():
            return [_to_tree(item, arrays) for item in value]
        case np.generic():
            return value.item()
    return value


def _from_tree(tree: Any, arrays: Mapping[str, Array]) -> Any:
    if isinstance(tree, list):
        return [_from_tree(item, arrays) for item in tree]
    if not isinstance(tree, dict):
        return tree
    ((mark, item),) = tree.items()
    if mark == "$map":
        return {_from_tree(key, arrays): _from_tree(one, arrays) for key, one in item}
    array = arrays[f"a{item}"]
    return array.tobytes() if mark == "$bytes" else array
