"""`sparsewire lab report`: what the page says is in the results, every figure leads to its line, nothing is loaded."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from command_line import fails

from sparsewire.lab import measure

if not measure.has("matplotlib") or not measure.has("jinja2"):
    pytest.skip("matplotlib or jinja2 is not installed", allow_module_level=True)

from lab_records import all_records, diverged, failed, rates, record, save, validated, with_settings
from report_page import Page, labels, reported

from sparsewire.lab.report.units import seconds

SECTIONS = [
    "Headline", "Time to accuracy", "Accuracy against bytes", "Loss curves", "Step time by stage",
    "Bytes against ranks", "Rate and distortion", "What failed", "Lines of results",
]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Page, str, Path]:
    folder = tmp_path_factory.mktemp("report")
    (folder / "rates.json").write_text(json.dumps(rates(), indent=2))
    page, text = reported(folder, all_records(), folder / "rates.json")
    return page, text, folder / "out" / "report.html"


def test_it_has_all_sections_and_loads_nothing(whole):
    page, text, _ = whole
    assert page.titles == SECTIONS and page.others == []
    assert "default-src 'none'" in text and "prefers-color-scheme: dark" in text


def test_pictures_have_the_pages_colours_and_fonts_so_that_they_suit_a_dark_page(whole):
    pictures = re.findall(r"<svg.*?</svg>", whole[1], re.DOTALL)
    assert len(pictures) > 20 and not any(re.search(r"#[0-9a-f]{6}|font-family|font:", one) for one in pictures)
    assert all(f"--c{place}:" in whole[1] for one in pictures for place in re.findall(r"var\(--c(\d+)\)", one))


def test_what_results_say_is_text_in_the_page(tmp_path):
    told = record("synthetic-25m", "topk(1%) | values=<&>", "1gbit", name="<script>alert(1)</script> $x^2$\x1b")
    page, text = reported(tmp_path, [told, failed("mlp-digits", "fp16", "1gbit")])
    assert headline_row(page, "synthetic-25m", "<script>alert(1)</script> $x^2$\x1b")
    assert text.count("<script>") == 1 and "&lt;script&gt;alert(1)&lt;/script&gt; $x^2$</text>" in text
    assert "rank 1 failed: &lt;no&gt; luck" in text


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_without_its_packages_it_says_what_to_install(monkeypatch, tmp_path, capsys, package):
    path = save(tmp_path / "r.jsonl", [record("synthetic-25m", "ddp", "1gbit")])
    monkeypatch.setattr(measure, "has", lambda name: name != package)
    said = fails(capsys, "lab", "report", path, "-o", tmp_path / "r.html")
    assert f"needs {package}: pip install 'sparsewire[report]'" in said


def test_every_figure_leads_to_a_line_of_results(whole):
    page, _, _ = whole
    assert len(set(page.ids)) == len(page.ids)
    assert page.links == set(page.ids), "no link leads nowhere, and every line is referred to"


def test_every_picture_says_what_it_shows(whole):
    page, _, _ = whole
    assert len(page.pictures) > 8 and all(len(words) > 40 for words in page.pictures)
    assert any("topk(1%) | values=<&> 96." in words for words in page.pictures)


def test_the_headline_is_what_was_measured(whole):
    page, _, _ = whole
    plain, ours = record("synthetic-25m", "ddp", "100mbit"), record("synthetic-25m", "topk(1%) | values=<&>", "100mbit")
    row = next(row for row in page.rows if row[:2] == ["synthetic-25m", "100mbit"] and row[3].startswith("topk"))
    assert row[4] == f"{ours['step_ms']:,.0f} ms" and row[5] == f"{plain['step_ms'] / ours['step_ms']:.2f}"
    assert row[7] == f"{plain['bytes_per_step'] / ours['bytes_per_step']:,.1f}" and row[-1] == "a4"
    digits = next(row for row in page.rows if row[0] == "mlp-digits" and row[3] == "fp16")
    assert digits[8:] == ["96.79", "-0.06", "2", "a20, a25"], "the mean of two seeds"


def test_time_to_accuracy_is_the_first_test_that_reached_it(whole):
    page, _, _ = whole
    row = next(row for row in page.rows if row[0] == "mlp-digits, 4 ranks, 100mbit" and row[1] == "fp16")
    one = record("mlp-digits", "fp16", "100mbit")
    assert row[3] == f"{sum(one['step_seconds']):.1f} s", "only the test at the end is within 2 %"


def test_sections_without_data_are_left_out(tmp_path):
    page, _ = reported(tmp_path, [record("synthetic-25m", "ddp", "1gbit")])
    assert page.titles == ["Headline", "Step time by stage", "Lines of results"]


def test_a_failure_that_was_made_good_is_not_reported(tmp_path):
    page, _ = reported(tmp_path, [failed("mlp-digits", "ddp", "1gbit"), record("mlp-digits", "ddp", "1gbit")])
    assert "What failed" not in page.titles and page.ids == ["r0-2"]


def test_what_is_no_result_is_refused(tmp_path, capsys):
    (tmp_path / "a.json").write_text('{"rows": []}')
    assert "no results" in fails(capsys, "lab", "report", tmp_path / "a.json", "-o", tmp_path / "r.html")
    (tmp_path / "b.json").write_text("")
    assert "no results" in fails(capsys, "lab", "report", tmp_path / "b.json", "-o", tmp_path / "r.html")


def headline_row(page: Page, workload: str, method: str) -> list[str]:
    (found,) = [row for row in page.rows if row[0] == workload and row[3] == method]
    return found


def test_a_training_that_diverged_is_shown_as_that(tmp_path):
    plain = record("gpt-text", "ddp", "1gbit", score=1.5, score_kind="loss")
    page, text = reported(tmp_path, [plain, diverged("gpt-text", "fp16", "1gbit")])
    assert headline_row(page, "gpt-text", "fp16")[8:10] == ["diverged", ""]
    assert ["gpt-text, 4 ranks, 1gbit", "fp16", "1.530", "not reached", "", "2"] in page.rows
    assert ["fp16", "2.350", "diverged", "2"] in page.rows, "the first loss, and the mean of the last"
    curve = re.findall(r'<path d="([^"]*)"[^>]*stroke: var\(--c1\)', text.partition("Loss curves")[2])[0]
    assert len(re.findall("[ML]", curve)) == 60, "of 120 steps"


def test_noise_has_no_loss_curve_however_long_it_was_trained(tmp_path):
    page, _ = reported(tmp_path, [record("synthetic-25m", "ddp", "1gbit", loss=[7.0] * 40, step_seconds=[0.1] * 40)])
    assert "Loss curves" not in page.titles


def test_on_a_phone_a_method_stays_beside_its_figures(whole):
    _, text, _ = whole
    table = text.partition("all methods at all settings")[2].partition("</table>")[0]
    rows = [re.findall(r'<t[hd][^>]*class="[^"]*stays[^"]*"[^>]*>(.*?)</t', row) for row in table.split("<tr>")[1:]]
    assert len(rows) == 24 and all(len(row) == 1 for row in rows) and "method" in rows[0][0] and rows[1] == ["ddp"]
    assert re.search(r"@media \(max-width: 50rem\) { \.stays { position: sticky; left: 0", text)


def test_times_of_all_lengths_can_be_told_apart(whole):
    """Methods may differ by a factor of a hundred."""
    time = whole[1].partition("Time to accuracy")[2].partition("</svg>")[0]
    marks = [float(x) for x in re.findall(r'translate\(([\d.]+) [\d.]+\)" style="fill: var\(--c0\)', time)]
    assert marks[1] - marks[0] > 1.5 * (marks[2] - marks[1]), "on a logarithmic axis"


def test_one_seed_that_diverged_of_two_takes_the_score(tmp_path):
    good = record("gpt-text", "fp16", "1gbit", score=1.5, score_kind="loss")
    page, _ = reported(tmp_path, [good, diverged("gpt-text", "fp16", "1gbit", seed=2)])
    assert headline_row(page, "gpt-text", "fp16")[8] == "1 of 2 diverged"


def test_trainings_that_all_diverged_at_once_are_reported(tmp_path):
    lost = diverged("gpt-text", "ddp", "1gbit")
    page, _ = reported(tmp_path, [{**lost, "loss": [None] * 120, "history": [[30, 1.0, None], [60, 2.0, None]]}])
    assert headline_row(page, "gpt-text", "ddp")[8] == "diverged" and "Accuracy against bytes" not in page.titles


def test_one_rank_sends_nothing_and_is_no_point_of_bytes_against_ranks(tmp_path):
    alone = record("synthetic-25m", "ddp", "1gbit", 1, bytes_per_step=0, sent=[0])
    page, _ = reported(tmp_path, [alone, *(record("synthetic-25m", "ddp", "1gbit", ranks) for ranks in (2, 4))])
    said = next(words for words in page.pictures if words.startswith("Bytes a step against ranks"))
    assert "2 ranks" in said and "4 ranks" in said and "1 ranks" not in said


def test_numbers_of_ranks_are_where_the_axis_is_marked(tmp_path):
    _, text = reported(tmp_path, [record("synthetic-25m", "ddp", "1gbit", ranks) for ranks in (2, 4, 6)])
    picture = text.partition("Bytes against ranks")[2].partition("</svg>")[0]
    assert labels(picture)[:3] == ["2", "4", "6"]


def test_a_method_keeps_its_name_when_it_is_run_again_without_one(tmp_path):
    named = record("synthetic-25m", "ddp", "1gbit", name="plain DDP")
    page, _ = reported(tmp_path, [named, record("synthetic-25m", "ddp", "100mbit", name="ddp")])
    assert [row[3] for row in page.rows[1:3]] == ["plain DDP"] * 2


def test_only_seeds_are_averaged(tmp_path):
    """Each learning rate has a row of its own, and is compared with plain DDP's at the same one."""
    scores = {("ddp", 0.1): 0.9, ("ddp", 0.2): 0.8, ("fp16", 0.1): 0.91, ("fp16", 0.2): 0.82}
    page, _ = reported(tmp_path, [
        with_settings(record("mlp-digits", method, "1gbit", seed=seed, score=score), learning_rate=rate)
        for (method, rate), score in scores.items() for seed in (1, 2)
    ])  # fmt: skip
    rows = {row[3]: row[8:11] for row in page.rows if row[0] == "mlp-digits"}
    assert rows == {
        "ddp, learning_rate 0.1": ["90.00", "", "2"], "ddp, learning_rate 0.2": ["80.00", "", "2"],
        "fp16, learning_rate 0.1": ["91.00", "+1.00", "2"], "fp16, learning_rate 0.2": ["82.00", "+2.00", "2"],
    }  # fmt: skip


