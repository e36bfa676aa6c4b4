"""`DenseKernels`: the dense-sized work of a step, whatever memory the gradient lies in.

The names and the meaning are those of `sparsewire.kernels.reference`, and the results have its bits. For tensors:
- `x` is flat and contiguous, float32, float64, bfloat16 or float16. It is read in its own type, and arithmetic is done
  in the work dtype: float64 for float64, float32 otherwise. Residual, velocity, sent values and results have the work
  dtype.
- Indices that are returned are int32 where every index fits, and int64 otherwise; either type is taken.
- No function waits for the device unless its docstring says so. So index arrays of arguments are not checked for order
  and range, as NumPy's are: what comes from other ranks was checked on the host before it was copied.
- Sizes are known to the host before a kernel runs. Where they depend on the data (`candidates`), the arrays have the
  largest size and `count`, an array of one number on the device, tells how much of them is used.
- Flags and numbers (`all_finite`, `has_gradient`, `largest`) are arrays without dimensions on the device: `bool()` and
  `float()` wait for them, and several are best stacked and read at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

Dense = Any  # a NumPy array or a torch tensor
Entries = tuple[Dense, Dense]  # ascending indices, and the values there


class Candidates(NamedTuple):
    """Entries of an unknown number: the first `count` of the arrays are used, what follows has no meaning."""

    indices: Dense
    values: Dense
    count: Dense


class Energy(Protocol):
    """A sum of squares that may still lie on the device."""

    def read(self) -> float:
        """The number, which waits for the device. About one byte is copied for every 64 elements."""


class Energies(Protocol):
    """The energy of a compensated gradient, and of its entries that were sent."""

    def read(self) -> tuple[float, float]:
        """The numbers, which waits for the device. Copied are k numbers and about one byte for every 64 elements."""


class DenseKernels(Protocol):
    """What a module of kernels offers for the memory that an array lies in."""

    NAME: str

    def remembered_edge(self, x: Dense) -> Dense | None:
        """What `topk` and `topk_sum` remember from step to step to read less; None where nothing is to be gained.

        It is kept beside the tensor's residual, need not be saved, and changes no result.
        """

    def topk(self, x: Dense, k: int, remembered: Dense | None = None) -> Entries:
        """The k entries of largest magnitude, ties to the lowest index: (indices ascending, values)."""

    def topk_sum(
        self, residual: Dense, x: Dense, k: int, decay: float = 1.0, gain: float = 1.0, remembered: Dense | None = None
    ) -> Entries:
        """`topk` of the compensated gradient decay · residual + gain · x, which is not written out."""

    def candidates(
        self, residual: Dense | None, x: Dense, most: int, edge: int, decay: float = 1.0, gain: float = 1.0
    ) -> Candidates:
        """The entries of `topk_sum` (of `topk` without a residual) whose magnitude's bits reach the edge."""

    def threshold(self, x: Dense, edge: int) -> Entries:
        """All entries whose magnitude's bits reach the edge. It waits for the device once, for their number."""

    def reaching(self, x: Dense, edge: Dense) -> tuple[Dense, Callable[[int], Entries]]:
        """The same without a wait: how many there are, an array of one number, and what gives them for that number. The
        edge may lie on the device."""

    def total(self, residual: Dense, x: Dense, decay: float = 1.0, gain: float = 1.0) -> Dense:
        """decay · residual + gain · x, written out in new memory."""

    def compensate(
        self, residual: Dense, x: Dense, indices: Dense, sent: Dense, decay: float = 1.0, gain: float = 1.0,
        velocity: Dense | None = None, momentum: float = 0.0, lead: float = 0.0, mask: bool = False,
    ) -> None:  # fmt: skip
        """What is kept of a step, in place: see `reference.compensate`."""

    def compensate_mean(
        self, residual: Dense, x: Dense, indices: Dense, sent: Dense, parts: Sequence[Entries], scale: float
    ) -> Energies:
        """What is kept of a step with a share of its mean, in place: see `reference.compensate_mean`."""

    def energy(self, x: Dense, unit: float = 1.0) -> Energy:
        """Σ (x / unit)², in float64 and in the order of `reference.energy`; infinite where it is no number."""

    def largest(self, x: Dense) -> Dense:
        """The largest magnitude, in the work dtype; infinite where a number is not finite, 0 of an empty array."""

    def accumulate(self, out: Dense, parts: Sequence[Entries], scale: float) -> None:
        """out = Σ over the parts, in their order, of scale × values at indices; everything else is zero.

        An `out` of bfloat16 or float16 takes sums that are made in float32 and rounded once.
        """

    def scatter_add(self, out: Dense, indices: Dense, values: Dense, scale: float = 1.0) -> None:
        """out[indices] += scale · values."""

    def gather(self, x: Dense, indices: Dense) -> Dense:
        """x[indices] in the work dtype."""

    def gather_sum(self, residual: Dense, x: Dense, indices: Dense, decay: float = 1.0, gain: float = 1.0) -> Dense:
        """The compensated gradient at some indices."""

    def all_finite(self, x: Dense) -> Dense:
        """Whether no entry is NaN or infinite."""

    def has_gradient(self, x: Dense) -> Dense:
        """Whether any entry is not zero."""
