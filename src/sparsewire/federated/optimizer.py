"""The server's optimizer: an outer rule, and the buffers (momentum, say) that it keeps of each tensor."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sparsewire.codecs.contract import State
from sparsewire.kernels import Array
from sparsewire.training.local.outer import OuterSpec, outer_rule


class ServerOptimizer:
    """Turns mean changes into steps; `keep` writes the buffers of a step that was applied."""

    def __init__(self, rule: OuterSpec, kept: dict[str, State] | None = None) -> None:
        self.rule, self.kept = outer_rule(rule), kept or {}

    def step(self, means: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, State]]:
        """(what is to be subtracted from the weights, the buffers afterwards)."""
        steps, kept = dict[str, Array](), dict[str, State]()
        for name, mean in means.items():
            zeros = {buffer: np.zeros_like(mean) for buffer in self.rule.buffers}
            with np.errstate(all="ignore"):
                moved, buffers = self.rule.move(np.zeros_like(mean), mean, self.kept.get(name, zeros))
            steps[name], kept[name] = -moved, dict(buffers)
        return steps, kept

    def keep(self, kept: Mapping[str, State]) -> None:
        self.kept.update(kept)
