"""What crosses between a device and the host is ordered behind what makes it, and waited for once."""

from __future__ import annotations

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import mock_streams  # noqa: E402

from sparsewire.kernels.device import crossing  # noqa: E402
from sparsewire.torch.ddp import streams  # noqa: E402


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> mock_streams.Engine:
    return mock_streams.Engine(monkeypatch)


def test_what_comes_down_is_what_the_kernels_before_it_made(engine: mock_streams.Engine) -> None:
    x = torch.zeros(3)
    engine.launch(lambda: x.fill_(1))
    first = crossing.later(x)
    engine.launch(lambda: x.fill_(2))
    second = crossing.later(x)
    assert not x.any(), "nothing runs before somebody waits"
    with crossing.watched() as seen:
        assert second.read()[0].tolist() == [2, 2, 2]
        assert first.read()[0].tolist() == [1, 1, 1]
    assert seen.waits == 1


def test_reading_waits_for_no_more_than_it_needs(engine: mock_streams.Engine) -> None:
    x = torch.zeros(2)
    engine.launch(lambda: x.fill_(1))
    landing = crossing.later(x)
    engine.launch(lambda: x.fill_(2))
    assert landing.read()[0].tolist() == [1, 1] and x.tolist() == [1, 1]


def test_what_goes_up_is_there_for_the_kernels_behind_it(engine: mock_streams.Engine) -> None:
    total = torch.zeros(2)
    up = crossing.up(np.array([3.0, 4.0], np.float32), torch.device("cpu"))
    engine.launch(lambda: total.add_(up))
    assert not total.any()
    assert crossing.down(total)[0].tolist() == [3, 4]


def test_what_another_thread_has_read_stays_read(engine: mock_streams.Engine) -> None:
    landing, other = crossing.later(torch.ones(2)), crossing.later(torch.ones(1))
    reader = threading.Thread(target=landing.read)
    reader.start()
    reader.join()
    assert other.read()[0].tolist() == [1]
    assert landing.read()[0].tolist() == [1, 1]


def test_a_copy_that_does_not_wait_is_caught(
    engine: mock_streams.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(mock_streams.Stream, "wait_stream", lambda self, other: None)
    x = torch.zeros(2)
    engine.launch(lambda: x.fill_(1))
    assert crossing.down(x)[0].tolist() == [0, 0]


def test_the_communication_thread_works_behind_the_gradient(engine: mock_streams.Engine) -> None:
    device = torch.device("cuda", 0)
    gradient, selected = torch.zeros(2), torch.zeros(2)
    engine.launch(lambda: gradient.fill_(5))
    ready = streams.mark(device)
    engine.launch(lambda: gradient.fill_(7))  # the next step's, which the thread need not wait for
    with streams.Streams().behind(ready, device):
        engine.launch(lambda: selected.copy_(gradient))
        assert crossing.down(selected)[0].tolist() == [5, 5]
    assert engine.current is engine.first
