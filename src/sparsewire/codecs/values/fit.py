"""`fit_poly`: sorted values as a few polynomials (Fit-Poly of DeepReduce, arXiv 2102.03112)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sparsewire import kernels
from sparsewire.core.binary import Reader, join, varint
from sparsewire.kernels import Array

from .curve import CurveCodec, exponent_of, falling, scaled, take_coefficients, take_magnitudes

# Far beyond what any fit of numbers below 1 gives, far below what could overflow.
LARGEST_COEFFICIENT = 2.0**40
FEWEST_SEGMENTS, MOST_SEGMENTS, POINTS_PER_SEGMENT = 8, 16, 44


@dataclass(frozen=True)
class FitPoly(CurveCodec):
    """Sorted values as polynomials of `degree` on at most `segments` pieces a sign; the order as a map of ranks.

    For the magnitudes of each sign, from the largest down:

    1. Cut at the point furthest from the chord of its segment, again and again, until there are `segments` of them or
       every other cut would leave fewer than degree + 1 points. Where none is said: ⌈2√M⌉ segments, with
       M = |(c₁ − c₂) − (cₙ₋₁ − cₙ)|.
    2. Least squares per segment, in polynomials orthogonal on its points; coefficients in the work dtype.
    3. The first magnitude of every segment and the last of all travel too: the drawn curve is cut off there, and where
       it ascends it stays at its lowest so far.

    Where this differs from the paper: M is relative to the mean magnitude, so that the scale of a gradient does not
    matter, and there are 8 to 16 segments, but no more than one per 44 values; negatives are fitted as positives; a
    sign with no more values than a segment has numbers is sent as it is; steps 2 (no linear system) and 3.
    """

    id = "fit_poly"
    wire_id = 7

    degree: int = 5
    segments: int | None = None
    rank_bits: int | None = None

    def check(self) -> None:
        super().check()
        self.expect(1 <= self.degree <= 15, "degree lies in 1 … 15")
        self.expect(self.segments is None or 1 <= self.segments <= 1024, "segments lies in 1 … 1024")

    def fit(self, magnitudes: Array) -> bytes:
        if self._tiny(magnitudes.size):
            return join(magnitudes)
        curve = scaled(magnitudes, -exponent_of(float(magnitudes[0])))
        cuts = kernels.chord_knots(curve, self.segments or automatic_segments(curve), self.degree + 1)
        ends = magnitudes[np.append(cuts[:-1], magnitudes.size - 1)]
        rows = kernels.poly_fit(curve, cuts, self.degree).reshape(-1, self.degree + 1)[ends[:-1] > ends[1:]]
        lengths = map(varint, np.diff(cuts)[:-1].tolist())
        return join(varint(cuts.size - 1), *lengths, ends, rows.astype(magnitudes.dtype))

    def draw(self, reader: Reader, count: int, dtype: np.dtype[np.floating]) -> Array:
        if self._tiny(count):
            return take_magnitudes(reader, count, dtype)
        cuts = self._take_cuts(reader, count)
        ends = take_magnitudes(reader, cuts.size, dtype)
        rows, curved = np.zeros((cuts.size - 1, self.degree + 1)), ends[:-1] > ends[1:]
        coefficients = take_coefficients(reader, rows[curved].size, dtype, LARGEST_COEFFICIENT)
        rows[curved] = coefficients.reshape(-1, self.degree + 1)
        curve = kernels.poly_eval(rows.ravel(), cuts)
        with np.errstate(over="ignore"):
            return _clamped(scaled(curve, exponent_of(float(ends[0]))).astype(dtype), cuts, ends)

    def curve_limit(self, item: int) -> int:
        most_segments = self.segments or MOST_SEGMENTS
        return 10 + most_segments * (10 + item * (self.degree + 2)) + 2 * item

    def _tiny(self, count: int) -> bool:
        """Whether there are no more values than a single segment has numbers."""
        return count <= self.degree + 3

    def _take_cuts(self, reader: Reader, count: int) -> Array:
        segments = reader.varint()
        if not 1 <= segments <= (self.segments or MOST_SEGMENTS):
            raise ValueError(f"{segments} segments, {self} has at most {self.segments or MOST_SEGMENTS}")
        lengths = [reader.varint() for _ in range(segments - 1)]
        lengths.append(count - sum(lengths))
        if min(lengths) <= self.degree:
            raise ValueError("a segment has too few points")
        return np.cumsum([0, *lengths], dtype=np.int64)


def automatic_segments(curve: Array) -> int:
    """⌈2√M⌉ of a curve divided by its mean, within bounds that keep the coefficients below a fifth of the values."""
    # A thousand points tell the mean of a sorted curve; cumsum adds one after the other on every machine, sum does not.
    sample = curve[:: -(-curve.size // 1024)]
    mean = float(np.cumsum(sample)[-1]) / sample.size
    gap = abs(float((curve[0] - curve[1]) - (curve[-2] - curve[-1])))
    wanted = math.ceil(2 * math.sqrt(gap / mean)) if mean > 0 else 1
    return max(1, min(max(wanted, FEWEST_SEGMENTS), MOST_SEGMENTS, curve.size // POINTS_PER_SEGMENT))


def _clamped(curve: Array, cuts: Array, ends: Array) -> Array:
    """Clamped to the ends of every segment, and nowhere ascending."""
    for i in range(cuts.size - 1):
        part = curve[cuts[i] : cuts[i + 1]]
        np.clip(part, ends[i + 1], ends[i], out=part)
    return falling(curve)
