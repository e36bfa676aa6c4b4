"""`attach` on real ranks: what comes out of backward is what plain DDP gives, or owes nothing where it is lossy."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
from torch_pool import Pool

TINY = {"bucket_cap_mb": 0.005}
LIKE_PLAIN: dict[str, dict[str, Any]] = {
    "one rank": {"ranks": 1},
    "two ranks": {"ranks": 2},
    "three ranks": {"ranks": 3},
    "many buckets, rebuilt after the first step": {"ddp": TINY, "buckets": 3},
    "many buckets, two ranks": {"ddp": TINY, "buckets": 3, "ranks": 2},
    "static graph": {"ddp": {"static_graph": True, **TINY}},
    "unused parameters": {"kind": "branches", "ddp": {"find_unused_parameters": True}},
    "unused parameters, many buckets": {"kind": "branches", "ddp": {"find_unused_parameters": True, **TINY}},
    "gradients are views of buckets": {"ddp": {"gradient_as_bucket_view": True, **TINY}},
    "bfloat16": {"dtype": "bfloat16", "tolerance": 0.02},
    "float16": {"dtype": "float16", "tolerance": 0.002},
    "float64": {"dtype": "float64"},
    "mixed dtypes": {"kind": "mixed", "tolerance": 0.02, "buckets": 3},
    "mixed dtypes in views": {"kind": "mixed", "tolerance": 0.02, "ddp": {"gradient_as_bucket_view": True}},
    "compiled": {"compiled": "aot_eager", "ranks": 2},
    "selection per bucket": {"select_per": "bucket"},
    "selection per bucket, many buckets": {"select_per": "bucket", "ddp": TINY, "buckets": 3},
    "selection per bucket, bfloat16": {"select_per": "bucket", "dtype": "bfloat16", "tolerance": 0.02},
    "selection per bucket, some excluded": {"select_per": "bucket", "exclude": ["middle.*", "norm.bias"]},
    "one threshold": {"select_per": "model"},
    "one threshold, many buckets": {"select_per": "model", "ddp": TINY, "buckets": 3},
    "one threshold, bfloat16": {"select_per": "model", "dtype": "bfloat16", "tolerance": 0.02},
    "one threshold, mixed dtypes": {"select_per": "model", "kind": "mixed", "tolerance": 0.02, "buckets": 3},
    "one threshold, sparse embedding": {"select_per": "model", "kind": "words", "ddp": TINY, "ranks": 2},
    "nothing too small": {"dense_below": 0},
    "everything too small": {"dense_below": 10**9},
    "sparse embedding": {"kind": "words"},
    "sparse embedding, many buckets": {"kind": "words", "ddp": TINY, "ranks": 2},
    "dense warm-up": {"warmup_steps": 2},
    "dense warm-up of everything": {"kind": "words", "warmup_steps": 10},
}


@pytest.mark.parametrize("case", LIKE_PLAIN)
def test_with_everything_sent_gradients_are_those_of_plain_ddp(ranks: Pool, case: str) -> None:
    ranks.play("attach.equals_plain_ddp", **LIKE_PLAIN[case])


BUNDLED = ("many buckets", "unused parameters, many buckets", "mixed dtypes", "sparse embedding, many buckets")
BUNDLED += ("one threshold, many buckets", "dense warm-up of everything", "selection per bucket, many buckets")


@pytest.mark.parametrize("case", [case for case in LIKE_PLAIN if case.startswith(BUNDLED)])
def test_buckets_that_travel_together_are_those_of_plain_ddp(ranks: Pool, case: str) -> None:
    ranks.play("attach.equals_plain_ddp", bundle=4096, **LIKE_PLAIN[case])


@pytest.mark.parametrize(("bundle", "messages"), [(0, 8), (600, 4), (4096, 1)])
def test_buckets_of_few_entries_travel_in_one_message(ranks: Pool, bundle: int, messages: int) -> None:
    first, *others = ranks.play("attach.sends_messages", bundle=bundle)
    assert first["a step"] == messages
    assert all(told == first for told in others)
    assert first["bits"] == ranks.play("attach.sends_messages")[0]["bits"]


def test_no_sync_accumulates(ranks: Pool) -> None:
    ranks.play("attach.accumulates_without_sync")


def test_ranks_with_fewer_batches_can_join_the_others(ranks: Pool) -> None:
    ranks.play("attach.joins_uneven_inputs")


LOSSY = [
    "topk(2%) | indices=rice | values=qsgd(bits=4) | memory=residual",
    "randomk(10%) | values=half | memory=residual",
    "randomk(10%, shared=false) | values=deflate | memory=residual",
    "threshold(ratio=5%) | indices=elias_fano | memory=residual",
    "nonzero | values=qsgd(bits=3)+deflate | memory=residual",
]


@pytest.mark.parametrize("per", ["parameter", "bucket"])
@pytest.mark.parametrize("scheme", LOSSY)
def test_ranks_hold_the_same_bits_after_fifty_lossy_steps(ranks: Pool, scheme: str, per: str) -> None:
    fell = ranks.play("attach.stays_in_step", scheme=scheme, select_per=per)
    assert max(fell) < 0.5


@pytest.mark.parametrize("scheme", LOSSY)
def test_residuals_hold_exactly_what_is_not_sent_yet(ranks: Pool, scheme: str) -> None:
    ranks.play("attach.loses_nothing", scheme=scheme)


def test_one_threshold_keeps_ranks_in_step_and_loses_nothing(ranks: Pool) -> None:
    fell = ranks.play("attach.stays_in_step", scheme=LOSSY[0], select_per="model")
    assert max(fell) < 0.5
    ranks.play("attach.loses_nothing", scheme=LOSSY[0], select_per="model")


@pytest.mark.parametrize("per", ["parameter", "bucket", "model"])
def test_nothing_is_lost_on_parameters_that_are_not_always_used(ranks: Pool, per: str) -> None:
    ranks.play("attach.loses_nothing", scheme="topk(5%) | memory=residual", kind="branches", select_per=per)


@pytest.mark.parametrize("when", ["attached", "detached"])
@pytest.mark.parametrize("how", ["deepcopy", "save"])
def test_a_copy_of_a_model_is_a_model_without_a_link(ranks: Pool, how: str, when: str) -> None:
    ranks.play("wrapped.copies", how=how, when=when)


def test_a_compiled_module_has_the_names_of_the_plain_one(ranks: Pool) -> None:
    ranks.play("wrapped.compiled_within", ranks=2)


def test_what_is_wrapped_around_ddp_is_looked_through(ranks: Pool) -> None:
    ranks.play("wrapped.compiled_around", ranks=2)


@pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed")
def test_a_model_that_fabric_has_set_up_can_be_attached(ranks: Pool) -> None:
    ranks.play("wrapped.set_up_by_fabric", ranks=2)


def test_complex_parameters_are_twice_as_many_real_numbers(ranks: Pool) -> None:
    for seen in ranks.play("wrapped.complex_parameters", ranks=2)[:2]:
        if seen is None:
            pytest.skip("gloo of this torch does not know complex numbers, and neither does plain DDP")
        assert ["torch.float32", 2 * 48 * 48, [["torch.complex64", 48 * 48]]] in seen
