"""`selfcheck` and `bench device` on the forced path: what they say is true, and bytes are counted exactly."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sparsewire.cli.entry import main

torch = pytest.importorskip("torch")
from sparsewire.codecs.scheme import scheme  # noqa: E402
from sparsewire.kernels.device import load, torch_ops  # noqa: E402
from sparsewire.lab.advise.device import FOURIER, Device, on_device  # noqa: E402
from sparsewire.lab.device import bench, laws, parity, selfcheck  # noqa: E402
from sparsewire.lab.device.traffic import counted  # noqa: E402
from sparsewire.planning.cost.coded import Speeds  # noqa: E402
from sparsewire.planning.cost.step import Codecs  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laws, "SCHEMES", {name: laws.SCHEMES[name] for name in ("residual", "gain", "rows", "fft")})
    monkeypatch.setattr(parity, "SIZES", (1, 4097))


def test_it_passes_where_bits_are_the_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    assert main(["selfcheck", "--quick", "--json", str(file)]) == 0
    assert "passed: the same bits as on the host (the forced path" in capsys.readouterr().out
    report = json.loads(file.read_text())
    assert report["passed"] and report["facts"]["kernels"] == "torch" and report["bench"] is None


def test_it_fails_where_a_kernel_differs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    right = torch_ops.accumulate
    monkeypatch.setattr(torch_ops, "accumulate", lambda out, parts, scale: right(out, parts[::-1], scale * 1.0000001))
    assert main(["selfcheck", "--quick"]) == 1
    said = capsys.readouterr().out
    assert "FAILED parity: random, 4097: accumulate" in said
    assert "FAILED laws: host's bits: residual, float32" in said and "passed" not in said


def test_a_kernel_that_raises_is_a_failure_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(torch_ops, "topk", broken)
    failed = selfcheck.run(CPU, 1000, quick=True)["failed"]
    assert any("topk (RuntimeError: no kernel image)" in line for line in failed)


def test_a_device_that_is_not_there_is_a_line_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    for command in ("selfcheck", "bench device"):
        assert main([*command.split(), "--device", "cuda"]) == 2
        assert "write --device cpu for the forced path" in capsys.readouterr().err


def test_bytes_are_those_of_arguments_and_results() -> None:
    x, y = torch.zeros(1000), torch.zeros(1000, dtype=torch.bfloat16)
    with counted() as traffic:
        x + x.view(10, 100).view(-1)
    assert (traffic.read, traffic.written) == (8000, 4000)
    with counted() as traffic:
        y.zero_()
    assert (traffic.read, traffic.written) == (0, 2000)
    with counted() as traffic:
        x[torch.arange(10)]
    assert (traffic.read, traffic.written) == (80 + 40, 80 + 40)  # arange is written, too


def test_bytes_of_kernels_grow_with_the_array_alone() -> None:
    module = load("torch_ops")
    x, residual = torch.randn(1 << 16), torch.randn(1 << 16)
    with counted() as traffic:
        module.all_finite(x)
    assert x.nbytes <= traffic.read <= x.nbytes + 64
    indices, values = module.topk(x, 10)
    with counted() as traffic:
        module.compensate(residual, x, indices, values)
    assert 3 * x.nbytes <= traffic.moved <= 6 * x.nbytes


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="TRITON_INTERPRET=1 is set")
def test_the_table_has_every_kernel(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench, "COUNTED", 1 << 13)
    assert main(["bench", "device", "--size", "20000", "--repeat", "1", "--json", "-"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    keep = rows["keep"]
    assert keep["ms"] > 0 and keep["native_ms"] > 0 and keep["moves_torch"] >= 1
    if bench.measure.has("triton"):
        assert 1 <= keep["moves_triton"] < 1.5
        assert 1 <= rows["pick: topk of gradient + residual"]["moves_triton"] < 3.2


def test_advice_for_a_gpu_counts_its_passes_and_what_crosses() -> None:
    entries, whole = scheme("topk(1%) | memory=residual"), scheme("one_sign(1%) | memory=residual")
    speeds = Speeds(1e-8, *[0.0] * 10)
    host = dict.fromkeys((entries, whole), Codecs(3e-9, 2e-9, 1.0, 0.01, speeds))
    there = on_device(host, Device("cuda", 25e9, 1.5e12), ranks=4)
    assert there[entries].front == pytest.approx(9.6 / 1.5e12 + 0.01 * 8 / 25e9 + 0.01 * 1e-8)
    assert there[entries].back == pytest.approx(16.4 / 1.5e12 + 4 * 0.01 * 8 / 25e9)
    assert there[whole].front == pytest.approx(3e-9 + 4 / 25e9) and there[whole].back == pytest.approx(2e-9 + 4 / 25e9)


def test_advice_for_a_gpu_counts_transforms_there() -> None:
    plain, turned = (scheme(f"topk(1%) | {more}memory=residual") for more in ("", "transform=fft | "))
    host = dict.fromkeys((plain, turned), Codecs(3e-9, 2e-9, 1.0, 0.01, Speeds(1e-8, *[0.0] * 10)))
    there = on_device(host, Device("cuda", 25e9, 1.5e12), ranks=4)
    assert there[turned].front - there[plain].front == pytest.approx(FOURIER / 1.5e12)
    assert there[turned].back == there[plain].back


def test_advice_says_what_is_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    told = "--parameters 1M --step-ms 300 --rate 100mbit --ranks 4 --device cuda --pcie 12GB/s --memory 0.9TB/s"
    assert main(["advise", *told.split()]) == 0
    assert "gradients on cuda, assumed: PCIe 12 GB/s, memory 900 GB/s" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["advise", *told.replace("12GB/s", "12").split()])
    assert "'12' is not a bandwidth: 25GB/s or 1.5TB/s" in capsys.readouterr().err
