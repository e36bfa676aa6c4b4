"""Gradients in the frequency domain: `python benchmarks/spectra.py FILE.npz`, for each array in the file.

What the largest shares of elements and of Fourier coefficients keep of the energy; what SuperNeurons' setting and the
`entropy` codec at the same error take against dense float32; and how near `mantissa=auto` comes to the best mantissa.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import sparsewire as sw
from sparsewire.contract import Context
from sparsewire.lab.tables import table
from sparsewire.values import RangeFloat

SHARES = (1, 5, 15)
PUBLISHED = "superneurons(theta=0.85, bits=10)"
ERRORS = np.geomspace(0.5, 0.001, 120)  # of the entropy codec, from coarse to fine


def norm(x: np.ndarray) -> float:
    return float(np.linalg.norm(x.astype(np.float64)))


def kept(x: np.ndarray, share: int, transform: str) -> float:
    left = sw.compress(x, f"topk({share}%) | transform={transform} | values=raw")[1]
    return 1 - (norm(left) / norm(x)) ** 2


def error(x: np.ndarray, frame: bytes) -> float:
    return norm(x - sw.decode(frame).to_dense()) / norm(x)


def rounding(x: np.ndarray, frame: bytes) -> float:
    """The relative error of the coefficients that were sent."""
    exact = sw.decode(sw.encode(x, f"{PUBLISHED} | values=raw")).values
    return norm(exact - sw.decode(frame).values) / norm(exact)


def sizes(x: np.ndarray) -> Iterator[list[str]]:
    """Rows: scheme, × smaller, error of the gradient, error of what was sent."""
    first = sw.encode(x, PUBLISHED)
    entropy = {e: sw.encode(x, f"{PUBLISHED} | values=entropy(error={e:.5f})") for e in ERRORS}
    whole = next(frame for frame in entropy.values() if error(x, frame) <= 1.001 * error(x, first))
    parts = next((frame for frame in entropy.values() if rounding(x, frame) <= rounding(x, first)), b"")
    named = {
        "as published (bitmap)": sw.encode(x, f"{PUBLISHED} | indices=bitmap"),
        "superneurons": first,
        "entropy, same error of the gradient (to 0.1 %)": whole,
        "entropy, same error of the coefficients": parts,
    }
    for name, frame in named.items():
        if frame:
            yield [name, f"{x.nbytes / len(frame):.2f}", f"{error(x, frame):.5f}", f"{rounding(x, frame):.5f}"]


def auto_ratio(x: np.ndarray, bits: int) -> float:
    """The error with the mantissa that was found against that with the best."""
    ctx = Context("float32", x.size, x.size)
    found = [norm(x - RangeFloat(bits, m).encode(x, ctx)[1]) for m in (*range(bits), "auto")]
    return found[-1] / min(found[:-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="a .npz of float32 gradients")
    with np.load(parser.parse_args().file) as arrays:
        gradients = {name: arrays[name].astype(np.float32).reshape(-1) for name in arrays}
    shares = [f"{domain} {share} %" for share in SHARES for domain in ("elements", "fft")]
    rows = [
        [name, *(f"{kept(x, share, t):.3f}" for share in SHARES for t in ("identity", "fft"))]
        for name, x in gradients.items()
    ]
    print("Energy kept\n" + table(["", *shares], rows))
    for name, x in gradients.items():
        print(f"\n{name}\n" + table(["", "× smaller", "error", "error of what was sent"], list(sizes(x))))
        coefficients = sw.decode(sw.encode(x, f"{PUBLISHED} | values=raw")).values
        worst = max(auto_ratio(values, bits) for values in (x, coefficients) for bits in range(3, 14))
        print(f"mantissa=auto, 3 … 13 bits, elements and coefficients: at most {worst:.3f} × the best error")
    return 0


if __name__ == "__main__":
    sys.exit(main())
