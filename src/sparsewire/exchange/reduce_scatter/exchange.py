"""`reduce_scatter`: every rank owns a slice of each tensor, adds it up and sends the largest sums to all.

With P ranks and k entries selected on each, a rank sends and receives about 2k(P−1)/P coded entries, whatever P is; an
`allgather` receives k(P−1). What it costs: the mean has k entries, not up to P·k.

1. Each rank selects, and sends its entries of slice j to rank j, coded by the scheme's own codecs: at once (`direct`),
   or in ⌈log2 P⌉ rounds (`log`), in which ranks on the way add up what they pass on, and cut it before they do (SparDL,
   arXiv 2304.00737).
2. A cut, and the owner in the end, keeps as many entries as the ranks whose parts are in the slice selected there on
   average, at least one, and of these the largest sums.
3. One all_gather of the owners' slices, coded as means: every rank has the same bits.
4. What a rank drops, and what it loses by coding a sum, stays in its own residual.

Other than in SparDL, where sums are cut to k/P, a slice in which the ranks select more keeps more, and an entry that
passes a rank takes along what that rank has there, selected or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparsewire.comm import Communicator
from sparsewire.errors import FrameError
from sparsewire.frames.piece import Selected

from ..base import Clock, Exchange, ExchangeContext, Outcome
from ..messages import NEVER_SENT
from .routes import direct, log
from .shares import Shares

ROUTES = {"direct": direct, "log": log}


@dataclass(frozen=True)
class ReduceScatter(Exchange):
    """Slices to their owners and the largest sums from there; `route` is direct (one all_to_all) or log (rounds)."""

    id = "reduce_scatter"
    wire_id = 3

    route: str = "direct"

    def check(self) -> None:
        self.expect(self.route in ROUTES, f"route is one of {', '.join(ROUTES)}")

    def exchange(self, offers: Sequence[Selected], context: ExchangeContext) -> list[Outcome]:
        """Moves the offers' slices; no buffer is written."""
        shares = Shares(context.comm, context.channel([offer.piece for offer in offers]), context.clock)
        shares.cut(offers)
        ROUTES[self.route](shares)
        return shares.gather()

    def refuse(self, comm: Communicator, channel: str) -> None:
        shares = Shares(comm, channel, Clock())
        shares.error = FrameError(NEVER_SENT)
        ROUTES[self.route](shares)
        shares.gather_own()
