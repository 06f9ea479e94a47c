"""A column, or a known file beside the adapter, is added at random: it is obeyed, named or refused.

Obeyed is what changes an output, a score, the rows that are read or their groups. Named is what stands in the
study's question; refused what ends in one line with its name. Anything else is a number for another question.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embedding_folders import encoder
from language_models import ROWS, SIZES
from peft import LoraConfig, get_peft_model
from peft_folders import saved
from safetensors.torch import save_file
from transformers import BertModel

import adapter_probe as ap
from adapter_probe.errors import AdapterProbeError

pytestmark = pytest.mark.slow

TOTAL = round(2.5 * int(os.environ.get("ADAPTER_PROBE_FUZZ", "120")))
OF_FILES = TOTAL // 3
SEED = int(os.environ.get("ADAPTER_PROBE_FUZZ_SEED", "0"))
ONLY = os.environ.get("ADAPTER_PROBE_FUZZ_ONLY", "")
TEXTS = ["ab ab", "c ab", "a b c", "bb ab"]
# By the checkpoint, the rows of every form and how they are scored.
FORMS: dict[str, tuple[str, list[dict[str, Any]], dict[str, Any]]] = {
    **{name: ("lm", rows, {}) for name, rows in ROWS.items()},
    "prompts": ("lm", [{"prompt": text} for text in TEXTS], {}),
    "preferences": (
        "lm", [{"prompt": text, "chosen": " ab", "rejected": f" {text[:2]}c"} for text in TEXTS], {},
    ),
    "written": (
        "lm", [{"prompt": text, "answer": "b"} for text in TEXTS],
        {"generate": True, "max_new_tokens": 2, "metric": "contains"},
    ),
    "rewards": ("reward", [{"chosen": f"{text} ab", "rejected": f"{text} c"} for text in TEXTS], {}),
    "ranked": (
        "reward", [{"query": "ab", "document": text, "relevance": n % 2} for n, text in enumerate(TEXTS)], {},
    ),
    "classes": ("classes", [{"text": text, "label": n % 3} for n, text in enumerate(TEXTS)], {}),
    "pairs of texts": (
        "classes", [{"text_a": text, "text_b": "ab", "label": n % 3} for n, text in enumerate(TEXTS)], {},
    ),
    "triplets": (
        "features", [{"anchor": text, "positive": "fine", "negative": f"bad {text}"} for text in TEXTS],
        {"pooling": "mean"},
    ),
    "similar": (
        "features", [{"sentence1": text, "sentence2": "ab", "score": n / 2} for n, text in enumerate(TEXTS)],
        {"pooling": "mean"},
    ),
    "retrieved": ("features", [{"query": t, "positive": f"{t} fine"} for t in TEXTS], {"pooling": "mean"}),
}  # fmt: skip
WORDS = """
prompt completion response output answer answers target label labels gold solution reference question context
input instruction system history passage hint article choices options negative negatives hard_negative neg
negative_1 negative_id positive query anchor document title aspect topic keyword premise hypothesis sentence1
sentence2 text text_pair translation summary messages tools images score stars category split id idx source
url lang field UID ref_chosen_logps reference_chosen_logps margin chosen rejected tags tokens gold_label
correct_answer model_output Answer targetText relevance weight date future __index_level_0__
"""
LANGUAGE = ("preferences", "completions", "texts")
NOT_EMBEDDINGS = (*LANGUAGE, "rewards", "ranked", "classes", "pairs of texts")
EVERY = (*NOT_EMBEDDINGS, "triplets", "similar")


def content(text: str) -> Callable[[Path], object]:
    """A file with this text."""
    return lambda place: place.write_text(text)


def weights(place: Path) -> None:
    """One tensor, in the format that the file's name says."""
    tensors = {"v_head.summary.weight": torch.ones(1, 16)}
    save_file(tensors, place) if place.suffix == ".safetensors" else torch.save(tensors, place)


