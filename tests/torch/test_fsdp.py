"""`attach(…, replicas=…)` on real ranks: replicas × shards, against native HSDP."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from torch_pool import Pool

pytestmark = pytest.mark.timeout(300)  # four or six ranks to start


def pool_of(size: int, folder: Any) -> Iterator[Pool]:
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    pool = Pool(folder.mktemp(f"fsdp {size}"), size)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    yield from pool_of(4, tmp_path_factory)


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    yield from pool_of(6, tmp_path_factory)


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
    "a model used twice": {"step": "twice", "exchanges": 2},
}


@pytest.mark.parametrize("case", [*CASES, *MORE])
def test_with_everything_sent_weights_are_those_of_hsdp(four: Pool, case: str) -> None:
    four.play("fsdp.equals_hsdp", replicas=2, shards=2, **(CASES | MORE)[case])


@pytest.mark.parametrize("case", CASES)
def test_so_they_are_with_three_uneven_shards(six: Pool, case: str) -> None:
    six.play("fsdp.equals_hsdp", replicas=2, shards=3, **CASES[case])
