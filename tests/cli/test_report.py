"""`adapter-probe report`: finds an ablation's checkpoint and texts, without torch, and refuses politely."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from ablation_facts import ablation_of
from changed_files import edit
from page_reader import PageReader
from refusals import names
from typer.testing import CliRunner

from adapter_probe.analysis.score_changes import span_scores
from adapter_probe.analysis.study_records import AblationRecord
from adapter_probe.analysis.summary import summarise
from adapter_probe.cli.finished import report
from adapter_probe.data.tasks import find_task, load_split
from adapter_probe.results.ablation_files import save_predictions, write_spans
from adapter_probe.results.atomic import write_json
from adapter_probe.results.manifests import MADE_FROM, write_note
from adapter_probe.results.schema import PREDICTIONS
from adapter_probe.spans import span_variants

FILES = [*(about["file"] for about in AblationRecord.files().values()), PREDICTIONS]
N_LAYERS, PER_ADAPTER = 3, 32


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    """The command alone, in this process; the page goes to `tmp_path`."""
    app = typer.Typer()
    app.command()(report)

    def call(*arguments: object) -> Any:
        out = [] if "-o" in arguments else ["-o", str(tmp_path / "report.html")]
        return CliRunner().invoke(app, [*map(str, arguments), *out])

    return call


def refusal(outcome: Any) -> str:
    assert (outcome.exit_code, outcome.stdout) == (2, ""), outcome.output
    (line,) = outcome.stderr.splitlines()
    return line.removeprefix("adapter-probe: ")


def data_of(page: Path) -> dict:
    return json.loads(PageReader(page.read_text("utf-8")).blocks["data"])


def settings_of(page: Path) -> dict[str, str]:
    return dict(re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", page.read_text("utf-8")))


@pytest.fixture
def checkpoint(tmp_path: Path, tiny_task: Path) -> Path:
    """A checkpoint's description, with an ablation inside; its task lies in `tmp_path` too."""
    shutil.copytree(tiny_task, tmp_path / "data")
    task = find_task(tmp_path / "data", name="tiny")
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    write_json(
        folder / "adapter_probe.json", {"schema": 1, "task": task.to_json(), "delta_sha256": "ab" * 32}
    )
    write_ablation(folder / "ablation", load_split(task, "validation"))
    return folder


def write_ablation(folder: Path, split: Any, delta: str = "ab" * 32) -> None:
    folder.mkdir()
    variants = span_variants(N_LAYERS)
    said = np.random.default_rng(0).integers(0, 2, (len(variants.names), len(split)))
    identity = {"checkpoint": {"delta_sha256": delta}, "data": {"fingerprint": split.fingerprint}}
    results = ablation_of(
        variants.masks,
        np.array([(s.first, s.last) if s else (-1, -1) for s in variants.spans]),
        variants.names,
        np.eye(2, dtype=np.float32)[said],
        split.labels,
        "accuracy",
        "classification",
        ("negative", "positive"),
        identity,
        {"task": "tiny", "split": "validation", "site_parameters": [0, PER_ADAPTER, *[PER_ADAPTER] * 4]},
    )
    write_spans(folder, span_scores(results))
    save_predictions(folder, results)
    write_json(folder / "summary.json", summarise(results).to_dict())
    write_json(folder / "manifest.json", {"schema": 1, "identity": identity})


def test_a_checkpoint_is_enough(run, checkpoint: Path, tmp_path: Path):
    outcome = run(checkpoint)
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert outcome.stdout == f"{tmp_path / 'report.html'}\n"
    (study,) = data_of(tmp_path / "report.html")["studies"]
    assert study["name"] == "tiny"
    removed = study["facts"]["rows"][study["spans"].index([0, 2])][study["facts"]["heads"].index("removed")]
    assert removed[0].startswith(f"{5 * PER_ADAPTER} ")


@pytest.mark.slow
def test_texts_are_left_out_unless_asked_for(run, checkpoint: Path, tmp_path: Path, tiny_task: Path):
    page = tmp_path / "report.html"
    texts = [json.loads(line)["text"] for line in (tiny_task / "validation.jsonl").read_text().splitlines()]
    run(checkpoint)
    assert not any(text in page.read_text() for text in texts)
    outcome = run(checkpoint, "--examples")
    assert outcome.stdout == f"{page}\n"
    assert "(of 64)" in outcome.stderr
    examples = data_of(page)["studies"][0]["examples"]
    assert len(examples["texts"]) > 50
    assert examples["texts"] == [texts[number - 1] for number in examples["numbers"]]


def test_a_checkpoint_beside_the_results_is_found_by_its_weights(run, checkpoint: Path, tmp_path: Path):
    shutil.move(checkpoint / "ablation", tmp_path / "results")
    other = tmp_path / "another"
    shutil.copytree(checkpoint, other)
    edit(other / "adapter_probe.json", delta_sha256="00" * 32)
    edit(checkpoint / "adapter_probe.json", method={"size": 7})
    run(tmp_path / "results")
    assert settings_of(tmp_path / "report.html")["checkpoint.method.size"] == "7"


