"""The path of devices, forced on CPU tensors of real ranks: the bits of the host's path, and only k numbers cross."""

from __future__ import annotations

from typing import Any

import pytest
from device_cases import CASES
from torch_pool import Pool


@pytest.mark.parametrize("case", CASES)
def test_the_path_of_devices_has_the_bits_of_the_host(ranks: Pool, case: str) -> None:
    ranks.play("device.equals_host", ranks=2, **CASES[case])


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
        ("topk(5%) | memory=residual", 3, {"select_per": "model"}),
    ],
)
def test_only_selected_entries_cross_and_each_bucket_is_waited_for_once(
    ranks: Pool, scheme: str, waits: int, settings: dict[str, Any]
) -> None:
    ranks.play("device.crosses_little", ranks=2, scheme=scheme, waits=waits, **settings)


def test_what_crosses_unseen_would_be_found(ranks: Pool) -> None:
    ranks.play("device.takes_no_hidden_way", ranks=1)
