"""Federated averaging, compressed both ways, from clients that come and go: NumPy and bytes, nothing else.

>>> import numpy as np
>>> server, client = Server({"w": np.zeros(100)}, "stc(ratio=0.1)"), Client()
>>> weights = client.receive(server.broadcast("anna"))
>>> weights["w"] += 1.0                                # the training
>>> server.add("anna", client.update(weights, examples=50))
>>> server.finish_round().counted
('anna',)
"""

from sparsewire.errors import StaleBase, UpdateRefused

from .client import Client
from .inbox import Limits
from .round import Report
from .server import Server

__all__ = ["Client", "Limits", "Report", "Server", "StaleBase", "UpdateRefused"]
