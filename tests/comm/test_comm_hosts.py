"""The engines of other frameworks keep the laws of a communicator, in real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from comm_laws import LAWS
from host_ranks import environment, free_port

SCRIPT = Path(__file__).parents[1] / "support" / "comm_ranks.py"

pytestmark = pytest.mark.skipif(find_spec("tensorflow") is None, reason="tensorflow is not installed")


def run_tensorflow(folder: Path, ranks: int) -> list[dict[str, str]]:
    ports = ",".join(str(free_port()) for _ in range(ranks))
    # TensorFlow imports Keras, and with its torch backend torch, whose Triton brings a second LLVM: the process aborts.
    own = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
    quiet = environment() | own
    start = [sys.executable, str(SCRIPT), "tensorflow", str(folder)]
    logs = [(folder / f"{rank}.log").open("w") for rank in range(ranks)]
    children = [
        subprocess.Popen([*start, str(rank), str(ranks), ports], env=quiet, stdout=logs[rank], stderr=logs[rank])
        for rank in range(ranks)
    ]
    try:
        for rank, child in enumerate(children):
            assert child.wait(100) == 0, (folder / f"{rank}.log").read_text()[-3000:]
    finally:
        for child, log in zip(children, logs, strict=True):
            child.kill()
            child.wait()
            log.close()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module", params=[2, 3])
def tensorflow(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    return run_tensorflow(tmp_path_factory.mktemp("tensorflow"), request.param)


@pytest.mark.parametrize("law", LAWS)
def test_tensorflow_keeps_the_law(law: str, tensorflow: list[dict[str, str]]) -> None:
    assert [rank[law] for rank in tensorflow] == [""] * len(tensorflow)


def test_tensorflow_does_not_wait_for_a_rank_that_is_late_or_lost(tensorflow: list[dict[str, str]]) -> None:
    assert tensorflow[0]["failure"] == ""
