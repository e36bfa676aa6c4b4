"""`attach(model, optimizer=…, total_steps=…)`: every optimizer is served without a scheme, or refused with the line."""

from __future__ import annotations

import pytest
from torch_pool import Pool

torch = pytest.importorskip("torch")
MEMORIES = ["", "none", "residual", "dgc", "gmc", "gain"]
BY_FAMILY = {  # what each memory is behind: served, or a word of the line to write
    "sgd": ["served"] * 6,
    "plain": ["served", "served", "served", *["write memory=residual"] * 3],
    "adaptive": ["served", "served", "served", *["write memory=residual"] * 3],
    "muon": ["served", "served", "served", *["write memory=residual"] * 3],
    "tables": ["served"] * 6,
    "no": ["nonzero | memory=none", "served", *["nonzero | memory=none"] * 4],
    "unknown": ["optimizer=None", "served", *["optimizer=None"] * 4],
}
KINDS = {
    "SGD": "sgd", "ASGD": "plain", "Adam": "adaptive", "AdamW": "adaptive", "Adamax": "adaptive", "NAdam": "adaptive",
    "RAdam": "adaptive", "RMSprop": "adaptive", "Adagrad": "adaptive", "Adadelta": "adaptive", "Adafactor": "adaptive",
    "SparseAdam": "tables", "Muon": "muon", "LBFGS": "no", "Rprop": "no",
    "Lion": "no", "Strange": "unknown",
}  # fmt: skip


def _of_torch() -> set[str]:
    """Every optimizer that this torch has."""
    kinds = [one for one in vars(torch.optim).values() if isinstance(one, type) and one is not torch.optim.Optimizer]
    return {one.__name__ for one in kinds if issubclass(one, torch.optim.Optimizer)}


def test_every_optimizer_of_torch_has_a_row() -> None:
    from sparsewire.torch.optimizers.families import ROWS

    assert _of_torch() <= set(KINDS), "say how it is served, or why it is refused"
    assert _of_torch() <= set(ROWS)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind in _of_torch() or kind in ("Lion", "Strange")])
def test_an_optimizer_is_served_or_refused_with_the_line_to_write(ranks: Pool, kind: str) -> None:
    for texts in ranks.play("recipe.serves_or_refuses", ranks=2, kind=kind, memories=MEMORIES)[:2]:
        for memory, text, expected in zip(MEMORIES, texts, BY_FAMILY[KINDS[kind]], strict=True):
            assert expected in text, (memory, text)


def test_one_line_is_enough(ranks: Pool) -> None:
    ranks.play("recipe.one_line", ranks=2)


def test_local_steps_say_what_they_chose(ranks: Pool) -> None:
    ranks.play("recipe.local_steps_say_what_they_chose", ranks=2)


def test_a_run_may_be_longer_than_announced(ranks: Pool) -> None:
    ranks.play("recipe.adam_goes_on_beyond_its_steps", ranks=2)


def test_no_memory_is_guessed_without_the_optimizer(ranks: Pool) -> None:
    for *asked, stranger in ranks.play("recipe.the_optimizer_is_asked_for", ranks=2)[:2]:
        for text in asked:
            assert "attach(model, optimizer=optimizer, total_steps=…)" in text and "optimizer=None" in text
        assert "SGD has no parameter of this model" in stranger


def test_auto_takes_the_memory_and_the_ratio(ranks: Pool) -> None:
    ranks.play("recipe.candidates_get_the_memory", ranks=2)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_and_adam_train_beside_each_other(ranks: Pool) -> None:
    assert "write attach(model, optimizer=…, ratio=0.1)" in ranks.play("recipe.muon_beside_adam", ranks=2)[0]


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_sharded_optimizers_are_looked_into(ranks: Pool, kind: str) -> None:
    told = ranks.play("recipe.sharded_optimizers_are_looked_into", ranks=2, kind=kind)[0]
    assert "leave overlap_with_ddp out" in told


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("clip", ["", "clip_grad_norm_", "clip_grad_value_"])
def test_clipping_after_backward_is_noticed_once(ranks: Pool, clip: str, scaled: bool, view: bool) -> None:
    """Whether or not a scaler has been there before; what nobody clips is not said to be."""
    scene = "recipe.says_that_clipping_comes_too_late"
    for told in ranks.play(scene, ranks=2, kind="SGD", scaled=scaled, clip=clip, view=view)[:2]:
        assert len(told) == bool(clip)
        assert all(text.startswith("1: ") and "attach(…, clip_norm=…)" in text for text in told)


@pytest.mark.parametrize("kind", ["AdamW", "Adagrad"])
def test_it_is_noticed_behind_any_optimizer(ranks: Pool, kind: str) -> None:
    told = ranks.play(
        "recipe.says_that_clipping_comes_too_late", ranks=2, kind=kind, scaled=False, clip="clip_grad_norm_", view=False
    )
    assert [len(one) for one in told[:2]] == [1, 1]
