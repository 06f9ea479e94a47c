"""`ap.compare` and `ap.average`, against numbers put together by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from refusals import names, naming, says, value_of
from typer.testing import CliRunner

import adapter_probe as ap
from adapter_probe.analysis.comparing import average_ablations, compare_ablations
from adapter_probe.analysis.summary_text import average_rows, comparison_rows
from adapter_probe.cli.main import app
from adapter_probe.errors import ResultsError
from adapter_probe.figures import joint as joint_figure
from adapter_probe.figures.levels import drop_scale
from adapter_probe.figures.report.ablation_section import average_study
from adapter_probe.figures.venues import PAPER, FigureOptions
from adapter_probe.wording import ALL_OFF


def test_a_difference_of_drops(study, other):
    spans = ap.compare(study, other.folder).spans
    drops = [-one.spans["delta_points"].to_numpy() for one in (study, other)]
    np.testing.assert_allclose(spans["difference_points"], drops[1] - drops[0], atol=1e-9)
    np.testing.assert_allclose(spans["drop_a_points"], drops[0], atol=1e-9)
    assert (spans["ci_low_points"] <= spans["difference_points"]).all()
    assert (spans["difference_points"] <= spans["ci_high_points"]).all()
    back = ap.compare(other, study).spans
    np.testing.assert_allclose(back["difference_points"], -spans["difference_points"], atol=1e-9)
    np.testing.assert_allclose(back["ci_low_points"], -spans["ci_high_points"], atol=1e-9)


def test_a_study_is_not_compared_with_itself(study):
    with pytest.raises(ResultsError, match=naming(str(study.folder), "twice", "two")):
        ap.compare(study, study.folder)


def test_a_study_does_not_differ_from_its_copy(study, copied):
    spans = ap.compare(study, copied).spans
    assert (spans[["difference_points", "ci_low_points", "ci_high_points"]] == 0).all().all()
    assert (spans["p_value"] == 1).all()
    assert not spans["significant"].any()
    rows = ap.compare(study, copied).rows()
    assert value_of(rows, "largest", "in a") == value_of(rows, "largest", "in b") == "none"


def test_summaries_name_the_largest_difference_in_its_unit(study, other):
    """The largest excess on each side; of a loss in nats, whose points are hundredths."""
    found, mean = ap.compare(study, other), ap.average([study, other])
    top = found.spans.loc[found.spans["difference_points"].idxmax()]
    wanted = f"difference {top['difference_points']:+.1f} points" if top["difference_points"] > 0 else "none"
    assert wanted in value_of(found.rows(), "largest", "in b")
    of_loss = comparison_rows(replace(found.record, metric="nll"))
    low = found.spans["difference_points"].min()
    wanted = f"difference {low / 100:+.3f} nats" if low < 0 else "none"
    assert wanted in value_of(of_loss, "largest", "in a")
    whole = mean.spans.loc[mean.spans["n_layers"].idxmax()]
    told = value_of(average_rows(replace(mean.record, metric="nll")), ALL_OFF)
    drop, _, spread = told.partition(", ")
    assert f"{abs(whole['delta_points']) / 100:.3f} nats" in drop
    assert names(spread, "standard deviation", f"{whole['sd_points'] / 100:.3f} nats")


@pytest.mark.slow
def test_no_sentence_recommends_by_a_study_that_is_not_informative(study, other):
    """The declaration is the summary's; what joins several studies takes it over from each."""
    reason = "The intact model is not better than always answering with the same class."

    def told(one, warning):
        return replace(one, record=replace(one.record, summary=replace(one.summary, warning=warning)))

    warned, study, other = told(study, reason), told(study, None), told(other, None)
    assert any("span" in name and "within" in name for name, _ in study.rows())
    assert not any("span" in name and "within" in name for name, _ in warned.rows())
    for made in (ap.compare, lambda a, b: ap.average([a, b]), ap.compare_data):
        assert dict(made(study, study if made is ap.compare_data else other).rows()).get("note") is None
        joint = made(warned, study if made is ap.compare_data else other)
        assert reason in dict(joint.rows())["note"]
        (drawing,) = joint_figure.drawings([joint.record], FigureOptions(PAPER))
        assert reason in drawing.caption
    mean = average_study(ap.average([warned, other]).record, drop_scale(np.zeros(1)), 1.0, (), "m")
    assert reason in mean.warning
    for step in mean.steps:
        assert step["estimate"] is None
        assert step["bound"] is None
        assert not any("can be" in part for one in step["advice"] for part in one if isinstance(part, str))


