"""`ap.compare` and `ap.average`, against numbers put together by hand."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from changed_files import edit
from docs_scripts import module
from embedding_folders import encoder
from matplotlib import pyplot as plt
from page_reader import PageReader
from peft import LoraConfig, get_peft_model
from refusals import names, naming, refuses, says, value_of
from transformers import AutoTokenizer, BertForSequenceClassification
from typer.testing import CliRunner

import adapter_probe as ap
from adapter_probe.cli.main import app
from adapter_probe.errors import ResultsError
from adapter_probe.figures import joint as joint_figure
from adapter_probe.figures.levels import drop_scale
from adapter_probe.figures.report.ablation_section import average_study
from adapter_probe.figures.venues import PAPER, FigureOptions

RESULTS = module("gallery_results")


def views(page: Path) -> list:
    """What a report shows of each study on spans."""
    studies = json.loads(PageReader(page.read_text("utf-8")).blocks["data"])["studies"]
    return [study["views"] for study in studies]


def test_a_study_is_not_compared_with_itself(study):
    refuses(ResultsError, (str(study.folder), "twice", "two"), ap.compare, study, study.folder)


def test_a_study_does_not_differ_from_its_copy(study, copied):
    spans = ap.compare(study, copied).spans
    assert (spans["difference_points"] == 0).all()
    assert (spans["ci_low_points"] < 0).all()  # the next example can differ
    np.testing.assert_array_equal(spans["ci_low_points"], -spans["ci_high_points"])
    assert (spans["p_value"] == 1).all()
    assert not spans["significant"].any()
    rows = ap.compare(study, copied).rows()
    for side in ("in a", "in b"):
        assert value_of(rows, "larger drop", side) == "none is significant"


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
    record = ap.average([warned, other]).record
    mean = average_study(record, drop_scale(np.zeros(1)), 1.0, (), "m")
    assert reason in mean.warning
    assert mean.title == f"{record.data}: mean of 2 studies"
    unlike = replace(other, record=replace(other.record, summary=replace(other.record.summary, task="b")))
    assert (record.task, ap.average([warned, unlike]).record.task) == (study.summary.task, "")
    for step in mean.steps:
        assert step["estimate"] is None
        assert step["bound"] is None
        assert not any("can be" in part for one in step["advice"] for part in one if isinstance(part, str))


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


def test_a_mean_and_a_difference_of_seeds(study, other):
    mean = ap.average([study, other.folder]).spans
    deltas = np.stack([one.spans["delta_points"] for one in (study, other)])
    apart = ap.compare(study, other.folder).spans["difference_points"]  # of drops, not of changes
    np.testing.assert_allclose(apart, deltas[0] - deltas[1], atol=1e-9)
    np.testing.assert_allclose(mean["delta_points"], deltas.mean(axis=0), atol=1e-9)
    np.testing.assert_allclose(mean["sd_points"], np.std(deltas, axis=0, ddof=1), atol=1e-9)
    np.testing.assert_allclose(mean["max_points"], deltas.max(axis=0), atol=1e-9)
    assert (mean["n_studies"] == 2).all()
    ranked = mean.sort_values("p_value", ignore_index=True)  # Holm's steps, written out
    stepped = (ranked["p_value"] * np.arange(len(ranked), 0, -1)).cummax().clip(upper=1)
    np.testing.assert_allclose(ranked["p_holm"], stepped)
    assert (mean["significant"] == (mean["p_holm"] < 0.05)).all()


@pytest.mark.slow
def test_a_mean_is_over_seeds_alone(study, other, tmp_path, monkeypatch):
    checkpoint = other.folder.parent
    attention = ap.ablate(checkpoint, out=tmp_path / "attention", sites="attention", progress=False)
    with monkeypatch.context() as patch:  # refused before anything is computed
        patch.setattr(
            "adapter_probe.studies.comparison.average_ablations", lambda *_: pytest.fail("computed")
        )
        refuses(ap.ResultsError, ("seed",), ap.average, [study, other, study])
        refuses(ap.ResultsError, ("settings.sites", "both", "attention"), ap.average, [study, attention])
    exact = ap.ablate(checkpoint, out=tmp_path / "bfloat16", precision="bfloat16", progress=False)
    assert (ap.average([study, exact]).spans["n_studies"] == 2).all()
    refuses(ap.ResultsError, ("2", "0"), ap.average, [])


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
    refuses(ap.AdapterProbeError, ("folders", "3"), ap.report, 3)


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


@pytest.mark.slow
def test_the_ablation_among_several_studies_of_a_folder_is_averaged(study, other, tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder, one in zip(folders, (study, other)):
        shutil.copytree(one.folder, folder / "ablation")
        RESULTS.FOLDERS["ranks"](folder / "ranks")
    pd.testing.assert_frame_equal(ap.average(folders).spans, ap.average([study, other]).spans)
    shutil.copytree(other.folder, folders[0] / "another")  # which the other folder does not have
    pd.testing.assert_frame_equal(ap.average(folders).spans, ap.average([study, other]).spans)
    for folder in folders:
        RESULTS.FOLDERS["modules-0"](folder / "ablation-module")
    pd.testing.assert_frame_equal(ap.average(folders).spans, ap.average([study, other]).spans)
    page = ap.report(folders, tmp_path / "all.html", average=True, compare=True).path
    chosen = ap.report([study, other], tmp_path / "two.html", average=True, compare=True).path
    assert views(page)[:2] == views(chosen)[:2]
    assert len(views(page)) == 5  # the average, the comparison, and every ablation of spans
    shutil.copytree(study.folder, folders[1] / "another")
    for take in (ap.average, lambda given: ap.report(given, tmp_path / "none.html", average=True)):
        wanted = naming("ablations", "ablation", "another", f"{folders[0]}/ablation {folders[1]}/ablation")
        with pytest.raises(ap.AdapterProbeError, match=wanted):
            take(folders)


def test_trainings_are_compared_where_checkpoints_record_them(checkpoint, other, tmp_path):
    """What is not recorded is said to be unknown."""
    folders = [
        shutil.copytree(source, tmp_path / source.name / str(number), ignore=shutil.ignore_patterns("abl*"))
        for number, source in enumerate((checkpoint, other.folder.parent))
    ]
    own = {"learning_rate": 1e-3, "epochs": 3, "seed": 0}

    def averaged(second):
        for folder, training in zip(folders, (own, second)):
            edit(folder / "adapter_probe.json", training=training)
        return ap.average([ap.ablate(folder, spans="single", progress=False) for folder in folders])

    assert averaged({**own, "seed": 99}).note == ""
    refuses(ap.AdapterProbeError, ("training.learning_rate", "seed"), averaged, {**own, "learning_rate": 0.5})
    unknown = averaged({})
    assert "assumed" in unknown.note
    assert unknown.note in repr(unknown)


def test_seeds_that_each_drew_a_pooler_are_averaged_and_said_to_differ_in_it(tmp_path):
    """The plainest script on a base of sentence embeddings, each of whose trainings saves its base."""
    plain, studies = encoder(tmp_path / "plain", 2), []
    for seed, damaged in ((1, False), (2, False), (3, True)):
        torch.manual_seed(seed)
        model = BertForSequenceClassification.from_pretrained(plain, num_labels=2)
        model.bert.encoder.layer[0].output.dense.weight.data.add_(float(damaged))
        base = tmp_path / f"base-{seed}"
        model.save_pretrained(base)
        AutoTokenizer.from_pretrained(plain).save_pretrained(base)
        config = LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS", init_lora_weights=False)
        get_peft_model(BertForSequenceClassification.from_pretrained(base), config).save_pretrained(
            tmp_path / str(seed)
        )
        rows = [{"text": "ab c" * n, "label": n % 2} for n in range(1, 9)]
        studies.append(
            ap.ablate(tmp_path / str(seed), data=rows, metric="kl", spans="single", progress=False)
        )
    mean = ap.average(studies[:2])
    assert "own pooler" in mean.note
    own = [study.spans["delta_points"].to_numpy() for study in studies[:2]]
    np.testing.assert_allclose(mean.spans["delta_points"], np.mean(own, axis=0))
    refuses(ap.AdapterProbeError, ("base.weights_sha256",), ap.average, studies[1:])
