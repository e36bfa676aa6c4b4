"""The Triton kernels: the reference's bits under the interpreter, and machine code for three GPU targets."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparsewire.kernels import device

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed: pip install 'sparsewire[triton]'")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("TRITON_INTERPRET=1 is set: nothing can be compiled", allow_module_level=True)

TARGETS = {"cuda:80": ("cuda", 80, 32), "cuda:90": ("cuda", 90, 32), "hip:gfx942": ("hip", "gfx942", 64)}
NUMBERS = {"residual": "*fp32", "x": "*fp32"}
SOURCE = {**NUMBERS, "limits": "*i32", "decay": "fp32", "gain": "fp32"}
STATE = {"state": "*i32"}
SUM = {"SUM": True, "LIMITED": False, "BLOCK": 4096}
ASIDE = {"SUM": False, "LIMITED": True, "BLOCK": 256}
ENTRIES = {"indices": "*i32", "values": "*fp32"}
KERNELS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "triton_select._put_aside": (
        {**SOURCE, "edge": "*i32", "values": "*fp32", "places": "*i32", "found": "*i32"},
        {**SUM, "ROOM": 256},
    ),
    "triton_select._histogram": (
        {**SOURCE, **STATE, "histogram": "*i32", "tiles": "i32", "shift": "i32"},
        {**SUM, "WIDTH": 11},
    ),
    "triton_select._next_digit": ({**STATE, "histogram": "*i32", "edge": "i32"}, {"WIDTH": 11}),
    "triton_select._count": ({**SOURCE, **STATE, "counts": "*i32", "stride": "i32"}, SUM),
    "triton_select._compact": (
        {**SOURCE, **STATE, "before": "*i32", "stride": "i32", "places": "*i32", **ENTRIES},
        ASIDE,
    ),
    "triton_step._rest": (
        {**NUMBERS, "velocity": "*fp32", "indices": "*i32", "sent": "*fp32", "size": "i32",
         "decay": "fp32", "gain": "fp32", "momentum": "fp32", "kept": "*fp32", "moved": "*fp32"},
        {"VELOCITY": True, "BLOCK": 4096},
    ),
    "triton_step._put_rest": (
        {"residual": "*fp32", "velocity": "*fp32", "indices": "*i32", "size": "i32",
         "lead": "fp32", "kept": "*fp32", "moved": "*fp32"},
        {"MASK": True, "VELOCITY": True, "BLOCK": 4096},
    ),
    "triton_step._add_entries": (
        {"out": "*fp32", **ENTRIES, "size": "i32", "scale": "fp32"}, {"BLOCK": 4096},
    ),
    "triton_step._keep": (
        {**NUMBERS, "velocity": "*fp32", "size": "i32", "decay": "fp32", "gain": "fp32", "momentum": "fp32",
         "lead": "fp32"},
        {"VELOCITY": True, "BLOCK": 4096},
    ),
    "triton_energy._measure": (
        {**NUMBERS, "size": "i32", "sums": "*fp64", "count": "i32"},
        {"KEEP": True, "BLOCKS": 32, "ROWS": 32, "LANES": 16},
    ),
    "triton_energy._take_off": (
        {"residual": "*fp32", "indices": "*i32", "sent": "*fp32", "size": "i32", "before": "*fp32"}, {"BLOCK": 4096},
    ),
    "triton_step._find_non_finite": ({"x": "*fp32", "size": "i32", "flag": "*i32"}, {"BLOCK": 4096}),
}  # fmt: skip
# A mixed fma with the factor 1.0 widens a float16 and adds it, and one that adds −0 multiplies it: nothing is left out
# that would have been rounded.
FUSED = re.compile(
    r"\bfma\.|\bv_(pk_)?(fma|mac|mad|fmac)_(?!mix_f32 v\d+, v\d+, (1\.0,|[sv]\d+, neg\(0\)))(mix_)?f(32|64)"
)
FLUSHED = re.compile(r"\.ftz\b|denorm_mode_32 [012]\b")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize(
    "some", ["128 and not energies", "128 and energies", "1024 and not energies", "1024 and energies"]
)
def test_interpreted_kernels_are_the_reference(some: str) -> None:
    tests = Path(__file__).with_name("interpreted_triton.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", some, str(tests)]
    done = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def assembly(kernel: str, target: str, dtype: str, fusion: bool = False) -> str:
    """What a kernel is compiled to, as text."""
    compiler = importlib.import_module("triton.compiler")
    gpu = importlib.import_module("triton.backends.compiler").GPUTarget(*TARGETS[target])
    module, name = kernel.split(".")
    types, constants = KERNELS[kernel]
    signature = {**types, **({"x": dtype} if "x" in types else {}), **dict.fromkeys(constants, "constexpr")}
    function = getattr(importlib.import_module(f"sparsewire.kernels.device.{module}"), name)
    source = compiler.ASTSource(fn=function, signature=signature, constexprs=constants)
    made = compiler.compile(source, target=gpu, options={"enable_fp_fusion": fusion}).asm
    assert made["hsaco" if gpu.backend == "hip" else "cubin"]
    return str(made["amdgcn" if gpu.backend == "hip" else "ptx"])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_compile_and_round_every_operation(kernel: str, target: str) -> None:
    for dtype in ("*fp32", "*bf16", "*fp16"):
        text = assembly(kernel, target, dtype)
        assert not FUSED.search(text) and not FLUSHED.search(text)


@pytest.mark.parametrize("target", TARGETS)
def test_a_fused_product_would_be_seen(target: str) -> None:
    assert FUSED.search(assembly("triton_step._keep", target, "*fp32", fusion=True))


def test_launches_fuse_nothing() -> None:
    asked: dict[str, Any] = {}
    launch = importlib.import_module("sparsewire.kernels.device.triton_base").launch
    launch({(7,): lambda *args, **options: asked.update(options)}, 7, importlib.import_module("torch").zeros(1))
    assert asked == {"enable_fp_fusion": False}


def test_every_kernel_is_compiled_here() -> None:
    for name in importlib.import_module("sparsewire.lab.device.traffic").TRITON:
        module = importlib.import_module(f"sparsewire.kernels.device.{name}")
        made = {f"{name}.{key}" for key, value in vars(module).items() if _is_kernel_of(module.__name__, value)}
        assert made == {kernel for kernel in KERNELS if kernel.startswith(f"{name}.")}


def _is_kernel_of(module: str, value: Any) -> bool:
    return type(value).__name__ == "JITFunction" and value.__module__ == module


def test_tensors_of_a_gpu_have_triton_kernels() -> None:
    assert device.of(SimpleNamespace(is_cuda=True)).NAME == "triton"
    assert device.of(SimpleNamespace(is_cuda=False)).NAME == "torch"
    assert set(dir(device.load("triton_ops"))) >= set(device.load("torch_ops").__all__)
