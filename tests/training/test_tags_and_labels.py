"""Training on tags and on several labels, against Transformers, seqeval and scikit-learn."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from tiers import slow_unless
from trainer import BATCH, RATE, assert_losses_of_trainer, order_of_batches, still
from trainings import request_of
from transformers import AutoTokenizer, DataCollatorForTokenClassification

import adapter_probe as ap
from adapter_probe.data.packing import pack
from adapter_probe.data.tasks import find_task
from adapter_probe.training.peft_methods import method_of
from adapter_probe.training.request import build_model, load_inputs

KINDS = ("tag_task", "label_task")


def conll(file: Path) -> list[dict]:
    """Sentences of a file, read here."""
    blocks = [[line.split() for line in block.splitlines()] for block in file.read_text().split("\n\n")]
    return [{"tokens": [word for word, _ in one], "tags": [tag for _, tag in one]} for one in blocks]


def encoded_for_trainer(base: Path, task: Path, split: str = "train") -> tuple[list[dict], object]:
    """Examples with labels as the scripts of Transformers make them, and what makes batches of them."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    if (task / "train.conll").exists():
        names = ["B-HARD", "B-KIND", "I-HARD", "I-KIND", "O"]
        found = []
        for row in conll(task / f"{split}.conll"):
            own = tokenizer(row["tokens"], is_split_into_words=True)
            of_word, before = own.word_ids(), [None, *own.word_ids()]
            labels = [
                -100 if word is None or word == last else names.index(row["tags"][word])
                for word, last in zip(of_word, before)
            ]
            found.append({**own, "labels": labels})
        return found, DataCollatorForTokenClassification(tokenizer)
    names = ["HARD", "KIND", "long"]
    rows = [json.loads(line) for line in (task / f"{split}.jsonl").read_text().splitlines()]
    found = [{**tokenizer(row["text"]), "labels": [float(n in row["labels"]) for n in names]} for row in rows]
    return found, lambda batch: tokenizer.pad(batch, return_tensors="pt")


@pytest.mark.parametrize("method", ["adapters", "lora:r=4"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_of_a_batch_is_that_of_transformers(kind, method, tiny_base, request):
    base, task = tiny_base("bert"), request.getfixturevalue(kind)
    asked = request_of(base, task, method)
    inputs = load_inputs(asked)
    model = build_model(asked, inputs.base, torch.device("cpu")).eval()
    batch = pack(inputs.objective.train, np.arange(9))
    examples, collate = encoded_for_trainer(base, task)
    with torch.no_grad():
        ours = inputs.objective.loss(model(batch), batch)
        assert ours.item() == pytest.approx(model.base(**collate(examples[:9])).loss.item(), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["adapters", "lora:r=4", "full"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_losses_are_those_of_the_trainer_of_transformers(kind, method, tiny_base, tmp_path, request):
    base, task, epochs = still(tiny_base("bert"), tmp_path / "base"), request.getfixturevalue(kind), 5
    rate = 1e-3 if method == "full" else RATE
    asked = request_of(base, task, method, epochs=epochs, batch_size=BATCH, learning_rate=rate)
    examples, collate = encoded_for_trainer(base, task)
    order = order_of_batches([len(one["input_ids"]) for one in examples], BATCH, epochs)
    batches = [dict(collate([examples[i] for i in batch])) for batch in order]
    losses = assert_losses_of_trainer(asked, batches, tmp_path)
    assert losses[0] - losses[-1] > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("method", ["adapters", "lora:r=4"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "family", slow_unless(lambda family: family == "bert", ["bert", "roberta", "electra"])
)
def test_a_trained_checkpoint_is_ablated_with_its_task_and_score(
    family, kind, method, tiny_base, train, tmp_path, request
):
    task = request.getfixturevalue(kind)
    fields = {"size": 8, "init_std": 0.1} if method == "adapters" else {}
    made = train(tiny_base(family), task, tmp_path / "c", method=method_of(method, **fields),
                 epochs=20, batch_size=BATCH)  # fmt: skip
    metric = {"tag_task": "entity_f1", "label_task": "micro_f1"}[kind]
    assert set(made.scores) == {metric}
    assert made.scores[metric] > 0.1
    study = ap.ablate(tmp_path / "c", progress=False)
    assert (study.summary.metric, study.summary.intact_score) == (metric, made.scores[metric])
    assert study.spans["score"].nunique() > 1
    assert set(study.groups["group"]) == set(
        find_task(task).label_names if kind == "label_task" else ("HARD", "KIND")
    )
    accuracy = "tag_accuracy" if kind == "tag_task" else "macro_f1"
    again = ap.ablate(tmp_path / "c", metric=accuracy, out=tmp_path / "again", spans="single", progress=False)
    assert again.summary.intact_score > 0.3


@pytest.mark.parametrize("kind", KINDS)
def test_the_validation_score_is_that_of_whole_forwards(kind, tiny_base, request):
    seqeval = pytest.importorskip("seqeval.metrics")
    base, task = tiny_base("roberta"), request.getfixturevalue(kind)
    asked = request_of(base, task, "adapters")
    inputs = load_inputs(asked)
    model = build_model(asked, inputs.base, torch.device("cpu")).eval()
    with torch.no_grad():
        for name in inputs.base.missing:
            model.base.get_parameter(name).mul_(20)
    examples, _ = encoded_for_trainer(base, task, "validation")
    names, true, said = asked.task.label_names, [], []
    for one in examples:
        given = {n: torch.tensor([v]) for n, v in one.items() if n in ("input_ids", "attention_mask")}
        with torch.no_grad():
            logits = model.base(**given).logits[0]
        if kind == "tag_task":
            kept = [place for place, label in enumerate(one["labels"]) if label >= 0]
            true.append([names[one["labels"][place]] for place in kept])
            said.append([names[logits[place].argmax()] for place in kept])
        else:
            true.append(one["labels"])
            said.append((logits.sigmoid() > 0.5).int().tolist())
    found = inputs.objective.score(model)
    expected = seqeval.f1_score(true, said) if kind == "tag_task" else f1_score(true, said, average="micro")
    assert found == pytest.approx(expected, abs=1e-12)
    assert 0 < found < 1


def test_tags_of_all_splits_are_known(tmp_path):
    for split, tags in (("train", "O B-A"), ("validation", "O I-B")):
        (tmp_path / f"{split}.conll").write_text("\n\n".join(f"a {tag}" for tag in tags.split()))
    found = find_task(tmp_path)
    assert (found.kind, found.label_names) == ("tokens", ("B-A", "I-B", "O"))
