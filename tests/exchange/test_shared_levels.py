"""Levels, the numbers that a shared support sums: multiples of one unit, which never overflow on the way."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from strategies import same_bits

from sparsewire.core.sparse import LARGEST, round_to, work_dtype
from sparsewire.exchange.shared_support.levels import Carrier, to_levels, unit_for


@given(
    scale=st.floats(0, 1.7e308),
    levels=st.sampled_from([1, 2, 3, 15, 31, 127]),
    dtype=st.sampled_from(list(LARGEST)),
)
def test_multiples_of_a_unit_are_numbers_of_the_type(scale: float, levels: int, dtype: str) -> None:
    unit = unit_for(scale, levels, dtype)
    multiples = np.arange(-levels, levels + 1).astype(work_dtype(dtype)) * work_dtype(dtype).type(unit)
    assert same_bits(round_to(multiples, dtype), multiples) and np.isfinite(multiples).all()
    assert levels * unit >= min(scale, 0.5 * LARGEST[dtype]) * (1 - 1e-15) - levels * 5e-324


@given(ranks=st.integers(1, 10_000), levels=st.sampled_from([1, 2, 31]), data=st.data())
def test_sums_of_levels_never_overflow(ranks: int, levels: int, data: st.DataObject) -> None:
    carrier = Carrier(levels, ranks)
    found = np.array(data.draw(st.lists(st.integers(-levels, levels), max_size=50)), np.int8)
    for part in (found, np.full(50, levels, np.int8), np.full(50, -levels, np.int8)):
        total = carrier.pack(part).astype(object) * ranks  # as if all ranks had the same
        assert not total.size or (min(total) >= -(2**63) and max(total) < 2 ** (7 if carrier.one_per_byte else 63))
        kind = np.int8 if carrier.one_per_byte else np.int64
        assert carrier.unpack(total.astype(kind), part.size).tolist() == (part.astype(int) * ranks).tolist()


def test_rounding_at_random_has_the_right_expectation() -> None:
    values = np.array([0.1, -0.3, 0.75, 1.0, -1.0, 0.0], np.float32)
    mean_of = np.mean([to_levels(values, 1.0, 1, key) for key in range(4000)], axis=0)
    np.testing.assert_allclose(mean_of, values, atol=0.03)
