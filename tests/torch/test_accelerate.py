"""Accelerate: every rank's state is in `save_state`, and a resumed run is bit-equal to one that never stopped."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import warm
from host_ranks import MOMENTUM_SCHEME, RANKS, SCHEME, failure, missing, run_script, same_bits, write_facts

warm.needs("accelerate")
pytestmark = pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("accelerate")


@pytest.fixture(scope="module")
def facts(folder: Path) -> list[dict[str, Any]]:
    return run_script(__file__, folder)


def test_a_resumed_run_is_bit_equal_to_one_that_never_stopped(facts: list[dict[str, Any]]) -> None:
    assert [rank["resumed equals uninterrupted"] for rank in facts] == [True] * RANKS


def test_rank_0s_state_for_all_would_not_be(facts: list[dict[str, Any]]) -> None:
    assert [rank["with rank 0's state for all"] for rank in facts] == [False] * RANKS


def test_one_ranks_damaged_file_is_loaded_by_nobody(facts: list[dict[str, Any]]) -> None:
    assert all(
        "rank 1: InputError: " in rank["damaged"] and "-00001-of-00002-step3-" in rank["damaged"] for rank in facts
    )


def test_every_rank_writes_its_own_file(facts: list[dict[str, Any]], folder: Path) -> None:
    files = sorted((folder / "state" / "sparsewire").iterdir())
    starts = [file.name.partition("-step3-")[0] for file in files]
    assert starts == [f"sparsewire-0000{rank}-of-00002" for rank in range(RANKS)]
    assert files[0].read_bytes() != files[1].read_bytes()


def test_gradients_are_accumulated_before_they_are_sent(facts: list[dict[str, Any]]) -> None:
    assert [rank["steps"] for rank in facts] == [6] * RANKS


def test_fewer_bytes_are_sent_after_the_dense_warm_up(facts: list[dict[str, Any]]) -> None:
    for rank in facts:
        dense_step = rank["bytes_dense"] / 6
        assert 10 * (rank["bytes_sent"] - dense_step) < 5 * dense_step


def test_a_second_link_takes_over_the_state_hooks(facts: list[dict[str, Any]]) -> None:
    assert [rank["hooks"] for rank in facts] == [[1, 1]] * RANKS


def test_a_model_that_was_not_prepared_is_refused(facts: list[dict[str, Any]]) -> None:
    assert all("accelerator.prepare" in rank["not prepared"] for rank in facts)


def test_residuals_follow_the_accelerators_scaler(facts: list[dict[str, Any]]) -> None:
    """A loss scale that doubles in every step leaves no trace, bit for bit."""
    assert [rank["scaled equals unscaled"] for rank in facts] == [True] * RANKS
    assert [rank["last scale"] for rank in facts] == [2.0**6] * RANKS


def test_the_prepared_optimizer_is_fitted(facts: list[dict[str, Any]]) -> None:
    """The default; `optimizer=None` switches it off, and of several those that are the model's are taken."""
    assert [rank["fitted"] for rank in facts] == [[True, False, True]] * RANKS


def test_the_loops_clipping_only_measures_where_clip_norm_clips(facts: list[dict[str, Any]]) -> None:
    """The same weights as without that call; another norm is refused; once the link is gone it clips again."""
    for rank in facts:
        same, norms, refused, after, told = rank["clipping"]
        assert same and all(norm > 0 for norm in norms) and len(norms) == 3
        assert "clip_grad_norm_(…, 0.1, norm_type=2) after clip_norm=0.25 has clipped" in refused
        assert after == pytest.approx(0.1, rel=1e-3) and told == []


def test_a_scheme_is_chosen_for_the_prepared_optimizer(facts: list[dict[str, Any]]) -> None:
    assert [rank["chosen"] for rank in facts] == [
        'attach(model, "topk(ratio=0.02) | memory=gain(momentum=0.9)", optimizer=optimizer)'
    ] * RANKS


def test_one_process_is_told_how_to_start_more() -> None:
    code = """
import accelerate, torch
from sparsewire.torch.accelerate import attach_accelerate
accelerator = accelerate.Accelerator(cpu=True)
attach_accelerate(accelerator, accelerator.prepare(torch.nn.Linear(2, 2)), "topk")
"""
    assert "start more with torchrun: `accelerate launch --cpu` starts only one" in failure(code)


def test_without_accelerate_the_import_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing(monkeypatch, "sparsewire.torch.accelerate", "accelerate") == (
        "sparsewire.torch.accelerate needs Accelerate: pip install accelerate"
    )


# --- the ranks ---


def started(scaler: Any = None) -> tuple[Any, Any, Any, Any]:
    import torch
    from accelerate import Accelerator

    from sparsewire.torch.accelerate import attach_accelerate

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    accelerator.scaler = scaler  # fp16 would set one, but Accelerate refuses it on CPU
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    model, optimizer = accelerator.prepare(plain, torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9))
    return accelerator, model, optimizer, attach_accelerate(accelerator, model, MOMENTUM_SCHEME, warmup_steps=1)


def train(accelerator: Any, model: Any, optimizer: Any, batches: range) -> None:
    import torch

    for batch in batches:
        random = torch.Generator().manual_seed(100 * batch + accelerator.process_index)
        x, y = torch.randn(16, 32, generator=random), torch.randint(8, (16,), generator=random)
        with accelerator.accumulate(model):
            accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()