@pytest.mark.slow
def test_a_checkpoint_elsewhere_can_be_named(run, checkpoint: Path, tmp_path: Path):
    results = tmp_path / "far" / "away" / "results"
    results.parent.mkdir(parents=True)
    shutil.move(checkpoint / "ablation", results)
    run(results)
    assert not any("checkpoint.method" in name for name in settings_of(tmp_path / "report.html"))
    said = refusal(run(results, "--examples"))
    assert names(said, "--examples", str(results), "--data")
    assert run(results, "--examples", "--checkpoint", checkpoint).exit_code == 0
    assert data_of(tmp_path / "report.html")["studies"][0]["examples"] is not None


@pytest.mark.slow
def test_a_checkpoint_that_changed_since_is_refused(run, checkpoint: Path):
    file, manifest = checkpoint / "adapter_probe.json", checkpoint / "ablation" / "manifest.json"
    base = {"weights_sha256": "cd" * 32, "config": {"hidden_act": "gelu", "hidden_dropout_prob": 0.1}}
    edit(manifest, {"identity.base": {**base, "config": {"hidden_act": "gelu"}}})
    edit(file, base=base)
    assert run(checkpoint).exit_code == 0
    edit(file, {"base.config.hidden_act": "relu"})
    assert "base.config.hidden_act: gelu -> relu" in refusal(run(checkpoint))


def test_texts_that_changed_are_refused_and_the_right_ones_can_be_named(run, checkpoint, tmp_path):
    file = tmp_path / "data" / "validation.jsonl"
    kept = tmp_path / "kept.jsonl"
    shutil.copy(file, kept)
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[1:], lines[0]]) + "\n")
    said = refusal(run(checkpoint, "--examples"))
    assert names(said, "--examples", "validation", "'tiny'", str(checkpoint / "ablation"), "--data")
    assert run(checkpoint, "--examples", "--data", kept).exit_code == 0


@pytest.mark.slow
def test_texts_of_a_subset_are_the_subset(run, checkpoint: Path, tmp_path: Path):
    task = find_task(tmp_path / "data", name="tiny")
    split = load_split(task, "validation", 20)
    write_ablation(checkpoint / "ablation-n20", split)
    outcome = run(checkpoint / "ablation-n20", "--examples")
    assert "(of 20)" in outcome.stderr
    examples = data_of(tmp_path / "report.html")["studies"][0]["examples"]
    assert set(examples["texts"]) <= set(split.texts)


def test_metadata_of_the_rows_can_be_chosen_by(run, checkpoint: Path, tmp_path: Path):
    lines = (tmp_path / "data" / "validation.jsonl").read_text().splitlines()
    rows = [{**json.loads(line), "kind": "ab"[number % 2]} for number, line in enumerate(lines)]
    file = tmp_path / "with-kinds.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run(checkpoint, "--examples", "--data", file).exit_code == 0
    examples = data_of(tmp_path / "report.html")["studies"][0]["examples"]
    column = examples["columns"]["kind"]
    kinds = [column["values"][place] for place in column["places"]]
    assert kinds == ["ab"[(number - 1) % 2] for number in examples["numbers"]]


@pytest.mark.slow
def test_a_checkpoint_of_another_library_needs_only_the_data(run, checkpoint: Path, tmp_path: Path):
    """Its folder has no description of ours: the files are those that were evaluated, or those given."""
    (checkpoint / "adapter_probe.json").unlink()
    write_json(checkpoint / "adapter_config.json", {"peft_type": "LORA"})
    said = refusal(run(checkpoint, "--checkpoint", checkpoint))
    assert names(said, f"--checkpoint {checkpoint}", "another library", "--data")
    file, ablation = tmp_path / "data" / "validation.jsonl", checkpoint / "ablation"
    assert "--data" in refusal(run(checkpoint, "--examples"))
    assert run(checkpoint, "--examples", "--data", file).exit_code == 0
    found = data_of(tmp_path / "report.html")["studies"][0]["examples"]["texts"]
    write_note(ablation, MADE_FROM, {"asked": {"data": [str(file)]}})
    assert run(checkpoint, "--examples").exit_code == 0
    assert data_of(tmp_path / "report.html")["studies"][0]["examples"]["texts"] == found
    file.unlink()
    assert names(refusal(run(checkpoint, "--examples")), str(ablation), "--data")


@pytest.mark.slow
def test_averages_and_comparisons_come_first(run, checkpoint: Path, tmp_path: Path):
    split = load_split(find_task(tmp_path / "data", name="tiny"), "validation")
    write_ablation(tmp_path / "second", split, "cd" * 32)
    folders = checkpoint / "ablation", tmp_path / "second"
    for flag, kinds in (("--average", ["drop", "spread"]), ("--compare", ["difference"])):
        outcome = run(*folders, flag)
        assert outcome.exit_code == 0, outcome.output
        studies = data_of(tmp_path / "report.html")["studies"]
        assert [view["name"] for view in studies[0]["views"]] == kinds
        assert len(studies) == 3
        assert len({study["group"] for study in studies}) == 1
    assert names(refusal(run(folders[0], "--compare")), "--compare", "two", "1")
    assert names(refusal(run(*folders, "--model-card", "--average")), "--model-card", "--average")


