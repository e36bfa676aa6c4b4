"""Fourier transforms by torch on the accelerator where the gradients are; the host's NumPy has them otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterable

import torch

from sparsewire.codecs.scheme import Scheme
from sparsewire.codecs.transform import Fourier
from sparsewire.comm import Communicator
from sparsewire.kernels import Array

from .device_path import DevicePath

CHANNEL = "fourier"


class TorchFourier:
    """Of a gradient that stays on the device, `on_device`, all is done there. Rows of the host are copied to the device
    and back."""

    together = 2**24  # a transfer of some 64 MB

    def __init__(self, device: torch.device, on_device: bool = False) -> None:
        self.device, self.on_device = device, on_device

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
    all their parameters on one, of the same kind, and work on gradients in the same place.
    """
    if not any(plan.transform.uses_fourier for plan in plans):
        return None
    devices = {parameter.device for parameter in parameters}
    stays = bool(DevicePath().kind(devices))
    mine = _kind(devices, stays)
    kinds = {json.loads(bytes(kind)) for kind in comm.all_gather(json.dumps(mine).encode(), CHANNEL)}
    return TorchFourier(devices.pop(), stays) if len(kinds) == 1 and None not in kinds else None


def _kind(devices: set[torch.device], stays: bool) -> str | None:
    """The name of the one accelerator, and where its gradients are worked on."""
    if len(devices) != 1:
        return None
    device = next(iter(devices))
    where = "there" if stays else "on the host"
    if device.type == "cpu":
        return f"cpu, {where}" if stays else None
    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return f"{device.type} {name(device) if name else ''}, {where}"
