"""A state of arrays, bytes and plain types ⇄ one file with a checksum; nothing in it is executed.

docs/reference/format.md has the bytes. The head is JSON text with a tree and the arrays' number types and shapes; in
the tree {"$array": 3} stands for the array of that number, {"$bytes": 3} for the bytes of it, and {"$map": […]} for a
mapping as a list of pairs, so that keys may be numbers.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sparsewire import kernels
from sparsewire.errors import InputError
from sparsewire.kernels import Array

from .files import PathLike, write_file

MAGIC, VERSION = b"SWSTATE\n", 1
START = struct.Struct("<8sIQQ")  # magic, version, bytes of the head, bytes of the arrays
ALIGNMENT, DIGEST_SIZE = 64, 16
KINDS = {"|b1", "|i1", "|u1", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16"}
Built = TypeVar("Built")


def write_state(path: PathLike, state: Mapping[str, Any]) -> None:
    """Replaces the file at once: whoever is killed in between leaves the old one. A state that `read_state` would
    refuse, for it has numbers that are not finite, is not written."""
    try:
        _check_finite(state)
        parts = list(_parts(state))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: the state cannot be saved: {error}") from error
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_file(path, lambda file: [file.write(part) for part in parts])


def read_state(path: PathLike, kind: str, build: Callable[[dict[str, Any]], Built] | None = None) -> Any:
    """The state in a file of this kind, or what `build` makes of it. Whatever is wrong with it is an `InputError`."""
    with reading(path):
        state = unpack(bytearray(Path(path).read_bytes()))
        if not isinstance(state, dict) or state.get("kind") != kind:
            raise InputError(f"it holds no state of a {kind}")
        _check_finite(state)
        return state if build is None else build(state)


@contextmanager
def reading(path: PathLike | None = None) -> Iterator[None]:
    """Any error while a saved state is read becomes an `InputError`, with the file's name if there is a file."""
    try:
        yield
    except Exception as error:
        if isinstance(error, InputError) and path is None:
            raise
        reason = str(error)
        if isinstance(error, OSError):
            reason = error.strerror or reason
        elif not isinstance(error, InputError):
            reason = f"it holds no state that sparsewire has written ({type(error).__name__}: {reason})"
        raise InputError(f"{'the state' if path is None else path}: {reason}") from error


# --- bytes -----------------------------------------------------------------------------------------------------------


def pack(state: Mapping[str, Any]) -> bytes:
    """The bytes of a file."""
    return b"".join(_parts(state))


def unpack(data: bytes | bytearray) -> Any:
    """The state in a file's bytes. Arrays are views of them."""
    if len(data) < START.size + DIGEST_SIZE or data[: len(MAGIC)] != MAGIC:
        raise InputError("it holds no state that sparsewire has written: it does not begin as one")
    view = memoryview(data)
    _, version, head, body = START.unpack_from(view)
    if version != VERSION:
        raise InputError(f"it holds no state of version {VERSION}, the one that is known here, but of {version}")
    if START.size + head + body + DIGEST_SIZE != len(view):
        raise InputError("it holds no state that is whole: its length is not the one that it was written with")
    if _digest([view[:-DIGEST_SIZE]]) != view[-DIGEST_SIZE:]:
        raise InputError("it holds no state that is sound: its checksum does not match, so bytes of it have changed")
    facts = json.loads(bytes(view[START.size : START.size + head]))
    arrays = _arrays(facts["arrays"], view[START.size + head : START.size + head + body])
    return _from_tree(facts["tree"], arrays)


