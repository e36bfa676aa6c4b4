"""optax on several ranks: `wire = exchange(optimizer="sgd(momentum=0.9)", total_steps=N)`, first in the chain."""

from importlib.util import find_spec

for _name in ("jax", "optax"):
    if find_spec(_name) is None:
        raise ModuleNotFoundError(f"sparsewire.jax needs {_name}: pip install 'sparsewire[jax]'", name=_name)

from sparsewire.training.schedule import dgc_schedule, falling_ratio, theta_schedule, warmup_ratio

from .link import Link
from .rounds import LocalLink, local
from .share import broadcast
from .transform import Exchange, exchange

__all__ = [
    "Exchange",
    "Link",
    "LocalLink",
    "broadcast",
    "dgc_schedule",
    "exchange",
    "falling_ratio",
    "local",
    "theta_schedule",
    "warmup_ratio",
]
