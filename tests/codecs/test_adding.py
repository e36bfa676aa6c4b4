"""The codec that docs/extending/adding-a-codec.md writes keeps the rules that the page gives."""

from __future__ import annotations

import importlib
import random
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import sparsewire as sw
from sparsewire.codecs import registry
from sparsewire.errors import SectionError
from sparsewire.frames import wire

PAGE = Path(__file__).parents[2] / "docs" / "extending" / "adding-a-codec.md"


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The page's own example, as a user would save it."""
    monkeypatch.setattr(registry, "_added", {slot: dict(known) for slot, known in registry._added.items()})
    example = re.search(r"```python\n# mypackage/deltas.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert example
    (tmp_path / "written_deltas.py").write_text(example[1])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "written_deltas", raising=False)
    sw.register(importlib.import_module("written_deltas").Deltas)


def frame(numel: int = 1000) -> wire.Frame:
    some = sw.Sparse([0, 3, 4, 500, numel - 1], np.arange(1, 6, dtype=np.float32), (numel,))
    return wire.unpack(sw.encode(some, "indices=deltas(level=9) | values=raw"))


@pytest.mark.parametrize("numel", [501 + 1, 2**31, 2**40])
def test_it_goes_there_and_back(numel: int) -> None:
    decoded = sw.decode(wire.pack(frame(numel)))
    assert decoded.indices.tolist() == [0, 3, 4, 500, numel - 1]
    assert decoded.values.tolist() == [1, 2, 3, 4, 5]
    empty = sw.Sparse([], np.empty(0, np.float32), (numel,))
    assert sw.decode(sw.encode(empty, "indices=deltas")).count == 0


def refused(section: bytes) -> None:
    with pytest.raises(SectionError):
        sw.decode(wire.pack(replace(frame(), indices=section)))


def test_it_refuses_what_it_did_not_write() -> None:
    section = bytes(frame().indices)
    for size in range(len(section)):
        refused(section[:size])
    for more in (b"\0", section, b"trailing"):
        refused(section + more)
    noise = random.Random(0)
    for _ in range(200):
        refused(noise.randbytes(noise.randrange(40)))


def test_another_count_is_refused() -> None:
    for count in (4, 6):
        with pytest.raises(SectionError):
            sw.decode(wire.pack(replace(frame(), count=count, values=bytes(4 * count))))
