"""sparsewire: gradients that travel as few bytes.

>>> import numpy as np, sparsewire as sw
>>> frame = sw.encode(np.array([0.0, 3.0, 0.0, -1.0], np.float32), "topk(k=2) | indices=rice")
>>> sw.decode(frame).to_dense()
array([ 0.,  3.,  0., -1.], dtype=float32)
"""

from sparsewire.codecs.presets import list_codecs
from sparsewire.codecs.registry import register
from sparsewire.codecs.scheme import Scheme, scheme
from sparsewire.core.sparse import Sparse
from sparsewire.errors import FrameError, InputError, SchemeError, SparsewireError
from sparsewire.frames.codec import decode, encode, inspect
from sparsewire.frames.compression import compress

__version__ = "0.1.0"
__all__ = [
    "FrameError",
    "InputError",
    "Scheme",
    "SchemeError",
    "Sparse",
    "SparsewireError",
    "compress",
    "decode",
    "encode",
    "inspect",
    "list_codecs",
    "register",
    "scheme",
]
