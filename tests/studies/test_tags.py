"""Tags, several labels and several targets: scores of every span equal to loops with PEFT's own switches."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pandas as pd
import peft
import pytest
import torch
from byte_tokenizer import byte_tokenizer
from mask_loop import assert_outputs, of_spans, over_variants, with_lora
from peft_cases import WORDS
from refusals import refuses
from sklearn.metrics import f1_score
from tiers import slow_unless
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

import adapter_probe as ap
from adapter_probe.figures.report.examples import examples_content
from adapter_probe.studies.report import texts_of

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
LABELS = ("kind", "long", "old")
SENTENCES = ["the cat saw a dog", "fine", "the house was big", "a cruel bird saw the unseen cat"] * 2
SIZES = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}
FAMILIES = {
    "bert": (SIZES, ["query", "value"]),
    "roberta": (SIZES, ["query", "value"]),
    "distilbert": ({"dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 24}, ["q_lin", "v_lin"]),
    "electra": ({**SIZES, "embedding_size": 16}, ["query", "value"]),
    "deberta-v2": (SIZES, ["query_proj", "value_proj"]),
    "modernbert": ({**SIZES, "pad_token_id": 0}, ["Wqkv"]),
    "qwen2": ({**SIZES, "num_key_value_heads": 2}, ["q_proj", "v_proj"]),
}
QUIET = {"precision": "float64", "progress": False}


def tokenizer_of(kind: str) -> PreTrainedTokenizerFast:
    """Words, or bytes where the beginning of a word depends on the blank before it."""
    return byte_tokenizer(True) if kind in ("roberta", "qwen2") else AutoTokenizer.from_pretrained(WORDS)


def made(kind: str, auto: type, names: tuple[str, ...], task: str, **more) -> peft.PeftModel:
    settings, targets = FAMILIES[kind]
    tokenizer = tokenizer_of(kind)
    config = AutoConfig.for_model(
        kind, **settings, vocab_size=max(64, len(tokenizer)), max_position_embeddings=64,
        id2label=dict(enumerate(names)), label2id={name: n for n, name in enumerate(names)},
        initializer_range=0.3, **more,
    )  # fmt: skip
    torch.manual_seed(0)
    return with_lora(auto.from_config(config), targets, task, 1.0)


def tagged(model: torch.nn.Module, tokenizer, seed: int = 0) -> list[dict]:
    """Sentences with the model's own tags, of which some are replaced."""
    generator, rows = np.random.default_rng(seed), [{"tokens": text.split()} for text in SENTENCES]
    model.eval()
    for row, tags in zip(rows, predicted_tags(model, tokenizer, rows)):
        row["tags"] = [tag if generator.random() < 0.6 else str(generator.choice(TAGS)) for tag in tags]
    return rows


