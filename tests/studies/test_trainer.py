"""A trainer of transformers: its model, evaluation set and metric, equal to its own evaluation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from mask_loop import randomise
from peft import LoraConfig, get_peft_model
from peft_cases import WORDS, small_config
from refusals import naming
from sklearn.metrics import f1_score
from transformers import (
    AutoTokenizer,
    DataCollatorForTokenClassification,
    RoFormerForSequenceClassification,
    RoFormerForTokenClassification,
    Trainer,
    TrainingArguments,
)

import adapter_probe as ap

pytest.importorskip("accelerate")
TEXTS = ["the cat saw a dog", "fine", "the house was big", "a cruel bird", "the dog met the bad cat"] * 2


def accuracy(given) -> dict[str, float]:
    return {"hits": float((given.predictions.argmax(-1) == given.label_ids).mean()), "n": 1.0}


def sureness(given) -> dict[str, float]:
    return {"hits": float(np.abs(given.predictions).mean())}


def trainer_of(folder: Path, compute_metrics) -> Trainer:
    tokenizer = AutoTokenizer.from_pretrained(WORDS)
    torch.manual_seed(0)
    base = RoFormerForSequenceClassification(small_config("roformer"))
    model = get_peft_model(base, LoraConfig(r=4, target_modules=["query", "value"], task_type="SEQ_CLS"))
    randomise(model, 0.3)
    rows = [{**tokenizer(text), "labels": number % 2} for number, text in enumerate(TEXTS)]
    arguments = TrainingArguments(
        str(folder), per_device_eval_batch_size=4, use_cpu=True, report_to=[], max_steps=1,
        save_strategy="no", metric_for_best_model="hits", disable_tqdm=True,
    )  # fmt: skip
    return Trainer(
        model, arguments, train_dataset=rows, eval_dataset=rows, processing_class=tokenizer,
        compute_metrics=compute_metrics,
    )  # fmt: skip


@pytest.mark.slow
def test_the_intact_score_is_that_of_the_trainers_evaluation(tmp_path):
    trainer = trainer_of(tmp_path, accuracy)
    trainer.train()
    study = ap.ablate(trainer, spans="single", progress=False)
    assert trainer.model.training
    assert study.summary.metric == "custom:hits"
    own = trainer.predict(trainer.eval_dataset)
    np.testing.assert_allclose(study.results.outputs[0], own.predictions, atol=1e-4)
    assert study.results.scored_with.tolist() == own.label_ids.tolist()
    intact = study.results.row_names.index("intact")
    hits = (study.results.predictions[intact] == study.results.scored_with).mean()
    assert hits == pytest.approx(own.metrics["test_hits"])


def test_a_metric_of_more_than_the_classes_is_refused(tmp_path):
    with pytest.raises(ap.DataError, match=naming("metric=")):
        ap.ablate(trainer_of(tmp_path, sureness), progress=False)


class Table(list):
    """As a dataset of `datasets`, which this environment may lack."""

    @property
    def column_names(self) -> list[str]:
        return list(self[0])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], ("no rows", "data=", "batches=")),
        ({"one": [], "other": []}, ("'one', 'other'", "batches=trainer.get_eval_dataloader")),
        (Table([{"chosen": "a", "rejected": "b"}]), ("preferences", "one output")),
        (Table([{"chosen_ids": [5], "rejected_ids": [6]}]), ("preferences", "one output")),
    ],
)
def test_an_evaluation_set_that_gives_no_batches_is_one_line(rows, words, tmp_path):
    trainer = trainer_of(tmp_path, None)
    trainer.eval_dataset = rows
    with pytest.raises(ap.DataError, match=naming(*words)):
        ap.ablate(trainer, progress=False)


@pytest.mark.slow
def test_tokenised_rows_with_labels_are_batches(tmp_path):
    trainer = trainer_of(tmp_path, None)
    rows, tokenizer = trainer.eval_dataset, trainer.processing_class
    given = {"spans": "single", "progress": False}
    texts = [{"text": text, "label": number % 2} for number, text in enumerate(TEXTS)]
    expected = ap.ablate(trainer.model, data=texts, tokenizer=tokenizer, **given).results
    noted = [{**row, "idx": 7} for row in rows]  # the model takes no such column
    for rows_of in ({"data": rows}, {"data": pd.DataFrame(noted)}, {"batches": noted}):
        found = ap.ablate(trainer.model, **rows_of, **given).results
        np.testing.assert_allclose(found.outputs, expected.outputs, atol=1e-6)
        assert found.scored_with.tolist() == expected.scored_with.tolist()
    unlabelled = [{"input_ids": row["input_ids"]} for row in rows]
    with pytest.raises(ap.DataError, match=naming("labels=")):
        ap.ablate(trainer.model, data=unlabelled, **given)
    with pytest.raises(ap.DataError, match=naming("data=", "'text'")):
        ap.ablate(trainer.model, batches=Dataset(texts), labels=[0] * len(texts), **given)


class Dataset(list):
    """What tells a table of `datasets`."""

    features = iter = None


TAGS = ("O", "B-CAT", "I-CAT")


def entity_f1(given) -> dict[str, float]:
    """As in transformers' own script for tags."""
    from seqeval.metrics import accuracy_score, f1_score

    best = given.predictions.argmax(-1)
    gold, said = (
        [
            [TAGS[tag] for tag, there in zip(row, own) if there != -100]
            for row, own in zip(tags, given.label_ids)
        ]
        for tags in (given.label_ids, best)
    )
    return {"f1": f1_score(gold, said), "hits": accuracy_score(gold, said)}