@pytest.mark.parametrize(
    "settings",
    [{"spans": "single"}, pytest.param({"complement": True}, marks=pytest.mark.slow)],
    ids=["single", "kept"],
)
@pytest.mark.slow
def test_a_mean_says_what_everything_off_costs(study, other, checkpoint, tmp_path, settings):
    """Also where it is no span of the studies, whose longest span is another variant."""
    made = [
        ap.ablate(one, out=tmp_path / name, progress=False, **settings)
        for one, name in ((checkpoint, "one"), (other.folder.parent, "two"))
    ]
    deltas = [one.summary.removed_delta_points for one in (study, other)]
    mean, spread = np.mean(deltas), np.std(deltas, ddof=1)
    drop = f"{'drop' if mean <= 0 else 'gain'} {abs(mean):.1f} points"
    told = value_of(ap.average(made).rows(), ALL_OFF)
    assert told.startswith(f"{drop}, ")
    assert names(told.removeprefix(drop), "standard deviation", f"{spread:.1f} points")


@pytest.mark.slow
def test_spans_kept_on_are_not_drawn_as_switched_off(other, checkpoint, tiny_task, tmp_path):
    """Axes and captions of differences, means and two data sets say what was done to the spans."""
    settings = {"complement": True, "against": tiny_task / "train.jsonl", "progress": False}
    made = [
        ap.ablate(one, out=tmp_path / name, **settings)
        for one, name in ((checkpoint, "one"), (other.folder.parent, "two"))
    ]
    for joint in (ap.compare(*made), ap.average(made)):
        assert names(joint.heatmap(plt.figure().subplots()).get_xlabel(), "last layer", "kept on")
        caption = next(joint_figure.drawings([joint.record], FigureOptions(PAPER))).caption
        assert says(caption, "only", "span of layers", "kept on")
        assert "switched off" not in caption
    across = ap.compare_data(made[0], made[0].against)
    named = [name for name, _ in across.rows() if name.startswith("frontier: ")]
    assert all(name.endswith("kept on") for name in named)
    words = [text.get_text() for text in across.plot(plt.figure().subplots()).get_legend().get_texts()]
    assert any(names(word, "1 layer", "kept on") for word in words)
    plt.close("all")


def test_the_interval_is_of_paired_resamples(study, other):
    """The bootstrap written out: the same examples drawn for both studies."""
    right = [one.results.predictions == one.results.scored_with for one in (study, other)]
    n, draw = len(study.results.scored_with), np.random.default_rng(3)
    values = [one[1].astype(float) - one[0] for one in right]  # span 0-0 against the intact model
    picked = draw.integers(0, n, (4000, n))
    difference = 100 * (values[0][picked].mean(axis=1) - values[1][picked].mean(axis=1))
    expected = np.quantile(difference, [0.025, 0.975])
    record = compare_ablations(study.results, other.results)
    got = record.spans.loc[0, ["ci_low_points", "ci_high_points"]].to_numpy(float)
    np.testing.assert_allclose(got, expected, atol=1.5 + 100 / n)


def test_a_mean_over_seeds(study, other):
    mean = ap.average([study, other.folder]).spans
    deltas = np.stack([one.spans["delta_points"] for one in (study, other)])
    np.testing.assert_allclose(mean["delta_points"], deltas.mean(axis=0), atol=1e-9)
    np.testing.assert_allclose(mean["sd_points"], np.std(deltas, axis=0, ddof=1), atol=1e-9)
    np.testing.assert_allclose(mean["max_points"], deltas.max(axis=0), atol=1e-9)
    assert (mean["n_studies"] == 2).all()
    ranked = mean.sort_values("p_value", ignore_index=True)  # Holm's steps, written out
    stepped = (ranked["p_value"] * np.arange(len(ranked), 0, -1)).cummax().clip(upper=1)
    np.testing.assert_allclose(ranked["p_holm"], stepped)
    assert (mean["significant"] == (mean["p_holm"] < 0.05)).all()


def test_equal_seeds_leave_the_examples_uncertainty_alone(study):
    record = average_ablations([study.results] * 3)
    assert record.names == ("1", "2", "3")
    single = study.spans
    for name in ("ci_low_points", "ci_high_points"):
        np.testing.assert_allclose(record.spans[name], single[name], atol=1.0)
    np.testing.assert_allclose(record.spans["sd_points"], 0, atol=1e-12)


def test_more_spread_over_seeds_makes_a_wider_interval(study, other):
    width = lambda frame: (frame["ci_high_points"] - frame["ci_low_points"]).mean()  # noqa: E731
    both = average_ablations([study.results, other.results]).spans
    alone = np.mean([width(average_ablations([one.results] * 2).spans) for one in (study, other)])
    assert width(both) > alone


