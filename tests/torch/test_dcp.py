"""Every rank's state in a torch.distributed.checkpoint folder."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import warm
from host_ranks import SCHEME, run_script, same_bits, write_facts

warm.needs("torch.distributed.checkpoint")
pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_script(__file__, tmp_path_factory.mktemp("dcp"), "resume")


def holds(fact: str, facts: list[dict[str, Any]]) -> bool:
    return all(rank[fact] for rank in facts)


def test_a_resumed_run_is_bit_equal_to_one_that_never_stopped(facts: list[dict[str, Any]]) -> None:
    assert holds("resumed equals uninterrupted", facts)


def test_every_rank_has_its_own_state_in_the_folder(facts: list[dict[str, Any]]) -> None:
    assert holds("state is this rank's", facts)
    assert facts[0]["sums"] != facts[1]["sums"]


def test_the_folder_holds_tensors_only(facts: list[dict[str, Any]]) -> None:
    assert holds("tensors only", facts)


def test_without_its_residuals_a_run_goes_elsewhere(facts: list[dict[str, Any]]) -> None:
    assert holds("without residuals it differs", facts)


def test_a_model_checkpoint_is_not_overwritten(facts: list[dict[str, Any]]) -> None:
    assert all("folder of its own" in rank["over a model"] for rank in facts)


def test_a_folder_without_a_checkpoint_is_named(facts: list[dict[str, Any]]) -> None:
    assert all("no torch.distributed.checkpoint" in rank["empty folder"] for rank in facts)


def test_another_number_of_ranks_shares_what_was_left(facts: list[dict[str, Any]], tmp_path: Path) -> None:
    resharded = run_script(__file__, tmp_path, "reshard", facts[0]["folder"], ranks=3)
    for name in facts[0]["sums"]:
        means = [sum(rank["sums"].get(name, 0) for rank in group) / len(group) for group in (resharded, facts)]
        assert means[0] == pytest.approx(means[1], rel=1e-4, abs=1e-6)
    assert [rank["step"] for rank in resharded] == [3] * 3


# --- the ranks ---


def started() -> tuple[Any, Any, Any]:
    """A model with a sparse embedding, an optimizer and a link, the same on every rank and at every start."""
    import torch

    from sparsewire.torch import attach

    torch.manual_seed(0)
    layers = [
        torch.nn.Embedding(500, 16, sparse=True),
        torch.nn.Linear(16, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 8),
    ]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    return model, torch.optim.SGD(model.parameters(), lr=0.5), attach(model, SCHEME)


def train(model: Any, optimizer: Any, steps: range) -> None:
    import torch
    import torch.distributed as dist

    for step in steps:
        random = torch.Generator().manual_seed(100 * step + dist.get_rank())
        rows, labels = (torch.randint(top, (32,), generator=random) for top in (500, 8))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(rows), labels).backward()
        optimizer.step()


def sums(state: dict[str, Any]) -> dict[str, float]:
    return {name: float(kept.double().sum()) for name, kept in residuals(state).items()}


def residuals(state: dict[str, Any]) -> dict[str, Any]:
    found = {name: buffers["residual"] for name, buffers in state["buffers"].items()}
    return {name: kept["values"] if isinstance(kept, dict) else kept for name, kept in found.items()}


def coarse(state: dict[str, Any]) -> dict[str, Any]:
    """Residuals of few bits, so that their sums are exact in any order."""
    for kept in residuals(state).values():
        kept.mul_(2**16).round_().div_(2**16)
    return state


def message(call: Any) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


def resume(folder: str) -> dict[str, Any]:
    import torch
    import torch.distributed.checkpoint as dcp

    from sparsewire.torch import load_dcp, save_dcp

    state, other = Path(folder) / "state", Path(folder) / "model"
    model, optimizer, link = started()
    train(model, optimizer, range(3))
    link.load_state_dict(coarse(link.state_dict()))
    save_dcp(link, state)
    weights = {name: kept.clone() for name, kept in model.state_dict().items()}
    saved = link.state_dict()
    train(model, optimizer, range(3, 6))
    dcp.save(weights, checkpoint_id=other)
    facts = {
        "folder": str(state),
        "sums": sums(saved),
        "over a model": message(lambda: save_dcp(link, other)),
        "empty folder": message(lambda: load_dcp(link, folder)),
        "tensors only": all(
            type(kept).__name__ == "TensorStorageMetadata"
            for kept in dcp.FileSystemReader(state).read_metadata().state_dict_metadata.values()
        ),
    }
    link.detach()
    for with_state in (True, False):
        again, optimizer, link = started()
        again.load_state_dict(weights)
        if with_state:
            load_dcp(link, state)
            loaded = link.state_dict()
            kept = [
                loaded["step"] == 3,
                loaded["rank"] == saved["rank"],
                same_bits(residuals(loaded), residuals(saved)),
                torch.equal(*(one["buffers"]["0.weight"]["residual"]["indices"] for one in (loaded, saved))),
            ]
            facts["state is this rank's"] = all(kept)
        train(again, optimizer, range(3, 6))
        equal = same_bits(again.state_dict(), model.state_dict())
        facts["resumed equals uninterrupted" if with_state else "without residuals it differs"] = equal == with_state
        link.detach()
    return facts


def reshard_dcp(folder: str) -> dict[str, Any]:
    from sparsewire.torch import load_dcp

    model, optimizer, link = started()
    load_dcp(link, folder)
    state = link.state_dict()
    train(model, optimizer, range(3, 4))
    link.detach()
    return {"sums": sums(state), "step": state["step"]}


if __name__ == "__main__":
    import torch.distributed as dist

    out, mode, *rest = sys.argv[1:]
    dist.init_process_group("gloo")
    write_facts(out, resume(out) if mode == "resume" else reshard_dcp(rest[0]))
    dist.destroy_process_group()
