"""What a step's own work takes where gradients lie on a device: passes over its memory, and entries over PCIe.

The bytes of a pass are those that `sparsewire bench device` counts for Triton's kernels; bandwidths are told. Coding
stays on the host, and is measured there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sparsewire.codecs.scheme import Scheme
from sparsewire.planning.cost.step import Codecs

PICK, KEEP, MEAN, CAST = 9.6, 12.4, 4.0, 14.0  # bytes an element that a float32 gradient's kernels move
FOURIER = 273.0  # the same of transforms in torch's operations: forward, norms, and back twice
ENTRY, NUMBER = 8.0, 4.0  # bytes that cross for an entry, and for a number of a gradient that crosses whole


@dataclass(frozen=True)
class Device:
    """Bandwidths in bytes a second."""

    name: str
    pcie: float
    memory: float

    def text(self) -> str:
        return (
            f"{self.name}, assumed: PCIe {self.pcie / 1e9:,.0f} GB/s, memory {self.memory / 1e9:,.0f} GB/s, and that "
            "kernels move the bytes that bench device counts; measured: coding on this host"
        )

    @property
    def half(self) -> float:
        """Seconds an element of casts to float16 and back."""
        return CAST / self.memory


def on_device(codecs: Mapping[Scheme, Codecs], device: Device, ranks: int) -> dict[Scheme, Codecs]:
    """What the schemes' codecs cost then; what has no kernel there crosses whole, and is worked on on the host."""
    return {
        plan: _stays(plan, cost, device, ranks) if stays(plan) else _crosses(cost, device)
        for plan, cost in codecs.items()
    }


def stays(plan: Scheme) -> bool:
    """Whether only entries of a gradient cross to the host, if all ranks have a device of one kind."""
    transform = plan.transform
    there = transform.is_identity or transform.uses_fourier or transform.on_device
    return plan.memory.on_device and plan.select.on_device and there


def _stays(plan: Scheme, cost: Codecs, device: Device, ranks: int) -> Codecs:
    entries = cost.density * ENTRY / device.pcie
    turned = FOURIER / device.memory if plan.transform.uses_fourier else 0.0
    front = turned + PICK / device.memory + entries + cost.density * cost.speeds.encode
    back = (KEEP + MEAN) / device.memory + ranks * entries
    return replace(cost, front=front, back=back, speeds=replace(cost.speeds, add=0.0))


def _crosses(cost: Codecs, device: Device) -> Codecs:
    whole = NUMBER / device.pcie
    return replace(cost, front=cost.front + whole, back=cost.back + whole)
