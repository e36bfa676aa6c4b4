"""Hugging Face's Trainer: one callback compresses, clips in time, and resumes bit-equal from its checkpoints."""

from __future__ import annotations

import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import warm
from host_ranks import RANKS, SCHEME, failure, missing, run_script, same_bits, write_facts

warm.needs("transformers", "transformers.trainer", "accelerate")
pytestmark = [
    pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed"),
    pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed"),
    pytest.mark.timeout(180),
]
STEPS, HALF = 8, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hf")


@pytest.fixture(scope="module")
def facts(folder: Path) -> list[dict[str, Any]]:
    return run_script(__file__, folder)


def test_a_resumed_run_is_bit_equal_to_one_that_never_stopped(facts: list[dict[str, Any]]) -> None:
    assert [rank["resumed"] for rank in facts] == [True] * RANKS


def test_without_its_residuals_a_run_goes_elsewhere_and_says_so(facts: list[dict[str, Any]]) -> None:
    assert [rank["resumed without residuals"] for rank in facts] == [False] * RANKS
    assert "start at zero" in facts[0]["warnings without residuals"]


def test_every_rank_writes_its_own_file_into_the_trainers_checkpoint(facts: list[dict[str, Any]], folder: Path) -> None:
    files = sorted((folder / "whole" / f"checkpoint-{STEPS}" / "sparsewire").iterdir())
    starts = [file.name.partition(f"-step{STEPS}-")[0] for file in files]
    assert starts == [f"sparsewire-0000{rank}-of-0000{RANKS}" for rank in range(RANKS)]


def test_a_checkpoint_of_the_model_only_has_no_state(facts: list[dict[str, Any]], folder: Path) -> None:
    kept = folder / "model only" / f"checkpoint-{HALF}"
    assert kept.is_dir() and not (kept / "sparsewire").exists()


def test_the_trainer_tells_everything_that_the_recipe_needs(facts: list[dict[str, Any]]) -> None:
    for rank in facts:
        assert "memory=residual" in rank["recipe"] and "ratio=0.5" in rank["recipe"]
        assert rank["fitted"] == ["AdamW"]


def test_the_trainers_clipping_is_done_before_what_waits_is_added(facts: list[dict[str, Any]]) -> None:
    """By default to 1. During `train` by the link alone; afterwards the arguments are as they were."""
    assert [rank["clipped"] for rank in facts] == [[1.0, [0.0] * STEPS, 1.0]] * RANKS


def test_no_clipping_stays_none_and_the_users_own_norm_comes_first(facts: list[dict[str, Any]]) -> None:
    assert [rank["norms"] for rank in facts] == [[None, 0.25]] * RANKS


def test_the_norm_that_the_trainer_logs_is_not_taken_for_clipping(facts: list[dict[str, Any]]) -> None:
    assert [rank["norms logged"] for rank in facts] == [True] * RANKS
    assert not any("clip" in rank["warnings"] for rank in facts)


def test_gradients_are_accumulated_before_they_are_sent(facts: list[dict[str, Any]]) -> None:
    assert [rank["steps"] for rank in facts] == [STEPS] * RANKS


def test_after_an_exception_the_same_trainer_trains_again(facts: list[dict[str, Any]]) -> None:
    assert [rank["again"] for rank in facts] == [[0.0, HALF, 1.0, 1.0]] * RANKS


def test_the_link_is_detached_at_the_end(facts: list[dict[str, Any]]) -> None:
    assert [rank["comm_threads"] for rank in facts] == [0] * RANKS


def test_one_process_is_refused(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"import test_hf; test_hf.trainer({str(tmp_path)!r})[0].train()"
    )
    assert "DistributedDataParallel; Net is not (1 processes): start several with torchrun" in failure(code)


def test_without_transformers_the_import_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing(monkeypatch, "sparsewire.torch.hf", "transformers") == (
        "sparsewire.torch.hf needs transformers: pip install transformers accelerate"
    )


# --- the ranks ---


def network() -> Any:
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            return {"loss": torch.nn.functional.cross_entropy(self.layers(x), labels)}

    return Net()


def data() -> list[dict[str, Any]]:
    import torch

    random = torch.Generator().manual_seed(1)
    x, y = torch.randn(512, 32, generator=random), torch.randint(8, (512,), generator=random)
    return [{"x": one, "labels": label} for one, label in zip(x, y, strict=True)]


