"""Whether a bucket is worked on where it lies, or as a copy on the host.

`SPARSEWIRE_DEVICE_PATH=off` copies the buckets of accelerators to the host whole, and `force` takes the path of devices
for CPU tensors as well, which gives the same bits there: it is for tests.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

import torch

from sparsewire.codecs.scheme import Scheme
from sparsewire.errors import InputError

VARIABLE, SETTINGS = "SPARSEWIRE_DEVICE_PATH", ("auto", "force", "off")
logger = logging.getLogger("sparsewire")


class DevicePath:
    """The rule of one link: it says once in the log what of a scheme needs the host."""

    def __init__(self) -> None:
        self._setting = os.environ.get(VARIABLE, "auto")
        if self._setting not in SETTINGS:
            raise InputError(f"{VARIABLE}={self._setting}: set it to one of {', '.join(SETTINGS)}")
        self._said: set[str] = set()

    def takes(self, bucket: torch.Tensor, plan: Scheme, nodes: bool = True) -> bool:
        """Whether this bucket stays where it is; `nodes`: whether it may be added up there within machines."""
        if self._setting == "off" or (bucket.device.type == "cpu" and self._setting != "force"):
            return False
        if not (nodes and plan.memory.on_device):
            self._say(f"memory={plan.memory.id}" if nodes else "nodes", "gradients are copied to the host whole")
            return False
        if not (plan.transform.is_identity or plan.transform.on_device):
            self._say(f"transform={plan.transform.id}", "compensated gradients are copied to the host whole")
        elif not plan.select.on_device:
            self._say(f"select={plan.select.id}", "compensated gradients are copied to the host whole")
        return True

    def kind(self, devices: Iterable[torch.device]) -> str:
        """The kind of device that all buckets of parameters there stay on, "" if they do not."""
        kinds = {device.type for device in devices}
        stays = self._setting != "off" and len(kinds) == 1 and (kinds != {"cpu"} or self._setting == "force")
        return kinds.pop() if stays else ""

    def _say(self, what: str, follows: str) -> None:
        if what not in self._said:
            self._said.add(what)
            logger.info("%s has no kernel for devices: %s", what, follows)
