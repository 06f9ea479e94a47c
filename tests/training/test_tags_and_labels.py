"""Training on tags and on several labels, against Transformers, seqeval and scikit-learn."""

from __future__ import annotations

import pytest
import torch
from learners import rows_of
from sklearn.metrics import f1_score
from tiers import slow_unless
from trainer import BATCH
from trainings import request_of

import adapter_probe as ap
from adapter_probe.data.tasks import find_task
from adapter_probe.training.peft_methods import method_of
from adapter_probe.training.request import build_model, load_inputs


@pytest.mark.slow
@pytest.mark.parametrize("method", ["adapters", "lora:r=4"])
@pytest.mark.parametrize("data", ["tags", "labels"])
@pytest.mark.parametrize(
    "family", slow_unless(lambda family: family == "bert", ["bert", "roberta", "electra"])
)
def test_a_trained_checkpoint_is_ablated_with_its_task_and_score(
    family, data, method, learners, train, tmp_path
):
    one = learners(f"{family} with dropout", data)
    fields = {"size": 8, "init_std": 0.1} if method == "adapters" else {}
    made = train(one.base, one.task, tmp_path / "c", method=method_of(method, **fields),
                 epochs=20, batch_size=BATCH)  # fmt: skip
    metric = {"tags": "entity_f1", "labels": "micro_f1"}[data]
    assert set(made.scores) == {metric}
    assert made.scores[metric] > 0.1
    study = ap.ablate(tmp_path / "c", progress=False)
    assert (study.summary.metric, study.summary.intact_score) == (metric, made.scores[metric])
    assert study.spans["score"].nunique() > 1
    assert set(study.groups["group"]) == set(
        find_task(one.task).label_names if data == "labels" else ("HARD", "KIND")
    )
    accuracy = "tag_accuracy" if data == "tags" else "macro_f1"
    again = ap.ablate(tmp_path / "c", metric=accuracy, out=tmp_path / "again", spans="single", progress=False)
    assert again.summary.intact_score > 0.3


@pytest.mark.parametrize("data", ["tags", "labels"])
def test_the_validation_score_is_that_of_whole_forwards(data, learners):
    seqeval = pytest.importorskip("seqeval.metrics")
    one = learners("roberta", data)
    asked = request_of(one.base, one.task, "adapters")
    inputs = load_inputs(asked)
    model = build_model(asked, inputs.base, torch.device("cpu")).eval()
    with torch.no_grad():
        for name in inputs.base.missing:
            model.base.get_parameter(name).mul_(20)
    names, true, said = asked.task.label_names, [], []
    for row in map(one.encode, rows_of(one.task, "validation")):
        with torch.no_grad():
            logits = model.base(**one.join([row])).logits[0]
        if data == "tags":
            kept = [place for place, label in enumerate(row["labels"]) if label >= 0]
            true.append([names[row["labels"][place]] for place in kept])
            said.append([names[logits[place].argmax()] for place in kept])
        else:
            true.append(row["labels"])
            said.append((logits.sigmoid() > 0.5).int().tolist())
    found = inputs.objective.score(model)
    expected = seqeval.f1_score(true, said) if data == "tags" else f1_score(true, said, average="micro")
    assert found == pytest.approx(expected, abs=1e-12)
    assert 0 < found < 1


def test_tags_of_all_splits_are_known(tmp_path):
    for split, tags in (("train", "O B-A"), ("validation", "O I-B")):
        (tmp_path / f"{split}.conll").write_text("\n\n".join(f"a {tag}" for tag in tags.split()))
    found = find_task(tmp_path)
    assert (found.kind, found.label_names) == ("tokens", ("B-A", "I-B", "O"))
