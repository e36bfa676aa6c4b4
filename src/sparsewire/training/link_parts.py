"""What the links of several hosts say of themselves alike."""

from __future__ import annotations

from typing import Any

from .averager import Averager
from .local.rounds import Rounds
from .nodes.grid import Grid
from .recipe import Recipe
from .schedule import Settings


class AveragerLink:
    """A link that averages gradients in every step."""

    averager: Averager
    recipe: Recipe | None
    attached: bool

    @property
    def settings(self) -> Settings:
        return self.averager.settings

    @property
    def step(self) -> int:
        return self.averager.step

    @property
    def grid(self) -> Grid:
        """Which ranks share a machine, where these average first."""
        return self.averager.nodes.grid

    def __repr__(self) -> str:
        state = f"at step {self.step}" if self.attached else "detached"
        return f"<{type(self).__name__} {state}: {self.recipe!r}>"

    def stats(self) -> dict[str, Any]:
        """Totals: steps, bytes handed to and got from the engine, what dense steps would have sent, seconds by stage.
        "recipe" is the call that says everything that was chosen."""
        return {**self.averager.stats(), "recipe": repr(self.recipe)}


class RoundsLink:
    """A link whose ranks train alone, and meet at the end of a round."""

    rounds: Rounds

    @property
    def step(self) -> int:
        """Local steps of this rank since the beginning."""
        return self.rounds.total

    @property
    def round(self) -> int:
        return self.rounds.round

    @property
    def grid(self) -> Grid:
        """Which ranks share a machine, where these average first."""
        return self.rounds.averager.nodes.grid


def round_stats(rounds: Rounds, sent: int, received: int, dense: int) -> dict[str, Any]:
    """The totals of local steps, in bytes; `dense` is what float32 gradients in every step would have sent."""
    clock = rounds.averager.clock
    return {
        "rounds": rounds.round,
        "meetings": rounds.meeting,
        "steps": rounds.total,
        "nonfinite": rounds.counts.nonfinite,
        "bytes_sent": sent,
        "bytes_received": received,
        "bytes_dense": dense,
        "seconds": dict(clock.seconds),
        "counts": dict(clock.counts),
    }