def test_methods_that_were_timed_for_other_numbers_of_steps_are_compared_without_a_word(tmp_path):
    slow = with_settings(record("synthetic-25m", "ddp", "1gbit"), steps=3, warmup=1)
    page, _ = reported(tmp_path, [slow, record("synthetic-25m", "fp16", "1gbit")])
    assert headline_row(page, "synthetic-25m", "fp16")[7] == "2.0" and headline_row(page, "synthetic-25m", "ddp")
    page, _ = reported(tmp_path, [slow, record("synthetic-25m", "ddp", "1gbit")])
    assert headline_row(page, "synthetic-25m", "ddp, steps 3, warmup 1")[-2] == "1", "but never averaged"


def test_ranks_of_a_node_are_told_apart(tmp_path):
    flat = [record("synthetic-25m", "ddp", "1gbit", ranks) for ranks in (4, 8)]
    page, _ = reported(tmp_path, [*flat, *(with_settings(one, ranks_per_node=2) for one in flat)])
    assert page.rows[0][2:4] == ["ranks", "ranks a node"]
    assert [row[2:4] for row in page.rows[1:5]] == [["4", "1"], ["8", "1"], ["4", "2"], ["8", "2"]]
    said = [words for words in page.pictures if words.startswith("Bytes a step against ranks")]
    assert len(said) == 2 and "synthetic-25m, 2 a node, 1gbit" in said[1]