def trainer(output: Path | str, scheme: str | None = SCHEME, settings: Any = None, **options: Any) -> tuple[Any, Any]:
    """(the trainer, its callback): eight steps, each of two batches per rank."""
    from transformers import PrinterCallback, Trainer, TrainingArguments

    from sparsewire.torch.hf import SparsewireCallback

    usual = {"max_steps": STEPS, "save_steps": HALF, "gradient_accumulation_steps": 2, "learning_rate": 0.01}
    quiet = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "logging_steps": 1}
    args = TrainingArguments(
        str(output), per_device_train_batch_size=8, ddp_find_unused_parameters=False, **{**usual, **quiet, **options}
    )
    made = Trainer(network(), args, train_dataset=data())
    made.remove_callback(PrinterCallback)
    callback = SparsewireCallback(made, scheme, **(settings or {}))
    made.add_callback(callback)
    return made, callback


def observer(call: Any) -> Any:
    """A callback that is asked before every optimizer step."""
    from transformers import TrainerCallback

    class Observer(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            call(args, state)

    return Observer()


def weights(one: Any) -> dict[str, Any]:
    return {name: value.clone() for name, value in one.model.state_dict().items()}


def resumed(folder: Path, expected: dict[str, Any], settings: dict[str, Any]) -> bool:
    one, _ = trainer(folder, settings=settings)
    one.train(resume_from_checkpoint=str(folder / f"checkpoint-{HALF}"))
    return same_bits(weights(one), expected)


def saved_and_resumed(folder: Path) -> dict[str, Any]:
    import shutil

    import torch.distributed as dist

    settings, whole = {"warmup_steps": 1}, folder / "whole"
    one, callback = trainer(whole, settings=settings)
    one.train()
    found: dict[str, Any] = {"steps": callback.link.stats()["steps"]}
    expected = weights(one)
    found["resumed"] = resumed(whole, expected, settings)
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.copytree(whole, folder / "without")
        shutil.rmtree(folder / "without" / f"checkpoint-{HALF}" / "sparsewire")
    dist.barrier()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found["resumed without residuals"] = resumed(folder / "without", expected, settings)
    return found | {"warnings without residuals": " ".join(str(one.message) for one in caught)}


def chosen(folder: Path) -> dict[str, Any]:
    """Everything left to the callback."""
    seen: list[float] = []
    one, callback = trainer(folder / "chosen", None, {"dense_below": 100, "coverage": 4}, save_strategy="no")
    one.add_callback(observer(lambda args, state: seen.append(args.max_grad_norm)))
    one.train()
    link = callback.link
    return {
        "recipe": repr(link.recipe),
        "fitted": [type(found).__name__ for found in link._fit.optimizers],
        "clipped": [link.settings.clip_norm, seen, one.args.max_grad_norm],
        "norms logged": any(entry.get("grad_norm", 0.0) > 0 for entry in one.state.log_history),
    }


def norms(folder: Path) -> list[float | None]:
    usual = {"max_steps": HALF, "save_only_model": True}
    without, off = trainer(folder / "model only", max_grad_norm=0.0, **usual)
    without.train()
    own, on = trainer(folder / "own", settings={"clip_norm": 0.25}, **usual)
    own.train()
    return [off.link.settings.clip_norm, on.link.settings.clip_norm]


def again(folder: Path) -> list[float]:
    """[max_grad_norm after an exception, steps of the next training, its clip_norm, max_grad_norm after it]"""

    def fail(args: Any, state: Any) -> None:
        raise ArithmeticError(state.global_step)

    one, callback = trainer(folder / "again", max_steps=HALF, save_strategy="no")
    failing = observer(fail)
    one.add_callback(failing)
    try:
        one.train()
    except ArithmeticError:
        found = [one.args.max_grad_norm]
    one.remove_callback(failing)
    one.train()
    return [*found, callback.link.stats()["steps"], callback.link.settings.clip_norm, one.args.max_grad_norm]


def main(folder: Path) -> dict[str, Any]:
    import threading

    import torch.distributed as dist

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        facts = chosen(folder)
    facts["warnings"] = " ".join(str(warning.message) for warning in caught)
    facts |= saved_and_resumed(folder)
    facts |= {"norms": norms(folder), "again": again(folder)}
    facts["comm_threads"] = sum(thread.name == "sparsewire-comm" for thread in threading.enumerate())
    dist.destroy_process_group()
    return facts


if __name__ == "__main__":
    write_facts(sys.argv[1], main(Path(sys.argv[1])))
