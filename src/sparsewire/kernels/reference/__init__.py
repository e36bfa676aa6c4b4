"""The kernels in NumPy: readable, the oracle for the native ones, and what runs where there is no compiler.

The contract, for both:
- dense arrays are one-dimensional, contiguous float32 or float64; magnitudes are compared as integers (the bits of
  |x|), so that NaN is larger than inf and both are larger than any number;
- index arrays are ascending and unique, int32 where every index fits and int64 otherwise (`index_dtype`);
- bits are packed least significant first, and the bits after the last are zero;
- data that cannot have come from the encoder raises `ValueError`, before more memory is taken than `count` asks for.
"""

from .alphabet import alphabet_fit
from .base import Array, Bytes, index_dtype
from .bins import reconstruct, symbols_decode, symbols_encode
from .bits import (
    bitmap,
    from_bitmap,
    from_gaps,
    from_run_lengths,
    gaps,
    pack_bits,
    pack_uneven,
    run_lengths,
    unpack_bits,
    unpack_uneven,
)
from .bloom import bloom_build, bloom_conflicts, bloom_positives
from .curves import chord_knots, descending, poly_eval, poly_fit
from .dense import (
    accumulate,
    all_finite,
    chunk_topk,
    chunk_topk_sum,
    compensate,
    magnitude_bits,
    magnitude_edge,
    one_sign,
    one_sign_sum,
    scatter_add,
    threshold,
    topk,
    topk_sum,
)
from .energy import compensate_mean, energy, energy_count
from .frequency_table import frequency_table_decode, frequency_table_encode, frequency_table_resolution
from .huffman import HUFFMAN_MAX_LENGTH, gap_symbols, huffman_codes, huffman_decode, huffman_encode, huffman_lengths
from .quantize import GOLDEN, dequantize, mix64, permute, quantize, random_bits
from .quantizer_fit import quantizer_fit, two_level_fit
from .range_float import lookup, range_float_encode, range_float_error
from .rans import rans_decode, rans_encode
from .rice import (
    elias_fano_decode,
    elias_fano_encode,
    elias_fano_width,
    pack_deltas,
    rice_decode,
    rice_encode,
    unpack_deltas,
)
from .rows import half_spectra, row_norms
from .sketch import sketch_insert, sketch_load, sketch_query
