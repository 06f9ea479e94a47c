"""A trainer of transformers: its model, evaluation set and metric, equal to its own evaluation."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from mask_loop import randomise
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer, RoFormerForSequenceClassification, Trainer, TrainingArguments

import adapter_probe as ap

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "checkpoints"))
from peft_cases import WORDS, small_config

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
    with pytest.raises(ap.DataError, match=r"for the logits and .* for the predictions alone; give metric="):
        ap.ablate(trainer_of(tmp_path, sureness), progress=False)
