"""`sparsewire advise`: ranked schemes meet the error when tried again, on files and on a live model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import fails, run
from known_gradients import correlated, laplace
from seen import colours

import sparsewire as sw
from sparsewire.lab import measure
from sparsewire.lab.advise import command as advise
from sparsewire.lab.advise.candidates import CANDIDATES, Trial, search
from sparsewire.lab.pictures import BLUE, RED

# --- the ranking -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def advice() -> dict:
    arrays = {"ar": correlated(6000).reshape(75, 80), "w": laplace(3000), "bias": laplace(50)}
    return {"arrays": arrays, "result": advise.run(arrays, [0.5, 0.1])}


def test_every_ranked_scheme_meets_the_error_when_it_is_tried_again(advice):
    large = {name: x for name, x in advice["arrays"].items() if name != "bias"}
    energy = sum(float(np.sum(x.astype(np.float64) ** 2)) for x in large.values())
    for ranking in advice["result"]["rankings"]:
        assert {row["candidate"] for row in ranking["rows"]} == {candidate.name for candidate in CANDIDATES}
        for row in ranking["rows"]:
            frames = {name: sw.encode(x, row["scheme"], name=name) for name, x in large.items()}
            seen = {name: sw.decode(frame).to_dense().astype(np.float64) for name, frame in frames.items()}
            lost = sum(float(np.sum((x - seen[name]) ** 2)) for name, x in large.items())
            assert row["error"] == pytest.approx((lost / energy) ** 0.5, rel=1e-6)
            assert row["reached"] == (row["error"] <= ranking["error"])
            assert row["bytes"] == sum(map(len, frames.values()))
            assert row["times_smaller"] == pytest.approx(4 * 9000 / row["bytes"])


def test_the_error_is_used_up_where_a_ratio_is_searched(advice):
    rows = advice["result"]["rankings"][0]["rows"]
    for row in (row for row in rows if row["scheme"].startswith("topk") and row["reached"]):
        assert 0.48 < row["error"] <= 0.5


def test_the_fewest_bytes_come_first_and_what_is_out_of_reach_last(advice):
    for ranking in advice["result"]["rankings"]:
        reached = [row["reached"] for row in ranking["rows"]]
        assert reached == sorted(reached, reverse=True)
        sizes = [row["bytes"] for row in ranking["rows"] if row["reached"]]
        assert sizes == sorted(sizes) and sizes
    missed = {row["candidate"] for row in advice["result"]["rankings"][1]["rows"] if not row["reached"]}
    assert {"sbc", "stc", "no selection, signs"} <= missed
    assert "out of reach" in advise.show(advice["result"])


@pytest.mark.parametrize(("x", "best"), [(correlated(), True), (laplace(), False)])
def test_the_domain_that_keeps_more_takes_fewer_bytes(x, best):
    first = advise.run({"x": x})["rankings"][0]["rows"][0]
    assert first["candidate"].startswith("frequency") == best


def test_a_search_finds_the_coarsest_setting_even_where_only_a_middle_one_meets_the_error():
    names = [str(place) for place in range(500)]
    falling = search(names, lambda name: Trial(name, 0, 1 / (1 + int(name)), 0.0), 0.01)
    assert falling.scheme == "99"
    valley = search(names, lambda name: Trial(name, 0, abs(int(name) - 250) / 250, 0.0), 0.2)
    assert valley.scheme == "200"
    never = search(names, lambda name: Trial(name, 0, 1 + abs(int(name) - 250), 0.0), 0.2)
    assert never.error > 0.2 and abs(int(never.scheme) - 250) <= 42


def test_a_tensor_of_zeros_costs_next_to_nothing():
    result = advise.run({"x": np.zeros(2000, np.float32)})
    assert all(row["reached"] and row["error"] == 0 for row in result["rankings"][0]["rows"])
    assert "All elements are zero: 2,000 of them." in advise.show(result)


# --- the command -------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two candidates, for tests of the command around them."""
    chosen = tuple(one for one in CANDIDATES if one.name in ("top-k", "sbc"))
    monkeypatch.setattr("sparsewire.lab.advise.candidates.CANDIDATES", chosen)
    monkeypatch.setattr(advise, "CANDIDATES", chosen)


def test_the_command_says_what_it_found(quick, tmp_path, capsys):
    np.savez(tmp_path / "g.npz", w=correlated(4096), v=laplace(1500), tiny=laplace(10))
    picture, out = tmp_path / "new" / "a.png", tmp_path / "a.json"
    words = ["--error", "50%", "--error", 0.3, "--picture", picture, "--json", out]
    assert run("advise", tmp_path / "g.npz", *words) == 0
    text, found = capsys.readouterr().out, json.loads(out.read_text())
    assert [ranking["error"] for ranking in found["rankings"]] == [0.5, 0.3]
    assert [row["tensor"] for row in found["tensors"]] == ["w", "v", "tiny", "2 of 3 tensors"]
    assert found["tensors"][-1]["numel"] == 4096 + 1500
    assert found["small"] == 1 and found["dense_bytes"] == 4 * (4096 + 1500)
    assert found["verdict"][0].startswith("Correlated gradients") and found["verdict"][0] in text
    assert "Not correlated: 1 of 2 tensors (v)." in found["verdict"]
    assert "out of reach" in text and "sbc" in text and str(picture) in text
    assert colours(picture) >= {BLUE, RED}, "candidates in time and in frequency"


