"""`attach(…, nodes=2)` by the path of devices, forced on CPU tensors of two machines of two ranks: the host's bits."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from device_cases import CASES, FOURIER
from torch_pool import Pool

pytestmark = pytest.mark.timeout(240)  # four ranks to start
TIMEOUT = 6.0


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    pool = Pool(tmp_path_factory.mktemp("four"), 4)
    yield pool
    pool.close()


@pytest.mark.parametrize("case", CASES)
def test_machines_on_devices_have_the_bits_of_the_host(four: Pool, case: str) -> None:
    four.play("device.equals_host", nodes=2, **CASES[case])


@pytest.mark.parametrize("case", ["gain", "gmc at several rates, per bucket"])
def test_so_they_have_with_transforms_of_torch(four: Pool, case: str) -> None:
    four.play("device.equals_host", nodes=2, by_torch=True, **FOURIER[case])


@pytest.mark.parametrize("case", ["dgc in bfloat16", "clipped, bfloat16", "a schedule after dense steps"])
def test_machines_of_other_sizes_have_the_bits_of_the_host(four: Pool, case: str) -> None:
    """Three ranks on one machine, whose sums are of three; and four that are machines by themselves."""
    four.play("device.equals_host", ranks=3, nodes=3, **CASES[case])
    four.play("device.equals_host", nodes=1, **CASES[case])


@pytest.mark.parametrize("case", ["residual, quantised", "dgc in bfloat16"])
def test_what_is_sent_at_once_changes_nothing(four: Pool, case: str) -> None:
    four.play("machines.adds_up_in_rounds", window=1000, nodes=2, **CASES[case])


@pytest.mark.parametrize("case", ["one threshold over the model", "dense parameters that stay on the device"])
def test_accelerators_add_up_in_groups_of_the_models_engine(four: Pool, case: str) -> None:
    four.play("machines.adds_up_in_groups_of_the_model", nodes=2, **CASES[case])


@pytest.mark.parametrize("per", ["parameter", "model"])
def test_only_selected_entries_cross(four: Pool, per: str) -> None:
    """Of a part, as of a bucket without machines; what a machine adds up and shares does not."""
    four.play("device.crosses_little", scheme="topk(5%) | memory=residual", waits=1, select_per=per, nodes=2)


def test_ranks_that_cannot_all_stay_on_devices_add_up_on_the_host(four: Pool) -> None:
    every, some = ["force"] * 4, ["force", "force", "off", "force"]
    assert all(facts["on_device"] for facts in four.play("machines.tells_where_it_adds_up", paths=every))
    assert not any(facts["on_device"] for facts in four.play("machines.tells_where_it_adds_up", paths=some))


def test_a_rank_that_dies_while_its_machine_adds_up_ends_the_others(four: Pool) -> None:
    told = four.play("device.forced", played="nodes.is_killed", inside=True, victim=1, timeout=TIMEOUT, lost=[1])
    four.close()
    assert all(told[rank] < TIMEOUT + 15 for rank in (0, 2, 3))


def test_groups_of_the_models_engine_are_made_of_the_world_or_a_part_of_it(four: Pool) -> None:
    assert four.play("machines.makes_parts", parts=[[0, 2], [1, 3]]) == [[101, 101], [1010, 1010]] * 2
    assert four.play("machines.makes_parts", ranks=3, parts=[[0], [1, 2]])[:3] == [[1, 1], *[[110, 110]] * 2]
    assert four.play("machines.makes_no_parts", ranks=3, parts=[[0], [1, 2]])[:3] == [True] * 3
