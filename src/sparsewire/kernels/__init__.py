"""The hot loops: native where the extension was built, NumPy otherwise; both give the same bits.

The names are those of `reference`, which documents them. `SPARSEWIRE_KERNELS=reference` forces NumPy,
`SPARSEWIRE_THREADS` sets how many threads a dense-sized kernel may use (1).
"""

from __future__ import annotations

import importlib
import os
import warnings
from types import ModuleType

from . import reference
from .device import of, on_host, to_host
from .reference import (
    HUFFMAN_MAX_LENGTH,
    Array,
    Bytes,
    accumulate,
    all_finite,
    alphabet_fit,
    bitmap,
    bloom_build,
    bloom_conflicts,
    bloom_positives,
    chord_knots,
    chunk_topk,
    chunk_topk_sum,
    compensate,
    compensate_mean,
    dequantize,
    descending,
    elias_fano_decode,
    elias_fano_encode,
    elias_fano_width,
    energy,
    energy_count,
    frequency_table_decode,
    frequency_table_encode,
    frequency_table_resolution,
    from_bitmap,
    from_gaps,
    from_run_lengths,
    gap_symbols,
    gaps,
    half_spectra,
    huffman_decode,
    huffman_encode,
    huffman_lengths,
    index_dtype,
    lookup,
    magnitude_bits,
    magnitude_edge,
    one_sign,
    one_sign_sum,
    pack_bits,
    pack_deltas,
    pack_uneven,
    permute,
    poly_eval,
    poly_fit,
    quantize,
    quantizer_fit,
    random_bits,
    range_float_encode,
    range_float_error,
    rans_decode,
    rans_encode,
    reconstruct,
    rice_decode,
    rice_encode,
    row_norms,
    run_lengths,
    scatter_add,
    sketch_insert,
    sketch_load,
    sketch_query,
    symbols_decode,
    symbols_encode,
    threshold,
    topk,
    topk_sum,
    two_level_fit,
    unpack_bits,
    unpack_deltas,
    unpack_uneven,
)

# What a backend must offer: all functions of `reference` but its helpers. The imports above give the names their types,
# `use` replaces them by the backend's functions.
HELPERS = {
    "elias_fano_width",
    "huffman_codes",
    "index_dtype",
    "magnitude_bits",
    "magnitude_edge",
    "mix64",
}
CONTRACT = sorted(
    name
    for name, function in vars(reference).items()
    if getattr(function, "__module__", "").startswith(f"{reference.__name__}.") and name not in HELPERS
)

SLOW = (
    "sparsewire runs on its NumPy kernels: the same results, many times slower. For the native ones, install a C++ "
    "compiler and reinstall sparsewire; `pip install -v` shows why they could not be built."
)
threads = int(os.environ.get("SPARSEWIRE_THREADS", "1"))


def native() -> ModuleType | None:
    """The extension module; None where it was not built, or was built from another version of the sources."""
    try:
        module = importlib.import_module("._native", __name__)
    except ImportError:
        return None
    return module if all(hasattr(module, name) for name in CONTRACT) else None


def backend() -> str:
    return "reference" if topk is reference.topk else "native"


def use(name: str) -> None:
    """Switches to the "native" or the "reference" kernels, for the whole process.

    >>> use("reference"); backend()
    'reference'
    >>> use("native") if native() else None
    """
    module = {"native": native(), "reference": reference}.get(name)
    if module is None:
        raise ImportError(f"there are no {name} kernels here; reinstall sparsewire with a C++ compiler at hand")
    globals().update({function: getattr(module, function) for function in CONTRACT})


def _start() -> None:
    if os.environ.get("SPARSEWIRE_KERNELS") == "reference":
        return
    if native():
        use("native")
    else:
        _say_slow()


def _say_slow() -> None:
    """Warns once; where warnings are errors it logs, as an import that works is none."""
    try:
        warnings.warn(SLOW, RuntimeWarning, stacklevel=3)
    except RuntimeWarning:
        importlib.import_module("logging").getLogger("sparsewire").warning(SLOW)


_start()
