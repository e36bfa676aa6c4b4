"""Gradients in the frequency domain.

python benchmarks/spectra.py FILE.npz    for each array in the file: what the largest shares of elements and of Fourier
    coefficients keep of the energy; what SuperNeurons' setting and the `entropy` codec at the same error take against
    dense float32; and how near `mantissa=auto` comes to the best mantissa
python benchmarks/spectra.py --lengths   time per element of `fft`, for lengths of all kinds
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import sparsewire as sw
from sparsewire.codecs.contract import Context, Transform
from sparsewire.codecs.values import RangeFloat
from sparsewire.lab import measure
from sparsewire.lab.tables import table

SHARES = (1, 5, 15)
PUBLISHED = "superneurons(theta=0.85, bits=10)"
ERRORS = np.geomspace(0.5, 0.001, 120)  # of the entropy codec, from coarse to fine
LENGTHS = (1, 2, 3, 127, 1_009, 4_093, 4_095, 4_096, 4_097, 65_521, 65_536, 1_000_003, 25_000_000, 25_000_009)
ROUNDS = 7


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


def lengths() -> str:
    """Microseconds and nanoseconds per element, there and back; the least of some rounds in which all take turns."""
    fft, rows = sw.scheme(PUBLISHED).transform, []
    xs = {length: measure.noise(length) for length in LENGTHS}
    runs = {f"{length} {way}": run for length, x in xs.items() for way, run in ways(fft, x).items()}
    with measure.progress(ROUNDS * len(runs)) as advance:
        times = measure.interleaved(runs, ROUNDS, advance)
    for length in LENGTHS:
        spent = [1e9 * times[f"{length} {way}"] for way in ("forward", "inverse")]
        rows.append([f"{length:,}", *(f"{t / 1e3:,.1f}" for t in spent), *(f"{t / length:,.2f}" for t in spent)])
    return table(["elements", "forward µs", "inverse µs", "forward ns/element", "inverse ns/element"], rows)


def ways(fft: Transform, x: np.ndarray) -> dict[str, measure.Run]:
    coefficients = fft.forward(x).copy()
    return {"forward": lambda: fft.forward(x), "inverse": lambda: fft.inverse(coefficients, x.size)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("file", nargs="?", type=Path, help="a .npz of float32 gradients")
    what.add_argument("--lengths", action="store_true")
    options = parser.parse_args()
    if options.lengths:
        print(f"{measure.machine_line(measure.machine())}\n\n{lengths()}")
        return 0
    with np.load(options.file) as arrays:
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
