"""Schemes ranked by bytes at equal error: of each the cheapest setting that meets the error, found by trying.

A candidate is a scheme with one setting left open and the values that this may have, from coarse to fine. Every trial
encodes all tensors into frames and decodes these; one setting is for all tensors, as in training.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsewire.codecs.scheme import scheme
from sparsewire.frames.codec import decode, encode
from sparsewire.kernels import Array

from ..bench.deepreduce import flat

PER_OCTAVE = 64  # settings between one and its double
COARSE = 12  # trials where a finer setting may have a larger error
CHUNK = 4096


@dataclass(frozen=True)
class Candidate:
    """`template` has {} for the open setting, and {coarse} for an error of the values of half what is asked for;
    `settings` is a function of the longest tensor's size and the largest magnitude."""

    name: str
    template: str
    settings: Callable[[int, float], Sequence[str]]

    def trials(self, numel: int, largest: float, bound: float) -> list[str]:
        """Schemes, from coarse to fine."""
        coarse = min(0.5, max(0.001, bound / 2))
        return [self.template.format(setting, coarse=coarse) for setting in self.settings(numel, largest)]


@dataclass(frozen=True)
class Trial:
    """What a scheme measured: bytes of all frames, relative error, share of the entries that was sent."""

    scheme: str
    bytes: int
    error: float
    kept: float


def _steps(low: float, high: float) -> list[float]:
    """From low to high, both included, each 1 % above the one before."""
    count = max(2, round(PER_OCTAVE * float(np.log2(high / low))) + 1)
    return [float(f"{value:.5g}") for value in np.geomspace(low, high, count)]


def _texts(values: Sequence[float]) -> list[str]:
    return [repr(value) for value in dict.fromkeys(values)]


def _ratios(numel: int, largest: float) -> list[str]:
    return _texts(_steps(0.5 / numel, 1.0))


def _thresholds(numel: int, largest: float) -> list[str]:
    return _texts(_steps(max(largest * 2.0**-20, TINY), largest)[::-1]) if largest else ["0.0"]


def _errors(numel: int, largest: float) -> list[str]:
    return _texts(_steps(0.001, 0.5)[::-1])


def _bounds(numel: int, largest: float) -> list[str]:
    return _texts(_steps(0.001, 0.99)[::-1])


def _per_chunk(numel: int, largest: float) -> list[str]:
    return [str(count) for count in dict.fromkeys(round(step) for step in _steps(1, CHUNK))]


def _whole(low: int, high: int) -> Callable[[int, float], list[str]]:
    return lambda numel, largest: [str(value) for value in range(low, high + 1)]


def _fixed(numel: int, largest: float) -> list[str]:
    return [""]


TINY = 5e-324  # the smallest number
FREQUENCY = "frequency"
COARSE_VALUES = "indices=best | values=entropy(error={coarse})"
CANDIDATES = (
    Candidate("top-k as it is", "topk(ratio={}) | indices=raw | values=raw", _ratios),
    Candidate("top-k", "topk(ratio={}) | indices=best | values=entropy(error=0.05)", _ratios),
    Candidate("top-k, coarse values", "topk(ratio={}) | " + COARSE_VALUES, _ratios),
    Candidate("top-k, qsgd", "topk(ratio={}) | indices=rice | values=qsgd(bits=7)", _ratios),
    Candidate("top-k, 4 bits", "topk(ratio={}) | indices=best | values=qsgd(bits=4)", _ratios),
    Candidate("one threshold", "threshold(value={}) | " + COARSE_VALUES, _thresholds),
    Candidate("error budget", "error_budget(bound={}) | " + COARSE_VALUES, _bounds),
    Candidate("stc", "topk(ratio={}) | indices=golomb | values=sign_mean", _ratios),
    Candidate("sbc", "one_sign(ratio={}) | indices=golomb | values=mean", _ratios),
    Candidate("sparseloco", "chunk_topk(k={}, chunk=4096) | indices=best | values=centroid(bits=2)", _per_chunk),
    Candidate(
        f"{FREQUENCY}: superneurons",
        "topk(ratio={}) | transform=fft(chunk=4096) | indices=rice | values=range_float(bits=10)",
        _ratios,
    ),
    Candidate(f"{FREQUENCY}: fft", "topk(ratio={}) | transform=fft(chunk=4096) | " + COARSE_VALUES, _ratios),
    Candidate(f"{FREQUENCY}: dct", "topk(ratio={}) | transform=dct(block=64) | " + COARSE_VALUES, _ratios),
    Candidate(
        f"{FREQUENCY}: dct of tiles",
        "topk(ratio={}) | transform=dct(block=64, two_dimensional=true) | " + COARSE_VALUES,
        _ratios,
    ),
    Candidate("no selection, entropy", "nonzero | indices=best | values=entropy(error={})", _errors),
    Candidate("no selection, qsgd", "nonzero | indices=best | values=qsgd(bits={})", _whole(2, 16)),
    Candidate("no selection, quantiles", "nonzero | indices=best | values=quantile(levels={})", _whole(2, 256)),
    Candidate("no selection, signs", "nonzero | indices=best | values=sign_mean{}", _fixed),
)