# Files that libraries write beside an adapter, with the forms whose numbers they could change.
BESIDE: dict[str, tuple[tuple[str, ...], Callable[[Path], object]]] = {
    "value_head.safetensors": (EVERY, weights),
    "value_head.bin": (EVERY, weights),
    "pytorch_model.bin": (EVERY, weights),
    "non_lora_trainables.bin": (EVERY, weights),
    "new_embeddings.safetensors": (EVERY, weights),
    "model.safetensors": (EVERY, weights),
    "classifier.pt": (EVERY, weights),
    "adapter_model.bin": (EVERY, weights),
    "pytorch_adapter.bin": (EVERY, weights),
    "adapters.safetensors": (EVERY, weights),
    "adapter_model-00002-of-00002.safetensors": (EVERY, weights),
    "adapter_model.safetensors.index.json": (EVERY, content('{"weight_map": {}}')),
    "head_config.json": (EVERY, content('{"head_type": "classification", "num_labels": 3}')),
    "modules.json": (EVERY, content('[{"idx": 0, "name": "0", "path": "", "type": "x.Unknown"}]')),
    "sentence_bert_config.json": (("triplets", "similar"), content('{"max_seq_length": 2}')),
    "config_sentence_transformers.json": (("triplets", "similar"), content('{"prompts": {"query": "ab "}}')),
    "tokenizer_config.json": (EVERY, content('{"model_max_length": 2, "truncation_side": "left"}')),
    "special_tokens_map.json": (EVERY, content('{"pad_token": "ab", "eos_token": "ab"}')),
    "added_tokens.json": (EVERY, content('{"cab": 60}')),
    "vocab.txt": (EVERY, content("ab\ncab\n")),
    "generation_config.json": (EVERY, content('{"repetition_penalty": 5.0}')),
    "chat_template.jinja": (("chats",), content("{% for one in messages %}{{ one.content }}!{% endfor %}")),
    "config.json": (EVERY, content('{"model_type": "gpt2", "n_layer": 1}')),
    "modeling_custom.py": (EVERY, content("raise SystemExit")),
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A LoRA with every head, on tiny random models."""
    targets, made = ["v_proj", "down_proj"], {}
    for name, outputs in (("lm", 0), ("reward", 1), ("classes", 3)):
        task, more = ("SEQ_CLS", {"num_labels": outputs}) if outputs else ("CAUSAL_LM", {})
        made[name] = saved(tmp_path_factory.mktemp(name), "llama", {**SIZES["llama"], **more}, task, targets)
    folder = tmp_path_factory.mktemp("features")
    base = BertModel.from_pretrained(encoder(folder / "base", 2), add_pooling_layer=False)
    config = LoraConfig(
        r=2, target_modules=["query"], task_type="FEATURE_EXTRACTION", init_lora_weights=False
    )
    get_peft_model(base, config).save_pretrained(folder / "lora")
    return made | {"features": folder / "lora"}


def added_column(rows: list[dict[str, Any]], draw: random.Random) -> tuple[str, list[dict[str, Any]]]:
    """A column that the rows do not have, in all of them or in some."""
    name = draw.choice([word for word in WORDS.split() if word not in rows[0]])
    kinds: tuple[Callable[[int], Any], ...] = (
        lambda n: f"cab {n} ab", lambda n: f"cab {n} ab", lambda n: n % 2, lambda n: n + 0.5,
        lambda n: ["ab", f"c{n}"], lambda n: bool(n % 2), lambda n: {"text": f"b{n}"},
        lambda n: ["train", "test"][n % 2],
    )  # fmt: skip
    value = draw.choice(kinds)
    kept = [n for n in range(len(rows)) if draw.random() < 0.8] or [0]
    return name, [{**row, name: value(n)} if n in kept else row for n, row in enumerate(rows)]


def study_of(checkpoint: Path, rows: list[dict[str, Any]], asked: dict[str, Any]) -> ap.Ablation:
    return ap.ablate(checkpoint, data=rows, spans="single", progress=False, **asked)


def is_obeyed(study: ap.Ablation, before: ap.Ablation) -> bool:
    """Whether what was added changed rows, groups, outputs or score."""
    same = study.identity["data"] == before.identity["data"] and study.summary.metric == before.summary.metric
    same = same and np.array_equal(study.results.outputs, before.results.outputs, equal_nan=True)
    same = same and study.summary.intact_score == before.summary.intact_score
    return not same or (study.groups is None) != (before.groups is None)


def outcome(name: str, run: Callable[[], ap.Ablation], before: ap.Ablation) -> str:
    """What became of it; what is none of the three fails."""
    try:
        study = run()
    except AdapterProbeError as error:
        return (
            "refused"
            if name in str(error) and "\n" not in str(error)
            else f"refused for something else: {error}"
        )
    if any(name in line for line in study.question):
        return "named"
    return "obeyed" if is_obeyed(study, before) else f"dropped without a line: {study.question}"


def numbers(n: int, total: int) -> list[int]:
    """The changes that are tried of one of `n` cases."""
    return [*map(int, ONLY.split(","))] if ONLY else [*range(-(-total // n))]


@pytest.mark.parametrize("form", FORMS)
def test_a_column_is_obeyed_named_or_refused(form, checkpoints, tmp_path):
    kind, rows, asked = FORMS[form]
    before, found = study_of(checkpoints[kind], rows, {**asked, "out": tmp_path / "before"}), {}
    for number in numbers(len(FORMS), TOTAL - OF_FILES):
        name, changed = added_column(rows, random.Random(f"{SEED}/{form}/{number}"))
        out = tmp_path / str(number)
        said = outcome(name, lambda: study_of(checkpoints[kind], changed, {**asked, "out": out}), before)  # noqa: B023
        found[f"{number}: {name} = {changed[-1].get(name)!r}"] = said
        shutil.rmtree(out, ignore_errors=True)
    print(json.dumps(found, indent=1))
    assert {how for how in found.values() if how not in ("obeyed", "named", "refused")} == set(), found


@pytest.mark.parametrize("file", BESIDE)
def test_a_file_beside_the_adapter_is_obeyed_named_or_refused(file, checkpoints, tmp_path):
    forms, write = BESIDE[file]
    found = {}
    for number in numbers(len(BESIDE), OF_FILES):
        form = random.Random(f"{SEED}/{file}/{number}").choice(forms)
        kind, rows, asked = FORMS[form]
        before = study_of(checkpoints[kind], rows, {**asked, "out": tmp_path / f"before {number}"})
        model = tmp_path / f"model {number}"
        shutil.copytree(checkpoints[kind].parent, model)
        write(model / "lora" / file)
        changed = {**asked, "out": tmp_path / f"out {number}", "base": model / "base"}
        said = outcome(file, lambda: study_of(model / "lora", rows, changed), before)  # noqa: B023
        found[f"{number}: {form}"] = said
    print(json.dumps(found, indent=1))
    assert {how for how in found.values() if how not in ("obeyed", "named", "refused")} == set(), found
