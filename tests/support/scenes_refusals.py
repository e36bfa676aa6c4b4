"""Scenes of `attach` that does not come about: wrong settings, ranks that differ, models of other kinds."""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from scenes_attach import assert_equal_gradients, backward, build
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch_ranks import EXACT, Stage, raises

from sparsewire import list_codecs
from sparsewire.errors import CommMismatch, InputError, PeerFailed, SparsewireError
from sparsewire.torch import attach

SCHEME = "topk(5%) | memory=residual"
OTHER: dict[str, dict[str, Any]] = {
    "scheme": {"scheme": "topk(6%)"},
    "seed": {"seed": 3},
    "dense_below": {"dense_below": 9},
    "warmup_steps": {"warmup_steps": 2},
    "select_per": {"select_per": "bucket"},
    "exclude": {"exclude": ["last.*"]},
    "ratio_schedule": {"ratio_schedule": [(3, 0.5), (9, 0.1)]},
    "scaler": {"scaler": torch.amp.GradScaler("cpu", enabled=False)},
    "on_divergence": {"on_divergence": "dense"},
}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "ratio, late": ({"ratio_schedule": [(3, 0.5), (900, 1.5)]}, "SchemeError: ratio_schedule until 900 has 1.5; a rat"),
    "ratio of zero": ({"ratio_schedule": [(3, 0)]}, "SchemeError: ratio_schedule until 3 has 0; a ratio lies in 0 < r"),
    "no schedule": ({"ratio_schedule": 0.1}, "SchemeError: ratio_schedule is a function of the step or (until, ratio"),
    "unsorted": ({"ratio_schedule": [(9, 0.5), (3, 0.1)]}, "SchemeError: ratio_schedule: steps are whole numbers that"),
    "function": ({"ratio_schedule": lambda step: "all"}, "SchemeError: ratio_schedule(0) gave 'all'; a ratio lies in"),
    "warm-up, text": (
        {"warmup_steps": "2"},
        "SchemeError: warmup_steps is a whole number of steps, 0 or more, not '2'",
    ),
    "warm-up, negative": ({"warmup_steps": -1}, "SchemeError: warmup_steps is a whole number of steps, 0 or more, not"),
    "warm-up, float": ({"warmup_steps": 2.5}, "SchemeError: warmup_steps is a whole number of steps, 0 or more, not 2"),
    "on_step": ({"on_step": 5}, "InputError: on_step is a function of a dict, or None, not 5"),
    "timeout of zero": ({"timeout": 0}, "InputError: timeout is a number of seconds above 0, or None, not 0"),
    "timeout, negative": ({"timeout": -3.0}, "InputError: timeout is a number of seconds above 0, or None, not -3.0"),
    "timeout, text": ({"timeout": "5"}, "InputError: timeout is a number of seconds above 0, or None, not '5'"),
    "dense_below": ({"dense_below": "1k"}, "InputError: dense_below is a number of elements, 0 or more, not '1k'"),
    "dense_below, negative": (
        {"dense_below": -1},
        "InputError: dense_below is a number of elements, 0 or more, not -1",
    ),
    "seed": ({"seed": 0.5}, "InputError: seed is a whole number, not 0.5"),
    "select_per": ({"select_per": "layer"}, "InputError: select_per is 'parameter', 'bucket' or 'model', not 'layer'"),
    "one threshold": (
        {"select_per": "model", "scheme": "randomk(1%)"},
        "SchemeError: select_per='model' takes the largest of all: write topk(ratio=…) or topk(k=…), 1 or more,",
    ),
    "exclude": ({"exclude": ["norm.*", "layer.*"]}, "InputError: exclude='layer.*' matches no parameter; there are la"),
    "exclude, number": ({"exclude": 3}, "InputError: exclude is a list of name patterns or a function of name and par"),
    "exclude, raises": ({"exclude": lambda name, parameter: 1 / 0}, "ZeroDivisionError: division by zero"),
    "on_divergence": ({"on_divergence": "stop"}, "InputError: on_divergence is 'warn', 'dense' or None, not 'stop'"),
    "scaler": ({"scaler": 1024.0}, "InputError: scaler is a GradScaler, or None, not 1024.0"),
    "nothing": ({"scheme": "topk(k=0)"}, "SchemeError: topk(k=0) selects nothing: give k=1 or more, or a ratio"),
    "scheme": ({"scheme": "topj(1%)"}, "SchemeError: select has no 'topj'; did you mean 'topk'?"),
    "no ratio": ({"scheme": "nonzero", "ratio_schedule": [(3, 0.5)]}, "SchemeError: ratio_schedule needs a selection"),
    "zstd": ({"scheme": "topk(1%) | values=raw+zstd"}, "SchemeError: the scheme topk(ratio=0.01) | transform=identity"),
}


