"""Trainings that must have the same bits by the path of devices as on the host."""

from __future__ import annotations

from typing import Any

CASES: dict[str, dict[str, Any]] = {
    "residual, quantised": {"scheme": "topk(5%) | indices=rice | values=qsgd(bits=5) | memory=residual"},
    "dgc in bfloat16": {"scheme": "topk(5%) | memory=dgc(0.9)", "dtype": "bfloat16", "momentum": 0.9},
    "gmc at several rates": {"scheme": "topk(5%) | memory=gmc(0.9)", "momentum": 0.9, "rates": [0.05, 0.02]},
    "gain in float16": {"scheme": "topk(5%) | memory=gain(0.9)", "dtype": "float16", "momentum": 0.9},
    "no memory, float64": {"scheme": "topk(5%) | memory=none", "dtype": "float64"},
    "one threshold over the model": {"select_per": "model", "steps": 6},
    "one threshold, a sparse embedding": {"select_per": "model", "kind": "words", "steps": 6},
    "selection per bucket": {"select_per": "bucket", "kind": "mixed"},
    "unused parameters": {"kind": "branches", "steps": 8},
    "unused parameters, one threshold": {"kind": "branches", "select_per": "model", "steps": 8},
    "a schedule after dense steps": {
        "scheme": "topk(5%) | memory=dgc(0.9)", "momentum": 0.9, "warmup_steps": 2, "ratio_schedule": [[2, 0.3]],
        "dtype": "bfloat16", "steps": 6,
    },
    "gain after dense steps": {
        "scheme": "topk(5%) | memory=gain(0.9)", "momentum": 0.9, "warmup_steps": 2, "kind": "branches",
    },
    "clipped, bfloat16": {"clip_norm": 0.01, "dtype": "bfloat16"},
    "residuals that follow the rate": {
        "scheme": "topk(5%) | memory=dgc(0.9)", "momentum": 0.9, "follow_rate": True, "rates": [0.05, 0.02],
    },
    "dense parameters that stay on the device": {"landed": 0, "exclude": ["middle.weight"], "dtype": "float16"},
    "threshold": {"scheme": "threshold(ratio=5%) | memory=residual"},
    "nonzero, mean of senders": {
        "scheme": "nonzero | memory=none | exchange=allgather(mean=senders)", "dtype": "bfloat16",
    },
    "random entries": {"scheme": "randomk(5%) | memory=residual"},
    "a selection that needs the host": {"scheme": "chunk_topk(k=8, chunk=64) | memory=dgc(0.9)", "momentum": 0.9},
    "rows": {"scheme": "topk(5%) | transform=rows(width=24) | memory=dgc(0.9)", "momentum": 0.9, "dtype": "bfloat16"},
    "rows of a bucket, no memory": {"scheme": "topk(5%) | transform=rows | memory=none", "select_per": "bucket"},
    "Fourier coefficients, a selection that needs the host": {
        "scheme": "chunk_topk(k=2, chunk=32) | transform=fft(chunk=64) | memory=residual", "by_torch": True,
    },
    "reduce-scatter": {"scheme": "topk(5%) | memory=dgc(0.9) | exchange=reduce_scatter", "momentum": 0.9},
    "one support for all": {"scheme": "topk(5%) | memory=residual | exchange=shared"},
    "a root": {"scheme": "topk(5%) | memory=residual | exchange=root"},
}  # fmt: skip
FOURIER: dict[str, dict[str, Any]] = {
    "gain": {"scheme": "topk(5%) | transform=fft(chunk=64) | memory=gain(0.9)", "momentum": 0.9},
    "dgc in bfloat16": {
        "scheme": "topk(5%) | transform=fft(chunk=50) | memory=dgc(0.9)", "momentum": 0.9, "dtype": "bfloat16",
    },
    "gmc at several rates, per bucket": {
        "scheme": "topk(5%) | transform=fft | memory=gmc(0.9)", "momentum": 0.9, "rates": [0.05, 0.02],
        "select_per": "bucket",
    },
    "no memory, float64": {"scheme": "topk(5%) | transform=fft | memory=none", "dtype": "float64"},
    "residual in float16, unused parameters": {
        "scheme": "topk(5%) | transform=fft | values=qsgd(bits=5) | memory=residual", "dtype": "float16",
        "kind": "branches",
    },
    "one support for all": {"scheme": "topk(5%) | transform=fft | memory=residual | exchange=shared"},
    "reduce-scatter": {
        "scheme": "topk(5%) | transform=fft | memory=gain(0.9) | exchange=reduce_scatter", "momentum": 0.9,
    },
    "a support by one rank": {
        "scheme": "topk(5%) | transform=fft | memory=residual | exchange=shared(support=leader)",
    },
    "threshold after dense steps": {
        "scheme": "threshold(ratio=5%) | transform=fft | memory=gain(0.9)", "momentum": 0.9, "warmup_steps": 2,
    },
}  # fmt: skip
