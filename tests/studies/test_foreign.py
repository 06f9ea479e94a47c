"""A checkpoint of another library: from a frame to a report, as a newcomer goes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from byte_tokenizer import byte_tokenizer
from page_reader import PageReader
from peft import LoraConfig, get_peft_model
from refusals import naming
from transformers import BertConfig, BertForSequenceClassification

import adapter_probe as ap

FIXTURES = Path(__file__).parents[1] / "checkpoints" / "fixtures"


@pytest.fixture
def frame() -> pd.DataFrame:
    draw = np.random.default_rng(0)
    texts = [" ".join(f"w{word}" for word in draw.integers(0, 48, 3 + n % 4)) for n in range(12)]
    return pd.DataFrame({"text": texts, "label": [n % 3 for n in range(12)]})


@pytest.fixture
def study(frame: pd.DataFrame, tmp_path: Path) -> ap.Ablation:
    checkpoint = shutil.copytree(FIXTURES / "peft" / "lora-everywhere", tmp_path / "lora")
    base = FIXTURES / "bases" / "bert"
    return ap.ablate(checkpoint, base=base, data=frame, metric="accuracy", progress=False)


def changed(study: ap.Ablation) -> list[int]:
    """The examples whose prediction some span makes right or wrong."""
    right = study.predictions == study.results.scored_with
    return np.flatnonzero((right != right[0]).any(axis=0)).tolist()


def examples_in(page: Path) -> dict:
    return json.loads(PageReader(page.read_text()).blocks["data"])["studies"][0]["examples"]


@pytest.mark.slow
def test_the_report_has_the_texts_of_the_frame(study, frame, tmp_path):
    made = ap.report(study.folder, tmp_path / "report.html", examples=True)
    found, right = examples_in(made.path), changed(study)
    assert made.n_texts == len(frame)
    assert [number - 1 for number in found["numbers"]] == right
    assert found["texts"] == frame["text"].iloc[right].tolist()


@pytest.mark.slow
def test_string_labels_with_names_are_the_numbers(study, frame, tmp_path):
    """By the argument, and by the categories of a categorical."""
    words, checkpoint = ["zero", "one", "two"], study.folder.parent
    options = {"base": FIXTURES / "bases" / "bert", "metric": "accuracy", "progress": False}
    named = frame.assign(label=[words[label] for label in frame["label"]])
    with pytest.raises(ap.DataError, match="label_names="):
        ap.ablate(checkpoint, data=named, out=tmp_path / "none", **options)
    by_name = ap.ablate(checkpoint, data=named, label_names=words, out=tmp_path / "a", **options)
    ordered = named.assign(label=pd.Categorical(named["label"], categories=words))
    by_category = ap.ablate(checkpoint, data=ordered, out=tmp_path / "b", **options)
    for one in (by_name, by_category):
        assert one.results.label_names == tuple(words)
        np.testing.assert_array_equal(one.results.scored_with, study.results.scored_with)
        pd.testing.assert_frame_equal(one.spans, study.spans)
    page = ap.report(by_name.folder, tmp_path / "report.html", examples=True)
    assert examples_in(page.path)["texts"] == frame["text"].iloc[changed(study)].tolist()


@pytest.mark.parametrize("outputs", [2, 1])
def test_the_head_of_the_base_belongs_to_the_study(tmp_path, outputs):
    """Of a LoRA that was saved without a head; one output is that of a reward or a regression."""
    tokenizer = byte_tokenizer(True)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=64, num_labels=outputs, initializer_range=0.5,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    for own in (model, tokenizer):
        own.save_pretrained(tmp_path / "base")
    settings = LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=False)
    get_peft_model(model, settings).save_pretrained(tmp_path / "lora")
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\n" + "".join(f"text {i * i},{i % 2}\n" for i in range(12)))
    given = {"base": tmp_path / "base", "data": rows, "out": tmp_path / "out", "progress": False}
    study = ap.ablate(tmp_path / "lora", **given)
    assert study.results.kind == ("regression" if outputs == 1 else "classification")
    base = BertForSequenceClassification.from_pretrained(tmp_path / "base")
    with torch.no_grad():
        base.classifier.bias.add_(1.0)
    base.save_pretrained(tmp_path / "base")
    with pytest.raises(ap.AdapterProbeError, match=naming(str(tmp_path / "out"), "delta_sha256")):
        ap.ablate(tmp_path / "lora", **given)