def differ_in(stage: Stage, what: str) -> str:
    """Rank 1 attaches with something else: an error on every rank, and the model still trains, dense."""
    mine: dict[str, Any] = {"scheme": SCHEME, "optimizer": None} | (OTHER[what] if stage.rank == 1 else {})
    plain, wired = stage.ddp(build()), stage.ddp(build())
    text = raises(CommMismatch, lambda: attach(wired, **mine))
    for model in (plain, wired):
        backward(stage, model, 0)
    assert_equal_gradients(wired.module, plain.module)
    return text


def models_differ_in(stage: Stage, what: str) -> str:
    """Rank 1 has changed its module since DDP has compared them."""
    wired = stage.ddp(build())
    module: Any = wired.module
    if stage.rank == 1:
        if what == "shapes":
            module.middle.weight = nn.Parameter(torch.zeros(48, 47))
        if what == "dtypes":
            module.middle.double()
        if what == "parameter names":
            module.centre = module.middle
            del module.middle
        if what == "order of parameters":
            norm = module.norm
            del module.norm
            module._modules = {"norm": norm, **module._modules}
    return raises(CommMismatch, lambda: attach(wired, SCHEME))


def refuses(stage: Stage, what: str, everywhere: bool) -> str:
    """A wrong setting on every rank, or on rank 1 only: an error on all of them at once."""
    wrong, words = WRONG[what]
    wired = stage.ddp(build())
    mine: dict[str, Any] = {"scheme": SCHEME, "optimizer": None} | (wrong if everywhere or stage.rank == 1 else {})
    begin = time.monotonic()
    with _without_zstandard(what == "zstd"):
        text = raises(Exception, lambda: attach(wired, **mine))
    assert time.monotonic() - begin < 15
    expected = words if everywhere or stage.rank == 1 else f"PeerFailed: rank 1 could not attach: {words}"
    assert text.startswith(expected), text
    with attach(wired, EXACT):  # and the model is as it was
        backward(stage, wired, 0)
    return text


class _without_zstandard:
    def __init__(self, wanted: bool) -> None:
        self._wanted, self._had = wanted, sys.modules.get("zstandard")

    def __enter__(self) -> None:
        if self._wanted:
            sys.modules["zstandard"] = None  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        if self._wanted:
            del sys.modules["zstandard"]
            if self._had is not None:
                sys.modules["zstandard"] = self._had


def misuse(stage: Stage) -> None:
    """What is no DDP model, and what has a link or another hook already."""
    wired = stage.ddp(build())
    assert "DistributedDataParallel, not Plain" in raises(InputError, lambda: attach(wired.module, SCHEME))
    link = attach(wired, SCHEME)
    assert "already" in raises(SparsewireError, lambda: attach(wired, SCHEME))
    link.detach()
    link.detach()  # a second time is nothing
    with attach(wired, SCHEME):
        backward(stage, wired, 0)
    hooked = stage.ddp(build())
    if stage.rank == 1:
        hooked.register_comm_hook(None, default_hooks.allreduce_hook)
    text = raises(RuntimeError if stage.rank == 1 else PeerFailed, lambda: attach(hooked, SCHEME))
    assert stage.rank == 1 or "rank 1 could not attach: RuntimeError" in text


def takes_every_codec(stage: Stage) -> None:
    """What `attach` tries a scheme on suits each of them."""
    wired = stage.ddp(build())
    for slot in ("select", "indices", "values"):
        for name in list_codecs()[slot]:
            call = "threshold(ratio=10%)" if name == "threshold" else name
            with attach(wired, call if slot == "select" else f"topk(10%) | {slot}={call}", optimizer=None):
                pass


def hands_over_no_buckets(stage: Stage) -> list[str]:
    """torch.compile's python_reducer: known when attach is called, or noticed when the hook is."""
    import torch._dynamo.config as dynamo

    from sparsewire.torch.ddp.hook import HookState, sparsewire_hook

    gradient = torch.ones(3)
    with dynamo.patch(optimize_ddp="python_reducer"):
        early = raises(InputError, lambda: attach(stage.ddp(build()), SCHEME, optimizer=None))
    late: Any = (gradient, nn.Parameter(gradient))
    return [early, raises(InputError, lambda: sparsewire_hook(HookState(stage.group), late))]
