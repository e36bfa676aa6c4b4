"""Damage to the state files of links: one bit, or a state that is wrong but has its checksum."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sparsewire.core.statefile import pack, read_state
from sparsewire.training.checkpoints import KIND


def edit(path: Path, damage: str) -> None:
    """Damages a file: one bit, or a state that is wrong but has its checksum."""
    data = bytearray(path.read_bytes())
    if damage == "bit":
        data[len(data) // 2] ^= 16
        path.write_bytes(data)
        return
    facts = read_state(path, KIND)
    state = facts["state"]
    name, buffers = next(iter(state["buffers"].items()))
    kept = buffers["residual"]
    match damage:
        case "NaN":
            kept = np.full_like(kept, np.nan)
        case "size":
            kept = kept[:-1]
        case "type":
            kept = kept.tolist()
        case "missing":
            del state["scale"]
        case "step":
            state["step"] = "two"
        case "mean":
            state["means"][name]["indices"] = np.array([10**9], np.int32)
            state["means"][name]["values"] = np.ones(1, np.float32)
        case "common":
            common = state["common"]
            state["common"] = {key: np.full_like(weights, np.inf) for key, weights in common.items()}
    buffers["residual"] = kept
    path.write_bytes(pack(facts))
