"""Methods and cells of `sparsewire lab train`: what a grid or the flags ask for."""

from __future__ import annotations

import math
import shlex
from pathlib import Path

import pytest

from sparsewire.lab import measure

if not measure.has("torch"):
    pytest.skip("torch is not installed", allow_module_level=True)

from sparsewire.errors import InputError, SparsewireError
from sparsewire.lab.arguments import WORKLOAD_NAMES
from sparsewire.lab.tasks.workloads import WORKLOADS
from sparsewire.lab.train.cells import all_cells, cells_of
from sparsewire.lab.train.methods import read_method

OURS = "topk(1%) | memory=dgc(momentum=0.9); select_per=model; falling=true"


def test_a_method_is_read_with_its_settings():
    method = read_method(f"ours := {OURS}")
    assert (method.name, method.text, method.hook) == ("ours", OURS, "sparsewire") and not method.periodic
    assert method.arm(steps=40) == {
        "hook": "sparsewire", "scheme": "topk(1%) | memory=dgc(momentum=0.9)", "select_per": "model",
        "falling": [40, 0.01],
    }  # fmt: skip
    assert read_method("keras:topk(1%); dense_below=0").arm(9) == {
        "hook": "keras",
        "scheme": "topk(1%)",
        "dense_below": 0,
    }
    assert read_method("jax:topk(10%); warmup_steps=2").arm(9) == {
        "hook": "jax",
        "scheme": "topk(10%)",
        "warmup_steps": 2,
    }
    assert read_method("local:sbc(level=2); overlap=1").arm(9) == {
        "hook": "local",
        "scheme": "sbc(level=2)",
        "overlap": 1,
    }
    assert read_method("attach").arm(9) == {"hook": "sparsewire", "total_steps": 9}
    assert read_method("attach; total_steps=1000; coverage=60").arm(9) == {
        "hook": "sparsewire", "total_steps": 1000, "coverage": 60,
    }  # fmt: skip
    assert read_method("powersgd; rank=2").arm(9) == {"hook": "powersgd", "rank": 2}
    assert read_method("post-local-sgd").periodic and read_method("auto").arm(9) == {
        "hook": "sparsewire",
        "scheme": "auto",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("topq(1%)", "topk"),
        ("topk(1%); sel=model", "select_per"),
        ("ddp; every=3", "pruned"),
        ("topk(1%); fast", "name=value"),
        ("threshold(0.1); falling=true", "with a ratio"),
        ("dpd", "did you mean 'ddp'.*auto.*bf16.*fp16.*local:….*post-local-sgd.*powersgd.*topk"),
        ("FP16", "did you mean 'fp16'"),
        ("powersdg; rank=4", "did you mean 'powersgd'"),
        ("powersgd(rank=4)", "powersgd; name=value"),
        ("attach(coverage=7)", "attach; name=value"),
        ("attahc", "did you mean 'attach'"),
        ("attach; falling=true", "with a ratio"),
        ("kers:topk", "did you mean 'keras:…'"),
        ("keras:topk(1%); nodes=2", "nodes in the method .* is not known"),
        ("jaxs:topk", "did you mean 'jax:…'"),
        ("jax:topk(1%); nodes=2", "nodes in the method .* is not known"),
        ("jax:topq(1%)", "topk"),
        ("locl:sbc", "did you mean 'local:…'"),
        ("topk(1%) | values=rw", "did you mean 'raw'"),
        ("local:auto", "select has no 'auto'"),
    ],
)
def test_a_method_that_is_none_says_what_would_be(text, said):
    with pytest.raises(SparsewireError, match=said):
        read_method(text)


@pytest.mark.parametrize("text", ["topk(1%); on_step=1", "topk(1%); scaler=1", "local:topk(1%); on_round=1"])
def test_settings_that_cannot_be_written_are_not_known(text):
    name = text.split("; ")[1].removesuffix("=1")
    with pytest.raises(InputError) as error:
        read_method(text)
    assert name in str(error.value) and name not in str(error.value).partition("; known:")[2]


def test_the_scheme_may_be_left_to_sparsewire_which_is_told_the_steps():
    assert read_method("attach").arm(60) == {"hook": "sparsewire", "total_steps": 60}
    local = read_method("local-steps; every=10")
    assert local.arm(60) == {"hook": "local", "every": 10, "total_steps": 60} and local.periodic


