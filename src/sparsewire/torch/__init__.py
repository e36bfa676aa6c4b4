"""One line on a DDP model: `link = attach(ddp_model, "topk(1%) | indices=rice | values=qsgd(bits=7)")`."""

from ..schedule import dgc_schedule
from .attach import attach
from .checkpoint import deal, load, save
from .dcp import load_dcp, save_dcp
from .link import Link

__all__ = ["Link", "attach", "deal", "dgc_schedule", "load", "load_dcp", "save", "save_dcp"]
