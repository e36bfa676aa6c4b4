"""The path of devices, forced on CPU tensors of real ranks: the bits of the host's path, and only k numbers cross."""

from __future__ import annotations

from typing import Any

import pytest
from device_cases import CASES, FOURIER
from torch_pool import Pool


@pytest.mark.parametrize("case", CASES)
def test_the_path_of_devices_has_the_bits_of_the_host(ranks: Pool, case: str) -> None:
    ranks.play("device.equals_host", ranks=2, **CASES[case])


@pytest.mark.parametrize("case", FOURIER)
def test_transforms_of_torch_give_the_same_bits_on_both_paths(ranks: Pool, case: str) -> None:
    ranks.play("device.equals_host", ranks=2, by_torch=True, **FOURIER[case])


@pytest.mark.parametrize("transform", ["fft(chunk=100)", "dct(block=50)", "dct(two_dimensional=true, block=16)"])
def test_mixed_ranks_have_their_transforms_from_numpy_and_agree_to_the_bit(ranks: Pool, transform: str) -> None:
    scheme = f"topk(5%) | transform={transform} | memory=residual"
    ranks.play("device.equals_host", ranks=3, mixed=True, scheme=scheme)


@pytest.mark.parametrize(
    "scheme", [
        "topk(5%) | transform=dct(block=50) | memory=residual",
        "topk(5%) | transform=dct(two_dimensional=true, block=16) | memory=residual",
        "superneurons(theta=0.7)",
    ],
)  # fmt: skip
def test_ranks_whose_coefficients_stay_on_the_device_stay_in_step_and_lose_nothing(ranks: Pool, scheme: str) -> None:
    ranks.play("device.forced", ranks=2, played="attach.stays_in_step", scheme=scheme, steps=6)
    ranks.play("device.forced", ranks=2, played="attach.loses_nothing", scheme=scheme)


@pytest.mark.parametrize(("memory", "momentum"), [("residual", 0.0), ("gain(0.9)", 0.9), ("gmc(0.9)", 0.9)])
@pytest.mark.parametrize("transform", ["dct", "dct(two_dimensional=true, block=16)", "fft"])
def test_coefficients_on_the_device_are_the_hosts_but_for_rounding_and_resume(
    ranks: Pool, transform: str, memory: str, momentum: float
) -> None:
    scheme = f"topk(5%) | transform={transform} | memory={memory}"
    ranks.play("device.is_close_to_host", ranks=2, scheme=scheme, momentum=momentum)


@pytest.mark.parametrize(
    "case", ["residual, quantised", "dgc in bfloat16", "unused parameters", "a schedule after dense steps"]
)
def test_ranks_of_both_paths_agree_to_the_bit(ranks: Pool, case: str) -> None:
    ranks.play("device.equals_host", ranks=3, mixed=True, **CASES[case])


@pytest.mark.parametrize(
    ("scheme", "waits", "settings"),
    [
        ("topk(5%) | memory=residual", 1, {}),
        ("topk(5%) | indices=rice | values=qsgd(bits=5) | memory=residual", 1, {"select_per": "bucket"}),
        ("topk(5%) | memory=dgc(0.9)", 1, {"momentum": 0.9}),
        ("topk(5%) | memory=gmc(0.9)", 1, {"momentum": 0.9}),
        ("topk(5%) | memory=gain(0.9)", 1, {"momentum": 0.9}),
        ("topk(5%) | transform=fft | memory=residual", 1, {}),
        ("topk(5%) | transform=dct | memory=gain(0.9)", 1, {"momentum": 0.9}),
        ("topk(5%) | transform=rows(width=4) | memory=dgc(0.9)", 1, {"momentum": 0.9}),
        ("topk(5%) | memory=residual", 1, {"select_per": "model"}),
        ("threshold(ratio=5%) | memory=residual", 2, {}),
        ("threshold(ratio=5%) | transform=fft | memory=gain(0.9)", 2, {"momentum": 0.9}),
    ],
)
def test_only_selected_entries_cross_and_each_bucket_is_waited_for_once(
    ranks: Pool, scheme: str, waits: int, settings: dict[str, Any]
) -> None:
    ranks.play("device.crosses_little", ranks=2, scheme=scheme, waits=waits, **settings)


def test_what_crosses_unseen_would_be_found(ranks: Pool) -> None:
    ranks.play("device.takes_no_hidden_way", ranks=1)