def several_f1(given) -> dict[str, float]:
    said = (1 / (1 + np.exp(-given.predictions)) > 0.5).astype(int)
    return {"hits": f1_score(given.label_ids, said, average="macro", zero_division=0)}


@pytest.mark.slow
@pytest.mark.parametrize(("best", "metric"), [("f1", "entity_f1"), ("hits", "tag_accuracy")])
def test_a_trainer_of_tags_is_scored_as_it_evaluates(best, metric, tmp_path):
    pytest.importorskip("seqeval")
    tokenizer = AutoTokenizer.from_pretrained(WORDS)
    torch.manual_seed(0)
    config = small_config("roformer")
    config.id2label = dict(enumerate(TAGS))
    model = get_peft_model(
        RoFormerForTokenClassification(config),
        LoraConfig(r=4, target_modules=["query", "value"], task_type="TOKEN_CLS"),
    )
    randomise(model, 0.3)
    generator, rows = np.random.default_rng(0), []
    for text in TEXTS:
        given = tokenizer(text)
        labels = generator.integers(0, 3, len(given["input_ids"])).tolist()
        rows.append({**given, "labels": [-100, *labels[1:-1], -100]})
    arguments = TrainingArguments(
        str(tmp_path), per_device_eval_batch_size=4, use_cpu=True, report_to=[], disable_tqdm=True,
        metric_for_best_model=best,
    )  # fmt: skip
    trainer = Trainer(
        model, arguments, eval_dataset=rows, processing_class=tokenizer, compute_metrics=entity_f1,
        data_collator=DataCollatorForTokenClassification(tokenizer),
    )  # fmt: skip
    study = ap.ablate(trainer, spans="single", progress=False)
    assert study.summary.metric == metric
    assert study.summary.intact_score == pytest.approx(trainer.evaluate()[f"eval_{best}"], abs=1e-6)


@pytest.mark.slow
def test_a_trainer_of_several_labels_is_scored_as_it_evaluates(tmp_path):
    trainer = trainer_of(tmp_path, several_f1)
    trainer.model.get_base_model().config.problem_type = "multi_label_classification"
    for number, row in enumerate(trainer.eval_dataset):
        row["labels"] = [float(number % 2), float(number % 3 == 0)]
    study = ap.ablate(trainer, spans="single", progress=False)
    assert study.summary.metric == "custom:hits"
    assert study.summary.intact_score == pytest.approx(trainer.evaluate()["eval_hits"], abs=1e-6)
