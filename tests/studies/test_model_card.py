"""The model card: its metadata as huggingface_hub reads it, its pictures where it says."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from changed_files import edit
from docs_scripts import module
from huggingface_hub import ModelCard
from typer.testing import CliRunner

import adapter_probe as ap
from adapter_probe.cli.main import app
from adapter_probe.errors import ResultsError
from adapter_probe.studies.model_card import model_card

RESULTS = module("gallery_results")


@pytest.fixture
def ablated(checkpoint: Path, study: ap.Ablation, tmp_path: Path) -> Path:
    """A copy of the checkpoint with its ablation inside, as `adapter-probe ablate` leaves it."""
    folder = Path(shutil.copytree(checkpoint, tmp_path / "my-adapter"))
    shutil.copytree(study.folder, folder / "ablation", dirs_exist_ok=True)
    return folder


def test_hubs_read_the_scores(ablated: Path, study: ap.Ablation):
    card = ModelCard(model_card([ablated]))
    (result,) = card.data.eval_results
    assert card.data.model_name == "my-adapter"
    assert result.metric_value == pytest.approx(study.summary.intact_score, abs=1e-6)
    assert (result.metric_type, result.dataset_split) == ("accuracy", "validation")
    assert result.task_type == "text-classification"
    assert card.data.base_model is None  # a folder on this machine
    task = study.summary.task  # no hub has these sentences, which are known by their name
    assert (result.dataset_type, result.dataset_name, result.dataset_config) == (task, task, None)
    assert (card.data.metrics, card.data.pipeline_tag) == (["accuracy"], "text-classification")
    assert result.verified is None
    assert "verified" not in card.content
    assert "datasets" not in card.data.to_dict()
    assert re.search(r"!\[[^]]*accuracy[^]]*\]\([^)]*ablation/heatmap.png\)", card.text)


def test_other_studies_in_a_checkpoint_are_no_part_of_its_card(ablated: Path):
    alone = model_card(ablated)
    RESULTS.FOLDERS["strength"](ablated / "strengths")
    assert model_card(ablated) == alone
    with pytest.raises(ResultsError, match="ablations only"):
        model_card([ablated, ablated / "strengths"])


def test_every_section_of_a_card_has_a_heading_of_its_own(ablated: Path, checkpoint: Path):
    ap.ablate(checkpoint, spans="single", out=ablated / "singles", progress=False)
    heads = re.findall("^## (.*)$", model_card(ablated), re.MULTILINE)
    assert len(set(heads)) == len(heads) == 2


@pytest.mark.parametrize(
    ("kind", "task_type"),
    [("embedding", "sentence-similarity"), ("ranking", "text-ranking"), ("causal", "text-generation")],
)
def test_kinds_have_the_hubs_names_of_tasks(study: ap.Ablation, kind: str, task_type: str):
    record = replace(study.record, summary=replace(study.summary, kind=kind))
    (result,) = ModelCard(model_card(ap.Ablation(record))).data.eval_results
    assert result.task_type == task_type


def test_spans_kept_on_are_not_called_switched_off(checkpoint: Path, tmp_path: Path):
    kept = ap.ablate(checkpoint, complement=True, out=tmp_path, progress=False)
    text = ModelCard(model_card(kept)).text
    assert re.search(r"span of layers[^.]* only [^.]*kept on", text)
    assert "switched off" not in text


@pytest.mark.parametrize(
    ("name", "said"), [("google-bert/bert-base-uncased",) * 2, ("folder", "thenlper/gte-small")]
)
def test_the_base_is_named_by_its_hub_id_or_as_its_config_says(name, said, ablated: Path, tmp_path: Path):
    edit(ablated / "adapter_probe.json", {"base.name": str(tmp_path) if name == "folder" else name})
    (tmp_path / "config.json").write_text('{"_name_or_path": "thenlper/gte-small"}')
    assert ModelCard(model_card([ablated])).data.base_model == said


@pytest.mark.slow
def test_scores_on_several_data_sets_stay_apart(ablated: Path):
    record = ap.load(ablated).record
    tasks = ["cola", "MNLI-m", "airline", "disasters", "airline"]
    records = [replace(record, summary=replace(record.summary, task=task)) for task in tasks]
    card = ModelCard(model_card([ap.Ablation(record) for record in records]))
    told = [
        (r.dataset_name, r.dataset_type, r.dataset_config, r.dataset_split) for r in card.data.eval_results
    ]
    assert told == [
        ("CoLA", "nyu-mll/glue", "cola", "validation"),
        ("MNLI-m", "nyu-mll/glue", "mnli", "validation_matched"),
        ("airline", "airline", None, "validation"),
        ("disasters", "disasters", None, "validation"),
    ]
    assert card.data.datasets == ["nyu-mll/glue"]


@pytest.mark.slow
def test_a_score_on_other_data_is_not_the_tasks(checkpoint, tiny_task: Path, tmp_path: Path):
    """A task that is known by its name, but scored on a file given with `--data`."""
    other = ap.ablate(checkpoint, data=tiny_task / "train.jsonl", out=tmp_path, progress=False)
    record = replace(other.record, summary=replace(other.summary, task="cola"))
    (result,) = ModelCard(model_card(ap.Ablation(record))).data.eval_results
    assert (result.dataset_type, result.dataset_config) == ("train.jsonl", None)


@pytest.mark.slow
def test_a_subset_of_the_own_split_is_the_tasks(checkpoint, tmp_path: Path):
    """`--max-examples` draws from the recorded split, whose rows tell; without them, nothing is claimed."""
    study = ap.ablate(checkpoint, max_examples=20, out=tmp_path / "subset", progress=False)
    held = Path(shutil.copytree(checkpoint, tmp_path / "adapter"))
    folder = Path(shutil.copytree(study.folder, held / "subset"))
    record = replace(study.record, folder=folder, summary=replace(study.summary, task="cola"))

    def dataset() -> str:
        (result,) = ModelCard(model_card(ap.Ablation(record))).data.eval_results
        return result.dataset_type

    assert dataset() == "nyu-mll/glue"
    edit(held / "adapter_probe.json", {"task.files.validation": [str(tmp_path / "moved.jsonl")]})
    assert dataset() == "CoLA"


@pytest.mark.slow
def test_the_command_writes_card_and_pictures(ablated: Path, tmp_path: Path):
    done = CliRunner().invoke(
        app, ["report", str(ablated), "--model-card", "--out", str(tmp_path / "hub" / "README.md")]
    )
    assert done.exit_code == 0, done.output
    text = (tmp_path / "hub" / "README.md").read_text("utf-8")
    (picture,) = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert (tmp_path / "hub" / picture).read_bytes().startswith(b"\x89PNG")
    shown = CliRunner().invoke(app, ["report", str(ablated), "--model-card"])
    assert shown.stdout.startswith("---\n")
    assert not Path("report.html").exists()
    refused = CliRunner().invoke(app, ["report", str(ablated), "--model-card", "--examples"])
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
