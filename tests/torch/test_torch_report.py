"""What a link tells of itself, and that it costs no more than it says."""

from __future__ import annotations

import pytest
from torch_pool import Pool


def test_the_ratio_follows_the_schedule(ranks: Pool) -> None:
    expected = ["dense"] * 2 + ["topk(ratio=0.25)"] * 2 + ["topk(ratio=0.0625)"] * 2 + ["topk(ratio=0.01)"] * 2
    assert ranks.play("report.follows_its_schedule") == [expected] * 3


def test_warm_up_steps_are_those_of_plain_ddp(ranks: Pool) -> None:
    ranks.play("report.dense_steps_equal_plain")


def test_statistics_add_up(ranks: Pool) -> None:
    for found in ranks.play("report.counts"):
        start, told, end = found["start"], found["told"], found["end"]
        assert (start["steps"], start["bytes_dense"], start["seconds"]) == (0, 0, {})
        assert [one["steps"] for one in told] == [1, 2, 3, 4, 5, 6]
        assert all(one["finite"] for one in told)
        recipe, profile = end.pop("recipe"), end.pop("profile")
        assert profile["steps"] == 5  # the first has no beginning
        assert recipe == 'attach(model, "topk(5%) | memory=residual", optimizer=None)'
        assert end == {key: value for key, value in told[-1].items() if key in end}
        assert end["bytes_dense"] == 6 * found["dense"]
        assert set(end["seconds"]) == {"select", "encode", "exchange", "decode", "keep", "dense", "accumulate"}
        assert all(seconds > 0 for seconds in end["seconds"].values())
        for one, next_ in zip([start, *told], told, strict=False):
            for key in ("bytes_sent", "bytes_received", "bytes_dense"):
                assert one[key] < next_[key]
        sent = end["bytes_sent"] - told[2]["bytes_sent"]
        assert 0 < sent < 0.6 * (end["bytes_dense"] - told[2]["bytes_dense"])  # tiny tensors: slots of 512 bytes
        assert end["bytes_received"] - told[2]["bytes_received"] > sent / 2


def test_a_step_is_one_collective_per_bucket_and_one_for_all_that_is_small(ranks: Pool) -> None:
    for found in ranks.play("report.counts"):
        assert found["collectives"] <= found["large"] + 1
    assert ranks.play("report.travels_dense_in_one", exclude=[], dense_below=10**9) == [1] * 3
    assert ranks.play("report.travels_dense_in_one", exclude=["*"], dense_below=0) == [1] * 3


@pytest.mark.parametrize("per", ["parameter", "bucket", "model"])
def test_buckets_are_compressed_where_they_lie(ranks: Pool, per: str) -> None:
    """What is done with them makes no dense arrays, either: test_averager_memory.py."""
    for same in ranks.play("report.hands_over_buckets", ranks=2, scheme="topk(1%) | memory=residual", select_per=per)[
        :2
    ]:
        assert len(same) >= 3 and all(same)


def test_a_sparse_gradient_is_the_mean_of_the_dense_ones(ranks: Pool) -> None:
    ranks.play("report.sparse_equals_dense")


def test_a_sparse_gradient_never_becomes_dense(ranks: Pool) -> None:
    for largest, dense in ranks.play("report.never_dense"):
        assert 0 < largest < dense / 20


@pytest.mark.parametrize("values", ["qsgd(bits=2)", "half", "raw"])
def test_a_sparse_gradient_loses_nothing(ranks: Pool, values: str) -> None:
    ranks.play("attach.loses_nothing", scheme=f"topk(5%) | values={values} | memory=residual", kind="words")
