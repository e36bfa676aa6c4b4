"""A scheme is one object in four spellings: string, dict, JSON, and the record in a frame."""

from __future__ import annotations

import dataclasses
import json
import typing
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import INDEX_CODECS, VALUE_CODECS

import sparsewire as sw
from sparsewire.codecs.contract import SLOTS, ByteCodec, Codec
from sparsewire.codecs.registry import codecs
from sparsewire.frames.codec import from_record


def setting(hint: Any) -> st.SearchStrategy[Any]:
    """Values of an annotation, mostly within what codecs allow."""
    kinds = {
        int: st.one_of(st.integers(0, 20), st.sampled_from([64, 512, 2**24]), st.integers(0, 2**70)),
        float: st.one_of(st.floats(0, 1), st.floats(allow_nan=False), st.sampled_from([0.01, 1e-300, 5e-324])),
        bool: st.booleans(),
        str: st.sampled_from(["naive", "p2", "classic", "blocked", "no such thing"]),
        type(None): st.none(),
    }
    return st.one_of([kinds[kind] for kind in typing.get_args(hint) or (hint,)])


@st.composite
def built(draw: st.DrawFn, slot: str, later_stage: bool = False) -> Codec:
    """A codec with random settings; its defaults where they contradict each other."""
    options = [c for c in codecs(slot).values() if issubclass(c, ByteCodec) or not later_stage]
    codec = draw(st.sampled_from(options))
    hints = typing.get_type_hints(codec)
    drawn = {item.name: draw(setting(hints[item.name])) for item in dataclasses.fields(codec)}
    for settings_ in (drawn, {}, {"value": 0.5}):
        try:
            return codec(**settings_)
        except sw.SchemeError:
            continue
    raise AssertionError(f"{codec} accepts no settings")


@st.composite
def schemes(draw: st.DrawFn) -> sw.Scheme:
    stages = [draw(built("values")), *draw(st.lists(built("values", later_stage=True), max_size=2))]
    spec: dict[str, Any] = {slot: draw(built(slot)).to_dict() for slot in SLOTS if slot != "values"}
    return sw.scheme({**spec, "values": [stage.to_dict() for stage in stages]})


@settings(max_examples=200)
@given(schemes())
def test_string_dict_json_and_object_are_one(s: sw.Scheme) -> None:
    assert s == sw.scheme(s)
    assert s == sw.scheme(str(s))
    assert s == sw.scheme(s.to_dict())
    assert s == sw.scheme(json.loads(json.dumps(s.to_dict())))
    assert s == from_record(s.record)
    assert hash(s) == hash(sw.scheme(str(s)))
    assert str(sw.scheme(str(s))) == str(s)


@settings(max_examples=60)
@given(schemes())
def test_a_frame_carries_its_scheme(s: sw.Scheme) -> None:
    frame = sw.encode(np.arange(5, dtype=np.float32), s)
    assert sw.scheme(sw.inspect(frame)["scheme"]) == s


@pytest.mark.parametrize("index", INDEX_CODECS)
@pytest.mark.parametrize("value", VALUE_CODECS)
def test_every_pair_of_codecs_makes_a_scheme(index: str, value: str) -> None:
    s = sw.scheme(f"topk(1%) | indices={index} | values={value}")
    assert s == sw.scheme(str(s)) == sw.scheme(s.to_dict())


# --- grammar -----------------------------------------------------------------------------------------------------