def predicted_tags(model, tokenizer, rows) -> list[list[str]]:
    """By whole forwards, as transformers' own example of token classification reads them."""
    found = []
    for row in rows:
        given = tokenizer(row["tokens"], is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            best = model(**{k: v for k, v in given.items() if k != "token_type_ids"}).logits[0].argmax(-1)
        of_word, tags = given.word_ids(0), []
        for place, word in enumerate(of_word):
            if word is not None and (place == 0 or of_word[place - 1] != word):
                tags.append(TAGS[best[place]])
        found.append(tags)
    return found


@pytest.mark.parametrize("kind", slow_unless(lambda kind: kind == "bert", FAMILIES))
def test_entity_f1_of_every_span_is_that_of_seqeval_with_pefts_switches(kind):
    seqeval = pytest.importorskip("seqeval.metrics")
    model, tokenizer = made(kind, AutoModelForTokenClassification, TAGS, "TOKEN_CLS"), tokenizer_of(kind)
    rows = tagged(model, tokenizer)
    study = ap.ablate(model, data=rows, tokenizer=tokenizer, **QUIET)
    accuracy = ap.ablate(model, data=rows, tokenizer=tokenizer, metric="tag_accuracy", **QUIET)
    gold, whole, results = [row["tags"] for row in rows], model.double().eval(), study.results
    all_said = over_variants(whole, study, lambda: predicted_tags(whole, tokenizer, rows))
    f1 = [seqeval.f1_score(gold, said) for said in all_said]
    own = results.predictions.sum(axis=1)  # [variants, types, 2]
    n_entities = own[..., 1].sum(axis=1) + results.scored_with.sum()
    np.testing.assert_allclose(2 * own[..., 0].sum(axis=1) / n_entities, f1, atol=1e-6)
    hits = [seqeval.accuracy_score(gold, said) for said in all_said]
    for table, expected in ((study.spans, f1), (accuracy.spans, hits)):
        np.testing.assert_allclose(table["score"], of_spans(study, expected), atol=1e-6)
    for (first, last), said in zip(results.spans.tolist(), all_said):
        by_type = seqeval.classification_report(gold, said, output_dict=True, zero_division=0)
        for group in study.groups.query(f"first == {first} and last == {last}").itertuples():
            assert group.score == pytest.approx(by_type[group.group]["f1-score"], abs=1e-6)
    assert len(set(np.round(f1, 6))) > 2
    assert study.summary.metric == "entity_f1"
    assert "sentences" in dict(study.rows())["task"]


def folder_of(folder: Path, scale: float = 1.0) -> tuple[Path, list[dict]]:
    """A checkpoint of PEFT for tags, beside its base, with rows."""
    model, tokenizer = made("bert", AutoModelForTokenClassification, TAGS, "TOKEN_CLS"), tokenizer_of("bert")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(scale if "lora_B" in name else 1.0)
    rows = tagged(model, tokenizer)
    model.peft_config["default"].base_model_name_or_path = str(folder / "base")
    model.save_pretrained(folder / "lora")
    model.unload().save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    return folder / "lora", rows


def conll_of(rows: list[dict]) -> str:
    """Columns as in CoNLL 2003, with a document's beginning."""
    lines = ["-DOCSTART- -X- O", ""]
    for row in rows:
        lines += [f"{word} NN {tag}" for word, tag in zip(row["tokens"], row["tags"])] + [""]
    return "\n".join(lines) + "\n"


@pytest.mark.slow
def test_a_checkpoint_of_peft_on_columns_or_rows_is_one_study(tmp_path):
    checkpoint, rows = folder_of(tmp_path)
    (tmp_path / "rows.conll").write_text(conll_of(rows))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    quiet = {"progress": False, "spans": "single"}
    studies = [
        ap.ablate(checkpoint, data=tmp_path / name, out=tmp_path / name.replace(".", "-"), **quiet)
        for name in ("rows.conll", "rows.jsonl")
    ]
    for study in studies[1:]:
        pd.testing.assert_frame_equal(study.spans, studies[0].spans)
        pd.testing.assert_frame_equal(study.groups, studies[0].groups)
    read = ap.load(studies[0].folder)
    pd.testing.assert_frame_equal(read.spans, studies[0].spans)
    np.testing.assert_array_equal(read.results.predictions, studies[0].results.predictions)


@pytest.mark.parametrize("kind", slow_unless("tags".__eq__, ["tags", "labels"]))
def test_predicted_tags_and_labels_are_stored_and_listed(kind, tmp_path):
    """What a report lists of a sentence is what whole forwards predict."""
    if kind == "tags":
        checkpoint, rows = folder_of(tmp_path)
        whole = made("bert", AutoModelForTokenClassification, TAGS, "TOKEN_CLS")
        tokenizer, data, text = tokenizer_of("bert"), tmp_path / "rows.conll", conll_of(rows)
    else:
        whole, tokenizer, rows = several()
        checkpoint = saved(whole, tokenizer, tmp_path)
        data, text = tmp_path / "rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows)
    data.write_text(text)
    ap.ablate(checkpoint, data=data, out=tmp_path / "out", progress=False)
    results = ap.load(tmp_path / "out").results
    texts = texts_of(tmp_path / "out", results, None, checkpoint, (), "utf-8")
    spans = pd.DataFrame(results.spans[results.spans[:, 0] >= 0], columns=["first", "last"])
    found = examples_content(results, spans, texts)
    listed = [number - 1 for number in found["numbers"]]
    assert listed
    whole.eval()
    predicted = predicted_tags if kind == "tags" else labels_of
    variants = over_variants(whole, ap.load(tmp_path / "out"), lambda: predicted(whole, tokenizer, rows))
    said = dict(zip(map(tuple, results.spans.tolist()), variants))
    gold = [row["tags" if kind == "tags" else "labels"] for row in rows]
    changed = [n for n in range(len(rows)) if len({tuple(one[n]) for one in said.values()}) > 1]
    assert listed == changed

    def told(number: int, own: list[str]) -> str:
        if kind == "labels":
            return " · ".join(own) or "none"
        pairs = zip(rows[number]["tokens"], own)
        return " · ".join(f"{word} {tag}" for word, tag in pairs if tag != "O") or "none"

    assert found["truth"] == [told(number, gold[number]) for number in listed]
    for span, shown in zip(spans.itertuples(index=False), found["rows"]):
        for place, number in enumerate(listed):
            option = found["options"][place][int(shown["said"][place], 36)]
            assert option == told(number, said[span.first, span.last][number])
            assert int(shown["right"][place]) == (said[span.first, span.last][number] == gold[number])


def labels_of(model, tokenizer, rows: list[dict]) -> list[list[str]]:
    """The labels that a model gives every text, by whole forwards."""
    found = []
    for row in rows:
        with torch.no_grad():
            given = tokenizer(row["text"], return_tensors="pt", return_token_type_ids=False)
            found.append([name for name, logit in zip(LABELS, model(**given).logits[0]) if logit > 0])
    return found


def saved(model: peft.PeftModel, tokenizer, folder: Path) -> Path:
    """The model's checkpoint of PEFT beside its base; the model stays as it is."""
    model.peft_config["default"].base_model_name_or_path = str(folder / "base")
    model.save_pretrained(folder / "lora")
    copy.deepcopy(model).unload().save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    return folder / "lora"


def test_a_folder_of_peft_with_several_labels(tmp_path):
    """Its head is trained, and the base's configuration names the kind of task."""
    model, tokenizer, rows = several()
    checkpoint = saved(model, tokenizer, tmp_path)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    quiet = {"data": tmp_path / "rows.jsonl", "spans": "single", "progress": False, "precision": "float64"}
    study = ap.ablate(checkpoint, out=tmp_path / "out", **quiet)
    assert (study.summary.metric, study.results.label_names) == ("micro_f1", LABELS)
    base = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base")
    own = peft.PeftModel.from_pretrained(base, checkpoint).double().eval()
    for said, variant in zip(over_variants(own, study, lambda: labels_of(own, tokenizer, rows)),
                             study.results.predictions):  # fmt: skip
        assert [[n for n, on in zip(LABELS, row) if on] for row in variant.tolist()] == said


def several(kind: str = "bert") -> tuple[peft.PeftModel, PreTrainedTokenizerFast, list[dict]]:
    """A model of several labels, and texts with its own labels, of which some are replaced."""
    model = made(
        kind, AutoModelForSequenceClassification, LABELS, "SEQ_CLS", problem_type="multi_label_classification"
    )
    tokenizer, generator = tokenizer_of(kind), np.random.default_rng(0)
    model.eval()
    rows = []
    for text in SENTENCES:
        with torch.no_grad():
            own = model(**tokenizer(text, return_tensors="pt", return_token_type_ids=False)).logits[0] > 0
        on = [bool(one) ^ (generator.random() < 0.3) for one in own]
        rows.append({"text": text, "labels": [name for name, there in zip(LABELS, on) if there]})
    return model, tokenizer, rows


def sets_of(rows: list[dict]) -> np.ndarray:
    return np.array([[name in row["labels"] for name in LABELS] for row in rows]).astype(int)


@pytest.mark.slow
def test_micro_and_macro_f1_are_those_of_scikit_learn_with_pefts_switches():
    model, tokenizer, rows = several()
    micro = ap.ablate(model, data=rows, tokenizer=tokenizer, **QUIET)
    macro = ap.ablate(model, data=rows, tokenizer=tokenizer, metric="macro_f1", **QUIET)
    assert micro.summary.metric == "micro_f1"
    true, whole = sets_of(rows), model.double().eval()
    variants = over_variants(whole, micro, lambda: labels_of(whole, tokenizer, rows))
    all_said = [sets_of([{"labels": labels} for labels in said]) for said in variants]
    np.testing.assert_array_equal(micro.results.predictions, all_said)
    scores = {
        kind: [f1_score(true, said, average=kind, zero_division=np.nan) for said in all_said]
        for kind in ("micro", "macro")
    }
    for kind, study in (("micro", micro), ("macro", macro)):
        np.testing.assert_allclose(study.spans["score"], of_spans(study, scores[kind]), atol=1e-6)
    assert len(set(np.round([*scores["micro"], *scores["macro"]], 6))) > 3
    for (first, last), said in zip(micro.results.spans.tolist(), all_said):
        own = f1_score(true, said, average=None, zero_division=0)
        table = micro.groups.query(f"first == {first} and last == {last}")
        assert first < 0 or list(table["group"]) == list(LABELS)
        for group in table.itertuples():
            assert group.score == pytest.approx(own[LABELS.index(group.group)], abs=1e-6)
            assert group.n_examples == true[:, LABELS.index(group.group)].sum()


@pytest.mark.slow
def test_several_labels_are_read_as_names_numbers_or_a_row_of_truth_values():
    model, tokenizer, rows = several()
    quiet = {"tokenizer": tokenizer, "spans": "single", "progress": False}
    expected = ap.ablate(model, data=rows, **quiet).spans
    for values in (
        [[LABELS.index(name) for name in row["labels"]] for row in rows],
        sets_of(rows).astype(float).tolist(),
        sets_of(rows).tolist(),
    ):
        given = [{"text": row["text"], "labels": value} for row, value in zip(rows, values)]
        pd.testing.assert_frame_equal(ap.ablate(model, data=given, **quiet).spans, expected)
    tokens = tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")
    batches = [{k: v for k, v in tokens.items() if k != "token_type_ids"}]
    again = ap.ablate(model, batches=batches, labels=sets_of(rows), spans="single", progress=False)
    np.testing.assert_allclose(again.spans["score"], expected["score"])


def test_tags_of_positions_come_in_batches_as_a_collator_pads_them():
    model, tokenizer = made("bert", AutoModelForTokenClassification, TAGS, "TOKEN_CLS"), tokenizer_of("bert")
    rows = tagged(model, tokenizer)
    quiet = {"spans": "single", "progress": False}
    expected = ap.ablate(model, data=rows, tokenizer=tokenizer, **quiet)
    batches = []
    for some in (rows[:5], rows[5:]):
        given = tokenizer([row["tokens"] for row in some], is_split_into_words=True, padding=True)
        labels = []
        for number, row in enumerate(some):
            words = given.word_ids(number)
            first = [place for place, word in enumerate(words) if word not in (None, *words[:place])]
            labels.append([-100] * len(words))
            for place in first:
                labels[-1][place] = TAGS.index(row["tags"][words[place]])
        batches.append({**{k: torch.tensor(v) for k, v in given.items()}, "labels": torch.tensor(labels)})
    study = ap.ablate(model, batches=batches, **quiet)
    assert study.summary.metric == "entity_f1"
    np.testing.assert_array_equal(study.results.scored_with, expected.results.scored_with)
    np.testing.assert_array_equal(study.results.predictions, expected.results.predictions)


@pytest.mark.slow
def test_several_targets_are_scored_by_a_function():
    model = made("bert", AutoModelForSequenceClassification, LABELS, "SEQ_CLS", problem_type="regression")
    tokens = tokenizer_of("bert")(SENTENCES, padding=True, return_tensors="pt")
    targets = np.random.default_rng(0).normal(size=(len(SENTENCES), 3))

    def closeness(labels: np.ndarray, predictions: np.ndarray) -> float:
        return -float(np.abs(labels - predictions).mean())

    study = ap.ablate(model, batches=[dict(tokens)], labels=targets, metric=closeness, **QUIET)
    whole = model.double().eval()
    said = over_variants(whole, study, lambda: closeness(targets, whole(**tokens).logits.numpy()))
    np.testing.assert_allclose(study.spans["score"], of_spans(study, said), atol=1e-6)
    refuses(ap.DataError, ("3", "metric="), ap.ablate, model, batches=[dict(tokens)], labels=targets, **QUIET)


class Similarity(torch.nn.Module):
    """The guide's: cosines of the pooled outputs of two sentences, ``[pairs, 2, tokens]``."""

    def __init__(self, encoder: torch.nn.Module):
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        ids, mask = input_ids.flatten(0, 1), attention_mask.flatten(0, 1)
        states = self.encoder(ids, mask).last_hidden_state * mask[..., None]
        first, second = (states.sum(1) / mask.sum(1, keepdim=True)).unflatten(0, (-1, 2)).unbind(1)
        return {"similarity": torch.nn.functional.cosine_similarity(first, second)}


def test_the_similarity_of_pooled_outputs_equals_the_loop():
    """The module around the encoder is none of transformers and has no configuration."""
    model = Similarity(made("bert", AutoModel, LABELS, "FEATURE_EXTRACTION"))
    texts = [text for pair in zip(SENTENCES, SENTENCES[1:] + SENTENCES[:1]) for text in pair]
    tokens = tokenizer_of("bert")(texts, padding=True, return_tensors="pt")
    batch = {name: tokens[name].unflatten(0, (-1, 2)) for name in ("input_ids", "attention_mask")}
    labels = np.random.default_rng(0).random(len(SENTENCES))
    study = ap.ablate(model, batches=[batch], labels=labels, read="similarity", **QUIET)
    whole = model.double().eval()
    own = over_variants(whole, study, lambda: whole(**batch)["similarity"].numpy()[:, None])
    assert_outputs(study, own, 1e-6)
    assert study.summary.metric == "spearman"
