"""`benchmarks/accuracy.py` on made-up digits: every rule is trained, compared with dense and drawn."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "accuracy.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Digits that a bright row tells."""
    rng = np.random.default_rng(0)
    parts: dict[str, np.ndarray] = {}
    for part, count in (("train", 130), ("test", 40)):
        labels = rng.integers(0, 10, count).astype(np.uint8)
        pixels = rng.integers(0, 50, (count, 28, 28)).astype(np.uint8)
        pixels[np.arange(count), 2 * labels] = 255
        parts |= {f"{part}_x": pixels, f"{part}_y": labels}
    np.savez(tmp_path / "mnist.npz", **parts)
    (tmp_path / "tinyshakespeare.txt").write_text("so shaken as we are, so wan with care, " * 200)
    return tmp_path


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *map(str, words)], capture_output=True, text=True, timeout=110)


def measured(folder: Path, *words: object) -> tuple[dict[str, Any], str]:
    done = run("--data", folder, "--steps", 6, "--json", folder / "out.json", *words)
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
    assert (folder / "out.png").stat().st_size > 10_000


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


def test_data_that_is_missing_is_said(tmp_path: Path) -> None:
    done = run("--data", tmp_path)
    assert done.returncode == 2 and "mnist.npz" in done.stderr and "Traceback" not in done.stderr
