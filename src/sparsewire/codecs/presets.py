"""Schemes with a name. A preset is a function from texts to a preset; slots given after it replace its scheme's own.

deepreduce(values=fit_poly) | memory=none

A method that speaks rarely also says how local steps go: `sbc(level=2)` is a scheme as any other, and
`local_settings("sbc(level=2)")` is what training with local steps does with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparsewire.errors import SchemeError

from . import registry
from .contract import SLOTS
from .syntax import read_call, split


@dataclass(frozen=True)
class Preset:
    """A scheme's text, the settings of local steps that the method has (none if it exchanges gradients), and the share
    of the weights that it prunes before."""

    scheme: str
    local: Mapping[str, Any] = field(default_factory=dict)
    pruned: float | None = None


def deepreduce(ratio: str = "1%", indices: str = "bloom(fpr=0.001, policy=p2)", values: str = "raw") -> Preset:
    """DeepReduce (arXiv 2102.03112): top-k with indices and values compressed apart, and error feedback."""
    return Preset(f"topk({ratio}) | indices={indices} | values={values} | memory=residual")


def skcompress(ratio: str = "1%", levels: str = "16") -> Preset:
    """SKCompress as a special case of DeepReduce: Huffman-coded gaps, quantile buckets entropy-coded."""
    return Preset(f"topk({ratio}) | indices=huffman | values=quantile(levels={levels}) | memory=residual")


SBC_LEVELS = {"1": ("1", "0.001"), "2": ("10", "0.01"), "3": ("100", "0.01")}  # delay, ratio


def sbc(level: str = "2", delay: str | None = None, ratio: str | None = None) -> Preset:
    """Sparse Binary Compression (arXiv 1805.08768): one sign and one magnitude per tensor and round.

    A level is a communication delay and a ratio; either may be given instead.
    """
    if level not in SBC_LEVELS:
        raise SchemeError(f"sbc has the levels 1, 2 and 3, not {level}; delay=… and ratio=… set anything in between")
    usual_delay, usual_ratio = SBC_LEVELS[level]
    plan = f"one_sign(ratio={ratio or usual_ratio}) | indices=golomb | values=mean | memory=residual"
    return Preset(plan, {"every": _steps(delay or usual_delay, "sbc(delay=…)"), "mean": "all", "mask_momentum": True})


def stc(ratio: str = "0.01", delay: str = "1") -> Preset:
    """Sparse Ternary Compression (arXiv 1903.02891): top-k as one magnitude and a sign each."""
    plan = f"topk(ratio={ratio}) | indices=golomb | values=sign_mean | memory=residual"
    return Preset(plan, {"every": _steps(delay, "stc(delay=…)"), "mean": "all"})


def sparseloco(
    k: str = "64", chunk: str = "4096", bits: str = "2", decay: str = "0.95", every: str = "30", rate: str = "1.0",
    mean: str = "senders",
) -> Preset:  # fmt: skip
    """SparseLoCo (arXiv 2508.15706): top-k of every chunk, 2-bit codebook, decayed error feedback, local steps.

    The mean is over a coordinate's senders, as in its public code; its paper has mean=all.
    """
    select = f"chunk_topk(k={k}, chunk={chunk})"
    plan = f"{select} | indices=best | values=centroid(bits={bits}) | memory=residual(decay={decay})"
    local = {"every": _steps(every, "sparseloco(every=…)"), "outer": f"sgd(rate={rate})", "mean": _mean(mean)}
    return Preset(plan, local)


def diloco(every: str = "50", rate: str = "0.7", momentum: str = "0.9") -> Preset:
    """DiLoCo (arXiv 2311.08105): all of the change after many local steps, Nesterov's momentum on the mean."""
    outer = f"sgd(rate={rate}, momentum={momentum}, nesterov=true)"
    local = {"every": _steps(every, "diloco(every=…)"), "outer": outer, "mean": "all"}
    return Preset("nonzero | indices=best | values=raw | memory=none", local)


def fedavg(every: str = "10") -> Preset:
    """FedAvg (arXiv 1602.05629): all of the change, as it is."""
    return Preset(
        "nonzero | indices=best | values=raw | memory=none", {"every": _steps(every, "fedavg(every=…)"), "mean": "all"}
    )


def deepreduce_fl(ratio: str = "10%", fpr: str = "0.01", policy: str = "p0", bits: str = "7") -> Preset:
    """DeepReduce's FedAvg (arXiv 2102.03112): top-k, a Bloom filter, QSGD and error feedback, up and down."""
    plan = f"topk({ratio}) | indices=bloom(fpr={fpr}, policy={policy}) | values=qsgd(bits={bits}) | memory=residual"
    return Preset(plan, {"every": 10, "mean": "all"})


def superneurons(theta: str = "0.85", bits: str = "10", chunk: str = "4096") -> Preset:
    """SuperNeurons (arXiv 1811.08596): Fourier coefficients but the smallest, a share theta, as range-based floats."""
    ratio = float(f"{1 - _share(theta, 'superneurons(theta=…)', 'coefficients'):.12g}")
    transform, values = f"fft(chunk={chunk})", f"range_float(bits={bits})"
    return Preset(f"topk(ratio={ratio}) | transform={transform} | indices=rice | values={values} | memory=residual")


