"""What a host of any framework finds in `training`, without torch: settings, agreement of ranks, errors of peers."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from sparsewire.comm import run_ranks
from sparsewire.errors import CommError, CommMismatch, InputError, PeerFailed, SchemeError
from sparsewire.training.agree import agree, refuse
from sparsewire.training.failures import Failures
from sparsewire.training.settings import read_settings, real_sizes

TENSORS = {"w": np.zeros((4, 8), np.float32), "b": np.zeros(8, np.float64), "c": np.zeros((2, 3), np.complex64)}
SCHEME = "topk(ratio=0.1) | indices=rice | values=raw | memory=residual"


def settings_of(tensors=TENSORS, scheme=SCHEME, exclude=(), scaler=None, seed=0, timeout=None):
    return read_settings(tensors, scheme, "parameter", 4, exclude, 0, None, scaler, seed, None, timeout, None)


def test_settings_are_read_from_arrays_of_any_framework():
    settings = settings_of(exclude=["b"])
    assert settings.dense_names == {"b"}
    assert settings.shapes == {"w": (4, 8), "b": (8,), "c": (2, 3, 2)}
    assert real_sizes(TENSORS) == {"w": 32, "b": 8, "c": 12}


def test_a_function_excludes_by_name_and_tensor():
    assert settings_of(exclude=lambda name, tensor: tensor.ndim == 1).dense_names == {"b"}


def test_a_pattern_is_no_list_of_letters_and_must_match():
    assert settings_of(exclude="w").dense_names == {"w"}
    with pytest.raises(InputError, match=r"exclude='v' matches no parameter; there are w, b, c"):
        settings_of(exclude="v")


def test_the_scale_is_the_scalers():
    class Scaler:
        def get_scale(self):
            return 8.0

    settings = settings_of(scaler=Scaler())
    assert settings.scale() == 8.0
    with pytest.raises(InputError, match="scaler is a GradScaler"):
        settings_of(scaler=3)


@pytest.mark.parametrize("wrong", [{"seed": 1.5}, {"timeout": -1}, {"scheme": "topk(k=0)"}])
def test_what_cannot_work_is_refused_before_anything_is_sent(wrong):
    with pytest.raises((InputError, SchemeError), match=r"seed|timeout|selects nothing"):
        settings_of(**wrong)


def test_ranks_with_the_same_settings_agree():
    run_ranks(3, lambda comm: agree(comm, settings_of(), TENSORS))


@pytest.mark.parametrize(("changed", "text"), [
    ({"seed": 1}, "rank 1 attached with other settings, seed: 1 where rank 0 has 0"),
    ({"tensors": {**TENSORS, "b": np.zeros(9)}}, r"shapes: 'b \[9\]' where rank 0 has 'b \[8\]'"),
    ({"tensors": {**TENSORS, "b": np.zeros(8, np.float32)}}, "dtypes: 'b float32' where rank 0 has 'b float64'"),
])  # fmt: skip
def test_a_rank_that_differs_is_named_on_every_rank(changed, text):
    def attach(comm):
        mine = changed if comm.rank == 1 else {}
        with pytest.raises(CommMismatch, match=text):
            agree(comm, settings_of(**mine), mine.get("tensors", TENSORS))

    run_ranks(2, attach)


def test_a_rank_that_refuses_is_heard_by_the_others():
    def attach(comm):
        if comm.rank == 1:
            return refuse(comm, InputError("no such scheme"))
        with pytest.raises(PeerFailed, match="rank 1 could not attach: InputError: no such scheme"):
            agree(comm, settings_of(), TENSORS)
        return None

    run_ranks(2, attach)


class DictStore:
    """What torch's stores do, in one process."""

    def __init__(self):
        self.texts = {}

    def compare_set(self, key, expected, desired):
        if self.texts.get(key, "") == expected:
            self.texts[key] = desired

    def check(self, keys):
        return all(key in self.texts for key in keys)

    def get(self, key):
        return self.texts[key].encode()


def test_the_rank_that_failed_first_is_named_by_all_others():
    store = DictStore()
    ranks = [Failures(rank, store) for rank in range(3)]
    own = ValueError("no memory left")
    assert ranks[2].first(own) is own
    for rank in ranks[:2]:
        assert rank.any
        heard = rank.first(CommError("all_reduce: connection closed"))
        assert isinstance(heard, PeerFailed)
        assert str(heard) == "another rank failed first: rank 2: ValueError: no memory left"
    assert ranks[0].first(InputError("later")).args == ("later",)
    assert "no memory left" in store.texts["sparsewire-failed"]


def test_a_lost_collective_is_raised_as_it_is_where_nobody_says_why():
    store = DictStore()
    lost = CommError("all_reduce: connection closed")
    assert Failures(0, store).first(lost) is lost
    assert Failures(1, store).any


def test_a_store_that_fails_is_not_asked_again():
    class Broken(DictStore):
        asked = 0

        def check(self, keys):
            self.asked += 1
            raise RuntimeError("the store is gone")

    store = Broken()
    failures = Failures(0, store)
    assert not failures.any
    assert not failures.any
    assert store.asked == 1


def test_none_of_it_imports_torch():
    modules = ", ".join(f"sparsewire.training.{name}" for name in ("settings", "agree", "failures", "checkpoints"))
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
