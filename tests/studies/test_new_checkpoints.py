"""What prune and convert write says of task, labels and limit of tokens what the source does."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from changed_files import edit

import adapter_probe as ap
from adapter_probe.checkpoints.opening import open_any

LORA = "lora:r=2"
LABELS = ("negative", "positive")


@pytest.fixture(scope="module")
def trained(tiny_base: Callable[..., Path], tiny_task: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A checkpoint of a method on texts cut after 5 tokens, made once for each method."""
    made: dict[str, Path] = {}

    def make(method: str) -> Path:
        if method not in made:
            made[method] = tmp_path_factory.mktemp("trained") / "c"
            ap.train(
                tiny_base("bert"), task=tiny_task, out=made[method], method=method, epochs=1, batch_size=32,
                max_length=5, learning_rate=1e-2, progress=False,
            )  # fmt: skip
        return made[method]

    return make


def pruned(source: Path, out: Path, **options: Any) -> dict[str, float]:
    """Prune the first layer; the scores that the new checkpoint has."""
    done = ap.prune(source, out, span=0, progress=False, **options)
    return {done.metric: done.score_after}


def written(source: Path, out: Path, to: str, **options: Any) -> dict[str, float]:
    """Convert; the scores, which are those of the training where nothing changes."""
    ap.convert(source, out, to, **options)
    return {} if options else open_any(source).description.scores


@pytest.mark.parametrize(
    ("method", "write", "options"),
    [
        (LORA, pruned, {}),
        (LORA, pruned, {"strength": 0.5}),
        (LORA, written, {"to": "peft"}),
        (LORA, written, {"to": "peft", "strength": 0.5}),
        ("full", written, {"to": "peft", "rank": 2}),
        ("adapters", written, {"to": "adapterhub", "lossy": True}),
        ("adapters", pruned, {}),
    ],
)
def test_the_record_of_the_training_stays(method, write, options, trained, tmp_path):
    source, new = trained(method), tmp_path / "new"
    scores = write(source, new, **options)
    before, after = (open_any(folder).description for folder in (source, new))
    assert (after.task, after.max_length, after.scores) == (before.task, 5, pytest.approx(scores))
    assert after.task.label_names == LABELS
    assert after.training["validation_scores"] == before.training["validation_scores"]
    study = ap.ablate(new, spans="whole", progress=False)  # on the recorded data, cut as in the training
    if scores:
        assert study.summary.intact_score == pytest.approx(scores["accuracy"])


def test_a_change_of_the_new_checkpoint_is_noticed(trained, tmp_path):
    pruned(trained(LORA), tmp_path / "new")
    edit(tmp_path / "new", lora_alpha=64)
    with pytest.raises(ap.CheckpointError, match="changed after it was written"):
        open_any(tmp_path / "new")


def test_without_a_record_the_names_of_labels_stay(trained, tmp_path):
    """As a Trainer writes them, into the model's configuration, beside the adapter."""
    source = tmp_path / "source"
    ap.convert(trained(LORA), source, "peft")
    (source / "adapter_probe.json").unlink()
    (source / "config.json").write_text(json.dumps({"id2label": {"0": "bad", "1": "good"}}))
    (tmp_path / "rows.jsonl").write_text('{"text": "w1", "label": 0}\n{"text": "w2", "label": 1}\n')
    pruned(source, tmp_path / "new", data=tmp_path / "rows.jsonl")
    assert open_any(tmp_path / "new").description.task.label_names == ("bad", "good")
    ap.prune(source, tmp_path / "plain", span=(0, 2), data=tmp_path / "rows.jsonl", progress=False)
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert config["id2label"] == {"0": "bad", "1": "good"}


@pytest.mark.parametrize("given", [{"data": "r.jsonl"}, {"columns": "text"}, {"label_names": ["a", "b"]}])
def test_data_is_given_to_the_format_that_records_it(given, trained, tmp_path):
    with pytest.raises(ap.CheckpointError, match=f"only to='native', .* {next(iter(given))}="):
        ap.convert(trained(LORA), tmp_path / "new", "peft", **given)


def test_scores_of_other_data_and_distances_are_not_recorded(trained, tmp_path):
    source = trained(LORA)
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"text": f"the cat {n}", "label": LABELS[n % 2]}) + "\n" for n in range(8))
    )
    pruned(source, tmp_path / "other", data=tmp_path / "rows.jsonl")
    study = ap.ablate(source, metric="kl", spans="single", out=tmp_path / "kl", progress=False)
    ap.prune(source, tmp_path / "far", within=100, ablation=study, progress=False)
    study = ap.ablate(source, split="train", spans="single", out=tmp_path / "train", progress=False)
    ap.prune(source, tmp_path / "known", within=100, ablation=study, progress=False)
    for folder in ("other", "far", "known"):
        found = open_any(tmp_path / folder).description
        assert (found.scores, found.task) == ({}, open_any(source).description.task)


def test_what_is_scaled_has_no_score_in_this_projects_format(trained, tmp_path):
    source = trained("adapters")
    for strength, scores in ((None, open_any(source).description.scores), (0.5, {})):
        ap.convert(source, tmp_path / str(strength), "native", strength=strength)
        assert open_any(tmp_path / str(strength)).description.scores == scores


def test_without_adapters_the_labels_are_those_of_the_record(tiny_base, tiny_task, tmp_path):
    base = shutil.copytree(tiny_base("bert"), tmp_path / "base")
    edit(base / "config.json", id2label={"0": "CONTRADICTION", "1": "ENTAILMENT"})
    ap.train(
        base, task=tiny_task, out=tmp_path / "c", method="lora:r=2,target_modules=query+value", epochs=1,
        progress=False,
    )  # fmt: skip
    ap.prune(tmp_path / "c", tmp_path / "plain", span=(0, 2), progress=False)
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert config["id2label"] == {"0": "negative", "1": "positive"}
