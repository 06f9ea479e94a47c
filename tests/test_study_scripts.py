"""The scripts of docs/studies that make what a study begins with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from byte_tokenizer import byte_tokenizer
from docs_scripts import module
from safetensors.numpy import load_file

import adapter_probe as ap

pytestmark = pytest.mark.slow


def script(name: str) -> ModuleType:
    return module(f"studies/{name}")


def test_a_base_without_its_pooler(tiny_base: Callable, tmp_path: Path):
    base = tiny_base("bert")
    script("new_pooler").main(base, tmp_path / "new")
    before, after = (load_file(folder / "model.safetensors") for folder in (base, tmp_path / "new"))
    assert {name for name in before if "pooler" not in name} == set(after) < set(before)
    assert all(np.array_equal(before[name], tensor) for name, tensor in after.items())


def tiny_language_model(folder: Path) -> Path:
    """A random Llama of three layers that reads bytes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_tokenizer(bos=True)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_rows_of_written_texts_are_trained_on_and_scored_in_each_form(tmp_path: Path):
    base, data, rows = tiny_language_model(tmp_path / "base"), tmp_path / "data", tmp_path / "rows"
    for split, n in (("train", 12), ("validation", 24)):
        texts = [{"sentence": f"{'ab' * (i % 5)} is {i}", "label": int(i % 3 == 0)} for i in range(n)]
        asked = [
            {"question": f"{i}?", "answers": [{"text": text, "answer_start": 2} for text in ("red", "a red")]}
            for i in range(n)
        ]
        for folder in ("sst2", "squad"):
            (data / folder).mkdir(parents=True, exist_ok=True)
        (data / "sst2" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
        paragraph = {"context": "A red. Blue.", "qas": [*asked, {"question": "?", "answers": [
            {"text": "lue", "answer_start": 8}]}]}  # fmt: skip
        (data / "squad" / f"{split}.json").write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    script("written_rows").main(data, rows)
    held, train, judged = (
        [json.loads(line) for line in (rows / "answers" / f"{name}.jsonl").open()]
        for name in ("held", "train", "written")
    )
    assert (len(held), len(train), len(judged)) == (6, 6, 24)
    assert all(row["prompt"].startswith("Text: A red.\nQuestion: ") for row in judged), "no part of a word"
    assert {row["completion"] for row in train} == {" red\n"}
    assert judged[0]["answers"] == ["red", "a red"]

    lora = tmp_path / "lora"
    ap.train(
        base, lora, method="lora:r=4,target_modules=all-linear", name="words", batch_size=2, epochs=4,
        train_file=rows / "words" / "train.jsonl", validation_file=rows / "words" / "held.jsonl",
        learning_rate=5e-3,
    )  # fmt: skip
    asked = {
        "written": ("words", "text_match"), "choices": ("words", "accuracy"),
        "likelihood": ("answers", "nll"),
    }  # fmt: skip
    for file, (task, metric) in asked.items():
        writes = {"max_new_tokens": 3, "generate": True} if file == "written" else {}
        study = ap.ablate(lora, data=rows / task / f"{file}.jsonl", base=base, out=tmp_path / file, **writes)
        assert study.results.metric == metric
