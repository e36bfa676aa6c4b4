"""`CompressedManager` in steps of torchft's own protocol: real managers, lighthouse and gloo; replicas are threads."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchft", reason="torchft is not installed")

from torch.distributed import ReduceOp  # noqa: E402
from torchft import DistributedDataParallel, Optimizer  # noqa: E402
from torchft.local_sgd import DiLoCo, LocalSGD  # noqa: E402
from torchft.manager import WorldSizeMode  # noqa: E402
from torchft.process_group import ProcessGroupBabyGloo  # noqa: E402
from torchft_replicas import run_replicas, step  # noqa: E402

from sparsewire.errors import CommMismatch, InputError  # noqa: E402
from sparsewire.torch.torchft import CompressedManager  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated")  # torchft's own
LOSSLESS = "nonzero | values=raw | memory=none"
SCHEME = "topk(10%) | indices=rice | values=qsgd(bits=5) | memory=residual"


@pytest.fixture(autouse=True)
def loopback(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def gradient(place, number, size=2000):
    return torch.randn(size, generator=torch.Generator().manual_seed(100 * place + number))


def residual(manager, name="call 0"):
    return manager.compression_state_dict()["calls"][name]["buffers"][name]["residual"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_without_loss_the_mean_is_torchfts(dtype):
    def work(manager, place):
        x = gradient(place, 0).to(dtype).view(40, 50).t()  # not contiguous
        assert step(manager, x)
        return x

    ours = run_replicas(3, work, scheme=LOSSLESS)
    dense = run_replicas(3, work, scheme=None)
    assert all(torch.equal(x, ours[0]) for x in ours)
    near = {"rtol": 0.01, "atol": 0.02} if dtype == torch.bfloat16 else {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(ours[0], dense[0], **near)  # torchft adds up in bfloat16


def test_everything_arrives_or_waits_in_a_residual():
    def work(manager, place):
        means = []
        for number in range(4):
            x = gradient(place, number).double()
            assert step(manager, x)
            means.append(x)
        return sum(means), residual(manager)

    results = run_replicas(3, work, scheme=SCHEME)
    given = sum(gradient(place, number).double() for place in range(3) for number in range(4))
    torch.testing.assert_close(3 * results[0][0] + sum(left for _, left in results), given)


def test_only_a_step_that_counts_moves_residuals():
    def work(spoiled):
        def run(manager, place):
            means = []
            for number in range(3):
                if number == spoiled:
                    before = residual(manager).clone()
                    assert not step(manager, gradient(place, 77), fails=True)
                    assert torch.equal(residual(manager), before)
                x = gradient(place, number)
                assert step(manager, x)
                means.append(x)
            return torch.stack([*means, residual(manager)])

        return run

    plain, spoiled = (run_replicas(2, work(number), scheme=SCHEME) for number in (None, 2))
    assert all(torch.equal(a, b) for a, b in zip(plain, spoiled, strict=True))


def test_a_number_that_is_not_finite_moves_no_residual_of_its_step():
    def work(manager, place):
        assert step(manager, gradient(place, 0), gradient(place, 1))
        before = [residual(manager, f"call {call}").clone() for call in (0, 1)]
        x = gradient(place, 2)
        x[7] = torch.inf if place == 1 else 0
        step(manager, gradient(place, 3), x)
        return all(torch.equal(residual(manager, f"call {call}"), before[call]) for call in (0, 1))

    assert run_replicas(2, work, scheme=SCHEME) == [True, True]


def test_a_saved_replica_goes_on_to_the_bit():
    saved = {}

    def work(first, last, save_at=None):
        def run(manager, place):
            if first:
                state, of_manager = saved[place]
                manager.load_compression_state_dict(state)
                manager.load_state_dict(of_manager)
            for number in range(first, last):
                x = gradient(place, number)
                assert step(manager, x)
                if number + 1 == save_at:
                    saved[place] = manager.compression_state_dict(), manager.state_dict()
            return torch.stack([x, residual(manager)])

        return run

    whole = run_replicas(2, work(0, 5, save_at=3), scheme=SCHEME)
    resumed = run_replicas(2, work(3, 5), scheme=SCHEME)
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))


def test_a_spare_sends_nothing_and_gets_the_mean_of_the_others():
    def work(manager, place):
        x = gradient(place, 0)
        assert step(manager, x)
        return x, manager.is_participating()

    mode = {"world_size_mode": WorldSizeMode.FIXED_WITH_SPARES, "min_replica_size": 2}
    results = run_replicas(3, work, scheme=LOSSLESS, **mode)
    active = [place for place, (_, participates) in enumerate(results) if participates]
    assert len(active) == 2
    mean = sum(gradient(place, 0) for place in active) / 2
    for x, _ in results:
        torch.testing.assert_close(x, mean)


def test_other_reductions_are_torchfts():
    def work(manager, place):
        manager.start_quorum()
        x = torch.tensor([place + 1])
        manager.allreduce(x, reduce_op=ReduceOp.SUM).wait()
        return x.item()

    assert run_replicas(2, work, scheme=SCHEME) == [3, 3]


def train(method, steps=6):
    """Weights of the replicas after some steps of one of torchft's methods; they begin equal."""
    torch.manual_seed(0)
    first = torch.nn.Sequential(torch.nn.Linear(40, 60), torch.nn.Tanh(), torch.nn.Linear(60, 40))

    def work(manager, place):
        model = copy.deepcopy(first)  # all threads share torch's random numbers
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if method == "ddp":
            outside, trained, context = DistributedDataParallel(manager, model), Optimizer(manager, optimizer), None
        elif method == "local":
            outside, trained, context = model, optimizer, LocalSGD(manager, model, optimizer, 2)
        else:
            parts, rate = [model[0], model[2]], {"lr": 0.7, "momentum": 0.5, "nesterov": True}
            outer = [torch.optim.SGD(part.parameters(), **rate) for part in parts]
            outside, trained, context = model, optimizer, DiLoCo(manager, parts, optimizer, outer, 2)
        if context is not None:
            context.__enter__()
        for number in range(steps):
            x = gradient(place, number).view(50, 40)
            trained.zero_grad()
            (outside(x) - x.flip(1)).square().mean().backward()
            trained.step()
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
        return flat, manager.stats() if hasattr(manager, "stats") else None

    return work