def give_all_rank_0s_state(state: Path) -> None:
    from sparsewire.core.statefile import read_state, write_state
    from sparsewire.training.checkpoints import KIND

    first, second = sorted((state / "sparsewire").glob("*.sws"))
    mine = read_state(first, KIND)
    write_state(second, mine | {"state": mine["state"] | {"rank": 1}})


def resumed(state: str) -> dict[str, Any]:
    accelerator, model, optimizer, link = started()
    accelerator.load_state(state)
    assert link.step == 3
    train(accelerator, model, optimizer, range(6, 12))
    link.detach()
    weights = model.state_dict()
    accelerator.free_memory()
    return weights


def refusal(state: Path) -> str:
    """What `load_state` says of a folder in which a bit of rank 1's file is another."""
    accelerator, _, _, link = started()
    if accelerator.is_main_process:
        (file,) = (state / "sparsewire").glob("sparsewire-00001-*.sws")
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    accelerator.wait_for_everyone()
    try:
        accelerator.load_state(str(state))
        told = ""
    except ValueError as error:
        told = str(error)
    assert link.step == 0
    link.detach()
    accelerator.free_memory()
    return told


def scaled() -> tuple[dict[str, Any], float]:
    import torch

    accelerator, model, optimizer, link = started(torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=1))
    train(accelerator, model, optimizer, range(12))
    link.detach()
    weights = model.state_dict()
    accelerator.free_memory()
    return weights, link.state_dict()["scale"]


def refitted(accelerator: Any, model: Any, optimizer: Any) -> list[bool]:
    """Whether another link has the optimizer: without it, and beside one of another model."""
    import torch

    from sparsewire.torch.accelerate import attach_accelerate

    with attach_accelerate(accelerator, model, SCHEME, optimizer=None) as without:
        pass
    accelerator.prepare(torch.optim.AdamW(torch.nn.Linear(2, 2).parameters()))
    with attach_accelerate(accelerator, model, MOMENTUM_SCHEME) as beside:
        pass
    return [without._fit is not None, beside._fit is not None and beside._fit.optimizers == [optimizer.optimizer]]


def clipped(loop_clips: bool) -> tuple[dict[str, Any], list[Any]]:
    """[norms that the loop is told, what it is told of another norm, a norm after the link is gone, warnings]"""
    import warnings

    import torch

    from sparsewire.errors import AccuracyWarning
    from sparsewire.torch.accelerate import attach_accelerate

    accelerator, model, optimizer, link = started()
    link.detach()
    inner, norms, refused = optimizer.step, [], []

    def step() -> None:
        if loop_clips and accelerator.sync_gradients:
            norms.append(float(accelerator.clip_grad_norm_(model.parameters(), 0.25)))
        inner()

    optimizer.step = step
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with attach_accelerate(accelerator, model, clip_norm=0.25, ratio=0.1, dense_below=100):
            train(accelerator, model, optimizer, range(6))
            try:
                accelerator.clip_grad_norm_(model.parameters(), 0.1)
            except ValueError as error:
                refused.append(str(error))
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    model(torch.ones(4, 32)).square().sum().backward()
    accelerator.clip_grad_norm_(model.parameters(), 0.1)
    after = torch.stack([one.grad.norm() for one in model.parameters()]).norm()
    told = [str(one.message) for one in caught if one.category is AccuracyWarning]
    accelerator.free_memory()
    return weights, [norms, *refused, float(after), told]


def main(folder: str) -> None:
    import shutil

    from sparsewire.torch.accelerate import attach_accelerate

    state, copy = str(Path(folder) / "state"), str(Path(folder) / "copy")
    accelerator, model, optimizer, link = started()
    train(accelerator, model, optimizer, range(6))
    accelerator.save_state(state)
    train(accelerator, model, optimizer, range(6, 12))
    facts: dict[str, Any] = link.stats()
    link.detach()
    facts["fitted"] = [link._fit.optimizers == [optimizer.optimizer], *refitted(accelerator, model, optimizer)]
    with attach_accelerate(accelerator, model, total_steps=1000) as other:
        facts["chosen"] = repr(other.recipe)
    facts["hooks"] = [len(accelerator._save_model_state_pre_hook), len(accelerator._load_model_state_pre_hook)]
    try:
        attach_accelerate(accelerator, model.module, SCHEME)
    except ValueError as error:
        facts["not prepared"] = str(error)
    weights = model.state_dict()
    accelerator.free_memory()
    facts["resumed equals uninterrupted"] = same_bits(resumed(state), weights)
    (plain, _), (measured, told) = clipped(False), clipped(True)
    facts["clipping"] = [same_bits(plain, measured), *told]
    found, facts["last scale"] = scaled()
    facts["scaled equals unscaled"] = same_bits(found, weights)
    if accelerator.is_main_process:
        shutil.copytree(state, copy)
        give_all_rank_0s_state(Path(copy))
    accelerator.wait_for_everyone()
    facts["with rank 0's state for all"] = same_bits(resumed(copy), weights)
    facts["damaged"] = refusal(Path(copy))
    write_facts(folder, facts)
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1])
