"""The laws of a training, on a device: the host's bits, nothing lost, spoiled steps undone, states that move."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from sparsewire.codecs.scheme import scheme
from sparsewire.codecs.transform import computed_by
from sparsewire.comm import Communicator, run_ranks
from sparsewire.kernels.device.array import DeviceArray
from sparsewire.torch.ddp.fourier import TorchFourier
from sparsewire.training.averager import Averager
from sparsewire.training.layout import Buffer, Slice
from sparsewire.training.schedule import SchemeSchedule, Settings

SLICES = (Slice("w", 0, 60_000), Slice("b", 60_000, 60_100), Slice("v", 60_100, 90_100))
SIZE, RANKS, STEPS = SLICES[-1].stop, 2, 4
SCHEMES = {
    "residual": "topk(1%) | indices=rice | values=qsgd(bits=7) | memory=residual",
    "dgc": "topk(1%) | memory=dgc(0.9)",
    "gmc": "topk(1%) | memory=gmc(0.9)",
    "gain": "topk(1%) | memory=gain(0.9)",
    "threshold": "threshold(value=2.5) | memory=residual",
    "rows": "topk(1%) | transform=rows(width=8) | memory=dgc(0.9)",
    "fft": "topk(1%) | transform=fft | memory=gain(0.9)",
}
SELECTS_ELEMENTS = re.compile(r"topk(?!.*transform)")
Law = Callable[[str, torch.dtype, torch.device], None]


class Rank:
    """A rank whose gradients lie on the device, or on the host."""

    def __init__(
        self, comm: Communicator, text: str, dtype: torch.dtype, device: torch.device | None, per: str,
        checked: torch.device,
    ) -> None:  # fmt: skip
        self.comm, self.dtype, self.device = comm, dtype, device
        self.fourier = TorchFourier(
            checked, on_device=True
        )  # also for gradients on the host: libraries round differently
        self.one = Averager(comm, Settings(SchemeSchedule(scheme(text)), select_per=per))

    def gradient(self, step: int) -> torch.Tensor:
        draw = torch.Generator().manual_seed(100 * step + self.comm.rank)
        return torch.randn(SIZE, generator=draw).to(self.dtype)

    def step(self, step: int, spoiled: bool = False) -> np.ndarray[Any, Any]:
        """The mean of a step, in the gradients' place."""
        x = self.gradient(step)
        if spoiled and self.comm.rank == 0:
            x[5] = float("nan")
        x = x if self.device is None else x.to(self.device)
        numbers: Any = DeviceArray(x) if self.device is not None else x.float().numpy()
        name = str(self.dtype).removeprefix("torch.")
        with computed_by(self.fourier):
            self.one.put_buffers([Buffer(SLICES, name, lambda: numbers)])
            self.one.finish()
        mean = torch.from_numpy(numbers).to(self.dtype) if self.device is None else x.cpu()
        bits: np.ndarray[Any, Any] = mean.contiguous().view(torch.uint8).numpy()
        return bits


def same_bits(text: str, dtype: torch.dtype, device: torch.device) -> None:
    """Means and states of a device are those of the host, whether all ranks have one or only some."""
    for per in ("parameter", "bucket", "model") if SELECTS_ELEMENTS.match(text) else ("parameter", "bucket"):
        for ranks_on_device in (RANKS, 1):

            def rank(comm: Communicator, per: str = per, there: int = ranks_on_device) -> None:
                host = Rank(comm, text, dtype, None, per, device)
                mine = Rank(comm, text, dtype, device if comm.rank < there else None, per, device)
                for step in range(STEPS):
                    _expect(np.array_equal(host.step(step), mine.step(step)), f"mean of step {step}, {per}")
                _expect(_same(host.one.state_dict(), mine.one.state_dict()), f"state, {per}")

            run_ranks(RANKS, rank)


def undone(text: str, dtype: torch.dtype, device: torch.device) -> None:
    """A step that is not finite on one rank changes nothing on any."""

    def rank(comm: Communicator) -> None:
        one, other = (Rank(comm, text, dtype, device, "parameter", device) for _ in range(2))
        for step in range(2):
            one.step(step)
            other.step(step)
        other.step(7, spoiled=True)
        mine, theirs = one.one.state_dict()["buffers"], other.one.state_dict()["buffers"]
        _expect(_same(mine, theirs), "buffers after a step that was not finite")

    run_ranks(RANKS, rank)


def resumed(text: str, dtype: torch.dtype, device: torch.device) -> None:
    """A state goes from the host to the device and back, to the bit, and training goes on as if it had not moved."""

    def rank(comm: Communicator) -> None:
        host, there, back = (Rank(comm, text, dtype, at, "parameter", device) for at in (None, device, None))
        for step in range(2):
            host.step(step)
        there.one.load_state_dict(host.one.state_dict())
        for step in range(2, STEPS):
            host.step(step)
            there.step(step)
        back.one.load_state_dict(there.one.state_dict())
        _expect(_same(host.one.state_dict(), back.one.state_dict()), "state that moved")
        _expect(np.array_equal(host.step(STEPS), back.step(STEPS)), "step after it")

    run_ranks(RANKS, rank)


LAWS: dict[str, Law] = {"host's bits": same_bits, "spoiled steps undone": undone, "states move": resumed}


def check(device: torch.device) -> list[tuple[str, str | None]]:
    """A row for each law, scheme and dtype, and what is wrong."""
    rows: list[tuple[str, str | None]] = []
    for law, call in LAWS.items():
        for name, text in SCHEMES.items():
            for dtype in (torch.float32, torch.bfloat16):
                what = f"{law}: {name}, {str(dtype).removeprefix('torch.')}"
                try:
                    call(text, dtype, device)
                    rows.append((what, None))
                except Exception as error:
                    rows.append((what, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"))
    return rows


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(f"{what}: other bits than on the host")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    return bool(one == other)
