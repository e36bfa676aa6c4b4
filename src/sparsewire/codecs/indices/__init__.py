"""Index codecs: the indices of the entries ⇄ bytes."""

from .best import Best
from .bitmap import Bitmap
from .bloom import Bloom
from .elias_fano import EliasFano
from .golomb import Golomb
from .huffman import Huffman
from .raw import RawIndices
from .rice import Rice
from .run_length import RunLength

__all__ = ["Best", "Bitmap", "Bloom", "EliasFano", "Golomb", "Huffman", "RawIndices", "Rice", "RunLength"]
