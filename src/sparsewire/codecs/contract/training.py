"""What happens to a gradient before it is coded and after it is decoded: selection, transform, memory, exchange."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, MutableMapping
from typing import Any, ClassVar

import numpy as np

from sparsewire import kernels
from sparsewire.core.sparse import entries, magnitudes
from sparsewire.kernels import Array
from sparsewire.kernels.device import Energies

from .base import Codec, Context
from .terms import Feedback, Terms


class Select(Codec):
    """Dense array → support."""

    slot = "select"
    on_device: ClassVar[bool] = False  # whether x may be a `DeviceArray`; others get a copy on the host

    @abstractmethod
    def pick(self, x: Array, ctx: Context) -> tuple[Array, Array]:
        """(ascending indices, values there) of a flat float32 or float64 array, which stays as it is.

        Non-finite entries are never left out, unless there is room for fewer: then nothing else is chosen. The result
        may share memory with x: `choose` copies it then.
        """

    def pick_sum(self, terms: Terms, x: Array, ctx: Context) -> tuple[Array, Array]:
        """`pick` of a compensated gradient, whose terms stay as they are; one pass where a kernel offers it."""
        return self.choose(terms.total(x), ctx)

    @property
    def takes_nothing(self) -> bool:
        """Whether it chooses no entry of any tensor: what is not finite has then to be told by another one."""
        return False

    def largest_of(self, numel: int) -> int | None:
        """How many of `numel` entries it takes, if it takes the largest, exactly; None if it has another rule."""
        return None

    def of_part(self, parts: int) -> Select:
        """The selection for one of so many parts of a tensor, which together take about as much as it would."""
        return self

    def choose(self, x: Array, ctx: Context) -> tuple[Array, Array]:
        """`pick` in memory of its own: x is written to while the selection is still needed."""
        if not kernels.on_host(x):
            return self.pick(x, ctx) if self.on_device else self.choose(kernels.to_host(x), ctx)
        indices, values = (
            part.copy() if np.may_share_memory(part, x) else part for part in self.pick(x, ctx)
        )  # fmt: skip
        return indices, values


class Transform(Codec):
    """A linear orthonormal map of the flat gradient, before selection; undone once, after the ranks' sums.

    An entry of the result is `width` numbers with one index; entries are selected by their norm.
    """

    slot = "transform"
    is_identity: ClassVar[bool] = False
    uses_fourier: ClassVar[bool] = False  # whether it is made of Fourier transforms: coefficients are sums of many

    @property
    def on_device(self) -> bool:
        """Whether `forward` and `inverse` take a `DeviceArray` here; others get a copy on the host."""
        return False

    @property
    def width(self) -> int:
        """Numbers per entry."""
        return 1

    def fitted(self, shape: tuple[int, ...]) -> Transform:
        """The transform of a tensor of this shape; itself where nothing but the number of elements matters."""
        return self

    @abstractmethod
    def size(self, numel: int) -> int:
        """Entries that a tensor of `numel` elements has; grows with numel, and is bounded by what numel promises."""

    @abstractmethod
    def forward(self, x: Array) -> Array:
        """`size(x.size) * width` coefficients of a flat array, in its dtype; x stays as it is."""

    @abstractmethod
    def inverse(self, coefficients: Array, numel: int) -> Array:
        """The flat array of `numel` elements; the same bits for the same coefficients."""

    def inverse_sparse(self, indices: Array, values: Array, numel: int) -> Array:
        """`inverse` of coefficients that are zero but for some entries; without writing them all out where it can."""
        coefficients = np.zeros(self.size(numel) * self.width, values.dtype)
        entries(coefficients, self.width)[indices] = entries(values, self.width)
        return self.inverse(coefficients, numel)

    def notes(self, size: int, count: int) -> Mapping[str, float]:
        """For `inspect`, of a frame with `count` of `size` entries: the settings, and the share θ that was dropped."""
        settings = {name: value for name, value in self.config.items() if isinstance(value, (int, float))}
        return {**settings, "entries": size, "kept": count, "theta": 1 - count / size if size else 0.0}

    def norms(self, coefficients: Array) -> Array:
        """What the selection compares: each entry's magnitude."""
        return magnitudes(coefficients, self.width)

    def forward_norms(self, x: Array) -> tuple[Array, Array]:
        """`forward`, and the norms of what it gives; at once where that saves a pass."""
        coefficients = self.forward(x)
        return coefficients, self.norms(coefficients)


