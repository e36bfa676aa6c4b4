"""The outer rule: how the common weights move by the mean change that a round of local steps brought.

The mean of Δ = θ − θ_r over the ranks is taken as a gradient, so `sgd(rate=1.0)` puts the common weights at the mean of
the ranks' own (FedAvg), `sgd(rate=0.7, momentum=0.9, nesterov=true)` is DiLoCo's rule (arXiv 2311.08105), and
`adam(rate=0.01)` is FedAdam.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from sparsewire.codecs.contract import Codec
from sparsewire.codecs.registry import nearest
from sparsewire.codecs.scheme import build, parse_call
from sparsewire.errors import SchemeError
from sparsewire.kernels import Array

OuterBuffers = Mapping[str, Array]  # a tensor's buffers by name


class OuterRule(Codec):
    """Stateless, as a memory is: its buffers live with the caller."""

    slot = "outer"

    @property
    @abstractmethod
    def buffers(self) -> tuple[str, ...]:
        """Names of the flat arrays that it keeps per tensor, zero at first."""

    @abstractmethod
    def move(self, weights: Array, mean: Array, kept: OuterBuffers) -> tuple[Array, OuterBuffers]:
        """(new weights, new buffers); what it is given stays as it is."""


@dataclass(frozen=True)
class OuterSGD(OuterRule):
    """As torch.optim.SGD: m ← momentum · m + mean; θ ← θ − rate · m, with Nesterov − rate · (mean + momentum · m)."""

    id = "sgd"

    rate: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False

    def check(self) -> None:
        self.expect(self.rate > 0, "rate is above 0")
        self.expect(0 <= self.momentum < 1, "momentum lies in 0 ≤ momentum < 1")
        self.expect(self.momentum > 0 or not self.nesterov, "nesterov needs a momentum")

    @property
    def buffers(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    def move(self, weights: Array, mean: Array, kept: OuterBuffers) -> tuple[Array, OuterBuffers]:
        kind = weights.dtype.type
        if not self.momentum:
            return weights - kind(self.rate) * mean, {}
        momentum = kind(self.momentum) * kept["momentum"] + mean
        step = mean + kind(self.momentum) * momentum if self.nesterov else momentum
        return weights - kind(self.rate) * step, {"momentum": momentum}


@dataclass(frozen=True)
class OuterAdam(OuterRule):
    """FedAdam (arXiv 2003.00295): m ← β₁ m + (1 − β₁) mean; v ← β₂ v + (1 − β₂) mean²; θ ← θ − rate · m / (√v + eps).

    Without bias correction, as published.
    """

    id = "adam"

    rate: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 0.001

    def check(self) -> None:
        self.expect(self.rate > 0 and self.eps > 0, "rate and eps are above 0")
        self.expect(0 <= self.beta1 < 1 and 0 <= self.beta2 < 1, "beta1 and beta2 lie in 0 ≤ beta < 1")

    @property
    def buffers(self) -> tuple[str, ...]:
        return "momentum", "variance"

    def move(self, weights: Array, mean: Array, kept: OuterBuffers) -> tuple[Array, OuterBuffers]:
        kind = weights.dtype.type
        momentum = kind(self.beta1) * kept["momentum"] + kind(1 - self.beta1) * mean
        variance = kind(self.beta2) * kept["variance"] + kind(1 - self.beta2) * mean * mean
        step = kind(self.rate) * momentum / (np.sqrt(variance) + kind(self.eps))
        return weights - step, {"momentum": momentum, "variance": variance}


OUTER_RULES: dict[str, type[OuterRule]] = {OuterSGD.id: OuterSGD, OuterAdam.id: OuterAdam}
OuterSpec: TypeAlias = "str | Mapping[str, Any] | OuterRule"


def outer_rule(spec: OuterSpec) -> OuterRule:
    """A rule from its string or its dict; a rule passes through.

    >>> str(outer_rule("sgd(rate=0.7, momentum=0.9, nesterov=true)"))
    'sgd(rate=0.7, momentum=0.9, nesterov=true)'
    """
    if isinstance(spec, OuterRule):
        return spec
    if isinstance(spec, str):
        name, positional, named = parse_call(spec.strip(), spec)
        return build(_find(name), positional, named)
    if isinstance(spec, Mapping) and "id" in spec:
        return build(_find(str(spec["id"])), [], {key: value for key, value in spec.items() if key != "id"})
    raise SchemeError(f"outer is a string such as 'sgd(rate=1.0)', a dict with an 'id' or an OuterRule, not {spec!r}")


def _find(name: str) -> type[OuterRule]:
    if name not in OUTER_RULES:
        raise SchemeError(f"there is no outer rule {name!r}{nearest(name, OUTER_RULES)}")
    return OUTER_RULES[name]