@pytest.mark.slow
def test_other_examples_are_refused(study, other, checkpoint, tmp_path):
    fewer = ap.ablate(checkpoint, out=tmp_path / "fewer", max_examples=6, progress=False)
    partial = ap.ablate(checkpoint, out=tmp_path / "kept", complement=True, progress=False)
    renamed = replace(other, _results=replace(other.results, metric="mcc"))
    for action, done in ((ap.compare, "compared"), (lambda *two: ap.average(two), "averaged")):
        for one, word in ((fewer, done), (partial, "kept"), (renamed, "mcc")):
            with pytest.raises(ap.ResultsError, match=naming(word)):
                action(study, one)


@pytest.mark.slow
def test_a_mean_is_over_seeds_alone(study, other, tmp_path, monkeypatch):
    checkpoint = other.folder.parent
    attention = ap.ablate(checkpoint, out=tmp_path / "attention", sites="attention", progress=False)
    with monkeypatch.context() as patch:  # refused before anything is computed
        patch.setattr(
            "adapter_probe.studies.comparison.average_ablations", lambda *_: pytest.fail("computed")
        )
        with pytest.raises(ap.ResultsError, match=naming("seed")):
            ap.average([study, other, study])
        with pytest.raises(ap.ResultsError, match=naming("settings.sites", "both", "attention")):
            ap.average([study, attention])
    exact = ap.ablate(checkpoint, out=tmp_path / "bfloat16", precision="bfloat16", progress=False)
    assert (ap.average([study, exact]).spans["n_studies"] == 2).all()
    with pytest.raises(ap.ResultsError, match=naming("2", "0")):
        ap.average([])


@pytest.mark.slow
def test_several_studies_are_drawn_together(study, other, tmp_path, monkeypatch):
    """Objects and folders alike; the figure holds the spans of each, in the order given."""
    options = {"formats": "svg", "only": "heatmap", "labels": ("one", "two")}
    (made,) = ap.draw([other, study.folder], tmp_path / "a", **options)
    assert [path.name for path in made.files] == ["heatmap.svg", "heatmap.csv", "heatmap.txt"]
    drawn = pd.read_csv(tmp_path / "a" / "heatmap.csv")
    assert list(drawn["grid"].unique()) == ["one", "two"]
    for name, own in (("one", other), ("two", study)):
        found = drawn.loc[drawn["grid"] == name, "delta_points"]
        np.testing.assert_allclose(found, own.spans["delta_points"], atol=1e-9)
    monkeypatch.chdir(tmp_path)
    (made,) = ap.draw([study, other], average=True, formats="svg")
    assert made.files[0] == Path("figures", "average.svg")
    made = ap.draw(ap.compare(study, other), formats="svg", only="comparison")  # it has no folder of its own
    assert made[0].files[0] == Path("figures", "comparison.svg")
    mean = (study.spans["delta_points"] + other.spans["delta_points"]) / 2
    np.testing.assert_allclose(pd.read_csv("figures/average.csv")["delta_points"], mean, atol=1e-9)


@pytest.mark.slow
def test_reports_and_cards_take_studies(study, other, tmp_path):
    by_folder = ap.report([study.folder, other.folder], tmp_path / "folders.html", tolerance=2)
    by_study = ap.report([ap.load(study.folder), other], tmp_path / "studies.html", tolerance=2)
    assert by_study.path.read_bytes() == by_folder.path.read_bytes()
    assert ap.report(study, tmp_path / "one.html").path.is_file()
    assert ap.model_card(study) == ap.model_card(study.folder)
    flags = ap.report([study, other], tmp_path / "flags.html", average=True, compare=True)
    joint = [ap.average([study, other]), ap.compare(study, other)]
    given = ap.report([*joint, study, other], tmp_path / "joint.html")
    assert given.path.read_bytes() == flags.path.read_bytes()
    with pytest.raises(
        ap.AdapterProbeError,
        match=naming("folders", "3"),
    ):
        ap.report(3)


@pytest.mark.slow
def test_the_commands(study, other, tmp_path):
    run = CliRunner().invoke
    folders = [str(study.folder), str(other.folder)]
    done = run(app, ["compare", *folders, "--out", str(tmp_path), "--json", "--format", "pdf"])
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert len(report["spans"]) == 6
    assert report["a"] != report["b"]
    assert (tmp_path / "comparison.pdf").exists()
    assert (tmp_path / "comparison.csv").exists()
    done = run(app, ["figures", *folders, "--average", "--format", "png", "--out", str(tmp_path / "mean")])
    assert done.exit_code == 0, done.stderr
    assert list((tmp_path / "mean").glob("*.png"))
    done = run(app, ["compare", str(study.folder), str(tmp_path / "nothing")])
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
