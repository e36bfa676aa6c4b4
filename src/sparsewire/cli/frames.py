"""`sparsewire encode | decode | inspect`: arrays in files become frames, and back."""

from __future__ import annotations

import argparse
import errno
import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import numpy as np

from sparsewire.codecs.contract import text
from sparsewire.codecs.scheme import Scheme, scheme
from sparsewire.core.sparse import Sparse
from sparsewire.errors import InputError, LimitExceeded, SparsewireError
from sparsewire.frames import codec
from sparsewire.kernels import Array
from sparsewire.lab.arguments import add_json, count
from sparsewire.lab.arrays import load_arrays
from sparsewire.lab.tables import number, publish, table, write_file

from .parsers import add

DEFAULT_SCHEME = "topk(1%)"
MAX_DENSE = 2**28


def add_frames(commands: Any) -> None:
    _add_encode(commands)
    _add_decode(commands)
    look = add(commands, "inspect", _inspect, "what a frame holds and what each part of it costs")
    look.add_argument("input", type=Path, metavar="IN.swf")
    add_json(look)


def _add_encode(commands: Any) -> None:
    more = "A .npy becomes the frame OUT (default: IN.swf). A .npz becomes the directory OUT (default: IN without its "
    more += "suffix) with a frame KEY.swf for each array, KEY quoted as in URLs."
    parser = add(commands, "encode", _encode, "compress the arrays of a file into frames", more)
    parser.add_argument("input", type=Path, metavar="IN.npy|IN.npz")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT")
    parser.add_argument("--scheme", default=DEFAULT_SCHEME, help='default: "%(default)s"')
    parser.add_argument("--step", type=int, default=0, help="step, seed and name determine all random choices")
    parser.add_argument("--name", default="", help="the tensor's name; in a .npz each array's key is appended")
    parser.add_argument("--seed", type=int, default=0)


def _add_decode(commands: Any) -> None:
    parser = add(commands, "decode", _decode, "expand a frame into a dense .npy, or its entries into a .npz")
    parser.add_argument("input", type=Path, metavar="IN.swf")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT", help="default: IN.npy, with --sparse IN.npz")
    parser.add_argument(
        "--sparse",
        action="store_true",
        help="a .npz of indices, values and shape; of coefficients also width and transform",
    )
    limit = "refuse larger tensors (default: 2**28 elements dense, no limit sparse)"
    parser.add_argument("--max-numel", type=count, metavar="N", help=limit)
    most = "refuse more entries (default: 2**22, or 16 per byte of the file)"
    parser.add_argument("--max-entries", type=count, metavar="N", help=most)


def _encode(args: argparse.Namespace) -> int:
    plan, arrays = scheme(args.scheme), load_arrays(args.input)
    targets = _targets(args.input, args.output, list(arrays))
    # All arrays are encoded before the first frame is written, so that a failure leaves no files.
    frames = {key: _encode_one(array, plan, key, args) for key, array in arrays.items()}
    for key, frame in frames.items():
        _write_frame(targets[key], frame)
    rows = [[str(targets[key]), *_sizes(frame)] for key, frame in frames.items()]
    print(table(["file", "bytes", "× smaller", "bits/entry", "entries"], rows))
    return 0


def _write_frame(path: Path, frame: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), error.filename) from None
    write_file(path, lambda file: file.write(frame))


def _encode_one(array: Array, plan: Scheme, key: str, args: argparse.Namespace) -> bytes:
    with _blaming(f"{args.input}[{key}]" if key else args.input):
        return codec.encode(array, plan, step=args.step, name=args.name + key, seed=args.seed)


def _targets(source: Path, output: Path | None, keys: list[str]) -> dict[str, Path]:
    """A file for the array of a .npy, a directory with a file per array for a .npz."""
    if keys == [""]:
        return {"": _apart(source, output or source.with_suffix(".swf"))}
    folder = output or source.with_suffix("")
    if folder == source:
        raise InputError(f"{source} has no suffix to drop: say with -o where the frames go")
    # A key may contain anything, even "../"; quoted, it is a plain file name in the folder.
    return {key: folder / f"{quote(key, safe='')}.swf" for key in keys}


