"""A model's masks: read when they change, and joined for a bucket."""

from __future__ import annotations

import numpy as np

from sparsewire.core.mask import FrameworkMask, Masks


def test_masks_are_read_again_only_when_they_change() -> None:
    reads: list[str] = []
    source = {"a": [np.array([1, 0, 1]), 0]}

    def find(name: str) -> FrameworkMask | None:
        if name not in source:
            return None
        mask, version = source[name]
        return FrameworkMask(mask, version, lambda: reads.append(name) or mask)

    masks, both = Masks(find), [("a", 0, 3, 0), ("b", 4, 6, 0)]
    assert masks.of(both).indices.tolist() == masks.of(both).indices.tolist() == [0, 2, 4, 5]
    assert reads == ["a"]
    source["a"][0][1], source["a"][1] = 1, 1
    assert masks.of(both).indices.tolist() == [0, 1, 2, 4, 5]
    assert masks.of([("a", 4, 6, 1)]).indices.tolist() == [4, 5]  # a rank's part of a parameter
    before = masks.digest({"a": 3})
    source["a"] = [np.array([1, 1, 0]), 1]
    assert masks.digest({"a": 3}) != before