SAME = [
    ("topk(1%)", "topk(ratio=0.01)"),
    ("topk(1 %)", "topk(ratio=0.01)"),
    ("topk(0.1%)", "topk(ratio=0.001)"),
    ("topk(100%)", "topk(ratio=1.0)"),
    ("topk", "topk(ratio=0.01)"),
    ("topk()", "topk"),
    ("select=topk(5%)", "topk(5%)"),
    ("topk(k=7)", "topk(none, 7)"),
    ("threshold(1e-3)", "threshold(value=0.001)"),
    ("threshold(1e+3)", "threshold(value=1000)"),
    ("  topk( 1% )|values = qsgd( 7 ) + deflate ", "topk(1%) | values=qsgd(7)+deflate"),
    ("topk | values=qsgd(7) | indices=rice", "topk | indices=rice | values=qsgd(bits=7, bucket=512)"),
    ("topk | values=deflate(shuffle=FALSE)", "topk | values=deflate(6, false)"),
    ("values=half", "nonzero | values=half"),
    ("topk | indices=rice", "topk | indices=rice | transform=identity | memory=residual | exchange=allgather"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_these_spell_the_same_scheme(one: str, other: str) -> None:
    assert sw.scheme(one) == sw.scheme(other)


@pytest.mark.parametrize("values", ["qsgd(7)+deflate", ["qsgd(7)", "deflate"], [{"id": "qsgd", "bits": 7}, "deflate"]])
def test_a_chain_is_a_string_or_a_list(values: Any) -> None:
    spec = {"select": "topk(1%)", "values": values}
    if isinstance(values, str):
        spec = f"topk(1%) | values={values}"
    assert sw.scheme(spec) == sw.scheme("topk(1%) | values=qsgd(7)+deflate")


def test_a_percentage_is_exact() -> None:
    for percent in ("0.1", "0.7", "1", "3", "7", "29", "57"):
        assert sw.scheme(f"topk({percent}%)").select.ratio == float(f"{percent}e-2")


WRONG = [
    ("topq(1%)", "did you mean 'topk'"),
    ("topk | indices=ryce", "did you mean 'rice'"),
    ("topk | indices=elias", "did you mean 'elias_fano'"),
    ("topk | values=qsdg", "did you mean 'qsgd'"),
    ("topk | value=raw", "did you mean 'values'"),
    ("topk | memory=residuals", "did you mean 'residual'"),
    ("topk(ration=1%)", "did you mean 'ratio'"),
    ("topk | indices=zzzzzz", "known: .*rice"),
    ("qsgd(7)", "a codec of another slot; write values=qsgd"),
    ("topk | values=rice", "write indices=rice"),
    ("topk | memory=raw", "write indices=raw or values=raw"),
    ("qsgt", "did you mean values=qsgd"),
    ("powersgd", "a method of torch"),
    ("topk(1%, ratio=2%)", "given twice"),
    ("topk | indices=rice | indices=raw", "twice"),
    ("topk(1, 2, 3)", "at most 2 settings"),
    ("topk(ratio=1%, 5)", "must come first"),
    ("topk(ratio=0)", "ratio lies in"),
    ("topk(101%)", "ratio lies in"),
    ("topk(ratio=nan)", "ratio lies in"),
    ("topk(1)", "100% or ratio=1.0 for all, k=1 for one"),
    ("randomk(ratio=1)", "100% or ratio=1.0 for all, k=1 for one"),
    ({"select": {"id": "topk", "ratio": 1}}, "100% or ratio=1.0 for all, k=1 for one"),
    ("topk(k=-1)", "at least 0"),
    ("topk(k=1.5)", "takes int"),
    ("topk(k=true)", "takes int"),
    ("topk(ratio=1%, k=3)", "not both"),
    ("threshold", "value or ratio"),
    ("topk(1%", "brackets"),
    ("topk | rice", "should read"),
    ("topk |", "should read"),
    ("topk | values=deflate+qsgd", "only byte codecs"),
    ("topk | indices=rice+raw", "only values"),
    ("topk | values=qsgd(1)", "2 … 16"),
    ("topk | values=qsgd(bits=seven)", "takes int"),
    ("topk | indices=rice(block=12)", "multiple of 8"),
    ("threshold(snan)", "threshold"),
    ("threshold(1" + "0" * 400 + ")", "threshold"),
    ("topk(k=1" + "0" * 5000 + ")", "topk"),
    ({"select": {"ratio": 0.1}}, "'id'"),
    ({"selects": "topk"}, "did you mean 'select'"),
    ({"select": 7}, "a string or a dict"),
    (7, "a string, a dict or a Scheme"),
]


@pytest.mark.parametrize(("spec", "message"), WRONG, ids=lambda part: str(part)[:40])
def test_what_is_wrong_is_said(spec: Any, message: str) -> None:
    with pytest.raises(sw.SchemeError, match=message):
        sw.scheme(spec)


@settings(max_examples=300)
@given(st.text(st.sampled_from("topkraqsgdndeflt=()|+,.%0123456789e- \n"), max_size=40))
def test_any_text_is_a_scheme_or_a_scheme_error(text: str) -> None:
    try:
        s = sw.scheme(text)
    except sw.SchemeError:
        return
    assert sw.scheme(str(s)) == s


def test_errors_quote_what_was_written() -> None:
    with pytest.raises(sw.SchemeError, match=r"'topk \| wrong'"):
        sw.scheme("topk | wrong")


def test_settings_too_large_for_a_frame_are_refused_before_one_is_made() -> None:
    with pytest.raises(sw.SchemeError):
        sw.encode(np.ones(3, np.float32), f"topk(k={2**64})")