def test_advice_leaves_the_last_word_to_the_ranking(quick):
    """Smaller blocks than the verdict's chunks may find what is correlated."""
    assert "unless one is first below" in advise.run({"w": laplace(1500)})["verdict"][0]


def test_sizes_in_the_picture_are_few_and_written_out():
    rows = [
        {"candidate": f"{size}", "bytes": size, "times_smaller": 2.0, "reached": True, "error": 0.4}
        for size in (2_100, 8_000, 29_000)
    ]
    axes = pytest.importorskip("matplotlib.figure").Figure().subplots()
    from sparsewire.lab.advise import picture as advise_picture

    advise_picture._draw_ranking(axes, {"rows": rows, "error": 0.5})
    low, high = axes.get_xlim()
    labels = [text.get_text() for text in axes.get_xticklabels(which="both") if low <= text.get_position()[0] <= high]
    assert [label for label in labels if label] == ["2", "5", "10", "20", "50"]


def test_json_alone_goes_to_stdout(quick, tmp_path, capsys):
    np.save(tmp_path / "g.npy", laplace(1500).astype(np.float16))
    assert run("advise", tmp_path / "g.npy", "--picture", tmp_path / "a.png", "--json") == 0
    assert json.loads(capsys.readouterr().out)["tensors"][0]["kind"] == "not correlated"


def test_mistakes_are_told(tmp_path, capsys, monkeypatch):
    (tmp_path / "text.npz").write_text("no gradient")
    np.save(tmp_path / "nan.npy", np.array([1.0, np.nan]))
    np.save(tmp_path / "ok.npy", laplace(2000))
    assert "is not a .npy or .npz file" in fails(capsys, "advise", tmp_path / "text.npz")
    assert "all of them finite" in fails(capsys, "advise", tmp_path / "nan.npy")
    assert "No such file" in fails(capsys, "advise", tmp_path / "none.npz")
    assert "one of them" in fails(capsys, "advise")
    assert "one of them" in fails(capsys, "advise", tmp_path / "ok.npy", "--live", "a:b")
    for words in (["--save", tmp_path / "out.npz"], ["--steps", 2], ["--skip", 1]):
        assert "--live" in fails(capsys, "advise", tmp_path / "ok.npy", *words)
    monkeypatch.setattr(measure, "has", lambda package: False)
    assert "pip install torch" in fails(capsys, "advise", "--live", "a:b")
    assert "pip install matplotlib" in fails(capsys, "advise", tmp_path / "ok.npy", "--picture", tmp_path / "a.png")


# --- live --------------------------------------------------------------------------------------------------------

MODEL = """
import torch

def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.Tanh(), torch.nn.Linear(30, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        model(torch.randn(8, 40)).square().mean().backward()
        optimizer.step()

    return model, step

def idle():
    return make()[0], lambda: None

def alone():
    return make()[0]

number = 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("torch")
    (tmp_path / "advised_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.delitem(sys.modules, "advised_model", raising=False)
    return tmp_path


def test_gradients_of_a_model_are_captured_and_can_be_read_again(quick, here, capsys):
    live = ["--live", "advised_model:make", "--steps", 2, "--skip", 1, "--save", "taken.npz", "--json", "live.json"]
    assert run("advise", *live) == 0
    with np.load(here / "taken.npz") as taken:
        assert set(taken) == {f"{name}@{step}" for name in ("0.weight", "0.bias", "2.weight") for step in (1, 2)}
        assert taken["0.weight@1"].shape == (30, 40) and not np.array_equal(taken["0.weight@1"], taken["0.weight@2"])
    assert run("advise", "taken.npz", "--json", "file.json") == 0
    assert json.loads((here / "live.json").read_text()) == json.loads((here / "file.json").read_text())
    assert json.loads((here / "live.json").read_text())["tensors"][-1]["arrays"] == 2, "only 0.weight is large"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("advised_model", "MODULE:FUNCTION"),
        ("nowhere_at_all:make", "no module nowhere_at_all"),
        ("advised_model:number", "no function number"),
        ("advised_model:alone", r"returns (model, step)"),
        ("advised_model:idle", "step() calls backward"),
    ],
)
def test_what_is_wrong_with_a_live_model_is_told(here, capsys, spec, message):
    assert message in fails(capsys, "advise", "--live", spec)


def test_capture_leaves_the_model_as_it_was(here):
    import torch

    from sparsewire.torch import capture

    model = torch.nn.EmbeddingBag(9, 4, sparse=True, mode="sum", dtype=torch.bfloat16)
    with capture(model, skip=1) as taken:
        for row in (1, 2, 3):
            model.zero_grad()
            model(torch.tensor([[row]])).sum().backward()
    assert list(taken.arrays) == ["weight@1"] and taken.done
    assert taken.arrays["weight@1"].dtype == np.float32 and taken.arrays["weight@1"].sum(axis=1).nonzero()[0] == [2]
    assert not model.weight._post_accumulate_grad_hooks
    with pytest.raises(sw.SparsewireError, match="steps ≥ 1"):
        capture(model, steps=0)
    with pytest.raises(sw.SparsewireError, match="wants a gradient"):
        capture(torch.nn.ReLU())
    with pytest.raises(sw.SparsewireError, match="backward"), capture(model) as nothing:
        nothing.save(here / "none.npz")