def _apart(source: Path, output: Path) -> Path:
    if output.exists() and output.samefile(source):
        raise InputError(f"{output} is the input, which would be overwritten: name another file with -o")
    return output


def _sizes(frame: bytes) -> list[str]:
    info = codec.inspect(frame, max_entries=sys.maxsize)
    bits = number(info["bits_per_entry"]["total"])
    return [f"{info['bytes']:,}", number(info["ratio"], 1), bits, f"{info['k']:,}"]


def _decode(args: argparse.Namespace) -> int:
    most = args.max_numel or (None if args.sparse else MAX_DENSE)
    with _blaming(args.input, "" if args.sparse else "--sparse writes the entries only; "):
        decoded = codec.decode(args.input.read_bytes(), max_numel=most, max_entries=args.max_entries)
    output = _apart(args.input, args.output or args.input.with_suffix(".npz" if args.sparse else ".npy"))
    write_file(output, functools.partial(_save_entries if args.sparse else _save_dense, decoded))
    kind = (
        decoded.dtype if decoded.values.dtype == decoded.dtype else f"{decoded.dtype} saved as {decoded.values.dtype}"
    )
    print(f"{output}: {decoded.count:,} of {decoded.size:,} entries, shape {decoded.shape}, {kind}")
    return 0


def _save_entries(decoded: Sparse, file: BinaryIO) -> None:
    """Where entries are not elements, also how many numbers have one index, and the transform that made them."""
    arrays = {"indices": decoded.indices, "values": decoded.values, "shape": np.array(decoded.shape, np.int64)}
    if decoded.width > 1 or decoded.transform is not None:
        arrays |= {"width": np.array(decoded.width), "transform": np.array(str(decoded.transform or "identity"))}
    np.savez(file, allow_pickle=False, **arrays)


def _save_dense(decoded: Sparse, file: BinaryIO) -> None:
    try:
        dense = decoded.to_dense()
    except (MemoryError, ValueError) as error:  # NumPy says the latter of what is beyond the address space
        raise MemoryError(f"{decoded.numel:,} elements ({error}); --sparse writes the entries only") from None
    np.save(file, dense, allow_pickle=False)


@contextmanager
def _blaming(source: object, instead: str = "") -> Iterator[None]:
    """Names the file in errors, and the alternatives when a limit is exceeded."""
    try:
        yield
    except LimitExceeded as error:
        more = f"{instead if error.setting == 'max_numel' else ''}--{error.setting.replace('_', '-')} N allows more"
        raise LimitExceeded(f"{source}: {error}; {more}", error.setting) from None
    except SparsewireError as error:
        raise SparsewireError(f"{source}: {error}") from None


def _inspect(args: argparse.Namespace) -> int:
    with _blaming(args.input):
        info = codec.inspect(args.input.read_bytes(), max_entries=sys.maxsize)
    publish(_describe_frame(info), info, args.json)
    return 0


def _describe_frame(info: dict[str, Any]) -> str:
    entries, bound = max(1, info["k"]), info["bound_bits_per_entry"]
    rows = []
    for section, size in info["sections"].items():
        rows.append([section, f"{size:,}", number(8 * size / entries), number(bound) if section == "indices" else ""])
        parts = {name: part for name, part in info["parts"].items() if name.startswith(f"{section}.")}
        rows += [[f"  {name}", f"{part:,}", number(8 * part / entries), ""] for name, part in parts.items()]
    rows.append(["total", f"{info['bytes']:,}", number(info["bits_per_entry"]["total"]), ""])
    facts = f"{info['dtype']} of shape {info['shape']}, {info['k']:,} of {info['entries']:,} entries"
    size = f"{info['ratio']:.1f}× smaller than the {info['dense_bytes']:,} bytes of the dense tensor"
    head = f"frame of version {info['version']}: {info['scheme']}\n{facts}, {size}\n"
    notes = [f"{name}: {_note(value)}" for name, value in info["notes"].items()]
    return "\n".join([head, table(["section", "bytes", "bits/entry", "bound log2 C(d,k)/k"], rows), *notes])


def _note(value: float) -> str:
    """A count or a setting as it is; a share that is nearly 1 is not rounded to it."""
    if isinstance(value, int):
        return text(value) if isinstance(value, bool) else f"{value:,}"
    return number(value, 6).rstrip("0").rstrip(".")