def test_time_to_accuracy_compares_validation_scores(tmp_path):
    """The target is plain DDP's last one, whatever it has on the test data."""
    plain = validated(record("mlp-digits", "ddp", "1gbit", score=0.99), 0.5)
    page, text = reported(tmp_path, [plain, validated(record("mlp-digits", "fp16", "1gbit"), 0.96)])
    row = next(row for row in page.rows if row[:2] == ["mlp-digits, 4 ranks, 1gbit", "fp16"])
    assert row[2] == "49.00" and row[3] == seconds(record("mlp-digits", "fp16", "1gbit")["history"][2][1])
    time = text.partition("Time to accuracy")[2].partition("</section>")[0]
    assert "validation accuracy in %" in time and "test data" not in time and "99.00" not in time


def test_older_results_end_with_the_test_score(whole):
    time = whole[1].partition("Time to accuracy")[2].partition("</section>")[0]
    assert "test accuracy in %" in time and "validation accuracy" not in time and "on the test data" in time


def test_results_are_not_overwritten(tmp_path, capsys):
    path = save(tmp_path / "r.jsonl", [record("synthetic-25m", "ddp", "1gbit")])
    before = path.read_bytes()
    (tmp_path / "link.html").symlink_to(path)
    for output in (path, tmp_path / "link.html"):
        assert "would be overwritten" in fails(capsys, "lab", "report", path, "-o", output)
    assert path.read_bytes() == before


