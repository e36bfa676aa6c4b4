"""Schemes with a name: what they stand for, what may follow them, and what is wrong with them."""

from __future__ import annotations

import numpy as np
import pytest

import sparsewire as sw
from sparsewire.lab.bench.deepreduce import METHODS, NATURAL, made


@pytest.mark.parametrize("method", [*METHODS, *NATURAL], ids=lambda method: method.scheme)
def test_every_row_of_the_paper_is_a_scheme_that_round_trips(method: object) -> None:
    plan = sw.scheme(method.scheme)
    assert plan == sw.scheme(str(plan)) == sw.scheme(plan.to_dict()) == sw.scheme(plan.brief)
    x = made(5000)
    assert sw.decode(sw.encode(x, plan)).count > 0


def test_a_preset_is_what_it_stands_for() -> None:
    named = sw.scheme("deepreduce(indices=bloom(fpr=0.01, policy=p1), values=qsgd(bits=5)+deflate)")
    spelled = "topk(1%) | indices=bloom(fpr=0.01, policy=p1) | values=qsgd(bits=5)+deflate | memory=residual"
    assert named == sw.scheme(spelled)


def test_slots_after_a_preset_replace_its_own() -> None:
    plan = sw.scheme("deepreduce(ratio=5%) | indices=rice | memory=none")
    assert plan == sw.scheme("topk(5%) | indices=rice | values=raw | memory=none")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("deepreduce(indexes=rice)", "indices"),
        ("deepreduce(rice)", "by name"),
        ("superneurons(theta=)", "has no value"),
        ("superneurons(theta=0.5, theta=0.6)", "sets theta twice"),
        ("demo(chunk=abc)", "takes a whole number"),
        ("deepreduce(indices=rise)", "rice"),
        ("deepreduce | memory=none | memory=none", "twice"),
        ("deepredux", "deepreduce"),
    ],
)
def test_what_is_wrong_with_a_preset_is_said(spec: str, message: str) -> None:
    with pytest.raises(sw.SchemeError, match=message):
        sw.scheme(spec)


@pytest.mark.parametrize(
    ("preset", "spelled"),
    [
        ("superneurons", "topk(15%) | transform=fft | indices=rice | values=range_float(bits=10)"),
        (
            "superneurons(theta=95%, bits=auto)",
            "topk(5%) | transform=fft | indices=rice | values=range_float(bits=auto)",
        ),
        ("demo", "chunk_topk(k=32, chunk=4096) | transform=dct(64, true) | memory=residual(decay=0.999)"),
        ("demo(topk=8, chunk=32, decay=1.0)", "chunk_topk(k=8, chunk=1024) | transform=dct(32, true)"),
    ],
)
def test_methods_of_the_frequency_domain_are_what_they_stand_for(preset: str, spelled: str) -> None:
    assert sw.scheme(preset) == sw.scheme(spelled)


@pytest.mark.parametrize(
    "spec", ["superneurons(theta=1)", "superneurons(theta=most)", "demo(chunk=0)", "demo(topk=9999)"]
)
def test_what_is_no_theta_or_tile_is_refused(spec: str) -> None:
    with pytest.raises(sw.SchemeError):
        sw.scheme(spec)


def test_presets_are_listed() -> None:
    assert {"deepreduce", "skcompress"} <= set(sw.list_codecs()["presets"])


def test_skcompress_is_small_and_rough() -> None:
    x = made(50_000)
    frame = sw.encode(x, "skcompress")
    assert len(frame) < len(sw.encode(x, "topk(1%) | values=raw")) / 2
    seen = sw.decode(frame)
    assert np.linalg.norm(seen.values - x[seen.indices]) < 0.8 * np.linalg.norm(x[seen.indices])
