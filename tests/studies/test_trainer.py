"""A trainer of transformers: its model, evaluation set and metric, equal to its own evaluation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from mask_loop import switched, with_lora
from peft import LoraConfig, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from peft_cases import WORDS, small_config
from refusals import naming, refuses
from scipy.special import logsumexp
from scipy.stats import binomtest, pearsonr, spearmanr
from sklearn.metrics import f1_score
from transformers import (
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification,
    EarlyStoppingCallback,
    RoFormerForMaskedLM,
    RoFormerForQuestionAnswering,
    RoFormerForSequenceClassification,
    RoFormerForTokenClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import adapter_probe as ap
from adapter_probe.analysis import ablation_tables

pytest.importorskip("accelerate")
QV = ["query", "value"]
TEXTS = [" ".join(f"w{(7 * text + word) % 48}" for word in range(1 + 5 * text % 6)) for text in range(12)]


def accuracy(given) -> dict[str, float]:
    return {"hits": float((given.predictions.argmax(-1) == given.label_ids).mean()), "n": 1.0}


def trainer_of(folder: Path, compute_metrics, n_outputs: int = 2, kind: type[Trainer] = Trainer) -> Trainer:
    tokenizer = AutoTokenizer.from_pretrained(WORDS)
    torch.manual_seed(0)
    config = small_config("roformer")
    config.num_labels = n_outputs
    base = RoFormerForSequenceClassification(config)
    model = with_lora(base, QV, "SEQ_CLS")
    labels = [
        number * number % 3 % 2 if n_outputs == 2 else number * number / 10 for number in range(len(TEXTS))
    ]
    rows = [{**tokenizer(text), "labels": label} for text, label in zip(TEXTS, labels)]
    arguments = TrainingArguments(
        str(folder), per_device_eval_batch_size=4, use_cpu=True, report_to=[], max_steps=1,
        save_strategy="no", metric_for_best_model="hits", disable_tqdm=True,
    )  # fmt: skip
    return kind(
        model, arguments, train_dataset=rows, eval_dataset=rows, processing_class=tokenizer,
        compute_metrics=compute_metrics,
    )  # fmt: skip


def percent(given) -> dict[str, float]:
    return {"hits": 100 * accuracy(given)["hits"]}


def sure(given) -> dict[str, float]:
    """Of both classes, how many are predicted rightly with a probability above 0.6."""
    assert (given.predictions.dtype, given.label_ids.dtype) == (np.float32, np.int64)
    shares = np.exp(given.predictions) / np.exp(given.predictions).sum(-1, keepdims=True)
    return {
        "eval_hits": float(((shares > 0.6).argmax(-1) * (shares.max(-1) > 0.6) == given.label_ids).mean())
    }


def entropy(given) -> dict[str, float]:
    rows = given.predictions - logsumexp(given.predictions, axis=-1, keepdims=True)
    return {"hits": float(-rows[np.arange(len(rows)), given.label_ids].mean())}


def squares(given) -> dict[str, float]:
    """As in Transformers' own script for regression, with its shapes."""
    assert given.predictions.shape == (len(given.label_ids), 1)
    assert (given.predictions.dtype, given.label_ids.dtype) == (np.float32, np.float32)
    return {"mse": float(((given.predictions.squeeze(-1) - given.label_ids) ** 2).mean())}


def correlations(given) -> dict[str, float]:
    pearson, ranks = (
        one(given.predictions[:, 0], given.label_ids).statistic for one in (pearsonr, spearmanr)
    )
    return {**squares(given), "pearson": pearson, "r": ranks}


def several(given) -> dict[str, float]:
    return {**squares(given), "n": float(len(given.label_ids))}


