"""The command line: `sparsewire list | encode | decode | inspect | advise | bench | lab | demo`."""

from __future__ import annotations

import argparse
import errno
import functools
import inspect
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import numpy as np

from . import __version__, codec
from .contract import SLOTS, Codec, text
from .errors import InputError, LimitExceeded, SchemeError, SparsewireError
from .kernels import Array
from .lab.arguments import add, add_advise, add_bench, add_demo, add_group, add_json, count
from .lab.arrays import load_arrays
from .lab.lab_arguments import add_lab
from .lab.tables import number, publish, table, write_file
from .presets import PRESETS, local_settings
from .registry import codecs
from .scheme import Scheme, scheme
from .sparse import Sparse

DEFAULT_SCHEME = "topk(1%)"
MAX_DENSE = 2**28


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command. Exit status: 0 success, 1 a check failed, 2 wrong usage or input, 130 interrupted."""
    _open_outputs()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    args = _parser().parse_args(argv)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader closed the pipe; without this Python reports it again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except MemoryError as error:
        return _fail(f"not enough memory: {error}")
    except (SparsewireError, OSError, UnicodeError) as error:
        return _fail(_describe(error))


def _open_outputs() -> None:
    """Those that were closed before the start, as by `>&-`, lead nowhere; no file that is opened later is in their
    place."""
    if sys.stdout is None or sys.stderr is None:
        while (free := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(free)
        sys.stdout, sys.stderr = sys.stdout or os.fdopen(1, "w"), sys.stderr or os.fdopen(2, "w")


def _fail(message: str) -> int:
    print(f"sparsewire: error: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


# --- list --------------------------------------------------------------------------------------------------------


def _list(args: argparse.Namespace) -> int:
    known = {slot: [_facts(found) for found in codecs(slot).values()] for slot in SLOTS}
    known["presets"] = [_preset_facts(name) for name in PRESETS]
    rows = [[slot, _call(facts), _purpose(facts)] for slot, found in known.items() for facts in found]
    publish(table(["slot", "codec", "what it does"], rows), known, args.json)
    return 0


def _purpose(facts: dict[str, Any]) -> str:
    local = ", ".join(f"{name}={text(value)}" for name, value in facts.get("local", {}).items())
    return f"{facts['description']} Local steps: {local}." if local else str(facts["description"])


def _facts(found: type[Codec]) -> dict[str, Any]:
    description = (found.__doc__ or "").strip().partition("\n")[0]
    return {"id": found.id, "description": description, "settings": _settings(found)}


def _preset_facts(name: str) -> dict[str, Any]:
    parameters = inspect.signature(PRESETS[name]).parameters
    settings = {key: parameter.default for key, parameter in parameters.items()}
    description = (PRESETS[name].__doc__ or "").partition("\n")[0]
    return {"id": name, "description": description, "settings": settings, "local": local_settings(name)}


def _settings(found: type[Codec]) -> dict[str, Any]:
    """Every setting with its default; "…" where there is none."""
    try:
        return found().config
    except (TypeError, SchemeError):
        return {item.name: "…" if item.default is MISSING else item.default for item in fields(found)}


def _call(facts: dict[str, Any]) -> str:
    settings = ", ".join(f"{name}={text(value).replace('None', 'none')}" for name, value in facts["settings"].items())
    return f"{facts['id']}({settings})" if settings else str(facts["id"])


# --- encode, decode, inspect -------------------------------------------------------------------------------------


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
        found = codec.decode(args.input.read_bytes(), max_numel=most, max_entries=args.max_entries)
    output = _apart(args.input, args.output or args.input.with_suffix(".npz" if args.sparse else ".npy"))
    write_file(output, functools.partial(_save_entries if args.sparse else _save_dense, found))
    kind = found.dtype if found.values.dtype == found.dtype else f"{found.dtype} saved as {found.values.dtype}"
    print(f"{output}: {found.count:,} of {found.size:,} entries, shape {found.shape}, {kind}")
    return 0


def _save_entries(found: Sparse, file: BinaryIO) -> None:
    """Where entries are not elements, also how many numbers have one index, and the transform that made them."""
    arrays = {"indices": found.indices, "values": found.values, "shape": np.array(found.shape, np.int64)}
    if found.width > 1 or found.transform is not None:
        arrays |= {"width": np.array(found.width), "transform": np.array(str(found.transform or "identity"))}
    np.savez(file, allow_pickle=False, **arrays)


def _save_dense(found: Sparse, file: BinaryIO) -> None:
    try:
        dense = found.to_dense()
    except (MemoryError, ValueError) as error:  # NumPy says the latter of what is beyond the address space
        raise MemoryError(f"{found.numel:,} elements ({error}); --sparse writes the entries only") from None
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


# --- arguments ---------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sparsewire", description="Compress gradients into frames; inspect, decode and measure them."
    )
    parser.add_argument("--version", action="version", version=f"sparsewire {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_json(add(commands, "list", _list, "the codecs of every slot and their settings"))
    _add_encode(commands)
    _add_decode(commands)
    look = add(commands, "inspect", _inspect, "what a frame holds and what each part of it costs")
    look.add_argument("input", type=Path, metavar="IN.swf")
    add_json(look)
    add_advise(commands)
    add_bench(add_group(commands, "bench", "measure kernels, codecs or training steps on this machine"))
    add_lab(add_group(commands, "lab", "real ranks on links of a given rate: any command, trainings, a report"))
    add_demo(commands)
    return parser


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
