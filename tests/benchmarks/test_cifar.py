"""`benchmarks/cifar.py` on a few made-up images: it runs, and says what it found."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import warm

Image = pytest.importorskip("PIL.Image")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "cifar.py"


def pictures(count: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count).astype(np.uint8)
    bodies = [jpeg(np.full((32, 32, 3), 25 * label, np.uint8)) for label in labels]
    offsets = np.cumsum([0, *map(len, bodies)])
    return {"jpeg": np.frombuffer(b"".join(bodies), np.uint8), "offsets": offsets, "labels": labels}


def jpeg(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG")
    return out.getvalue()


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return warm.run(SCRIPT, *words)


def test_every_arm_is_trained_and_its_volume_reported(tmp_path: Path) -> None:
    parts = {"train": pictures(32, 0), "test": pictures(8, 1)}
    np.savez(tmp_path / "made.npz", **{f"{a}_{b}": array for a, part in parts.items() for b, array in part.items()})
    words = ["--train", 32, "--test", 8, "--steps", 1, "--batch", 1, "--seeds", 1, "--dense"]
    words += ["--json", tmp_path / "out.json"]
    done = run(tmp_path / "made.npz", *words)
    assert done.returncode == 0, done.stderr
    rows = {row["arm"]: row for row in json.loads((tmp_path / "out.json").read_text())["rows"]}
    assert list(rows) == ["dense", "Top-1 %", "BF-P0", "BF-P2", "Fit-Poly", "BF-P2+QSGD", "ours"]
    assert all(0 <= row["accuracy"] <= 1 and row["loss"] > 0 for row in rows.values())
    assert (
        rows["dense"]["volume"] == 1 > rows["Top-1 %"]["volume"] > rows["BF-P2"]["volume"] > rows["ours"]["volume"] > 0
    )
    assert all(arm in done.stdout for arm in rows)


def test_another_file_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    done = run(tmp_path / "other.npz")
    assert done.returncode == 2 and "has no test_jpeg" in done.stderr and "Traceback" not in done.stderr