def demo(topk: str = "32", chunk: str = "64", decay: str = "0.999") -> Preset:
    """DeMo (arXiv 2411.19870): the largest cosine coefficients of every tile, a decayed residual as its momentum.

    The optimizer applies the sign of the mean.
    """
    select = f"chunk_topk(k={topk}, chunk={_steps(chunk, 'demo(chunk=…)', 'whole number') ** 2})"
    transform = f"dct(block={chunk}, two_dimensional=true)"
    return Preset(f"{select} | transform={transform} | indices=best | values=entropy | memory=residual(decay={decay})")


def scalecom(ratio: str = "1%", values: str = "float32") -> Preset:
    """ScaleCom (arXiv 2104.11125): the ranks take turns; what one of them selects is everyone's support."""
    return Preset(f"topk({ratio}) | memory=residual | exchange=shared(support=leader, values={values})")


def pactrain(ratio: str = "50%", values: str = "ternary") -> Preset:
    """PacTrain (arXiv 2505.18563): of a pruned model the survivors, without indices, in an ordinary all_reduce.

    `ratio` is the share of weights that `sparsewire.torch.prune` prunes when it is given this text. Nothing is kept:
    all survivors are sent, int8 and ternary with the right expectation.
    """
    plan = f"nonzero | memory=none | exchange=shared(support=mask, values={values})"
    return Preset(plan, pruned=_share(ratio, "pactrain(ratio=…)"))


def spardl(ratio: str = "1%") -> Preset:
    """SparDL (arXiv 2304.00737): top-k by a sparse reduce-scatter in ⌈log2 ranks⌉ rounds, nothing lost on the way."""
    return Preset(f"topk({ratio}) | values=raw | memory=residual | exchange=reduce_scatter(route=log)")


def s2(volume: str = "0.25", rows: str = "1", decode: str = "project", select: str = "nonzero") -> Preset:
    """S2 Reducer (arXiv 2110.02140): a sketch of the non-zeros, or of any selection, that an all_reduce sums."""
    table = f"sketch(rows={rows}, volume={volume}, decode={decode}, by=row)"
    return Preset(f"{select} | indices=best | values=raw | memory=residual | exchange={table}")


PRESETS: dict[str, Callable[..., Preset]] = {
    preset.__name__: preset
    for preset in (
        deepreduce,
        skcompress,
        sbc,
        stc,
        sparseloco,
        diloco,
        fedavg,
        deepreduce_fl,
        spardl,
        s2,
        scalecom,
        pactrain,
        superneurons,
        demo,
    )
}


def _steps(word: str, owner: str, of: str = "number of steps") -> int:
    if not (word.isascii() and word.isdigit() and 0 < int(word) < 2**31):
        raise SchemeError(f"{owner} takes a {of}, at least 1, not {word!r}")
    return int(word)


def _mean(word: str) -> str:
    if word not in ("all", "senders"):
        raise SchemeError(f"mean=… is all (ranks) or senders (of a coordinate), not {word!r}")
    return word


def _share(word: str, owner: str, of: str = "weights") -> float:
    try:
        share = float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise SchemeError(f"{owner} takes a share of the {of}, 0 ≤ share < 1 or in %, not {word!r}")
    return share


def expand(name: str, settings: Mapping[str, str]) -> Preset:
    """What a preset stands for with these settings; `none` leaves one out."""
    known = list(inspect.signature(PRESETS[name]).parameters)
    for key, value in settings.items():
        if key in known and not value:
            raise SchemeError(f"{name}({key}=) has no value: give one, or leave {key} out")
        if key not in known:
            raise SchemeError(f"{name} takes settings by name, not {key!r}{registry.nearest(key, known)}")
    return PRESETS[name](**{key: value for key, value in settings.items() if value != "none"})


def local_settings(spec: object) -> dict[str, Any]:
    """The settings of local steps that a preset carries: every, outer, mean, mask_momentum; {} for other schemes.

    >>> local_settings("sbc(level=3)")
    {'every': 100, 'mean': 'all', 'mask_momentum': True}
    >>> local_settings("topk(1%)")
    {}
    """
    preset = _preset(spec)
    return dict(preset.local) if preset else {}


def pruned_share(text: str) -> float:
    """The share of the weights to prune that a preset's text, or a text such as "80%", stands for.

    >>> pruned_share("pactrain(ratio=80%)"), pruned_share("50%")
    (0.8, 0.5)
    """
    preset = _preset(text)
    if preset is None:
        return _share(text, "ratio")
    if preset.pruned is None:
        raise SchemeError(f"{text} prunes nothing: give a ratio, or pactrain(ratio=…)")
    return preset.pruned


def _preset(spec: object) -> Preset | None:
    """What a text that starts with a preset stands for."""
    call = read_call(split(spec, "|", spec)[0], spec) if isinstance(spec, str) else None
    if call is None or call[0] not in PRESETS or call[0] in registry.codecs("select"):
        return None
    return expand(*call)


def list_codecs() -> dict[str, list[str]]:
    """The names that schemes may use: codecs by slot, and presets.

    >>> "rice" in list_codecs()["indices"], "deepreduce" in list_codecs()["presets"]
    (True, True)
    """
    return {**{slot: list(registry.codecs(slot)) for slot in SLOTS}, "presets": list(PRESETS)}
