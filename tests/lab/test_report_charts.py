"""Pictures of `sparsewire lab report`: ticks, numbers and lines that can be told apart."""

from __future__ import annotations

import pytest

from sparsewire.lab import measure

if not measure.has("matplotlib") or not measure.has("jinja2"):
    pytest.skip("matplotlib or jinja2 is not installed", allow_module_level=True)


from report_page import labels

from sparsewire.lab.report.charts import Axis, Line, Mark, plot, swatch
from sparsewire.lab.report.data import Style
from sparsewire.lab.report.units import compact, seconds


def ticks(low: float, high: float, log: bool = False) -> list[str]:
    line = Line(Style(0, 0), [Mark(low, 0), Mark(high, 0)])
    return labels(plot("", [line], Axis("", log), Axis("", at=[0])))[:-1]


def test_ticks_that_are_close_have_labels_that_differ():
    for low, high in ((96.81, 96.94), (0.9516, 0.9633), (5.0001, 5.0004), (0, 1), (1_234_500, 1_234_600)):
        words = ticks(low, high)
        assert len(words) > 2 and len(set(words)) == len(words)
    assert ticks(0, 1000) == ["0", "200", "400", "600", "800", "1k"]
    assert len(ticks(2.5, 3.0, log=True)) > 1, "though no power of ten is near"


def test_numbers_are_rounded_to_the_unit_that_they_come_to():
    assert [compact(value) for value in (999.7, 999_700, 2.5e12, 1e30)] == ["1k", "1M", "2.5T", "1e+30"]
    shown = [seconds(ms / 1e3) for ms in (0, 0.24, 2.44, 9.96, 43.4, 999.4, 999.7, 1500)]
    assert shown == ["0 ms", "0.24 ms", "2.4 ms", "10 ms", "43 ms", "999 ms", "1.0 s", "1.5 s"]


def test_lines_differ_without_their_colours():
    """By dashes alone, as far as there are patterns, and marks by their shapes; legends show no more than that."""

    def drawn(marked: bool, count: int) -> set[str]:
        styles = (Style(0, place) for place in range(count))
        ends = [Mark(0, 0), Mark(1, 1)]
        return {plot("", [Line(one, ends, not marked, marked)], Axis(""), Axis("")) for one in styles}

    assert len(drawn(marked=False, count=12)) == 12 and len(drawn(marked=True, count=14)) == 14
    stroke, mark = swatch(Style(0, 0), ("stroke",)), swatch(Style(0, 0), ("mark",))
    assert "translate" in mark and "translate" not in stroke and mark.count("<path") == stroke.count("<path") == 1
