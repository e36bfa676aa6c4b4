"""Ranks of a Keras training are real processes, on each of Keras' backends; they play scenes of tests/support."""

from __future__ import annotations

import signal
from importlib.util import find_spec
from pathlib import Path

import keras_ranks
import pytest

MISSING = [name for name in ("keras", "tensorflow", "jax", "torch") if find_spec(name) is None]
pytestmark = [pytest.mark.timeout(450), pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}")]
Played = tuple[str, list[dict[str, str]]]  # backend, and by rank what a scene ended with
TRAININGS = [
    "lossless_mlp_sgd", "lossless_mlp_adam", "lossless_embedding_sgd", "lossless_embedding_adam", "lossless_conv_sgd",
    "the_recipe_trains", "it_goes_on_exactly", "ranks_end_together", "data_of_unknown_length_ends_together",
    "adam_keeps_no_first_moment", "a_loop_of_ones_own_exchanges",
]  # fmt: skip
SCENES = {
    "tensorflow": [*TRAININGS, "deepreduce_trains", "the_loss_scale_is_followed", "errors_keep_their_class"],
    "torch": [*TRAININGS, "the_loss_scale_is_followed", "errors_keep_their_class"],
    "jax": [*TRAININGS, "the_loss_scale_is_followed", "errors_keep_their_class"],
}


@pytest.fixture(scope="module", params=SCENES)
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp(request.param)
    children = keras_ranks.start(request.param, folder, 2, *SCENES[request.param])
    return request.param, keras_ranks.finish(children, folder)


@pytest.mark.parametrize("scene", [*TRAININGS, "deepreduce_trains", "the_loss_scale_is_followed",
                                   "errors_keep_their_class"])  # fmt: skip
def test_two_ranks(scene: str, played: Played) -> None:
    backend, said = played
    if scene not in SCENES[backend]:
        pytest.skip(f"played on {', '.join(name for name in SCENES if scene in SCENES[name])}")
    assert [rank[scene] for rank in said] == ["", ""]


def test_three_ranks(tmp_path: Path) -> None:
    said = keras_ranks.finish(keras_ranks.start("tensorflow", tmp_path, 3, "lossless_of_three"), tmp_path)
    assert [rank["lossless_of_three"] for rank in said] == ["", "", ""]


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_a_rank_that_is_killed_ends_the_others(backend: str, tmp_path: Path) -> None:
    children = keras_ranks.start(backend, tmp_path, 2, keras_ranks.KILLED)
    try:
        assert children[1].wait(200) == -signal.SIGKILL
        said = keras_ranks.finish(children[:1], tmp_path)
    finally:
        keras_ranks.end(children)
    assert said[0][keras_ranks.KILLED] == ""
