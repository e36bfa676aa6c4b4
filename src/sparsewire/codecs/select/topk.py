"""`topk`: the k entries of largest magnitude, exactly; ties go to the lowest index."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sparsewire import kernels
from sparsewire.errors import SchemeError
from sparsewire.kernels import Array

from ..contract import Context, Select, Terms


@dataclass(frozen=True)
class Counted(Select):
    """A selection of a given size: a `ratio` of the elements (at least one), or `k` of them."""

    ratio: float | None = None
    k: int | None = None

    def __post_init__(self) -> None:
        if type(self.ratio) is int and self.ratio == 1:
            raise SchemeError(f"{self.id}(1) may mean all or one: write 100% or ratio=1.0 for all, k=1 for one entry")
        super().__post_init__()

    def check(self) -> None:
        self.expect(self.ratio is None or self.k is None, "give ratio or k, not both")
        if self.ratio is None and self.k is None:
            object.__setattr__(self, "ratio", 0.01)
        self.expect(self.ratio is None or 0 < self.ratio <= 1, "ratio lies in 0 < ratio ≤ 1 (or 0% < … ≤ 100%)")
        self.expect(self.k is None or 0 <= self.k < 2**63, "k is at least 0 and below 2**63")

    def of_part(self, parts: int) -> Counted:
        return self if self.k is None else replace(self, k=-(-self.k // parts))

    @property
    def takes_nothing(self) -> bool:
        return self.k == 0

    def count(self, numel: int) -> int:
        """How many of `numel` elements are chosen."""
        if self.k is not None:
            return min(self.k, numel)
        assert self.ratio is not None
        return min(numel, max(1, int(self.ratio * numel + 0.5)))


@dataclass(frozen=True)
class TopK(Counted):
    """The entries of largest magnitude. NaN and inf count as the largest."""

    id = "topk"
    wire_id = 1
    on_device = True

    def pick(self, x: Array, ctx: Context) -> tuple[Array, Array]:
        return kernels.of(x).topk(x, self.count(x.size))

    def largest_of(self, numel: int) -> int | None:
        return self.count(numel)

    def pick_sum(self, terms: Terms, x: Array, ctx: Context) -> tuple[Array, Array]:
        return kernels.of(x).topk_sum(terms.residual, x, self.count(x.size), terms.decay, terms.gain)
