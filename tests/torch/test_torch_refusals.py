"""`attach` refuses what cannot work, at once, on every rank, and says which setting it is."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from torch_pool import Pool

if find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

from scenes_refusals import OTHER, WRONG

VALUES = {
    "scheme": ("topk(ratio=0.06)", "topk(ratio=0.05)"),
    "seed": ("3", "0"),
    "dense_below": ("9", "1024"),
    "warmup_steps": ("2", "0"),
    "select_per": ("'bucket'", "'parameter'"),
    "exclude": ("'last.bias'", "'nothing more'"),
    "ratio_schedule": ("'0.5 until 3'", "'nothing more'"),
    "scaler": ("True", "False"),
    "on_divergence": ("'dense'", "'warn'"),
}
MODELS = {
    "shapes": ("'middle.weight [48, 47]'", "'middle.weight [48, 48]'"),
    "dtypes": ("'middle.weight float64'", "'middle.weight float32'"),
    "parameter names": ("'centre.bias'", "'first.bias'"),
    "order of parameters": ("'norm.weight'", "'last.weight'"),
}


@pytest.mark.parametrize("what", OTHER)
def test_ranks_that_attach_differently_all_hear_in_what(ranks: Pool, what: str) -> None:
    for text in ranks.play("refusals.differ_in", what=what):
        _names(text, what, *VALUES[what])


@pytest.mark.parametrize("what", MODELS)
def test_models_are_compared_when_they_are_attached(ranks: Pool, what: str) -> None:
    for text in ranks.play("refusals.models_differ_in", what=what):
        _names(text, what, *MODELS[what])


def _names(text: str, what: str, one: str, other: str) -> None:
    mine, _, theirs = text.partition(" where rank 0 has ")
    assert f"rank 1 attached with other settings, {what}: " in mine
    assert one in mine
    assert other in theirs


@pytest.mark.parametrize("everywhere", [True, False], ids=["on every rank", "on rank 1"])
@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_setting_is_named_on_every_rank_at_once(ranks: Pool, what: str, everywhere: bool) -> None:
    for text in ranks.play("refusals.refuses", what=what, everywhere=everywhere):
        assert what != "zstd" or "pip install 'sparsewire[zstd]'" in text


def test_misuse_is_named_and_leaves_the_model_as_it_was(ranks: Pool) -> None:
    ranks.play("refusals.misuse")


def test_every_codec_can_be_attached(ranks: Pool) -> None:
    ranks.play("refusals.takes_every_codec")


def test_hooks_without_buckets_are_refused_by_name(ranks: Pool) -> None:
    for texts in ranks.play("refusals.hands_over_no_buckets"):
        assert all('write torch._dynamo.config.optimize_ddp = "ddp_optimizer"' in text for text in texts)
