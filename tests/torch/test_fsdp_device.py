"""Sharded replicas by the path of devices, forced on CPU tensors: the host's bits, and little that crosses."""

from __future__ import annotations

from typing import Any

import pytest
from torch_pool import Pool

pytestmark = pytest.mark.timeout(300)  # four ranks to start

CASES: dict[str, dict[str, Any]] = {
    "gain, quantised": {},
    "residual, one threshold for the model": {
        "scheme": "topk(5%) | memory=residual", "kind": "plain sgd", "select_per": "model",
    },
    "dgc per unit": {"scheme": "topk(5%) | memory=dgc(0.9)", "select_per": "bucket"},
    "gmc, reduced in bfloat16": {"scheme": "topk(5%) | memory=gmc(0.9)", "built": {"policy": "all bf16"}},
    "residual, reduced in float16": {
        "scheme": "topk(5%) | memory=residual", "kind": "adamw", "built": {"policy": "fp16"},
    },
    "unused parameters": {"built": {"unused": True}, "steps": 4},
    "accumulation of reduced shards": {"step": "reduce"},
    "a model used twice": {"step": "twice"},
    "clipped": {"scheme": "topk(5%) | memory=residual", "kind": "plain sgd", "clip_norm": 0.01},
    "dense steps first": {"warmup_steps": 2, "steps": 4},
    "Fourier coefficients": {"scheme": "topk(5%) | transform=fft(chunk=64) | memory=gain(0.9)", "by_torch": True},
    "rows": {"scheme": "topk(5%) | transform=rows(width=8) | memory=gain(0.9)"},
    "an exchange by slices": {"scheme": "topk(5%) | memory=gain(0.9) | exchange=reduce_scatter"},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_shards_on_devices_have_the_bits_of_the_host(two_by_two: Pool, case: str) -> None:
    two_by_two.play("fsdp_device.equals_host", **CASES[case])


@pytest.mark.parametrize("case", ["gain, quantised", "dgc per unit", "gmc, reduced in bfloat16"])
def test_replicas_of_both_paths_agree_to_the_bit(two_by_two: Pool, case: str) -> None:
    two_by_two.play("fsdp_device.equals_host", mixed=True, **CASES[case])


def test_only_selected_entries_cross_and_each_unit_is_waited_for_once(two_by_two: Pool) -> None:
    two_by_two.play("fsdp_device.crosses_little")