class Bench:
    """Tries schemes on tensors; what was tried once is not tried again."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays
        self.numel = sum(array.size for array in arrays.values())
        self._longest = max(array.size for array in arrays.values())
        self._largest = max(float(np.abs(flat(array)).max()) for array in arrays.values())
        self._energy = sum(self._energy_of(flat(array)) for array in arrays.values())

    def trials(self, candidate: Candidate, bound: float) -> Sequence[str]:
        return candidate.trials(self._longest, self._largest, bound)

    @functools.cache  # noqa: B019 (one object per run)
    def try_scheme(self, text: str) -> Trial:
        plan = scheme(text)
        size = sent = entries = 0
        lost = 0.0
        for name, array in self._arrays.items():
            frame = encode(array, plan, name=name)
            seen, exact = decode(frame, max_entries=sys.maxsize), flat(array)
            lost += self._energy_of(exact.astype(np.float64) - seen.flat())
            size, sent, entries = size + len(frame), sent + seen.count, entries + seen.size
        error = (lost / self._energy) ** 0.5 if self._energy else 0.0
        return Trial(text, size, error, sent / entries)

    def _energy_of(self, x: Array) -> float:
        """Relative to the largest number, whose square may be out of range."""
        wide = x.astype(np.float64) / (self._largest or 1.0)
        return float(wide @ wide)


def rank(bench: Bench, bound: float, advance: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row per candidate: first those that meet the error, by their bytes, then by how near the others come."""
    rows = []
    for candidate in CANDIDATES:
        advance(f"{candidate.name}, error ≤ {bound:g}")
        best = search(bench.trials(candidate, bound), bench.try_scheme, bound)
        rows.append(_row(candidate, best, bound, bench.numel))
    return sorted(rows, key=lambda row: (not row["reached"], row["bytes"] if row["reached"] else row["error"]))


def search(trials: Sequence[str], measure: Callable[[str], Trial], bound: float) -> Trial:
    """The coarsest of the trials whose error is within the bound; if none is, the one with the smallest error.

    By bisection if the finest meets it. If not, a middle one still may, where all entries are sent as one magnitude:
    then some are tried all over the range.
    """
    last = len(trials) - 1

    def met(place: int) -> bool:
        return measure(trials[place]).error <= bound

    if met(last):
        return measure(trials[_bisect(met, -1, last)])
    places = sorted({round(last * part / COARSE) for part in range(COARSE + 1)})
    first = next((order for order, place in enumerate(places) if met(place)), None)
    if first is None:
        return min((measure(trials[place]) for place in places), key=lambda trial: trial.error)
    return measure(trials[_bisect(met, places[first - 1] if first else -1, places[first])])


def _bisect(met: Callable[[int], bool], low: int, high: int) -> int:
    """The first place above `low` that meets the bound, where `high` does."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if met(middle) else (middle, high)
    return high


def _row(candidate: Candidate, best: Trial, bound: float, numel: int) -> dict[str, Any]:
    return {
        "candidate": candidate.name,
        "scheme": best.scheme,
        "bytes": best.bytes,
        "times_smaller": 4 * numel / best.bytes,
        "error": best.error,
        "kept": best.kept,
        "reached": best.error <= bound,
    }