def test_questions_bring_contexts_and_true_answers(run, tmp_path: Path):
    answers = [{"text": "red", "answer_start": 0}] * 2
    qas = [{"id": str(i), "question": f"what {i}?", "answers": answers} for i in range(3)]
    document = {
        "version": "1.1",
        "data": [{"title": "t", "paragraphs": [{"context": "red or blue", "qas": qas}]}],
    }
    folder = tmp_path / "checkpoint"
    (folder / "ablation").mkdir(parents=True)
    for split in ("train", "dev"):
        (tmp_path / f"{split}-v1.1.json").write_text(json.dumps(document))
    task = find_task(tmp_path, preset="squad")
    write_json(folder / "adapter_probe.json", {"task": task.to_json(), "delta_sha256": "ab" * 32})
    variants = span_variants(1)
    results = ablation_of(
        variants.masks, np.array([(-1, -1), (0, 0)]), variants.names,
        np.array([[[1, 1]] * 3, [[1, 1], [0, 0], [0, 0]]], np.float32), np.zeros(3, np.int64), "squad_f1",
        "extractive", (), {"data": {"fingerprint": load_split(task, "validation").fingerprint}},
        {"task": "squad", "split": "validation"},
        answers=np.array([[(0, 3)] * 3, [(0, 3), (7, 11), (-1, -1)]], np.int32),
    )  # fmt: skip
    write_spans(folder / "ablation", span_scores(results))
    save_predictions(folder / "ablation", results)
    write_json(folder / "ablation" / "summary.json", summarise(results).to_dict())
    assert run(folder, "--examples").exit_code == 0
    examples = data_of(tmp_path / "report.html")["studies"][0]["examples"]
    assert examples["texts"] == ["what 1?", "what 2?"]
    assert examples["second"] == ["red or blue"] * 2
    assert examples["truth"] == ["red"] * 2
    assert examples["options"] == [["red", "blue"], ["red", ""]]
    assert (examples["intact"]["right"], examples["rows"][0]["right"]) == ("11", "00")


@pytest.mark.slow
def test_several_folders_come_in_order(run, checkpoint: Path, tmp_path: Path):
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    (sweep / "sweep.csv").write_text(
        "task,metric,init_std,n,mean,sem,min,max,diverged,majority_score,"
        "learning_rate,epochs,size,method,init\n"
        "tiny,accuracy,0.01,3,0.8,0.1,0.7,0.9,0,0.5,0.001,3,64,adapters,\n"
    )
    assert run(sweep, checkpoint).exit_code == 0
    assert [study["name"] for study in data_of(tmp_path / "report.html")["studies"]] == ["tiny"]
    assert f"{tmp_path.name}/sweep" in (tmp_path / "report.html").read_text()


def another(checkpoint: Path, *names: str) -> None:
    (checkpoint.parent / "other").mkdir()
    for name in names:
        write_json(checkpoint.parent / "other" / name, {"delta_sha256": "00" * 32})


REFUSED = [
    ("{0} --tolerance -1", None, ("tolerance", "0 to 100 points", "-1.0")),
    ("{0} --tolerance nan", None, ("tolerance", "0 to 100 points", "nan")),
    ("{0} --tolerance 101", None, ("tolerance", "0 to 100 points", "101.0")),
    ("{1}/nothing", None, ("{1}/nothing", "results")),
    ("{1}", lambda checkpoint: shutil.rmtree(checkpoint), ("{1}", "no results", "spans.csv")),
    ("{1}/a\x1b[31m\nb", lambda checkpoint: (checkpoint.parent / "a\x1b[31m\nb").mkdir(),
     (r"a\x1b[31m\nb", "no results")),
    ("{0} -o {0}/adapter_probe.json/x.html", None, ("{0}/adapter_probe.json", "folder")),
    ("{0} --checkpoint {1}/other", another, ("--checkpoint {1}/other", "adapter_probe.json")),
    ("{0} --checkpoint {1}/other", lambda checkpoint: another(checkpoint, "adapter_probe.json"),
     ("--checkpoint {1}/other", "not ablated")),
    ("{0} --examples", lambda checkpoint: (checkpoint / "ablation" / "predictions.npz").unlink(),
     ("--examples", "{0}/ablation", "predictions.npz")),
]  # fmt: skip


@pytest.mark.parametrize(("command", "change", "facts"), REFUSED)
def test_what_is_refused(command, change, facts, run, checkpoint: Path, tmp_path: Path):
    if change is not None:
        change(checkpoint)
    said = refusal(run(*command.format(checkpoint, tmp_path).split(" ")))
    assert names(said, *(fact.format(checkpoint, tmp_path) for fact in facts))
