"""`prune` on real ranks: pruned weights stay zero, survivors travel without indices, and a run resumes to the bit."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from torch_pool import Pool

from sparsewire.errors import InputError, SchemeError

if find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
from torch import nn

from sparsewire.torch import prune

WEIGHTS = 48 * 5 + 48 * 48 + 20 * 48


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(
    ("scheme", "settings"),
    [
        ("pactrain(ratio=80%)", {}),
        ("pactrain(values=float32)", {"select_per": "bucket"}),
        ("pactrain(values=bfloat16)", {}),
        ("pactrain(values=int8) | memory=residual", {}),
        ("topk(10%) | memory=none", {}),
    ],
)
def test_what_is_pruned_stays_zero(ranks: Pool, scheme: str, settings: dict[str, str], optimizer: str) -> None:
    for stats in ranks.play("prune.stays_pruned", scheme=scheme, optimizer=optimizer, **settings):
        assert stats["ratio"] == pytest.approx(0.8, abs=1e-3)
        assert stats["survivors"] == round(0.2 * WEIGHTS)
        if scheme.startswith("pactrain"):
            tensors = 1 if settings else 3
            assert stats["counts"] == {"masks agree": stats["steps"] * tensors}


def test_only_survivors_travel(ranks: Pool) -> None:
    scheme = "pactrain(values=float32)"
    sent = [stats["bytes_sent"] for stats in ranks.play("prune.stays_pruned", scheme=scheme, optimizer="sgd")]
    assert all(one < 6 * 4 * 0.35 * WEIGHTS + 20_000 for one in sent)


def test_a_model_can_be_pruned_further_and_for_good(ranks: Pool) -> None:
    ranks.play("prune.prunes_more_and_forgets_momentum", ranks=2)


def test_ddp_does_not_send_the_masks(ranks: Pool) -> None:
    ranks.play("prune.masks_do_not_travel", ranks=2)


def test_masks_follow_the_order_of_weights_in_memory(ranks: Pool) -> None:
    ranks.play("prune.masks_follow_the_order_in_memory", ranks=2)


def test_masks_that_differ_between_ranks_are_refused(ranks: Pool) -> None:
    for text in ranks.play("prune.refuses_masks_that_differ", ranks=2)[:2]:
        assert "masks of the pruned model" in text


@pytest.mark.parametrize("scheme", ["pactrain", "pactrain(values=int8) | memory=residual"])
def test_a_resumed_run_has_the_same_bits(ranks: Pool, scheme: str, tmp_path: Path) -> None:
    ranks.play("prune.resumes", folder=str(tmp_path), scheme=scheme, optimizer="adam", ranks=2)


# --- without ranks ---


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(72, 10))


def test_the_smallest_of_all_layers_or_of_each() -> None:
    for per in ("model", "layer"):
        model = net()
        with torch.no_grad():
            model[3].weight.mul_(1e-9)  # below all others, whatever the seed
        masks = prune(model, 0.5, per=per).masks()
        share = {name: 1 - float(mask.float().mean()) for name, mask in masks.items()}
        assert share["0.weight"] == (0 if per == "model" else 0.5)
        assert share["3.weight"] > 0.6 if per == "model" else share["3.weight"] == 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ratio": 1.0}, "0 ≤ ratio < 1"),
        ({"ratio": True}, "0 ≤ ratio < 1"),
        ({"ratio": "most"}, "share of the weights"),
        ({"ratio": "scalecom"}, "prunes nothing"),
        ({"ratio": 0.5, "per": "bucket"}, "'layer'"),
        ({"ratio": 0.5, "exclude": ["*.weight"]}, "excluded"),
        ({"ratio": 0.5, "exclude": ["head"]}, "matches no parameter"),
    ],
)
def test_what_cannot_be_pruned_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises((InputError, SchemeError), match=message):
        prune(net(), **settings)


def test_less_than_before_is_refused() -> None:
    model = net()
    prune(model, 0.5)
    with pytest.raises(InputError, match="pruned already"):
        prune(model, 0.3)


def test_weights_that_modules_share_are_refused() -> None:
    model = nn.ModuleDict({"words": nn.Embedding(20, 8), "head": nn.Linear(8, 20)})
    model["head"].weight = model["words"].weight
    with pytest.raises(InputError, match=r"head\.weight is shared"):
        prune(model, 0.5)
