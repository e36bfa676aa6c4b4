"""What gradients are like: how sparse, how clustered, how correlated, how their values are distributed.

Everything is a sum over the elements or the entries, so the facts of several tensors, or of several steps of one, are
those of the added sums. Energies are compared at equal shares: p % of a tensor's elements against p % of its Fourier
coefficients, which are as many numbers.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from sparsewire import kernels
from sparsewire.codecs.contract import Context
from sparsewire.codecs.scheme import scheme
from sparsewire.kernels import Array

from ..bench.deepreduce import flat
from ..measure import share, uniform_indices

PLAN = scheme("topk | transform=fft(chunk=4096) | indices=best")
SHARES = (0.01, 0.05, 0.15)  # in the tables
CURVE = tuple(sorted({*SHARES, *(round(float(part), 6) for part in np.geomspace(0.001, 1, 25))}))  # in the picture
SUPPORT = 0.01  # the largest entries whose places are looked at
OCTAVES = 32  # in which values are counted, from the largest of all down; what is smaller counts to the last
MARGIN = 0.02  # of the energy: less is no difference
KURTOSES = ((2.4, "flat"), (4.2, "Gaussian"), (9.0, "Laplace"))  # a uniform distribution has 1.8, these two 3 and 6
CORRELATED, FLAT, UNCORRELATED, NEITHER = "correlated", "flat", "not correlated", "neither"


@dataclass(frozen=True)
class Sums:
    """Of one tensor, or added up over several; the powers are those of the values that are not zero."""

    numel: int
    nonzero: int
    powers: Array
    octaves: Array  # how many of them are in each octave below the largest of all tensors
    neighbours: float  # Σ x[i]·x[i+1]
    time: Array  # energy of the largest elements, for each share of CURVE
    frequency: Array
    count: int  # entries of the top 1 % that are not zero; their runs, and the bytes that their indices take
    runs: int
    runs_random: float
    coded: int
    coded_random: int

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(Sums)))


def describe(arrays: Mapping[str, Array], ranked: Collection[str] = ()) -> list[dict[str, Any]]:
    """The facts of each tensor; if there are several, those of all `ranked` ones (or of all) together as the last row.

    Keys such as `layer.weight@3` are steps of one tensor.
    """
    flats = {name: flat(array) for name, array in arrays.items()}
    scale = max(float(np.abs(x).max()) for x in flats.values()) or 1.0
    groups: dict[str, list[Sums]] = {}
    for key, x in flats.items():
        groups.setdefault(tensor_name(key), []).append(_sums(x, scale))
    taken = {tensor_name(key) for key in ranked or arrays}
    rows = [_facts(name, steps) | {"ranked": name in taken} for name, steps in groups.items()]
    if len(rows) > 1:
        every = [one for name in groups if name in taken for one in groups[name]]
        rows.append(_facts(_together(len(taken), len(rows)), every) | {"ranked": True})
    return rows


def _together(count: int, every: int) -> str:
    return f"all {every} tensors" if count == every else f"{count} of {every} tensors"


def tensor_name(key: str) -> str:
    """
    >>> tensor_name("layer.weight@3"), tensor_name("layer.weight")
    ('layer.weight', 'layer.weight')
    """
    name, _, step = key.rpartition("@")
    return name if name and step.isdecimal() else key


def _sums(x: Array, scale: float) -> Sums:
    wide = x.astype(np.float64) / scale
    values = wide[wide != 0]
    support, _ = kernels.topk(x, min(share(SUPPORT, x.size), values.size))  # zeros would tie at the lowest indices
    random = uniform_indices(x.size, support.size)
    return Sums(
        numel=x.size,
        nonzero=values.size,
        powers=np.array([np.sum(values**power) for power in range(5)]),
        octaves=_octaves(values),
        neighbours=float(wide[:-1] @ wide[1:]),
        time=_energies(np.abs(wide)),
        frequency=_energies(PLAN.transform.forward_norms(wide)[1]),
        count=support.size,
        runs=int(np.count_nonzero(np.diff(support, prepend=-2) > 1)),
        runs_random=support.size * (x.size - support.size + 1) / x.size,
        coded=_coded(support, x.size),
        coded_random=_coded(random, x.size),
    )


def _octaves(values: Array) -> Array:
    return np.bincount(np.clip(-np.frexp(values)[1], 0, OCTAVES - 1), minlength=OCTAVES)


def _energies(magnitudes: Array) -> Array:
    """The energy of the largest entries, for each share of CURVE."""
    falling = np.cumsum(np.sort(magnitudes)[::-1] ** 2)
    return falling[[share(part, magnitudes.size) - 1 for part in CURVE]]


def _coded(support: Array, numel: int) -> int:
    return len(PLAN.indices.encode(support, Context("float32", numel, support.size))[0])


def _facts(name: str, arrays: Sequence[Sums]) -> dict[str, Any]:
    total = functools.reduce(operator.add, arrays)
    energy = float(total.powers[2])
    kurtosis = _kurtosis(total.powers)
    time, frequency = _kept(total.time, energy), _kept(total.frequency, energy)
    return {
        "tensor": name,
        "arrays": len(arrays),
        "numel": total.numel,
        "nonzero": total.nonzero / total.numel,
        "mean_run": _quotient(total.count, total.runs),
        "mean_run_random": _quotient(total.count, total.runs_random),
        "index_bits": _quotient(8 * total.coded, total.count),
        "index_bits_random": _quotient(8 * total.coded_random, total.count),
        "neighbour_correlation": _quotient(total.neighbours, energy),
        "kurtosis": kurtosis,
        "values": _label(kurtosis),
        "octaves": [int(count) / max(1, total.nonzero) for count in total.octaves],
        "time": time,
        "frequency": frequency,
        "kind": _kind(time, frequency),
    }


def _quotient(part: float, whole: float) -> float | None:
    """None where there is nothing to divide by: of zeros only."""
    return part / whole if whole else None


def _kept(energies: Array, energy: float) -> dict[str, float]:
    """The share of the energy, by the share of the entries."""
    return {f"{part:g}": float(kept) / energy if energy else 0.0 for part, kept in zip(CURVE, energies, strict=True)}


def _kurtosis(powers: Array) -> float | None:
    """The fourth central moment over the squared variance; None where all values are the same."""
    if not powers[0]:
        return None
    mean, second, third, fourth = powers[1:] / powers[0]
    variance = second - mean**2
    if variance <= 1e-12 * second:
        return None
    return float((fourth - 4 * mean * third + 6 * mean**2 * second - 3 * mean**4) / variance**2)


def _label(kurtosis: float | None) -> str:
    if kurtosis is None:
        return "constant"
    return next((label for limit, label in KURTOSES if kurtosis < limit), "heavy-tailed")


def _kind(time: Mapping[str, float], frequency: Mapping[str, float]) -> str:
    """By the energy that the largest share of the tables keeps; of white noise, its coefficients keep p (1 − ln p)."""
    share = SHARES[-1]
    kept, noise = frequency[f"{share:g}"], share * (1 - math.log(share))
    more = kept - time[f"{share:g}"]
    if abs(more) < MARGIN:
        return NEITHER
    if more < 0:
        return UNCORRELATED
    return CORRELATED if kept > noise + MARGIN else FLAT
