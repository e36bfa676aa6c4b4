"""The model's own engine adds up what travels dense from devices: nobody waits for it longer than the timeout."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from torch_pool import Pool

torch = pytest.importorskip("torch")

from torch_ranks import LIMIT  # noqa: E402

from sparsewire.errors import CommError, CommTimeout  # noqa: E402
from sparsewire.torch.ddp.engine import ModelEngine  # noqa: E402

GRADIENT = torch.zeros(3, device="meta")


class Work:
    """A collective that ends after so many looks at it, or never, and then maybe with an error."""

    def __init__(self, looks: float, error: str = "") -> None:
        self.looks, self.error, self.waited = looks, error, False

    def is_completed(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def wait(self) -> None:
        self.waited = True
        if self.error:
            raise RuntimeError(self.error)


def add_up(work: Work, failed: bool = False, timeout: float = 60.0) -> None:
    comm: Any = SimpleNamespace(start_all_reduce=lambda tensor: work)
    group: Any = SimpleNamespace(timeout=timeout, failed=failed)
    ModelEngine(comm, group).sum(GRADIENT)


def test_a_collective_that_never_ends_is_given_up_at_the_timeout() -> None:
    start = time.monotonic()
    with pytest.raises(CommTimeout, match=r"all_reduce: .* within 0\.2 s"):
        add_up(Work(float("inf")), timeout=0.2)
    assert time.monotonic() - start < 5


def test_a_rank_that_says_that_it_fails_ends_the_wait_before() -> None:
    with pytest.raises(CommError, match="all_reduce: another rank has left") as found:
        add_up(Work(float("inf")), failed=True)
    assert not isinstance(found.value, CommTimeout)


def test_one_that_ends_is_waited_for_so_that_the_stream_goes_on_behind_it() -> None:
    work = Work(3)
    add_up(work)
    assert work.waited


@pytest.mark.parametrize(("said", "kind"), [("connection reset", CommError), ("watchdog: timed out", CommTimeout)])
def test_one_that_ends_with_an_error_names_the_call(said: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=f"all_reduce: {said}"):
        add_up(Work(0, said))


@pytest.mark.parametrize("timeout", [7.5, None])
def test_the_limit_is_that_of_attach_or_of_the_models_group(ranks: Pool, timeout: float | None) -> None:
    limit = timeout or LIMIT.total_seconds()
    assert ranks.play("device.waits_for", ranks=3, timeout=timeout) == [limit] * 3
