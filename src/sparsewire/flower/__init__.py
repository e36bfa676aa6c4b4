"""Flower, compressed both ways: `ClientApp(mods=[mod])` here, `Compressed(FedAvg(), "stc(ratio=0.01)")` there."""

from importlib.util import find_spec

if find_spec("flwr") is None:
    raise ImportError("sparsewire.flower needs Flower: pip install 'sparsewire[flower]'")

from sparsewire.federated import Limits

from .client import make_mod, mod
from .strategy import Compressed

__all__ = ["Compressed", "Limits", "make_mod", "mod"]
