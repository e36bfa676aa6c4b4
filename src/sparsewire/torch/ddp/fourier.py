"""Fourier transforms by torch on the accelerator where the gradients are; the host's NumPy has them otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterable

import torch

from sparsewire.codecs.scheme import Scheme
from sparsewire.codecs.transform import Fourier
from sparsewire.comm import Communicator
from sparsewire.kernels import Array

CHANNEL = "fourier"


class TorchFourier:
    """Rows are copied to the device and back: they are compensated, selected and decoded on the host."""

    together = 2**24  # a transfer of some 64 MB

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def forward(self, rows: Array, length: int) -> Array:
        spectra: Array = torch.fft.rfft(self._moved(rows), length, norm="ortho").cpu().numpy()
        return spectra

    def inverse(self, spectra: Array, length: int) -> Array:
        rows: Array = torch.fft.irfft(self._moved(spectra), length, norm="ortho").cpu().numpy()
        return rows

    def _moved(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(array if array.flags.writeable else array.copy()).to(self.device)


def fourier_for(comm: Communicator, plans: Iterable[Scheme], parameters: Iterable[torch.Tensor]) -> Fourier | None:
    """An object that computes the transforms of these schemes; None: NumPy does. Every rank gives the same schemes.

    Libraries round differently, and all ranks must get the same bits: so it is the accelerator only if all ranks have
    all their parameters on one, of the same kind.
    """
    if not any(plan.transform.uses_fourier for plan in plans):
        return None
    devices = {parameter.device for parameter in parameters}
    kinds = {json.loads(bytes(kind)) for kind in comm.all_gather(json.dumps(_kind(devices)).encode(), CHANNEL)}
    return TorchFourier(devices.pop()) if len(kinds) == 1 and None not in kinds else None


def _kind(devices: set[torch.device]) -> str | None:
    """The name of the one accelerator."""
    if len(devices) != 1 or (device := next(iter(devices))).type == "cpu":
        return None
    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return f"{device.type} {name(device) if name else ''}"