State = MutableMapping[str, Any]  # a tensor's buffers by name: flat arrays in the work dtype


class Memory(Codec):
    """What a rank does with what it did not send. Stateless: buffers live with the caller, zero at first.

    Every method works element by element, so that a sparse gradient is served by the buffers' parts at its entries.
    Buffers are linear in the gradient: the loss scale, saving and another number of ranks are one rule for all of them.
    """

    slot = "memory"
    buffers: ClassVar[tuple[str, ...]] = ()
    remembers_dense: ClassVar[bool] = False  # whether dense steps go through the buffers as well
    leaves_dense: ClassVar[bool] = False  # but not for parameters that the optimizer has the same momentum for
    follows_rate: ClassVar[bool] = True  # whether what waits may be weighed anew when the learning rate changes
    on_device: ClassVar[bool] = False  # whether its arrays may be `DeviceArray`s

    @property
    def held_momentum(self) -> float | None:
        """The momentum that the means already hold, which the optimizer must not add again; None if there is none."""
        momentum: float | None = getattr(self, "momentum", None)
        return momentum

    @property
    def lead(self) -> float:
        """The share of a velocity that lies in the residual: the next step's momentum, which does not wait."""
        return 0.0

    @property
    def kept_mean(self) -> float:
        """The share of each mean that the buffers take up for the next step, as the movement of the weights."""
        return 0.0

    @property
    def largest_gain(self) -> float | None:
        """The largest multiple of a mean that the optimizer may be handed; None: it is handed the mean itself.

        With one, `keep` returns the energy that the gain of later steps follows (`sparsewire.training.residuals.gain`).
        """
        return None

    @property
    def look_ahead(self) -> float:
        """Nesterov's momentum, where the optimizer looks ahead by itself if it has a momentum of its own."""
        return 0.0

    @abstractmethod
    def total(self, state: State, x: Array) -> Array:
        """The compensated gradient, which the selection sees. Reads only, and returns an array of its own or x."""

    def total_at(self, state: State, x: Array, where: Array) -> Array:
        """`total` at some elements, as an array of the host."""
        return self.total({name: kept[where] for name, kept in state.items()}, x[where]).copy()

    def pick(self, select: Select, state: State, x: Array, ctx: Context) -> tuple[Array, Array]:
        """The selection from `total`; in one pass where that is possible."""
        return select.choose(self.total(state, x), ctx)

    @abstractmethod
    def keep(self, state: State, x: Array, feedback: Feedback) -> Energies | None:
        """Updates the buffers in place, after a step that is finite on all ranks: total = sent + what is kept."""

    def keep_dense(self, state: State, x: Array, mean: Array) -> None:
        """The same after a step in which all of `total` was sent."""
        for buffer in self.buffers:
            state[buffer][:] = 0


class LinearMemory(Memory):
    """A memory whose compensated gradient is a sum of arrays: it is selected from without being written out."""

    @abstractmethod
    def terms(self, state: State) -> Terms: ...

    def total(self, state: State, x: Array) -> Array:
        return self.terms(state).total(x)

    def total_at(self, state: State, x: Array, where: Array) -> Array:
        """Of a device's terms their sum crosses, and not each of them."""
        if kernels.on_host(x):
            return super().total_at(state, x, where)
        terms = self.terms(state)
        return kernels.of(x).gather_sum(terms.residual, x, where, terms.decay, terms.gain)

    def pick(self, select: Select, state: State, x: Array, ctx: Context) -> tuple[Array, Array]:
        if kernels.on_host(x) or select.on_device:
            return select.pick_sum(self.terms(state), x, ctx)
        return select.choose(self.total(state, x), ctx)

    def keep(self, state: State, x: Array, feedback: Feedback) -> Energies | None:
        self.terms(state).keep(x, feedback)
        return None


class ExchangeCodec(Codec):
    """How the ranks come to the mean, as a scheme names it. `sparsewire.exchange.Exchange` adds what it does."""

    slot = "exchange"

    @property
    def uses_masks(self) -> bool:
        """Whether the exchange wants to know which entries a pruned model has left (`Piece.mask`)."""
        return False
