"""`ap.ablate` and what it returns."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
import pytest
from refusals import names, naming, refuses, value_of

import adapter_probe as ap
from adapter_probe import custom_metric
from adapter_probe.analysis import ablation_tables
from adapter_probe.analysis.summary_text import score_text
from adapter_probe.figures import attribution
from adapter_probe.figures.venues import PAPER, FigureOptions
from adapter_probe.results.atomic import read_json
from adapter_probe.wording import ALL_OFF

matplotlib.use("agg")


def test_loading_gives_what_was_computed(study):
    loaded = ap.load(study.folder)
    for name in ("spans", "layers", "removable"):
        pd.testing.assert_frame_equal(getattr(loaded, name), getattr(study, name), check_dtype=False)
    assert loaded.summary.to_dict() == read_json(study.folder / "summary.json")
    assert loaded.summary == study.summary
    np.testing.assert_array_equal(loaded.predictions, study.predictions)
    assert loaded.record.identity == study.record.identity


@pytest.mark.slow
def test_progress_can_be_silenced(checkpoint, tmp_path, capfd):
    ap.ablate(checkpoint, out=tmp_path / "quiet", max_examples=4, progress=False)
    assert capfd.readouterr() == ("", "")
    ap.ablate(checkpoint, out=tmp_path / "loud", max_examples=4)
    said = capfd.readouterr()
    assert (said.out, "ablate" in said.err) == ("", True)


def test_a_plan_counts_the_work_and_writes_nothing(checkpoint, study, capfd):
    before = sorted([*checkpoint.rglob("*"), *study.folder.rglob("*")])
    rows = [
        {"text": text, "label": label}
        for text in ("good cat", "bad dog")
        for label in ("positive", "negative")
    ]
    plan = ap.ablate.plan(checkpoint, data=rows, spans="single", progress=False)
    assert capfd.readouterr() == ("", "")
    assert (plan.n_variants, plan.n_spans, plan.n_examples) == (5, 3, 4)  # intact, single layers, all off
    assert (plan.separate_layer_evaluations, plan.parts_done, plan.parts) == (5 * 3, 0, 1)
    assert plan.seconds_left > plan.seconds_computing > 0
    of_the_process = plan.device == "cpu"  # elsewhere it is what the device's tensors need
    assert plan.peak_memory_bytes > (1e7 if of_the_process else 1e6)
    assert plan.folder.parent == checkpoint
    assert "variants 5 (3 spans)" in " ".join(repr(plan).split())
    assert "<th>variants</th><td>5 (3 spans)</td>" in plan._repr_html_()
    done = ap.ablate.plan(checkpoint, out=study.folder, progress=False)
    assert (done.parts_done, done.seconds_computing) == (done.parts, 0)
    assert sorted([*checkpoint.rglob("*"), *study.folder.rglob("*")]) == before


def test_repr_is_three_lines_and_html_holds_the_heatmap(study):
    lines = repr(study).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("Ablation of ")
    assert "intact" in lines[1]
    html = study._repr_html_()
    assert html.startswith('<img src="data:image/png;base64,')
    assert ALL_OFF in html


def test_f1_names_its_positive_class(checkpoint, tmp_path):
    f1_score = pytest.importorskip("sklearn.metrics").f1_score
    study = ap.ablate(checkpoint, out=tmp_path, metric="f1", progress=False)
    name, results = dict(study.rows())["positive class"], study.results
    assert name in results.label_names
    truth, said = (np.array(results.label_names)[row] for row in (results.scored_with, study.predictions[0]))
    assert study.summary.intact_score == pytest.approx(f1_score(truth, said, pos_label=name))
    other = next(other for other in results.label_names if other != name)
    assert study.summary.intact_score != pytest.approx(f1_score(truth, said, pos_label=other))


@pytest.mark.parametrize(
    ("settings", "part", "removed"),
    [
        pytest.param({"layers": "0-1"}, "layers 0-1", ("layers 0-1", "off"), marks=pytest.mark.slow),
        ({"sites": "ffn"}, "feed-forward", ("all feed-forward", "off")),
        (
            {"sites": "attention", "layers": "1-2"},
            "attention of layers 1-2",
            ("attention", "layers 1-2", "off"),
        ),
    ],
)
def test_what_is_off_in_a_study_of_a_part_is_not_called_all(checkpoint, tmp_path, settings, part, removed):
    part_of = ap.ablate(checkpoint, out=tmp_path / "a", progress=False, **settings)
    assert names(value_of(part_of.rows(), ALL_OFF), part, "only")
    told = part_of.summary.removed
    assert names(told, *removed)
    assert ap.load(tmp_path / "a").summary.removed == told
    if "layers" not in settings:
        (drawing,) = attribution.drawings([part_of.record], FigureOptions(PAPER))
        assert told in drawing.caption


def test_a_heatmap_is_drawn_on_the_axes_given(study):
    from matplotlib import pyplot as plt

    before = dict(matplotlib.rcParams)
    figure, axes = plt.subplots(1, 2)
    assert study.heatmap(ax=axes[1]) is axes[1]
    assert study.attribution(ax=axes[0]) is axes[0]
    figure.canvas.draw()
    plt.figure()
    assert study.heatmap() is plt.gca()  # the current one, which is empty; otherwise a new figure
    assert len({id(one.figure) for one in (study.heatmap(), study.heatmap(), study.attribution())}) == 3
    for wrong in (3, axes, figure):
        refuses(ap.ResultsError, ("ax", "Axes"), study.heatmap, wrong)
    plt.close("all")
    assert dict(matplotlib.rcParams) == before


@pytest.mark.slow
def test_save_writes_figures_tables_and_captions(study, tmp_path):
    paths = study.save(tmp_path / "figures", style="icml", formats=("png",))
    names = {path.name for path in paths}
    assert {"heatmap.png", "heatmap.csv", "heatmap.txt", "attribution.png"} <= names
    assert all(path.stat().st_size for path in paths)
    for wrong, word in (
        ({"style": "nature"}, "icml"),
        ({"formats": ("gif",)}, "pdf"),
        ({"tolerance": -1}, "0"),
        ({"column": "wide"}, "half, full"),
    ):
        with pytest.raises(ap.ResultsError, match=word):
            study.save(tmp_path / "x", **wrong)


@pytest.mark.slow
def test_one_of_several_needs_no_list(study, tmp_path):
    one = study.save(tmp_path, formats="png", only="heatmap", labels="own")
    assert [path.name for path in one] == ["heatmap.png", "heatmap.csv", "heatmap.txt"]
    assert ap.report(str(study.folder), tmp_path / "report.html").path.is_file()
    refuses(ap.ResultsError, ("2", "1"), ap.average, study)


def test_a_function_as_the_metric(study, checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(ablation_tables, "draws_for", lambda _: 500)  # each calls the function

    def balanced(labels, predictions):
        return np.mean([(predictions[labels == c] == c).mean() if (labels == c).any() else 0 for c in (0, 1)])

    own = ap.ablate(checkpoint, metric=balanced, max_examples=12, out=tmp_path, progress=False)
    labels, predictions = own.results.scored_with, own.results.predictions
    assert own.summary.metric == "custom:balanced (share)"
    assert own.summary.intact_score == pytest.approx(balanced(labels, predictions[0]))
    assert ap.load(tmp_path).summary.metric == "custom:balanced (share)"
    assert "balanced" in repr(own)


def test_a_slow_function_is_called_less_often_and_that_is_said_first(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(custom_metric, "_LONGEST", 1e-9)  # seconds, in which no call ends
    called = [0]

    def hits(labels, predictions):
        called[0] += 1
        return float((labels == predictions).mean())

    study = ap.ablate(checkpoint, metric=hits, spans="single", max_examples=12, out=tmp_path, progress=False)
    n_variants = len(study.results.masks) + 1  # and always the most frequent class
    assert any(names(line, "hits takes", "1,000 resamples", "10,000") for line in study.question)
    # The resamples, every example left out, and scores of all examples.
    assert 1_000 * n_variants <= called[0] <= (1_000 + 12 + 20) * n_variants


def test_a_function_without_a_number_for_the_intact_model_is_no_metric(checkpoint, tmp_path):
    for value in (float("nan"), float("inf")):
        with pytest.raises(ap.DataError, match=naming("NaN", "infinity", "intact")):
            ap.ablate(
                checkpoint, metric=lambda labels, predictions, value=value: value, spans="single",
                max_examples=12, out=tmp_path, progress=False,
            )  # fmt: skip
        assert not (tmp_path / "summary.json").exists()


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        ("accuracy", "81.2%"),
        ("squad_f1", "81.2%"),
        ("exact_match", "81.2%"),
        ("greedy_accuracy", "81.2%"),
        ("mcc", "0.812"),
        ("nll", "0.812 nats"),
        ("perplexity", "0.812"),
    ],
)
def test_scores_are_printed_in_the_units_of_the_figures(metric: str, text: str):
    assert score_text(0.8123, metric) == text
