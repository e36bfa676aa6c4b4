"""The order that travels with a curve: a map beside the indices, or raw indices that say it themselves."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import make, same_bits

import sparsewire as sw
from sparsewire.codecs.values.curve import Ranks
from sparsewire.frames import wire


def parts(x: np.ndarray, index: str, value: str) -> dict[str, int]:
    found = sw.inspect(sw.encode(x, f"topk(100%) | indices={index} | values={value}"))
    assert (
        sum(size for name, size in found["parts"].items() if name.startswith("values.")) == found["sections"]["values"]
    )
    return found["parts"]


@pytest.mark.parametrize("value", ["fit_poly", "fit_dexp"])
@pytest.mark.parametrize("count", [1, 2, 3, 64, 65, 1000])
def test_a_map_costs_log2_n_bits_a_value_and_nothing_with_raw_indices(value: str, count: int) -> None:
    x = make("normal", count, "float32")
    assert parts(x, "rice", value)["values.map"] == math.ceil(count * math.ceil(math.log2(count)) / 8)
    assert parts(x, "raw", value)["values.map"] == 0


def test_inspect_notes_what_a_map_costs_at_least() -> None:
    frame = sw.encode(make("normal", 100, "float32"), "topk(k=20) | indices=rice | values=fit_poly")
    assert sw.inspect(frame)["notes"] == {"values.map_bound_bits": pytest.approx(math.log2(math.factorial(20)))}
    assert sw.inspect(sw.encode(np.ones(9), "indices=raw | values=fit_poly"))["notes"] == {}


@pytest.mark.parametrize("value", ["fit_poly", "fit_dexp", "fit_poly+deflate", "fit_poly(rank_bits=1)"])
def test_raw_indices_carry_the_order_and_entries_come_back_ascending(value: str) -> None:
    x = make("magnitudes", 700, "float32")
    x[[5, 600]] = np.nan, np.inf
    frame, mapped = (sw.encode(x, f"topk(30%) | indices={i} | values={value}") for i in ("raw", "rice"))
    on_wire = np.frombuffer(wire.unpack(frame).indices, "<i4")
    assert (np.diff(on_wire) < 0).any()
    decoded = sw.decode(frame)
    assert np.array_equal(decoded.indices, np.sort(on_wire))
    assert np.array_equal(decoded.indices, sw.decode(mapped).indices)
    if "rank_bits" not in value:
        assert same_bits(decoded.values, sw.decode(mapped).values)


@pytest.mark.parametrize("words", [[1, 1, 2], [1, 2, 9], [-1, 2, 3]])
def test_ordered_indices_that_repeat_or_leave_the_tensor_are_refused(words: list[int]) -> None:
    frame = wire.unpack(sw.encode(sw.Sparse([1, 2, 5], [1.0, 3.0, 2.0], (9,)), "indices=raw | values=fit_dexp"))
    with pytest.raises(sw.FrameError):
        sw.decode(wire.pack(replace(frame, indices=np.array(words, "<i4").tobytes())))


@given(sides=st.tuples(st.integers(0, 400), st.integers(0, 400)), bits=st.none() | st.integers(1, 12))
def test_a_stretch_lies_on_one_side_and_codes_have_few_bits(sides: tuple[int, int], bits: int | None) -> None:
    ranks = Ranks(sides, bits)
    codes = ranks.codes()
    assert codes.size == sum(sides)
    assert not set(codes[: sides[0]].tolist()) & set(codes[sides[0] :].tolist())
    assert ranks.width <= (bits or 64)
    assert ranks.width or codes.size <= 1
    side = np.arange(sum(sides)) < sides[0]
    assert np.array_equal(ranks.table(side)[codes] if codes.size else side, side)
