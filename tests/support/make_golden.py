"""Writes golden frames that are missing, and never touches one that is there: `python tests/support/make_golden.py`."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import sparsewire as sw
from sparsewire.core.sparse import store
from sparsewire.frames import wire

GOLDEN = Path(__file__).parents[1] / "golden"
NAN, INF = float("nan"), float("inf")


def numbers(count: int = 150) -> np.ndarray:
    """Mixed magnitudes, runs, zeros and repeats, without anybody's random numbers."""
    i = np.arange(count)
    return np.where(i % 7 < 4, ((i * 37) % 101 - 50) / 16 * 2.0 ** ((i * 5) % 9 - 4), 0.0)


def sparse(numel: int, dtype: str = "float32") -> sw.Sparse:
    indices = [0, 1, 2, 77, numel // 3, numel // 2, numel // 2 + 1, numel - 1]
    return sw.Sparse(indices, numbers(8).astype(np.float32) + 1, (numel,), dtype)


def table() -> sw.Sparse:
    """Rows of an embedding's gradient."""
    return sw.Sparse([2, 3, 99, 1234], numbers(32).astype(np.float32), (5000, 8), width=8)


PLAIN = numbers()
WIDE = 2**40 + 5
NONFINITE = np.where(np.arange(150) % 29 == 7, INF, np.where(np.arange(150) % 31 == 9, NAN, PLAIN))
# Enough of few numbers for exact frequencies to be worth their bits.
FEW = np.where(np.arange(1200) * 37 % 101 < 43, 1.0, 3.0)
FEW[5::187], FEW[7::375] = 2.0, 4.0
HOLES = np.where(np.arange(1200) % 401 == 9, NAN, np.where(np.arange(1200) % 5 == 2, 0.0, FEW))
# name: (scheme, input, dtype)
RECIPES: dict[str, tuple[str, Any, str]] = {
    **{
        f"indices_{codec}": (f"topk(20%) | indices={codec} | values=raw", PLAIN, "float32")
        for codec in ("raw", "bitmap", "run_length", "huffman", "elias_fano", "rice", "best", "golomb")
    },
    **{
        f"values_{codec}": (f"topk(k=40) | indices=rice | values={codec}", PLAIN, "float32")
        for codec in ("raw", "half", "bfloat16", "qsgd", "deflate", "zstd", "mean", "sign_mean", "centroid", "ternary")
    },
    "values_quantile": ("topk(k=40) | indices=rice | values=quantile", PLAIN, "float32"),
    "values_distinct": ("nonzero | indices=bitmap | values=distinct", FEW, "float32"),
    "values_distinct_plain": ("topk(k=40) | indices=rice | values=distinct", PLAIN, "float64"),
    "exchange_reduce_scatter": ("topk(k=5) | values=raw | exchange=reduce_scatter(route=log)", PLAIN, "float32"),
    "exchange_root": ("topk(k=5) | values=raw | exchange=root(rank=2, mean=sqrt)", PLAIN, "float32"),
    "exchange_senders": ("topk(k=5) | values=raw | exchange=allgather(mean=senders)", PLAIN, "float32"),
    "exchange_shared": ("topk(k=5) | values=raw | exchange=shared(support=leader, values=int8)", PLAIN, "float32"),
    "exchange_sketch": ("topk(k=5) | values=raw | exchange=sketch(rows=3, volume=0.5, by=row)", PLAIN, "float32"),
    "values_entropy": ("topk(k=40) | indices=rice | values=entropy", PLAIN, "float32"),
    "select_randomk": ("randomk(10%, shared=false) | indices=elias_fano | values=raw", PLAIN, "float32"),
    "select_threshold": ("threshold(value=0.75) | indices=huffman | values=raw", PLAIN, "float32"),
    "select_nonzero": ("nonzero | indices=run_length | values=half", PLAIN, "float32"),
    "select_one_sign": ("one_sign(ratio=0.07) | indices=golomb | values=mean", PLAIN, "float32"),
    "one_sign_not_finite": ("one_sign(k=5) | indices=golomb | values=mean", NONFINITE, "float64"),
    "sign_mean_not_finite": ("topk(k=40) | indices=golomb | values=sign_mean", NONFINITE, "float16"),
    "select_chunk_topk": ("chunk_topk(k=3, chunk=40) | indices=rice | values=centroid", PLAIN, "float32"),
    "centroid_exact": ("topk(100%) | indices=bitmap | values=centroid(bits=3)", FEW, "float16"),
    "centroid_8_bits": ("nonzero | indices=bitmap | values=centroid(bits=8)+deflate", PLAIN, "float64"),
    "centroid_not_finite": ("topk(k=40) | values=centroid", NONFINITE, "float32"),
    "memory_none": ("topk(k=5) | memory=none | values=raw", PLAIN, "float32"),
    "chain_qsgd_deflate": ("topk(30%) | values=qsgd(bits=7, bucket=16)+deflate(level=9)", PLAIN, "float32"),
    "chain_half_zstd": ("topk(30%) | values=half+zstd(level=3, shuffle=false)", PLAIN, "float32"),
    "chain_three": ("topk(30%) | values=qsgd(12)+deflate+zstd", PLAIN, "float32"),
    "qsgd_2_bits": ("topk(50%) | indices=bitmap | values=qsgd(bits=2, bucket=8)", PLAIN, "float32"),
    "rice_block_8": ("topk(50%) | indices=rice(block=8) | values=raw", PLAIN, "float32"),
    "float64": ("topk(20%) | values=qsgd(16)", PLAIN.reshape(3, 5, 10), "float64"),
    "float16": ("topk(20%) | values=raw", PLAIN, "float16"),
    "bfloat16": ("topk(20%) | values=raw", PLAIN, "bfloat16"),
    "bfloat16_qsgd": ("topk(20%) | values=qsgd(4)+deflate", PLAIN, "bfloat16"),
    "scalar": ("topk(1%) | indices=bitmap | values=raw", np.array(-2.5), "float32"),
    "empty": ("topk(1%) | indices=huffman | values=qsgd", np.zeros((3, 0, 2)), "float32"),
    "no_entries": ("topk(k=0) | indices=run_length | values=half", PLAIN, "float32"),
    "not_finite": ("topk(k=5) | values=half", np.array([1, NAN, -INF, 4e9, -0.0, INF]), "float32"),
    "not_finite_qsgd": ("topk(k=5) | values=qsgd(3)", np.array([1, NAN, -INF, 4e9, -0.0, INF]), "float32"),
    "quantile_3": ("topk(50%) | indices=bitmap | values=quantile(levels=3, split=false)", PLAIN, "float32"),
    "quantile_not_finite": ("topk(k=5) | values=quantile(4)", np.array([1, NAN, -INF, 4e9, -0.0, INF]), "float64"),
    "entropy_fine": ("topk(100%) | indices=bitmap | values=entropy(error=0.002)", PLAIN, "float32"),
    "entropy_coarse": ("topk(100%) | indices=bitmap | values=entropy(error=0.4)", PLAIN, "bfloat16"),
    "entropy_positive": ("topk(100%) | indices=bitmap | values=entropy", abs(PLAIN) + 1, "float64"),
    "entropy_constant": ("topk(100%) | indices=bitmap | values=entropy", PLAIN * 0 - 0.75, "float32"),
    "entropy_signs": ("topk(100%) | indices=bitmap | values=entropy", np.where(PLAIN < 0, -0.7, 0.75), "float32"),
    "entropy_sign_only": ("topk(k=64) | indices=bitmap | values=entropy", (-1.0) ** np.arange(80) * 0.7, "float32"),
    "entropy_levels": ("topk(100%) | indices=bitmap | values=entropy", np.where(PLAIN < 0, -0.5, 0.75), "float32"),
    "entropy_exact": ("topk(100%) | indices=bitmap | values=entropy(error=0.02)", FEW, "float16"),
    "entropy_exact_holes": ("topk(100%) | indices=bitmap | values=entropy(error=0.02)", HOLES, "float16"),
    "entropy_few": ("topk(k=2) | values=entropy", PLAIN, "float16"),
    "entropy_not_finite": ("topk(k=40) | values=entropy", np.append(PLAIN, [NAN, -INF, 4e9, INF]), "float32"),
    **{
        f"wide_{codec}": (f"nonzero | indices={codec} | values=raw", sparse(WIDE), "float32")
        for codec in ("raw", "run_length", "huffman", "elias_fano", "rice", "best", "golomb")
    },
    **{
        f"{codec}_{index}": (f"topk(k=60) | indices={index} | values={codec}", PLAIN, "float32")
        for codec in ("fit_poly", "fit_dexp")
        for index in ("raw", "rice")
    },
    "fit_poly_settings": ("topk(60%) | values=fit_poly(degree=2, segments=3, rank_bits=4)", PLAIN, "float32"),
    "fit_dexp_rank_bits": ("topk(60%) | values=fit_dexp(rank_bits=3)", PLAIN, "float32"),
    "fit_poly_one_sign": ("nonzero | values=fit_poly(segments=2)", np.abs(PLAIN), "float64"),
    "fit_dexp_one_sign": ("nonzero | indices=raw | values=fit_dexp", -np.abs(PLAIN), "float64"),
    "fit_poly_not_finite": ("nonzero | values=fit_poly(degree=1)", NONFINITE, "float32"),
    "fit_poly_not_finite_raw": ("nonzero | indices=raw | values=fit_poly(degree=1)", NONFINITE, "float32"),
    "fit_dexp_not_finite": ("nonzero | values=fit_dexp", NONFINITE, "float32"),
    "chain_fit_poly_deflate": ("topk(60%) | values=fit_poly(rank_bits=4)+deflate", PLAIN, "float32"),
    **{
        f"bloom_{policy}_{layout}": (
            f"topk(20%) | indices=bloom(0.05, {policy}, {layout}) | values=raw",
            PLAIN,
            "float32",
        )
        for policy in ("naive", "p0", "p1", "p2")
        for layout in ("classic", "blocked")
    },
    "bloom_not_finite": (
        "topk(k=5) | indices=bloom(0.1, p2) | values=raw",
        np.array([1, NAN, -INF, 4e9, -0.0, INF, 2, 3]),
        "float32",
    ),
    "rows": ("topk(k=7) | transform=rows(width=4) | indices=rice | values=raw", PLAIN, "float32"),
    "rows_padded": ("topk(50%) | transform=rows(width=64) | values=entropy", PLAIN, "float32"),
    "rows_bloom": ("topk(k=5) | transform=rows(width=3) | indices=bloom(0.05, p2) | values=half", PLAIN, "float64"),
    "rows_of_a_table": ("nonzero | indices=elias_fano | values=qsgd(5)", table(), "float32"),
    "rows_curve": ("nonzero | transform=rows(width=2) | indices=raw | values=fit_poly(degree=2)", PLAIN, "float32"),
    # Coefficients in half precision: their last bits are the Fourier transform's, which is NumPy's.
    "transform_fft": ("topk(k=9) | transform=fft(chunk=64) | indices=rice | values=half", PLAIN, "float32"),
    "fft_odd_chunk": ("topk(10%) | transform=fft(chunk=41) | values=half", PLAIN, "float64"),
    "fft_budget": ("error_budget(bound=0.6) | transform=fft | indices=bitmap | values=half", PLAIN, "float16"),
    "transform_dct": ("topk(k=12) | transform=dct(block=16) | indices=rice | values=half", PLAIN, "float32"),
    "dct_tiles": (
        "chunk_topk(k=2, chunk=16) | transform=dct(block=4, two_dimensional=true) | values=half",
        PLAIN.reshape(10, 15),
        "bfloat16",
    ),
    "select_error_budget": ("error_budget(bound=0.25) | indices=golomb | values=raw", PLAIN, "float32"),
    # Chunks of 4 and blocks of 2: their coefficients have the same bits whoever transforms.
    "preset_superneurons": ("superneurons(theta=0.8, bits=8, chunk=4)", PLAIN, "float32"),
    "preset_demo": ("demo(topk=2, chunk=2)", PLAIN.reshape(10, 15), "float32"),
    "values_range_float": ("topk(k=40) | indices=rice | values=range_float", PLAIN, "float32"),
    "range_float_few_bits": ("nonzero | values=range_float(bits=5, mantissa=2)", abs(PLAIN), "bfloat16"),
    "range_float_auto": ("topk(k=40) | values=range_float(bits=auto, error=0.05)+deflate", PLAIN, "float64"),
    "range_float_tiny": ("topk(k=20) | values=range_float(bits=12, mantissa=6)", PLAIN * 1e-43, "float32"),
    "range_float_not_finite": ("topk(k=20) | values=range_float(bits=3)", NONFINITE, "float32"),
    "memory_dgc": ("topk(k=5) | memory=dgc(momentum=0.8, nesterov=true) | values=raw", PLAIN, "float32"),
    "memory_gmc": ("topk(k=5) | memory=gmc | values=raw", PLAIN, "float32"),
    "memory_gain": ("topk(k=5) | memory=gain(momentum=0.8, nesterov=true) | values=raw", PLAIN, "float32"),
    "memory_decay": ("topk(k=5) | memory=residual(decay=0.95) | values=raw", PLAIN, "float32"),
    "widest": ("nonzero | indices=rice | values=half", sparse(2**62, "float64"), "float64"),
}


BUNDLES: dict[str, tuple[str, list[Any], str]] = {
    "bundle_sbc": (
        "sbc(level=2)", [PLAIN, PLAIN.reshape(5, 30) - 1, np.zeros((3, 0)), FEW, np.array(2.0), PLAIN * 0], "float32",
    ),
    "bundle_one": ("topk(10%) | indices=elias_fano | values=half", [FEW], "bfloat16"),
    "bundle_fft": (
        "topk(5%) | transform=fft(chunk=64) | indices=rice | values=half", [FEW, PLAIN, np.array([1.5])], "float32",
    ),
    "bundle_rows": ("topk(10%) | transform=rows(width=8) | indices=rice | values=raw", [FEW, PLAIN], "float64"),
}  # fmt: skip


def text(values: np.ndarray, dtype: str) -> str:
    return base64.b64encode(store(values.reshape(-1), dtype).tobytes()).decode()


def describe(scheme: str, x: Any, dtype: str, options: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
    if isinstance(x, sw.Sparse):
        tensor, given = x, {"indices": x.indices.tolist(), "values": text(x.values, dtype), "width": x.width}
    else:
        tensor = as_sendable(np.asarray(x), dtype)
        given = {"values": text(np.asarray(x), dtype)}
    frame = sw.encode(tensor, scheme, **options)
    decoded = sw.decode(frame)
    facts = {
        "scheme": str(sw.scheme(scheme)),
        "options": options,
        "dtype": dtype,
        "shape": list(x.shape),
        "input": given,
        "width": decoded.width,
        "indices": decoded.indices.tolist(),
        "values": text(decoded.values, dtype),
    }
    return frame, facts


def as_sendable(x: np.ndarray, dtype: str) -> np.ndarray:
    """The array in its dtype; bfloat16 by way of ml_dtypes, which gives NumPy the type."""
    if dtype != "bfloat16":
        return x.astype(dtype)
    import ml_dtypes

    return store(x, "bfloat16").view(ml_dtypes.bfloat16).reshape(x.shape)


def bundle(scheme: str, inputs: list[Any], dtype: str) -> tuple[bytes, list[dict[str, Any]]]:
    found = [
        describe(scheme, x, dtype, {"step": 3, "name": f"{i}", "seed": 7, "rank": 1}) for i, x in enumerate(inputs)
    ]
    return wire.pack_bundle([wire.unpack(frame) for frame, _ in found]), [facts for _, facts in found]


def write_bundles() -> None:
    path = GOLDEN / "bundles.json"
    index = json.loads(path.read_text()) if path.exists() else {}
    for name, recipe in BUNDLES.items():
        if name not in index:
            data, index[name] = bundle(*recipe)
            with (GOLDEN / f"{name}.swb").open("xb") as file:
                file.write(data)
    write_index(path, index)


def write_index(path: Path, index: dict[str, Any]) -> None:
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(facts)}" for name, facts in index.items())
    path.write_text("{\n" + lines + "\n}\n")


def main() -> int:
    path = GOLDEN / "index.json"
    index = json.loads(path.read_text()) if path.exists() else {}
    missing = [name for name in RECIPES if name not in index]
    for name in missing:
        target = GOLDEN / f"{name}.swf"
        if target.exists():
            print(f"{target} is there but not in the index; golden frames are never written twice", file=sys.stderr)
            return 1
        frame, index[name] = describe(*RECIPES[name], {"step": 3, "name": "layer.weight", "seed": 7, "rank": 1})
        target.write_bytes(frame)
    write_index(path, index)
    write_bundles()
    print(f"{len(missing)} golden frames written, {len(index) - len(missing)} were there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
