"""The times of a device's steps, by events of a mock of streams: what `auto` decides by on an accelerator."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import mock_streams  # noqa: E402
from torch_pool import Pool  # noqa: E402

from sparsewire.planning.auto import Sample  # noqa: E402
from sparsewire.planning.cost.step import BucketTiming  # noqa: E402
from sparsewire.torch.ddp.streams import step_timer  # noqa: E402

DEVICE = torch.device("cuda", 0)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> mock_streams.Engine:
    return mock_streams.Engine(monkeypatch)


def test_a_dense_step_is_timed_by_the_devices_events(engine: mock_streams.Engine) -> None:
    """Backward takes 3 s to a bucket of 2 s and 1 s to one of 4 s, on a stream of the engine's own."""
    times, network, ran = step_timer([DEVICE]), mock_streams.Stream(), []
    for _ in range(2):
        timed = times.begin()
        for compute, reduce in ((3.0, 2.0), (1.0, 4.0)):
            engine.launch(lambda: ran.append("gradient"), compute)
            times.bucket(10, 40)
            begun = times.timer()
            network.wait_stream(engine.current)
            with engine.stream(network):
                engine.launch(lambda: ran.append("sum"), reduce)
                times.span(begun)
        engine.current.wait_stream(network)
    assert timed is None and not ran, "the host waits for nothing"
    timed = times.take()
    # From the end of the first step: both buckets are ready, then 2 s, 4 s of which none is hidden, one by one.
    assert timed is not None and timed.sample() == Sample(
        9.0, 3.0, 6.0, (BucketTiming(0.0, 10, 40), BucketTiming(1.0, 10, 40))
    )


def test_the_host_has_its_own_clock(engine: mock_streams.Engine) -> None:
    for devices in ([torch.device("cpu")], [DEVICE, torch.device("cpu")], [DEVICE, torch.device("cuda", 1)]):
        assert isinstance(step_timer(devices).timer(), float)


def test_auto_decides_by_instants_that_are_events(ranks: Pool) -> None:
    for choice, switches in ranks.play("auto.is_timed_by_events", ranks=2)[:2]:
        assert switches and choice != "dense"