def test_a_method_without_a_name_has_its_text_as_one():
    methods = ["ddp", "ddp; pruned=0.5", "topk(1%)", "topk(1%); select_per=model", "topk(1%); seed=2"]
    assert [read_method(method).name for method in methods] == methods
    long = read_method("topk(1%) | indices=rice | values=qsgd(bits=7) | memory=dgc(momentum=0.9, mask=false); "
                    "select_per=model; falling=true").name  # fmt: skip
    assert len(long) == 100 and long.startswith("topk(1%) | indices=rice") and long.endswith("; falling=true")


def test_all_combinations_are_cells_and_the_rest_is_the_workloads():
    grid = {"workloads": ["mlp-digits", "synthetic-1m"], "methods": {"plain": "ddp", "ours": OURS}, "seeds": [1, 2]}
    cells = list(cells_of({**grid, "rates": ["1gbit", "unlimited"], "ranks": [2, 4]}, Path()))
    assert len({cell.key for cell in cells}) == len(cells) == 2 * 2 * 2 * 2 * 2
    one = cells[-1]
    assert (one.method.name, one.batch, one.learning_rate, one.tests) == ("ours", 8, 0.01, 0)
    assert sorted(WORKLOAD_NAMES) == sorted(WORKLOADS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"workloads": ["mnist"]}, "mlp-digits"),
        ({"rates": ["fast"]}, "is not a rate"),
        ({"ranks": 3, "ranks_per_node": 2}, "multiple"),
        ({"steps": 4, "warmup": 4}, "make it less"),
        ({"batch": 0}, "batch=0"),
        ({"step": 4}, "did you mean 'steps'"),
        ({"methods": []}, "methods missing"),
        ({"methods": 5}, "methods has 5.*in quotes"),
        ({"methods": True}, "methods has True"),
        ({"methods": {"plain": 5}}, "methods has 5"),
        ({"workloads": [["mlp-digits"]]}, "workloads has.*in quotes"),
        ({"workloads": {"a": 1}}, "workloads has"),
        ({"rates": []}, "rates is empty"),
        ({"ranks": []}, "ranks is empty"),
        ({"rates": 5}, "rates has 5"),
        ({"ranks": [[2]]}, "ranks=.* is not a whole number ≥ 1"),
        ({"steps": [1, 2]}, "steps=.* is not a whole number"),
        ({"ranks_per_node": [1, 2]}, "ranks_per_node="),
        ({"learning_rate": [0.1, 0.2]}, "learning_rate=.* is not a number"),
        ({"learning_rate": math.nan}, "learning_rate=nan"),
        ({"learning_rate": math.inf}, "learning_rate=inf"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(change, said):
    with pytest.raises(InputError, match=said):
        list(cells_of({"workloads": ["mlp-digits"], "methods": ["ddp"], **change}, Path()))


def test_settings_beside_the_grids_are_those_of_all_of_them():
    told = {"seeds": [1, 2], "steps": 9, "workloads": "mlp-digits", "data": "here"}
    cells = all_cells({**told, "grid": [{"methods": "ddp"}, {"methods": "fp16", "steps": 5}]})
    assert [(cell.method.text, cell.steps, cell.seed) for cell in cells] == [
        ("ddp", 9, 1), ("ddp", 9, 2), ("fp16", 5, 1), ("fp16", 5, 2),
    ]  # fmt: skip
    assert {cell.data for cell in cells} == {"here"}
    assert {cell.data for cell in all_cells({**told, "methods": "ddp"}, Path("there"))} == {"there"}
    with pytest.raises(InputError, match="did you mean 'seeds'"):
        all_cells({"seed": 1, "grid": [{"workloads": "mlp-digits", "methods": "ddp"}]})


def test_data_are_found_wherever_a_command_is_repeated():
    (cell,) = all_cells({"workloads": "lenet-mnist", "methods": "ddp"}, Path("here"))
    assert cell.data == str(Path("here").absolute()) in shlex.split(cell.command)


def test_a_cell_with_two_names_is_one():
    assert len(all_cells({"workloads": "mlp-digits", "methods": {"a": "ddp", "b": "ddp"}})) == 1