def classes(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """As a `preprocess_logits_for_metrics`."""
    assert logits.shape == (len(labels), 2)
    return logits.argmax(dim=-1)


def of_classes(given) -> dict[str, float]:
    found = (given.predictions == 0).sum() + (given.label_ids == 0).sum()
    return {"f1": float(2 * ((given.predictions == 0) & (given.label_ids == 0)).sum() / max(found, 1))}


def off_score(trainer: Trainer, name: str) -> float:
    """The trainer's own evaluation without the adapters in the layers; a trained head stays."""
    tuned = [module for module in trainer.model.modules() if isinstance(module, BaseTunerLayer)]
    switched(tuned, False)
    try:
        return trainer.evaluate()[f"eval_{name}"]
    finally:
        switched(tuned, True)


# compute_metrics, its number, the metric of the study, whether it is a regression's, and its whole
METRICS = {
    "accuracy": (accuracy, "hits", "accuracy", False, 1),
    "accuracy in percent": (percent, "hits", "accuracy", False, 100),
    "sure classes": (sure, "hits", "custom:hits (share)", False, 1),
    "cross-entropy": (entropy, "hits", "custom:hits (loss)", False, 1),
    "squares": (squares, "mse", "custom:mse (loss)", True, 1),
    "pearson": (correlations, "pearson", "pearson", True, 1),
    "spearman": (correlations, "r", "spearman", True, 1),
    "one of several": (several, "mse", "custom:mse (loss)", True, 1),
}


@pytest.mark.parametrize(
    "case", [case if case == "squares" else pytest.param(case, marks=pytest.mark.slow) for case in METRICS]
)
def test_scores_are_those_of_the_trainers_evaluation(case, tmp_path, monkeypatch):
    compute, name, metric, is_regression, whole = METRICS[case]
    trainer = trainer_of(tmp_path, compute, 1 if is_regression else 2)
    trainer.args.metric_for_best_model = name
    monkeypatch.setattr(ablation_tables, "draws_for", lambda _: 200)  # each calls the function
    given = {"spans": "single", "progress": False}
    study = ap.ablate(trainer, **given)
    assert study.summary.metric == metric
    own = trainer.evaluate()[f"eval_{name}"] / whole
    assert study.summary.intact_score == pytest.approx(own, rel=1e-5, abs=1e-6)
    removed = off_score(trainer, name) / whole
    assert study.summary.removed_score == pytest.approx(removed, rel=1e-5, abs=1e-6)
    assert abs(own - removed) > 1e-3
    sign = -1 if "loss" in metric else 1
    assert study.summary.removed_delta_points == pytest.approx(
        100 * sign * (removed - own), rel=1e-4, abs=1e-4
    )
    again = ap.ablate(trainer, batches=trainer.get_eval_dataloader(), **given)
    assert again.spans.equals(study.spans)
    if case == "one of several":
        trainer.args.metric_for_best_model = None
        assert ap.ablate(trainer, metric=name, **given).spans.equals(study.spans)
        refuses(ap.DataError, ("mse, n", "metric='mse'"), ap.ablate, trainer, **given)


@pytest.mark.slow
def test_an_accuracy_of_the_trainers_is_tested_as_one_and_printed_in_percent(tmp_path):
    trainer = trainer_of(tmp_path, accuracy)
    trainer.train()
    study = ap.ablate(trainer, name="SST-2", progress=False)
    assert trainer.model.training
    right = study.results.outputs.argmax(-1) == study.results.scored_with
    for row in study.spans.itertuples():
        own = right[study.results.row_names.index(f"{row.first}-{row.last}")]
        lost, won = int((right[0] & ~own).sum()), int((own & ~right[0]).sum())
        expected = binomtest(lost, lost + won).pvalue if lost + won else 1.0
        assert row.p_value == pytest.approx(expected)
    own = trainer.evaluate()["eval_hits"]
    assert f"accuracy\nintact {100 * own:.1f}%" in repr(study)
    label = study.heatmap().figure.axes[-1].get_ylabel()
    assert " ".join(label.split()) == "drop in accuracy on SST-2 (percentage points)"


@pytest.mark.slow
def test_what_is_made_of_the_logits_first_is_what_the_metric_gets(tmp_path, monkeypatch):
    monkeypatch.setattr(ablation_tables, "draws_for", lambda _: 200)  # each calls the function
    trainer = trainer_of(tmp_path, of_classes)
    trainer.preprocess_logits_for_metrics = classes
    trainer.args.metric_for_best_model = None
    study = ap.ablate(trainer, spans="single", progress=False)
    assert study.summary.metric == "custom:f1 (share)"  # of the first class, and not of the second one
    assert study.summary.intact_score == pytest.approx(trainer.evaluate()["eval_f1"])
    trainer.preprocess_logits_for_metrics = lambda logits, labels: logits - logits.mean(dim=0)
    trainer.compute_metrics, trainer.args.metric_for_best_model = accuracy, "hits"
    with pytest.raises(
        ap.DataError, match=naming("preprocess_logits_for_metrics", "other examples", "metric=")
    ):
        ap.ablate(trainer, progress=False)


class Doubled(Trainer):
    """A trainer that computes something else than the model."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        outputs["logits"] = 2 * outputs["logits"]
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]


class Shrunk(Trainer):
    """A trainer that evaluates other weights, as one with their mean over the steps does."""

    def evaluate(self, *given, **options):
        own = [p for p in self.model.parameters() if p.requires_grad]
        kept = [p.detach().clone() for p in own]
        with torch.no_grad():
            for p in own:
                p.mul_(0.3)
        try:
            return super().evaluate(*given, **options)
        finally:
            with torch.no_grad():
                for p, before in zip(own, kept):
                    p.copy_(before)


class Halved(Trainer):
    def evaluation_loop(self, *given, **options):
        found = super().evaluation_loop(*given, **options)
        found.metrics["eval_hits"] /= 2
        return found


class Shrinking(TrainerCallback):
    def on_prediction_step(self, args, state, control, model=None, **_):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.mul_(0.5)


class Doubling(TrainerCallback):
    def on_evaluate(self, args, state, control, metrics=None, **_):
        metrics["eval_hits"] *= 2


def redrawing(trainer: Trainer) -> None:
    collate, generator = trainer.data_collator, torch.Generator().manual_seed(0)

    def redrawn(rows):
        batch = collate(rows)
        drawn = torch.rand(batch["input_ids"].shape, generator=generator) < 0.3
        return {**batch, "input_ids": batch["input_ids"].masked_fill(drawn, 7)}

    trainer.data_collator = redrawn


def patched(trainer: Trainer) -> None:
    own = trainer.evaluate
    trainer.evaluate = lambda *given: {name: 2 * value for name, value in own(*given).items()}


# The class of a trainer, what changes it, and words of the question; none where nothing differs.
EVALUATIONS = {
    "stopping early": (Trainer, lambda t: t.add_callback(EarlyStoppingCallback(1)), ""),
    "evaluate": (Shrunk, None, "by evaluate of its own"),
    "evaluate of one": (Trainer, patched, "by evaluate of its own"),
    "evaluation_loop": (Halved, None, "by evaluation_loop of its own"),
    "a step": (Trainer, lambda t: t.add_callback(Shrinking), "by Shrinking.on_prediction_step of its own"),
    "an end": (Trainer, lambda t: t.add_callback(Doubling), "by Doubling.on_evaluate of its own"),
    "batches": (Trainer, redrawing, "draws its batches anew"),
}


def size(given) -> dict[str, float]:
    return {"hits": float(np.abs(given.predictions).mean())}


@pytest.mark.parametrize("case", EVALUATIONS)
def test_an_evaluation_of_a_trainers_own_is_named(case, tmp_path, monkeypatch):
    monkeypatch.setattr(ablation_tables, "draws_for", lambda _: 200)
    kind, change, words = EVALUATIONS[case]
    trainer = trainer_of(tmp_path, size, kind=kind)
    if change is not None:
        change(trainer)
    studies = [ap.ablate(trainer, spans="whole", progress=False)]
    if case not in ("batches", "stopping early"):
        given = {"batches": trainer.get_eval_dataloader(), "spans": "whole", "progress": False}
        studies.append(ap.ablate(trainer, **given))
    own = trainer.evaluate()["eval_hits"]
    for study in studies:
        said = "\n".join(study.question)
        assert words in said
        assert ("of its own" in said or "anew" in said) == bool(words)
        assert (study.summary.intact_score == pytest.approx(own, rel=1e-5)) == (not words)


class Averaged(torch.optim.SGD):
    """As the optimisers without a schedule, which put a mean of the weights into the model to evaluate it."""

    def moved(self, training: bool, by: float) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"] if group.get("train_mode", False) != training else ():
                    parameter.add_(by)
                group["train_mode"] = training

    def train(self) -> None:
        self.moved(True, 0.1)

    def eval(self) -> None:
        self.moved(False, -0.1)


def test_weights_of_training_that_are_not_those_of_evaluation_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(ablation_tables, "draws_for", lambda _: 200)
    trainer = trainer_of(tmp_path, size)
    trainer.optimizer = Averaged(trainer.model.parameters(), lr=0.0)
    trainer.optimizer.train()
    for data in ({}, {"data": ROWS}):
        with pytest.raises(ap.DataError, match=naming("Averaged", "trainer.optimizer.eval()")):
            ap.ablate(trainer, progress=False, **data)
    trainer.optimizer.eval()
    study = ap.ablate(trainer, spans="whole", progress=False)
    assert study.summary.intact_score == pytest.approx(trainer.evaluate()["eval_hits"], rel=1e-5)


def of_places(given) -> dict[str, float]:
    right = given.predictions.argmax(-1) == given.label_ids
    return {"hits": float((right * np.arange(len(right))).mean())}


def of_pairs(given) -> dict[str, float]:
    right = given.predictions.argmax(-1) == given.label_ids
    return {"hits": float(right.reshape(-1, 2).all(axis=1).mean())}


def of_chance(given) -> dict[str, float]:
    return {"hits": float(np.random.default_rng().uniform())}


def of_best(given, best=[0.0]) -> dict[str, float]:  # noqa: B006
    best[0] = max(best[0], accuracy(given)["hits"])
    return {"hits": best[0]}


def weighted(labels, predictions) -> float:
    return float(((labels == predictions) * np.arange(len(labels))).mean())


@pytest.mark.parametrize("n", [1, 12])
def test_the_only_evaluation_set_of_a_trainer_may_have_a_name_or_one_row(n, tmp_path):
    trainer = trainer_of(tmp_path, accuracy)
    trainer.eval_dataset = {"matched": trainer.eval_dataset[:n]}
    study = ap.ablate(trainer, spans="whole", progress=False)
    assert study.summary.n_examples == n
    assert study.summary.intact_score == pytest.approx(trainer.evaluate()["eval_matched_hits"])


@pytest.mark.slow
def test_a_metric_that_is_not_used_is_named(tmp_path, capsys):
    trainer = trainer_of(tmp_path, accuracy)
    texts = [{"text": text, "label": number % 2} for number, text in enumerate(TEXTS)]
    ap.ablate(trainer, data=texts, spans="single")
    assert "compute_metrics" in capsys.readouterr().err
    ap.ablate(trainer, data=texts, spans="single", metric="mcc")
    assert "compute_metrics" not in capsys.readouterr().err


ROWS = [{"text": text, "label": number % 2} for number, text in enumerate(TEXTS)]


class Table(list):
    """As a dataset of `datasets`, which this environment may lack."""

    @property
    def column_names(self) -> list[str]:
        return list(self[0])


@pytest.mark.slow
def test_tokenised_rows_with_labels_are_batches(tmp_path):
    trainer = trainer_of(tmp_path, None)
    rows, tokenizer = trainer.eval_dataset, trainer.processing_class
    given = {"spans": "single", "progress": False}
    texts = [{"text": text, "label": row["labels"]} for text, row in zip(TEXTS, rows)]
    expected = ap.ablate(trainer.model, data=texts, tokenizer=tokenizer, **given).results
    noted = [{**row, "idx": 7} for row in rows]  # the model takes no such column
    for rows_of in ({"data": rows}, {"data": pd.DataFrame(noted)}, {"batches": noted}):
        found = ap.ablate(trainer.model, **rows_of, **given).results
        np.testing.assert_allclose(found.outputs, expected.outputs, atol=1e-6)
        assert found.scored_with.tolist() == expected.scored_with.tolist()
    unlabelled = [{"input_ids": row["input_ids"]} for row in rows]
    refuses(ap.DataError, ("labels=",), ap.ablate, trainer.model, data=unlabelled, **given)
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
    model = with_lora(RoFormerForTokenClassification(config), QV, "TOKEN_CLS")
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
    assert study.summary.metric == "macro_f1"
    assert study.summary.intact_score == pytest.approx(trainer.evaluate()["eval_hits"], abs=1e-6)


@pytest.mark.slow
def test_masked_words_are_scored_as_by_the_models_own_loss(tmp_path):
    trainer = trainer_of(tmp_path, None)
    torch.manual_seed(0)
    model = with_lora(RoFormerForMaskedLM(small_config("roformer")), QV)
    collate = DataCollatorForLanguageModeling(trainer.processing_class, mlm_probability=0.5, seed=1)
    rows = [collate([trainer.processing_class(text)]) for text in TEXTS]
    batches = [row for row in rows if (row["labels"] != -100).any()]
    study = ap.ablate(model, batches=batches, spans="single", metric="perplexity", progress=False)
    tuned = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    for score, on in ((study.summary.intact_score, True), (study.summary.removed_score, False)):
        switched(tuned, on)
        counts = [int((row["labels"] != -100).sum()) for row in batches]
        with torch.no_grad():
            losses = [model.eval()(**row).loss.item() * n for row, n in zip(batches, counts)]
        assert np.log(score) == pytest.approx(sum(losses) / sum(counts), rel=1e-5)
    assert "masked words" in study.question[0]


def test_the_question_names_the_trainers_metric_and_its_precision(tmp_path):
    trainer = trainer_of(tmp_path, accuracy)
    trainer.args.bf16 = True
    said = "\n".join(ap.ablate(trainer, spans="single", progress=False).question)
    assert "12 examples of the evaluation set of a Trainer: class by `logits` of the model" in said
    assert "compute_metrics: hits" in said
    assert "bf16=True" in said


@pytest.mark.parametrize(
    ("data", "n", "words"),
    [
        ({"train": Table(ROWS[:3]), "validation": Table(ROWS)}, 12, ()),
        ({"train": Table(ROWS[:3]), "dev": Table(ROWS)}, 0, ("train, dev", "no validation", "data=DATA")),
        ({"text": TEXTS, "label": [0, 1] * 6}, 12, ()),
        ({"text": TEXTS, "label": [0, 1] * 5}, 0, ("mapping", "equally many")),
        (TEXTS, 0, ("12 strings", "labels", "metric='kl'")),
        (
            [{"text": text, "label": "abc"[n % 3]} for n, text in enumerate(TEXTS)],
            0,
            ("data: the labels", "label_names="),
        ),
    ],
)
def test_data_of_a_notebook_is_read_or_refused_in_its_words(data, n, words, tmp_path):
    trainer = trainer_of(tmp_path, None)
    given = {"data": data, "tokenizer": trainer.processing_class, "spans": "single", "progress": False}
    if words:
        with pytest.raises(ap.DataError, match=naming(*words)) as caught:
            ap.ablate(trainer.model, **given)
        assert "--" not in str(caught.value)
        assert ".jsonl" not in str(caught.value)
    else:
        assert ap.ablate(trainer.model, **given).summary.n_examples == n


def test_hooks_that_making_the_batches_leaves_are_gone(tmp_path):
    trainer = trainer_of(tmp_path, None)
    own = trainer.get_eval_dataloader
    hooked = trainer.model.get_input_embeddings()

    def with_hook():
        hooked.register_forward_hook(lambda *_: None)  # as `enable_input_require_grads` does
        return own()

    trainer.get_eval_dataloader = with_hook
    ap.ablate(trainer, spans="single", progress=False)
    assert not hooked._forward_hooks


def asked(trainer: Trainer, **settings: object) -> None:
    """Settings of the arguments, of the trainer itself or, of outputs, of the model."""
    for name, value in settings.items():
        setattr(trainer.model.config if name.startswith("output") else trainer.args, name, value)
        setattr(trainer, name, value)


def of_questions(trainer: Trainer) -> None:
    lora = LoraConfig(r=4, target_modules=["query"], task_type="QUESTION_ANS")
    trainer.model = get_peft_model(RoFormerForQuestionAnswering(small_config("roformer")), lora)
    for row in trainer.eval_dataset:
        row |= {"start_positions": 0, "end_positions": row.pop("labels")}


def in_parallel(trainer: Trainer) -> None:
    trainer.model = torch.nn.DataParallel(trainer.model)


# compute_metrics, what else is of the trainer, and what the refusal names.
REFUSED: list[tuple[Callable | None, dict[str, object] | Callable[[Trainer], None], tuple[str, ...]]] = [
    (sure, {"include_for_metrics": ["inputs"]}, ("include_for_metrics", "inputs", "metric=")),
    (sure, {"batch_eval_metrics": True}, ("batch_eval_metrics", "one batch", "metric=")),
    (sure, {"eval_do_concat_batches": False}, ("eval_do_concat_batches=False", "list of batches", "metric=")),
    (sure, {"prediction_loss_only": True}, ("prediction_loss_only", "metric=")),
    (sure, {"predict_with_generate": True}, ("predict_with_generate", "generate=True", "answer")),
    (sure, {"greater_is_better": False}, ("greater_is_better=False", "hits", "metric=")),
    (sure, {"output_hidden_states": True}, ("2 arrays of outputs", "metric=")),
    (sure, {"kind": Doubled}, ("other outputs", "compute_loss", "metric=")),
    (sure, {"label_names": ["labels", "token_type_ids"]}, ("2 arrays", "metric=")),
    (of_places, {}, ("hits", "another order", "resamples")),
    (of_pairs, {}, ("hits", "another order", "resamples")),
    (of_chance, {}, ("hits", "chance")),
    (of_best, {}, ("hits", "earlier calls")),
    (None, {"metric": weighted}, ("weighted", "another order", "resamples")),
    (accuracy, {"metric": "f2"}, ("hits, n, and no f2", "metric='hits'")),
    (lambda given: {"hits": {"f1": 1.0}}, {}, ("hits", "{'f1': 1.0}", "one number")),
    (lambda given: {"hits": [1.0, 0.5]}, {}, ("hits", "[1.0, 0.5]", "one number")),
    (lambda given: {"hits": "0.5"}, {}, ("hits", "'0.5'", "one number")),
    (lambda given: {"hits": None}, {}, ("hits", "None", "one number")),
    (None, {"rows": []}, ("no rows", "data=", "batches=")),
    (None, {"rows": {"one": [], "other": []}}, ("'one', 'other'", "batches=trainer.get_eval_dataloader")),
    (None, {"rows": Table([{"chosen": "a", "rejected": "b"}])}, ("preferences", "one output")),
    (None, {"rows": Table([{"chosen_ids": [5], "rejected_ids": [6]}])}, ("preferences", "one output")),
    (None, of_questions, ("questions", "data=", "context and answers")),
    (accuracy, in_parallel, ("DataParallel", "model.module")),
]


@pytest.mark.parametrize(("compute", "change", "words"), REFUSED)
def test_what_a_study_cannot_give_or_score_is_refused_by_name(compute, change, words, tmp_path):
    given = {} if callable(change) else dict(change)
    trainer = trainer_of(tmp_path, compute, kind=given.pop("kind", Trainer))
    trainer.eval_dataset = given.pop("rows", trainer.eval_dataset)
    metric = given.pop("metric", None)
    change(trainer) if callable(change) else asked(trainer, **given)
    with pytest.raises(ap.AdapterProbeError, match=naming(*words)) as caught:
        ap.ablate(trainer, metric=metric, spans="whole", progress=False)
    assert isinstance(caught.value, ap.ModelError if change is in_parallel else ap.DataError)
    assert "\n" not in str(caught.value)
