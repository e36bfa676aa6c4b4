"""`attach(…, on_divergence="dense")` on real ranks."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from torch_pool import Pool

if find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_link_that_runs_away_goes_dense_on_all_ranks_and_comes_back(ranks: Pool, dtype: str) -> None:
    found = ranks.play("guard.goes_dense", ranks=3, dtype=dtype)[:3]
    alarms, until, (line,) = found[0]
    assert [alarm["step"] for alarm in alarms] == [31] and until == 36
    assert line.startswith("step 31: the training seems to diverge: the residual is ")
    assert found[1:] == [[alarms, until, []]] * 2