@pytest.mark.parametrize("method", ["ddp", "local", "diloco"])
def test_torchfts_methods_train_as_without_it_when_nothing_is_lost(method):
    ours = run_replicas(2, train(method), scheme=LOSSLESS)
    dense = run_replicas(2, train(method), scheme=None)
    for (a, _), (b, _) in zip(ours, dense, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["ddp", "local"])
def test_replicas_stay_equal_with_few_bytes(method):
    (a, stats), (b, _) = run_replicas(2, train(method, steps=12), scheme=SCHEME, dense_below=100)
    assert torch.equal(a, b)
    assert stats["bytes_sent"] < stats["bytes_dense"] / 3
    assert stats["steps"] == (12 if method == "ddp" else 6)


def test_a_tensor_that_changes_between_steps_is_refused():
    def work(manager, place):
        assert step(manager, gradient(place, 0))
        with pytest.raises(InputError, match=r"call 0 of this step has 30 elements of float32, in earlier steps 2000"):
            step(manager, gradient(place, 0, size=30))

    run_replicas(2, work, scheme=SCHEME)


def test_replicas_with_other_settings_are_told_on_every_replica():
    def work(manager, place):
        with pytest.raises(CommMismatch, match="seed"):
            step(manager, gradient(place, 0))

    run_replicas(2, work, each=[{"seed": 0}, {"seed": 1}], scheme=SCHEME)


def damaged(state, damage):
    """The state of a manager with one thing in it that is wrong."""
    call = {**state["calls"]["call 0"]}
    kept = call["buffers"]["call 0"]["residual"]
    match damage:
        case "NaN":
            call["buffers"] = {"call 0": {"residual": torch.full_like(kept, float("nan"))}}
        case "type":
            call["buffers"] = {"call 0": {"residual": "numbers"}}
        case "scale":
            call["scale"] = 0.0
        case "step":
            del call["step"]
        case "references":
            return {key: part for key, part in state.items() if key != "references"}
        case "reference":
            return {**state, "references": {"call 0": torch.full((2000,), float("inf"))}}
        case "calls":
            return {**state, "calls": [1]}
    return {**state, "calls": {"call 0": call}}


@pytest.mark.parametrize("damage", ["NaN", "type", "scale", "step", "references", "reference", "calls"])
def test_a_damaged_state_is_refused_at_once_and_changes_nothing(damage):
    def work(manager, place):
        manager.start_quorum()
        manager.allreduce(gradient(place, 0)).wait()
        assert manager.should_commit()
        state, before = manager.compression_state_dict(), residual(manager).clone()
        with pytest.raises(InputError):
            manager.load_compression_state_dict(damaged(state, damage))
        return torch.equal(residual(manager), before)

    assert run_replicas(1, work, scheme=SCHEME, min_replica_size=1) == [True]


def test_what_cannot_be_served_is_refused_with_what_to_write():
    with pytest.raises(InputError, match="write memory=residual"):
        CompressedManager("topk(1%) | memory=gain(momentum=0.9)")
    with pytest.raises(InputError, match=r"pg=torchft\.ProcessGroupGloo"):
        CompressedManager(SCHEME, pg=ProcessGroupBabyGloo())
    with pytest.raises(InputError, match="total_steps"):
        CompressedManager(total_steps=0)

    def work(manager, place):
        with pytest.raises(InputError, match="leave should_quantize out"):
            manager.allreduce(torch.zeros(3), should_quantize=True)
        with pytest.raises(InputError, match=r"reduce_op=ReduceOp\.SUM"):
            manager.allreduce(torch.zeros(3, dtype=torch.int64))
        with pytest.raises(InputError, match="compression_state_dict"):
            manager.load_compression_state_dict({"step": 3})
        return str(manager.settings.schedule.scheme.select)

    assert run_replicas(1, work, total_steps=1000, min_replica_size=1) == ["topk(ratio=0.02)"]
