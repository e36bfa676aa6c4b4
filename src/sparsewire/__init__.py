"""sparsewire: gradients that travel as few bytes.

>>> import numpy as np, sparsewire as sw
>>> frame = sw.encode(np.array([0.0, 3.0, 0.0, -1.0], np.float32), "topk(k=2) | indices=rice")
>>> sw.decode(frame).to_dense()
array([ 0.,  3.,  0., -1.], dtype=float32)
"""

from .codec import decode, encode, inspect
from .compression import compress
from .errors import FrameError, InputError, SchemeError, SparsewireError
from .presets import list_codecs
from .registry import register
from .scheme import Scheme, scheme
from .sparse import Sparse

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