def test_records_without_key_or_machine_are_shown_and_others_not_counted(tmp_path, capsys):
    one = {name: value for name, value in record("synthetic-25m", "ddp", "1gbit").items() if name != "machine"}
    two = {name: value for name, value in record("synthetic-25m", "fp16", "1gbit").items() if name != "key"}
    page, text = reported(tmp_path, [one, two, two, {"rows": []}])
    assert "report.html: 2 results" in capsys.readouterr().out and "<p>2 results of" in text
    assert page.ids == ["r0-1", "r0-3"], "the later of two that are the same"


def test_what_a_record_lacks_is_named(tmp_path, capsys):
    whole = record("synthetic-25m", "ddp", "1gbit")
    for broken, what in (
        ({**whole, "cell": {"workload": "a"}}, "method, rate"),
        ({"cell": whole["cell"]}, "name, score"),
    ):
        path = save(tmp_path / "a.jsonl", [whole, broken])
        assert f"line 2 is no result of `lab train`: it has no {what}" in fails(
            capsys, "lab", "report", path, "-o", tmp_path / "r.html"
        )


def test_twelve_stages_have_twelve_colours(tmp_path):
    stages = {f"stage {number}": 5.0 for number in range(9)}
    _, text = reported(tmp_path, [record("synthetic-25m", "topk(1%) | values=<&>", "1gbit", stages_ms=stages)])
    legend = text.partition("Step time by stage")[2].partition("<details>")[0].partition('class="legend"')[2]
    assert len(set(re.findall(r"fill: var\((--c\d+)\)", legend))) == 12


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_shows_it_without_complaint(whole, tmp_path):
    """The script sorts the first table by its fifth column, when a copy of the page clicks on it."""
    dom = clicked(whole[1], 4, tmp_path, "r0-3")
    assert re.search(r'<details id="r0-3" open', dom), "the line that is asked for is unfolded"
    steps = [row[4] for row in Page(dom).rows[1:24]]
    assert steps[0] == "400 ms" and steps[-1] == "20.5 s" and 'aria-sort="ascending"' in dom


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_links_are_sorted_by_their_rate_and_lines_by_their_number(tmp_path):
    rates = ["unlimited", "10gbit", "100mbit", "1gbit", "500kbit"] + [f"{number}mbit" for number in range(1, 8)]
    _, text = reported(tmp_path, [record("synthetic-25m", "ddp", rate) for rate in rates])
    links = [row[1] for row in Page(clicked(text, 1, tmp_path)).rows[1:13]]
    assert [*links[:2], *links[-4:]] == ["500kbit", "1mbit", "100mbit", "1gbit", "10gbit", "unlimited"]
    lines = [row[-1] for row in Page(clicked(text, 11, tmp_path)).rows[1:13]]
    assert lines == [str(number) for number in range(1, 13)]


def clicked(text: str, column: int, folder: Path, place: str = "") -> str:
    """What a browser makes of a copy of the page, with a click on a column's head."""
    click = f"<script>document.querySelectorAll('th button')[{column}].click()</script>\n</body>"
    copy = folder / "clicked.html"
    copy.write_text(text.replace("</body>", click))
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    words += ["--no-first-run", "--disable-sync", "--disable-background-networking", "--disable-component-update"]
    command = ["chromium", *words, f"--user-data-dir={folder / 'user'}", f"{copy.as_uri()}#{place}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and "CONSOLE" not in done.stderr, done.stderr
    return done.stdout