def _parts(state: Mapping[str, Any]) -> Iterator[Any]:
    tree, arrays = _split(state)
    flat = [np.ascontiguousarray(array, array.dtype.newbyteorder("<")) for array in arrays]
    facts = [[_kind(array), list(given.shape)] for array, given in zip(flat, arrays, strict=True)]
    head = json.dumps({"tree": tree, "arrays": facts}).encode()
    head += b" " * (-(START.size + len(head)) % ALIGNMENT)
    body = [
        part for array in flat for part in (array.reshape(-1).view(np.uint8).data, bytes(-array.nbytes % ALIGNMENT))
    ]
    parts = [START.pack(MAGIC, VERSION, len(head), sum(map(len, body))), head, *body]
    yield from parts
    yield _digest(parts)


def _kind(array: Array) -> str:
    if array.dtype.str not in KINDS:
        raise InputError(f"an array of {array.dtype} cannot be saved: numbers can")
    return array.dtype.str


def _arrays(facts: Sequence[Any], body: memoryview) -> list[Array]:
    arrays, start = [], 0
    for kind, shape in facts:
        if kind not in KINDS or not all(type(side) is int and side >= 0 for side in shape):
            raise InputError(f"it holds no state that sparsewire has written: an array of {kind!r}, {shape!r}")
        stop = start + math.prod(shape) * np.dtype(kind).itemsize
        array = np.frombuffer(body[start:stop], kind).reshape(shape)
        arrays.append(array.astype(array.dtype.newbyteorder("="), copy=False))
        start = stop + -stop % ALIGNMENT
    if start != len(body):
        raise InputError("it holds no state that sparsewire has written: its arrays have another size than it says")
    return arrays


def _digest(parts: Sequence[Any]) -> bytes:
    hasher = hashlib.blake2b(digest_size=DIGEST_SIZE)
    for part in parts:
        hasher.update(part)
    return hasher.digest()


# --- trees -----------------------------------------------------------------------------------------------------------


def pack_state(state: Mapping[str, Any]) -> tuple[str, dict[str, Array]]:
    """(the tree as JSON text, the arrays that it names)."""
    tree, arrays = _split(state)
    return json.dumps(tree), {f"a{number}": array for number, array in enumerate(arrays)}


def unpack_state(tree: str | bytes, arrays: Mapping[str, Array]) -> Any:
    return _from_tree(json.loads(tree), [arrays[f"a{number}"] for number in range(len(arrays))])


def copied(tree: Any) -> Any:
    """A state whose arrays, lists and mappings are its own."""
    if isinstance(tree, Mapping):
        return {key: copied(item) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return [copied(item) for item in tree]
    return tree.copy() if isinstance(tree, np.ndarray) else tree


def _split(state: Mapping[str, Any]) -> tuple[Any, list[Array]]:
    arrays = list[Array]()
    return _to_tree(state, arrays), arrays


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


def _from_tree(tree: Any, arrays: Sequence[Array]) -> Any:
    if isinstance(tree, list):
        return [_from_tree(item, arrays) for item in tree]
    if not isinstance(tree, dict):
        return tree
    ((mark, item),) = tree.items()
    if mark == "$map":
        return {_from_tree(key, arrays): _from_tree(value, arrays) for key, value in item}
    if mark not in ("$array", "$bytes") or type(item) is not int or not 0 <= item < len(arrays):
        raise InputError(f"it holds no state that sparsewire has written: {mark!r} of {item!r}")
    return arrays[item].tobytes() if mark == "$bytes" else arrays[item]


def _check_finite(tree: Any, path: str = "") -> None:
    if isinstance(tree, Mapping):
        for key, item in tree.items():
            _check_finite(item, f"{path}/{key}")
    elif isinstance(tree, list | tuple):
        for number, item in enumerate(tree):
            _check_finite(item, f"{path}/{number}")
    elif isinstance(tree, np.ndarray) and not is_finite(tree):
        raise InputError(f"the state has numbers that are not finite in {path[1:]}")


def is_finite(array: Array) -> bool:
    if array.dtype.kind not in "fc":
        return True
    if array.dtype in (np.float32, np.float64) and array.flags.c_contiguous:
        return bool(kernels.all_finite(array.reshape(-1)))
    return bool(np.isfinite(array).all())
