"""Processes of jax.distributed keep the laws of communicators."""

from __future__ import annotations

import json
from importlib.util import find_spec

import jax_ranks
import pytest
from comm_laws import LAWS

pytestmark = pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed")


@pytest.fixture(scope="module", params=[2, 3])
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    folder = tmp_path_factory.mktemp("jax")
    jax_ranks.finish(jax_ranks.start(jax_ranks.SCRIPT, "laws", folder, request.param), folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(request.param)]


@pytest.mark.parametrize("law", [*LAWS, *(f"store {law}" for law in LAWS), "told"])
def test_jax_keeps_the_law(law: str, results: list[dict[str, str]]) -> None:
    assert [rank[law] for rank in results] == [""] * len(results)


@pytest.mark.parametrize("law", ["timeout", "timeout of a swap"])
def test_jax_does_not_wait_for_ever(law: str, results: list[dict[str, str]]) -> None:
    assert results[0][law] == ""
