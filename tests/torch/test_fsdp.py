"""`attach(…, replicas=…)` on real ranks: replicas × shards, against native HSDP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch_pool import Pool

pytestmark = pytest.mark.timeout(300)  # four or six ranks to start


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipping": {"step": "clip"},
    "accumulation without reduce-scatter": {"step": "sync"},
    "accumulation of reduced shards": {"step": "reduce"},
    "bf16 parameters, fp32 reduce": {"policy": "bf16"},
    "bf16 reduce": {"policy": "all bf16"},
    "unused parameters": {"unused": True},
    "sum": {"step": "sum"},
}
MORE: dict[str, dict[str, Any]] = {
    "fp16 reduce": {"policy": "fp16"},
    "an exchange in each backward": {"step": "exchange", "exchanges": 2},
    "forced sums": {"step": "force sum"},
    "activation checkpointing": {"checkpointed": True},
    "compiled blocks": {"compiled": True},
    "a compiled model": {"whole": True},
    "frozen parameters": {"frozen": True},
    "a model used twice": {"step": "twice", "exchanges": 2},
}


@pytest.mark.parametrize("case", [*CASES, *MORE])
def test_with_everything_sent_weights_are_those_of_hsdp(two_by_two: Pool, case: str) -> None:
    two_by_two.play("fsdp.equals_hsdp", replicas=2, shards=2, **(CASES | MORE)[case])


@pytest.mark.parametrize("case", CASES)
def test_so_they_are_with_three_uneven_shards(two_by_three: Pool, case: str) -> None:
    two_by_three.play("fsdp.equals_hsdp", replicas=2, shards=3, **CASES[case])


# --- over time ---


@pytest.mark.parametrize(("kind", "memory"), [("sgd", "gain"), ("nesterov", "gain"),
                                             ("plain sgd", "residual"), ("adamw", "residual")])  # fmt: skip
def test_the_default_recipe_trains(two_by_two: Pool, kind: str, memory: str) -> None:
    for found in two_by_two.play("fsdp_state.trains", kind=kind):
        assert found["memory"] == memory
        assert found["losses"][-1] < found["losses"][0] / 2
        assert found["stats"]["bytes_sent"] < found["stats"]["bytes_dense"]
        assert (found["stats"]["replicas"], found["stats"]["shards"], found["stats"]["steps"]) == (2, 2, 40)


def test_replicas_begin_with_the_weights_of_the_first(two_by_two: Pool) -> None:
    first, *others = two_by_two.play("fsdp_state.trains", kind="sgd", steps=1)
    assert any("replicas were given replica 0's first.weight, first.bias" in line for line in first["lines"])
    assert all("were given" not in line for found in others for line in found["lines"])


@pytest.mark.parametrize("through", ["files", "dcp"])
@pytest.mark.parametrize("settings", [{}, {"scheme": "topk(5%) | memory=residual", "kind": "adamw",
                                           "select_per": "model"}])  # fmt: skip
def test_a_resumed_run_equals_one_that_never_stopped(
    two_by_two: Pool, tmp_path: Path, through: str, settings: dict[str, Any]
) -> None:
    two_by_two.play("fsdp_state.resumes_exactly", folder=str(tmp_path / "state"), through=through, **settings)


@pytest.mark.parametrize("through", ["files", "dcp"])
@pytest.mark.parametrize("to", [[3, 2], [1, 6], [6, 1]])
def test_shards_and_replicas_come_and_go(two_by_three: Pool, tmp_path: Path, through: str, to: list[int]) -> None:
    two_by_three.play("fsdp_state.moves", folder=str(tmp_path / "state"), through=through, to=to)


def test_damage_is_told_and_changes_nothing(two_by_two: Pool, tmp_path: Path) -> None:
    texts = two_by_two.play("fsdp_state.finds_damage", folder=str(tmp_path / "state"))
    assert all("the state of rank 2 does not match its checksum" in text for text in texts)


def test_what_is_infinite_in_one_shard_moves_no_residual_anywhere(two_by_two: Pool) -> None:
    finite = two_by_two.play("fsdp_state.overflows_in_one_shard")
    assert not all(finite[1]) and not all(finite[3])  # the mean of that shard
    assert all(finite[0]) and all(finite[2])


def test_a_gradient_is_clipped_by_the_norm_of_all_its_shards(two_by_two: Pool) -> None:
    assert all(norm <= 1e-3 / 2**0.5 * 1.0001 for norm in two_by_two.play("fsdp_state.clips"))


def test_clipping_after_backward_is_warned_of(two_by_two: Pool) -> None:
    for text in two_by_two.play("fsdp_state.is_clipped_after_backward"):
        assert "write attach(…, clip_norm=…) instead" in text


@pytest.mark.parametrize("how", ["dies", "dies in its exchange", "raises"])
def test_a_lost_rank_ends_all_others_at_once(two_by_two: Pool, how: str) -> None:
    told = two_by_two.play("fsdp_state.is_lost", victim=1, how=how, lost=[1])
    two_by_two.close()
    for rank in (0, 2, 3):
        assert told[rank]["seconds"] < 15 and told[rank]["step"] <= 5
    if how == "raises":
        assert "rank 1: ValueError: no batch left" in told[3]["text"]


# --- refusals ---

TOLD = {
    "native": "is on a mesh of two dimensions",
    "plain": 'write fully_shard(module, mesh=mesh["shard"])',
    "ddp": 'write fully_shard(module, mesh=mesh["shard"])',
    "fsdp1": "is wrapped in FullyShardedDataParallel, FSDP1",
    "replicate": "has been given to replicate()",
    "left": 'write fully_shard(model, mesh=mesh["shard"]) for the whole model',
    "experts": "has 2 groups of parameters on different meshes",
    "uneven": "give every fully_shard the same mesh",
    "columns": "sharded along dimension 1",
    "stepping": "step the optimizer after backward",
    "hooked": "leave set_all_reduce_hook out",
    "taken": "call its detach() first",
    "no replicas": 'write attach(model, …, replicas=mesh["replicate"])',
    "no mesh": 'write replicas=mesh["replicate"]',
    "whole mesh": "replicas is a mesh of 2 dimensions",
    "wrong mesh": "only this rank may be in both",
    "nodes": "leave nodes out",
    "auto": "name a scheme",
    "differ": "seed: 1 where rank 0 has 0",
}


def test_what_cannot_be_served_is_told_with_the_line_to_write(two_by_two: Pool) -> None:
    for found in two_by_two.play("fsdp_refusals.is_refused"):
        assert {name: text for name, text in found.items() if TOLD[name] not in text} == {}


def test_backward_within_backward_is_refused(two_by_two: Pool) -> None:
    assert all("use_reentrant=False" in text for text in two_by_two.play("fsdp_refusals.reenters"))


def test_a_torch_without_the_hook_is_told_by_name(two_by_two: Pool) -> None:
    for text in two_by_two.play("fsdp_refusals.is_too_old"):
        assert "replicas= needs FSDPModule.set_all_reduce_hook" in text


def test_after_a_backward_that_raised_the_next_is_refused(two_by_two: Pool) -> None:
    for text in two_by_two.play("fsdp_state.goes_on_after_an_error"):
        assert "if the last backward raised an error, detach and attach again" in text


def test_residuals_follow_a_scaler_that_skips_for_one_shard(two_by_two: Pool) -> None:
    assert all(losses[-1] < losses[0] for losses in two_by_two.play("fsdp_state.follows_a_scaler"))
