"""optax on several ranks: `wire = exchange(optimizer="sgd(momentum=0.9)", total_steps=N)`, first in the chain."""

try:
    import jax as _jax  # noqa: F401
    import optax as _optax  # noqa: F401
except ModuleNotFoundError as error:
    if error.name not in ("jax", "optax"):
        raise
    _needs = "sparsewire.jax needs JAX and optax: pip install 'sparsewire[jax]'"
    raise ModuleNotFoundError(_needs, name=error.name) from None

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
