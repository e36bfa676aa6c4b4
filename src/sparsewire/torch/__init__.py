"""One line on a DDP model: `link = attach(ddp_model, optimizer=optimizer, total_steps=10_000)`."""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError("sparsewire.torch needs PyTorch: pip install 'sparsewire[torch]'", name="torch") from None

from sparsewire.comm.groups import init_group
from sparsewire.planning.auto import Auto
from sparsewire.training.schedule import dgc_schedule, falling_ratio, theta_schedule, warmup_ratio

from .capture import Capture, capture
from .checkpoint.dcp import load_dcp, save_dcp
from .checkpoint.files import load, reshard, save
from .ddp.attach import attach
from .ddp.link import Link
from .local.link import LocalLink
from .local.steps import local_steps
from .prune import Pruned, prune

__all__ = [
    "Auto",
    "Capture",
    "Link",
    "LocalLink",
    "Pruned",
    "attach",
    "capture",
    "dgc_schedule",
    "falling_ratio",
    "init_group",
    "load",
    "load_dcp",
    "local_steps",
    "prune",
    "reshard",
    "save",
    "save_dcp",
    "theta_schedule",
    "warmup_ratio",
]  # fmt: skip
