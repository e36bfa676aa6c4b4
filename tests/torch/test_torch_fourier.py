"""Fourier transforms by torch: NumPy's to rounding, and used only where all ranks have the same accelerator."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from strategies import make
from torch_pool import Pool

from sparsewire.lab import measure

if not measure.has("torch"):
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

import sparsewire as sw
from sparsewire.codecs.contract import Transform
from sparsewire.codecs.transform import DCT, FFT, computed_by
from sparsewire.comm import run_ranks
from sparsewire.torch.ddp.device_path import VARIABLE
from sparsewire.torch.ddp.fourier import TorchFourier, fourier_for

ENGINE = TorchFourier(torch.device("cpu"))
SPECTRAL = ["superneurons", "demo | memory=residual", "topk(5%) | transform=dct(block=50)"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("numel", [0, 1, 3, 61, 4093, 4097, 70_001])
def test_its_coefficients_are_numpys(numel: int, dtype: str) -> None:
    for t in (FFT(), FFT(chunk=100), DCT(), DCT(block=1000)):
        assert_like_numpy(t, make("normal", numel, dtype))


def test_so_are_those_of_tiles() -> None:
    assert_like_numpy(DCT(two_dimensional=True).fitted((130, 70)), make("normal", 130 * 70, "float32"))


def assert_like_numpy(t: Transform, x: np.ndarray) -> None:
    expected, close = t.forward(x), {"float32": 1e-5, "float64": 1e-12}[x.dtype.name]
    with computed_by(ENGINE):
        found = t.forward(x)
        back = t.inverse(found, x.size)
    assert found.dtype == back.dtype == x.dtype
    np.testing.assert_allclose(found, expected, atol=close)
    np.testing.assert_allclose(back, x, atol=close)


def test_what_is_read_only_is_transformed_as_well() -> None:
    x = make("normal", 300, "float32")
    x.flags.writeable = False
    with computed_by(ENGINE):
        found = FFT(chunk=100).forward(x)
    np.testing.assert_allclose(found, FFT(chunk=100).forward(x), atol=1e-5)


@pytest.mark.parametrize("scheme", SPECTRAL)
def test_what_is_left_is_what_the_frame_does_not_say(scheme: str) -> None:
    x = make("normal", 5000, "float32").reshape(100, 50)
    with computed_by(ENGINE):
        frame, left = sw.compress(x, scheme)
        assert np.array_equal(left, x - sw.decode(frame).to_dense())
    np.testing.assert_allclose(sw.decode(frame).to_dense(), x - left, atol=1e-5)


def test_it_ends_with_its_context() -> None:
    x = make("normal", 4096, "float32")
    before = FFT().forward(x).tobytes()
    with pytest.raises(ZeroDivisionError), computed_by(ENGINE):
        raise ZeroDivisionError
    assert FFT().forward(x).tobytes() == before


@pytest.mark.parametrize("scheme", ["superneurons(theta=0.7)", "topk(5%) | transform=dct | memory=residual"])
def test_ranks_whose_transforms_torch_computes_stay_in_step_and_lose_nothing(ranks: Pool, scheme: str) -> None:
    assert all(asked == ["forward", "inverse"] for asked in ranks.play("fourier.computes", scheme=scheme, ranks=2)[:2])


def test_theta_may_be_a_function_of_the_step(ranks: Pool) -> None:
    assert max(ranks.play("fourier.follows_a_function", ranks=2)[:2]) < 1


# --- which ranks use it ------------------------------------------------------------------------------------------


CARDS = {
    "the same": (["cuda A", "cuda A"], True),
    "two kinds": (["cuda A", "cuda B"], False),
    "none on one": (["cuda A", "cpu"], False),
    "none": (["cpu", "cpu"], False),
    "two at once": (["cuda A+cuda A", "cuda A+cuda A"], False),
}


@pytest.mark.parametrize("case", CARDS)
def test_it_is_used_where_all_ranks_have_the_same_accelerator(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cards, used = CARDS[case]
    names: dict[torch.device, str] = {}

    def parameters(rank: int) -> list[SimpleNamespace]:
        found = []
        for number, card in enumerate(cards[rank].split("+")):
            kind, _, name = card.partition(" ")
            device = torch.device(kind) if kind == "cpu" else torch.device(kind, 2 * rank + number)
            names[device] = name
            found.append(SimpleNamespace(device=device))
        return found

    told = SimpleNamespace(get_device_name=lambda device: names[device])
    monkeypatch.setattr(torch, "get_device_module", lambda device: told)
    plans = [sw.scheme("topk(1%)"), sw.scheme("superneurons")]
    found = run_ranks(2, lambda comm: fourier_for(comm, plans, parameters(comm.rank)))  # type: ignore[arg-type]
    assert [isinstance(one, TorchFourier) for one in found] == [used, used]
    if used:
        assert [one.device.index for one in found] == [0, 2]  # type: ignore[union-attr]


def test_other_schemes_ask_nobody() -> None:
    def ask(comm: object) -> object:
        return fourier_for(comm, [sw.scheme("topk(1%)")], [])  # type: ignore[arg-type]

    assert run_ranks(2, ask) == [None, None]


@pytest.mark.parametrize(("setting", "device", "there"), [("force", "cpu", True), ("auto", "cpu", None),
                                                         ("auto", "cuda", True), ("off", "cuda", False)])  # fmt: skip
def test_gradients_that_stay_on_a_device_are_transformed_there(
    setting: str, device: str, there: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, setting)
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace())
    plans, parameters = [sw.scheme("superneurons")], [SimpleNamespace(device=torch.device(device))]
    for found in run_ranks(2, lambda comm: fourier_for(comm, plans, parameters)):  # type: ignore[arg-type]
        assert (found and found.on_device) is there
