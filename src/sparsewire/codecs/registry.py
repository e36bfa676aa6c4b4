"""Slot and id → codec class. Built-in codecs are one line here; third parties add theirs by entry point.

A package that declares

    [project.entry-points."sparsewire.codecs"]
    mycodec = "mypackage.mycodec:MyCodec"

has `mycodec` in every scheme, once installed; `register` does the same at run time.
"""

from __future__ import annotations

import difflib
import functools
import importlib
from collections.abc import Iterable

from sparsewire.errors import RegistryError, SchemeError, UnknownCodec

from .contract import SLOTS, Codec

# Where the built-in codecs are; a package is imported when a scheme first needs it.
PACKAGES = {
    "select": ("codecs.select", "TopK RandomK Threshold Nonzero OneSign ChunkTopK ErrorBudget"),
    "transform": ("codecs.transform", "Identity Rows FFT DCT"),
    "indices": ("codecs.indices", "RawIndices Bitmap RunLength Huffman EliasFano Rice Best Bloom Golomb"),
    "values": (
        "codecs.values",
        "RawValues Half BFloat16 QSGD Deflate Zstd Quantile Entropy FitPoly FitDExp Mean SignMean Centroid RangeFloat "
        "Ternary Distinct",
    ),
    "memory": ("codecs.memory", "NoMemory Residual DGC GMC Gain"),
    "exchange": ("exchange", "AllGather Root ReduceScatter Sketch SharedSupport"),
}
RECOMMENDED = {
    "select": "topk nonzero",
    "transform": "identity rows",
    "indices": "best rice",
    "values": "entropy qsgd raw",
    "memory": "residual gain dgc none",
    "exchange": "allgather reduce_scatter shared",
}
STATUSES = {
    "recommended": "what the guides use; start with these.",
    "comparison": "a paper's method, a baseline or a part of one, to compare with.",
}
ENTRY_POINTS = "sparsewire.codecs"

_added: dict[str, dict[str, type[Codec]]] = {slot: {} for slot in SLOTS}


@functools.cache
def _built_in(slot: str) -> dict[str, type[Codec]]:
    package, names = PACKAGES[slot]
    module = importlib.import_module(f"sparsewire.{package}")
    return {codec.id: codec for codec in (getattr(module, name) for name in names.split())}


@functools.cache
def _load_entry_points() -> None:
    from importlib.metadata import entry_points  # a tenth of what importing all of sparsewire takes

    for entry in entry_points(group=ENTRY_POINTS):
        register(entry.load())


def register(codec: type[Codec]) -> type[Codec]:
    """Adds a codec class under its slot and id; usable as a decorator. A taken id is an error."""
    slot, name = getattr(codec, "slot", None), getattr(codec, "id", "")
    if slot not in SLOTS or not (isinstance(name, str) and name.isidentifier()):
        raise RegistryError(f"{codec!r} needs a slot out of {', '.join(SLOTS)} and an id that is a plain name")
    if getattr(codec, "wire_id", 0):
        raise RegistryError(f"{name}: wire ids are for built-in codecs; leave it 0 and the name travels")
    taken = codecs(slot, load=False).get(name)
    if taken is not None and taken is not codec:
        raise RegistryError(f"{slot}={name} is already registered ({taken.__module__}.{taken.__qualname__})")
    _added[slot][name] = codec
    return codec


def codecs(slot: str, load: bool = True) -> dict[str, type[Codec]]:
    """All codecs of a slot by id."""
    if load:
        _load_entry_points()
    return {**_built_in(slot), **_added[slot]}


def status(slot: str, name: str) -> str:
    """Whether a built-in codec is recommended or there for comparison; nothing for a third party's.

    >>> status("indices", "rice"), status("indices", "bloom")
    ('recommended', 'comparison')
    """
    if name not in _built_in(slot):
        return ""
    return "recommended" if name in RECOMMENDED[slot].split() else "comparison"


def find(slot: str, name: str) -> type[Codec]:
    """The class behind a name in a scheme."""
    codec = codecs(slot).get(name)
    if codec is None:
        raise SchemeError(f"{slot} has no {name!r}{suggestion(name, codecs(slot), slot)}")
    return codec


def find_wire(slot: str, name: int | str) -> type[Codec]:
    """The class behind a number (built in) or a name (third party) in a frame."""
    if isinstance(name, str):
        match = codecs(slot).get(name)
    else:
        match = next((codec for codec in _built_in(slot).values() if codec.wire_id == name), None)
    if match is None:
        raise UnknownCodec(f"the frame needs {slot} codec {name!r}, which is not installed here")
    return match


HOOKS = {"fp16", "bf16", "powersgd", "post-local-sgd", "ddp"}  # of torch, by their names in `sparsewire lab train`


def suggestion(name: str, known: Iterable[str], slot: str) -> str:
    """What a name that a slot does not know may mean: a codec of another slot, a hook of torch, or a mistyped name."""
    elsewhere = [other for other in SLOTS if other != slot and name in codecs(other)]
    if elsewhere:
        return f": {name} is a codec of another slot; write {' or '.join(f'{other}={name}' for other in elsewhere)}"
    if name in HOOKS:
        return f": {name} is a method of torch; `sparsewire lab train --method {name}` measures it"
    everywhere = {codec: other for other in SLOTS if other != slot for codec in codecs(other)}
    close = difflib.get_close_matches(name, [*known, *everywhere], n=1, cutoff=0.7)
    if close and close[0] in everywhere and close[0] not in known:
        return f"; did you mean {everywhere[close[0]]}={close[0]}?{nearest(name, known).rpartition('?')[2]}"
    return nearest(name, known)


def nearest(word: str, known: Iterable[str]) -> str:
    """ ": did you mean …? (known: …)" for error messages."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    guess = f"; did you mean {close[0]!r}?" if close else ""
    return f"{guess} (known: {', '.join(known)})"
