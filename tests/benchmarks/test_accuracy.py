"""`benchmarks/accuracy.py` and `local.py` on made-up digits: every rule is trained, compared and drawn."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import warm
from digits import save_digits
from seen import lines

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "accuracy.py"
LOCAL = SCRIPT.with_name("local.py")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_digits(tmp_path)
    (tmp_path / "tinyshakespeare.txt").write_text("so shaken as we are, so wan with care, " * 200)
    return tmp_path


def run(*words: object, script: Path = SCRIPT) -> subprocess.CompletedProcess[str]:
    return warm.run(script, *words)


def measured(folder: Path, *words: object, steps: int = 6, script: Path = SCRIPT) -> tuple[dict[str, Any], str]:
    done = run("--data", folder, "--steps", steps, "--json", folder / "out.json", *words, script=script)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "out.json").read_text()), done.stdout


def test_every_rule_is_trained_at_the_rate_that_suits_dense(folder: Path) -> None:
    result, text = measured(folder, "--seeds", 3, "--ratios", "1%", "--rates", 1e-6, 0.1, 2e-6, "--picture",
                            folder / "out.png")  # fmt: skip
    rows = {row["rule"]: row for row in result["rows"]}
    assert list(rows) == ["dense", "residual", "dgc", "gmc", "ours"] and all(rule in text for rule in rows)
    assert [row["rate"] for row in result["tuning"]] == [1e-6, 0.1, 2e-6]
    assert {row["rate"] for row in rows.values()} == {0.1} and {row["seed"] for row in result["tuning"]} == {0}
    assert len({row["curve"][0] for row in rows.values()}) == 1, "the same weights and batches"
    assert all(row["difference"] == row["score"] - rows["dense"]["score"] for row in rows.values())
    assert rows["dense"]["bytes"] >= 6 * 4 * rows["dense"]["parameters"] > 20 * rows["dgc"]["bytes"]
    assert lines(folder / "out.png") >= 5


def test_adam_has_no_gmc_and_results_are_put_together(folder: Path) -> None:
    words = ["--seeds", 3, "--ratios", "1%", "--rates", 0.01]
    result, _ = measured(folder, "--tasks", "text", *words)
    assert [row["rule"] for row in result["rows"]] == ["dense", "residual", "dgc", "ours"]
    assert not result["tuning"], "of one rate there is no choice"
    losses = {row["rule"]: row["score"] for row in result["rows"]}
    assert losses["residual"] != losses["dgc"], "β1 = 0 behind the one, not behind the other"
    (folder / "out.json").rename(folder / "text.json")
    both, text = measured(folder, "--tasks", "mnist", "--rules", "dgc", *words, "--add", folder / "text.json")
    assert both["rows"][:4] == result["rows"] and [row["task"] for row in both["rows"][4:]] == ["mnist"] * 2
    assert "mnist: MLP" in text and "text: transformer" in text


def test_more_steps_are_made_where_that_is_asked_for(folder: Path) -> None:
    words = ["--seeds", 3, "--rates", 0.1, "--rules", "ours", "--longer", 2]
    result, text = measured(folder, *words)
    made = [(row["rule"], row["ratio"], row["steps"]) for row in result["rows"]]
    assert made == [("dense", None, 6), ("ours", 0.01, 6), ("ours", 0.001, 6), ("longer", 0.001, 12)]
    assert "longer" in text


def test_local_steps_are_measured_in_bytes_both_ways(folder: Path) -> None:
    rules = ["dense", "FedAvg, H = 10", "SBC(2)", "ours"]
    words = ["--rules", *rules, "--seeds", 3, "--rates", 1e-6, 0.1, "--picture", folder / "out.png"]
    result, text = measured(folder, *words, steps=10, script=LOCAL)
    rows = {row["rule"]: row for row in result["rows"]}
    assert list(rows) == rules and all(rule in text for rule in rules)
    assert {row["rate"] for row in rows.values()} == {0.1}
    assert [(row["rule"], row["rate"]) for row in result["tuning"]] == [
        (rule, r) for rule in rules for r in (1e-6, 0.1)
    ]
    assert rows["dense"]["fewer"] == 1 and rows["FedAvg, H = 10"]["fewer"] == pytest.approx(10, rel=0.01)
    assert min(rows["SBC(2)"]["fewer"], rows["ours"]["fewer"]) > 2500
    assert all(rows[rule]["received"] > 2 * rows[rule]["sent"] for rule in ("SBC(2)", "ours")), "supports differ"
    assert lines(folder / "out.png") >= 2


@pytest.mark.parametrize("script", [SCRIPT, LOCAL])
def test_data_that_is_missing_is_said(tmp_path: Path, script: Path) -> None:
    done = run("--data", tmp_path, script=script)
    assert done.returncode == 2 and "mnist.npz" in done.stderr and "Traceback" not in done.stderr
