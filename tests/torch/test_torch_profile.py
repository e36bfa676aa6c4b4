"""`link.stats()["profile"]` and `link.trace` on real ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch_pool import Pool

from sparsewire.errors import InputError
from sparsewire.training.trace import Trace

KINDS: dict[str, dict[str, Any]] = {"parameters": {}, "model": {"select_per": "model"}, "clipped": {"clip_norm": 1.0}}


@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_of_a_step_add_up_to_it(ranks: Pool, kind: str) -> None:
    for found in ranks.play("profile.parts_add_up", **KINDS[kind]):
        assert found["steps"] == 5


def test_a_trace_has_nested_events_of_as_many_steps_as_were_asked_for(ranks: Pool, tmp_path: Path) -> None:
    events = ranks.play("profile.traces", folder=str(tmp_path), steps=3)[0]
    named = [event["name"] for event in events]
    assert named.count("compute") == named.count("end of the step") == 3
    assert named.count("all_gather") >= 6 and {"select", "encode", "decode", "keep", "accumulate"} <= {*named}
    assert {event["name"] for event in events if event["ph"] == "i"} == {
        event["name"] for event in events if event["ph"] == "X" and event["name"].startswith("bucket")
    }
    assert all(event["args"]["bytes"] > 0 for event in events if event["name"] == "all_gather")


def test_the_stages_of_a_trace_cover_what_the_communication_thread_does(ranks: Pool, tmp_path: Path) -> None:
    events = ranks.play("profile.traces", folder=str(tmp_path), steps=4, select_per="model")[0]
    spans = [event for event in events if event["ph"] == "X" and event["tid"] == 1]
    inside = {"select", "select again", "encode", "exchange", "decode", "keep", "accumulate", "dense"}
    busy = sum(span["dur"] for span in spans if span["name"].startswith(("bucket", "end of")))
    assert 0 < sum(span["dur"] for span in spans if span["name"] in inside) <= busy + 100


def test_what_there_is_of_a_trace_is_written_at_detach(ranks: Pool, tmp_path: Path) -> None:
    assert min(ranks.play("profile.trace_ends_with_the_link", folder=str(tmp_path))) > 0


@pytest.mark.parametrize("steps", [0, 1001, True, 2.5])
def test_a_trace_of_no_number_of_steps_is_refused(tmp_path: Path, steps: Any) -> None:
    with pytest.raises(InputError, match=r"link\.trace\(path, steps=10\)"):
        Trace(tmp_path / "trace.json", steps)


def test_a_trace_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        Trace(tmp_path / "nowhere" / "trace.json", 1)
