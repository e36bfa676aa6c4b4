"""Every example runs as its first lines say, and what it prints is true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from host_ranks import environment

EXAMPLES = Path(__file__).parents[1] / "examples"
NEEDS = {
    "ddp": ["torch", "sklearn"],
    "embedding": ["torch"],
    "lightning_ddp": ["torch", "lightning"],
    "accelerate_ddp": ["torch", "accelerate"],
}


def output(name: str, folder: Path) -> str:
    """What the example prints; started alone, as a user would, so it must not inherit a rank."""
    for package in NEEDS[name]:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    alone = {key: value for key, value in environment().items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
        child = subprocess.Popen(
            [sys.executable, str(EXAMPLES / f"{name}.py")], env=alone, stdout=out, stderr=err, start_new_session=True
        )
        try:
            assert child.wait(timeout=90) == 0, (folder / "err").read_text()
        finally:
            if child.poll() is None:
                os.killpg(child.pid, 9)  # its ranks too
                child.wait()
    return (folder / "out").read_text()


def numbers(pattern: str, text: str) -> list[float]:
    found = re.search(pattern, text)
    assert found, text
    return [float(number) for number in found.groups()]


def losses(text: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", text)]


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(NEEDS)


def test_ddp(tmp_path: Path) -> None:
    text = output("ddp", tmp_path)
    sent, dense = numbers(r"sent ([\d.]+) MB instead of ([\d.]+) MB", text)
    assert sent * 8 < dense
    assert losses(text)[-1] < losses(text)[0]
    assert numbers(r"test accuracy ([\d.]+)%", text)[0] > 60


def test_embedding(tmp_path: Path) -> None:
    text = output("embedding", tmp_path)
    (sent,), (pairs,) = numbers(r"sent ([\d.]+) MB", text), numbers(r"alone would be ([\d.]+) MB", text)
    assert sent < pairs
    assert losses(text)[-1] < losses(text)[0]


def test_lightning(tmp_path: Path) -> None:
    text = output("lightning_ddp", tmp_path)
    first, second = numbers(r"loss after 2 epochs ([\d.]+), after 5 ([\d.]+)", text)
    assert second < first
    sent, dense = numbers(r"sent ([\d.]+) MB instead of ([\d.]+) MB", text)
    assert sent * 20 < dense
    assert "step 160;" in text


def test_accelerate(tmp_path: Path) -> None:
    text = output("accelerate_ddp", tmp_path)
    assert "the same: True" in text
    sent, dense = numbers(r"sent ([\d.]+) MB instead of ([\d.]+) MB", text)
    assert sent * 8 < dense
