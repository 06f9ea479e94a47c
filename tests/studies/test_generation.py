"""Ablations of what a model writes, against PEFT's own model and its `generate`."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
from byte_tokenizer import byte_tokenizer
from changed_files import edit
from mask_loop import over_variants
from peft_folders import IDS, KV, T5, reference, saved, written
from refusals import naming
from tiers import on_processor
from transformers import T5Config, T5ForConditionalGeneration

import adapter_probe as ap
from adapter_probe.errors import AdapterProbeError, DataError
from adapter_probe.replay.decoding import not_followed

NEW = 6
PROMPTS = ["ab c12", "b 1", "abab 2 c", "c c", "12 21 a", "b"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("llama"), "llama", KV, "CAUSAL_LM", ["q_proj", "v_proj", "up_proj"])


def own_texts(model, tokenizer, prompts: list[str], end: str = "") -> list[str]:
    """What `generate` writes to each prompt alone."""
    found = []
    for prompt in prompts:
        x = tokenizer(prompt, return_tensors="pt")
        with torch.no_grad():
            made = model.generate(input_ids=x["input_ids"], attention_mask=x["attention_mask"],
                                  max_new_tokens=NEW, do_sample=False, tokenizer=tokenizer)  # fmt: skip
        first = 1 if model.config.is_encoder_decoder else x["input_ids"].shape[1]
        text = tokenizer.decode(made[0, first:], skip_special_tokens=True)
        found.append(text.split(end)[0] if end else text)
    return found


def test_texts_are_those_of_peft_and_scores_those_of_the_texts(checkpoint, tmp_path):
    model, tokenizer = reference(checkpoint, "CAUSAL_LM").double().get_base_model(), byte_tokenizer(True)
    intact = own_texts(model, tokenizer, PROMPTS)
    end = intact[0][2]  # so that a text is cut
    rows = [{"prompt": p, "answer": text[:2]} for p, text in zip(PROMPTS[:3], intact)]
    rows += [{"prompt": p, "answers": ["no", text]} for p, text in zip(PROMPTS[3:], intact[3:])]
    asked = {
        "data": written(tmp_path, rows), "generate": True, "max_new_tokens": NEW, "until": [end],
        "precision": "float64", "progress": False, "out": tmp_path / "out",
    }  # fmt: skip
    study = ap.ablate(checkpoint, **asked, metric="contains")
    accepted = [row.get("answers") or [row["answer"]] for row in rows]
    variants = over_variants(model, study, lambda: own_texts(model, tokenizer, PROMPTS, end))
    for variant, (name, expected) in enumerate(zip(study.results.row_names, variants)):
        table = study.texts[study.texts["variant"] == name]
        assert table["text"].tolist() == expected
        right = [any(a in text for a in own) for text, own in zip(expected, accepted)]
        assert table["score"].tolist() == [float(one) for one in right]
        assert (study.predictions[variant] == 0).tolist() == right
    assert study.texts.groupby("row")["text"].nunique().max() > 2  # the variants matter
    assert study.summary.intact_score == np.mean(study.texts[study.texts["variant"] == "intact"]["score"])
    # Another metric reads the same texts back; an interrupted run writes the missing ones again.
    lines = (tmp_path / "out" / "generations.jsonl").read_text(encoding="utf-8")
    part = next((tmp_path / "out" / "parts").glob("*"))
    part.unlink()
    again = ap.ablate(checkpoint, **asked, metric="contains")
    assert (tmp_path / "out" / "generations.jsonl").read_text(encoding="utf-8") == lines
    stamp = next((tmp_path / "out" / "parts").glob("*")).stat().st_mtime_ns
    page = ap.report(tmp_path / "out", out=tmp_path / "page.html", examples=True, data=asked["data"])
    flipped = (again.results.are_right != again.results.are_right[0]).any(axis=0)
    found = re.search(r'"numbers":(\[[^\]]*\])', page.path.read_text(encoding="utf-8"))
    assert json.loads(found[1]) == (1 + np.flatnonzero(flipped)).tolist()
    assert flipped.any()
    exact = ap.ablate(checkpoint, **asked, metric="exact_match")
    assert exact.results.metric == "text_match"
    assert next((tmp_path / "out" / "parts").glob("*")).stat().st_mtime_ns == stamp
    assert ap.load(tmp_path / "out").texts["text"].tolist() == again.texts["text"].tolist()


@pytest.mark.slow
def test_an_encoder_decoder_writes_what_its_own_generate_writes(tmp_path):
    torch.manual_seed(0)
    base = T5ForConditionalGeneration(T5Config(**(T5 | IDS)))
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules=["q", "wo"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.4 * torch.randn_like(parameter))
    tokenizer = byte_tokenizer(False)
    data = [{"prompt": prompt, "answer": "a"} for prompt in PROMPTS]

    def length(answers: list[list[str]], texts: list[str]) -> list[int]:
        return list(map(len, texts))

    study = ap.ablate(
        model, data=data, tokenizer=tokenizer, generate=True, max_new_tokens=NEW, metric=length,
        spans="whole", precision="float64", progress=False,
    )  # fmt: skip
    model.double().eval()
    intact = study.texts[study.texts["variant"] == "intact"]
    assert intact["text"].tolist() == own_texts(model.get_base_model(), tokenizer, PROMPTS)
    assert intact["score"].tolist() == [len(text) for text in intact["text"]]
    with model.disable_adapter():
        expected = own_texts(model.get_base_model(), tokenizer, PROMPTS)
    removed = study.results.masks.sum(axis=1).argmin()
    assert (
        study.texts[study.texts["variant"] == study.results.row_names[removed]]["text"].tolist() == expected
    )


LONG = "c" * 80


@pytest.mark.parametrize(
    ("rows", "asked", "named"),
    [
        ([{"prompt": "a", "completion": "b"}], {}, ["line 1", "answer", "completion"]),
        ([{"question": "a", "answer": "b"}], {}, ["line 1", "prompt", "messages"]),
        ([{"prompt": "a", "answer": []}], {}, ["line 1", "'answer'"]),
        ([{"prompt": LONG, "answer": "b"}], {}, ["row 1", "max_new_tokens=6", "64"]),
        ([{"messages": [{"role": "assistant", "content": "a"}], "answer": "b"}], {}, ["line 1", "user"]),
        ([{"prompt": "a", "answer": "b"}], {"metric": "nll"}, ["'nll'", "contains"]),
        ([{"prompt": "a", "answer": "b"}], {"extract": "(a"}, ["extract=", "regular expression"]),
        ([{"prompt": "a", "answer": "b"}], {"extract": "a", "generate": False}, ["extract=", "generate="]),
        ([{"prompt": "a", "answer": "b"}], {"generate": False, "metric": "contains"}, ["generate=True"]),
        ([{"prompt": "a", "answer": "b"}], {"temperature": -1.0}, ["temperature must", "-1.0"]),
    ],
    ids=[
        "no answer", "no prompt", "empty", "too long", "turn", "metric", "pattern", "extract", "contains",
        "cold",
    ],
)  # fmt: skip
def test_refusals(rows, asked, named, checkpoint, tmp_path):
    usual = {"generate": True, "max_new_tokens": NEW}
    if asked.get("generate") is False:
        usual = {}
    with pytest.raises(DataError, match=naming(*named)):
        ap.ablate(
            checkpoint, data=written(tmp_path, rows), progress=False, out=tmp_path / "out", **(usual | asked)
        )
    shutil.rmtree(tmp_path / "out", ignore_errors=True)


def test_a_classifier_does_not_write(tmp_path):
    classifier = saved(tmp_path, "llama", KV | {"num_labels": 2}, "SEQ_CLS", ["q_proj"])
    rows = written(tmp_path, [{"text": "a", "label": 0}, {"text": "b", "label": 1}])
    with pytest.raises(DataError, match=r"generate=True needs a language model.*classification"):
        ap.ablate(classifier, data=rows, generate=True, progress=False)


def test_an_extractor_that_matches_nothing_is_said_in_words(checkpoint, tmp_path, capsys):
    rows = written(tmp_path, [{"prompt": "a", "answer": "b"}, {"prompt": "b", "answer": "b"}])
    study = ap.ablate(
        checkpoint, data=rows, generate=True, max_new_tokens=2, extract="no such text", spans="whole",
        metric="contains", out=tmp_path / "out",
    )  # fmt: skip
    assert study.summary.intact_score == 0
    assert "matches nothing in any text, so every score is 0" in capsys.readouterr().err
    first = json.loads((tmp_path / "out" / "generations.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert (first["variant"], first["row"], first["score"]) == ("intact", 1, 0)


@pytest.mark.slow
def test_pruning_within_a_tolerance_writes_as_the_ablation_did(checkpoint, tmp_path):
    rows = written(tmp_path, [{"prompt": prompt, "answer": "3"} for prompt in PROMPTS])
    asked = {"data": rows, "progress": False}
    study = ap.ablate(
        checkpoint, generate=True, max_new_tokens=NEW, metric="contains", out=tmp_path / "out", **asked
    )
    pruned = ap.prune(checkpoint, within=100, ablation=study, out=tmp_path / "smaller", **asked)
    assert (pruned.metric, pruned.n_examples) == ("contains", len(PROMPTS) - pruned.n_examples_chosen_on)


# Settings of generation_config.json, some made of the first prompt and its text, and what becomes of them.
# Where they read the tokens so far, padding is a prompt's likeliest next token.
OBEYED, FREE = "as generate writes with it", "without effect"
QUICK = ("stop strings", "a stop string that begins in the prompt", "longer", "watermark", "prompt lookup",
         "no_repeat_ngram_size", "min_length")  # fmt: skip
PADDED = {"pad_token_id": None}
Settings = dict[str, object] | Callable[[str, str], dict[str, object]]
SETTINGS: dict[str, tuple[Settings, str]] = {
    "stop strings": (lambda prompt, text: {"stop_strings": [text[1:3], "</s>"]}, OBEYED),
    "a stop string that begins in the prompt": (
        lambda prompt, text: {"stop_strings": prompt[-1] + text[0]},
        OBEYED,
    ),
    "longer": (lambda prompt, text: {"stop_strings": [prompt[-2:] + text[:2]]}, OBEYED),
    "watermark": ({"watermarking_config": {"greenlist_ratio": 0.5, "bias": 9.0}}, OBEYED),
    "prompt lookup": ({"repetition_penalty": 2.0, "prompt_lookup_num_tokens": 2, **PADDED}, OBEYED),
    "no_repeat_ngram_size": ({"no_repeat_ngram_size": 1, **PADDED}, OBEYED),
    "min_length": ({"min_length": 8, "eos_token_id": [*range(128)], **PADDED}, OBEYED),
    "guidance_scale": ({"guidance_scale": 1.5}, OBEYED),
    "min_new_tokens": ({"min_new_tokens": 6, "eos_token_id": [*range(128)]}, OBEYED),
    "sequence_bias": ({"sequence_bias": [[[5], 9.0]]}, OBEYED),
    "suppress_tokens": ({"suppress_tokens": [*range(20, 60)]}, OBEYED),
    "begin_suppress_tokens": ({"begin_suppress_tokens": [*range(20, 90)]}, OBEYED),
    "forced_eos_token_id": ({"forced_eos_token_id": 5}, OBEYED),
    "bad_words_ids": ({"bad_words_ids": [[5], [6]]}, OBEYED),
    "exponential_decay_length_penalty": ({"exponential_decay_length_penalty": [2, 5.0]}, OBEYED),
    "encoder_repetition_penalty": ({"encoder_repetition_penalty": 3.0}, OBEYED),
    "do_sample": (
        {"do_sample": True, "temperature": 0.6, "top_p": 0.9},
        "do_sample=True, temperature=0.6, top_p=0.9",
    ),
    "top_p without drawing": ({"top_p": 0.9}, FREE),
    "beams": (
        {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 2.0},
        "num_beams=3, num_return_sequences=2",
    ),
    "penalty_alpha": ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha=0.6"),
    "max_time": ({"max_time": 100.0}, "max_time=100.0"),
    "max_length": ({"max_length": 3}, FREE),
    "prefill_chunk_size": ({"prefill_chunk_size": 2}, FREE),
    "renormalize_logits": ({"renormalize_logits": True}, FREE),
    "static cache": ({"cache_implementation": "static"}, FREE),
    "num_assistant_tokens": ({"num_assistant_tokens": 3}, FREE),
    "dola_layers": ({"dola_layers": "low"}, "does not run through its own generate"),
    "force_words_ids": ({"force_words_ids": [[5]]}, "does not run through its own generate"),
    "token_healing": ({"token_healing": True}, "does not run through its own generate"),
}


def test_the_drawing_that_a_study_does_itself_is_followed(checkpoint):
    model = reference(checkpoint, "CAUSAL_LM").get_base_model()
    model.generation_config.update(do_sample=True, temperature=0.6, top_p=0.9)
    assert not_followed(model, 0.6) == ["top_p=0.9"]
    assert not_followed(model, 0.5) == ["temperature=0.6", "top_p=0.9"]
    assert not_followed(model) == ["do_sample=True", "temperature=0.6", "top_p=0.9"]


def marks_of(case: str) -> tuple[pytest.MarkDecorator, ...]:
    if case == "watermark":
        return (on_processor("a device in Python has no generator of random numbers of its own"),)
    return () if case in QUICK else (pytest.mark.slow,)


@pytest.mark.parametrize("case", [pytest.param(case, marks=marks_of(case)) for case in SETTINGS])
def test_every_setting_of_writing_is_obeyed_named_or_refused(case, checkpoint, tmp_path):
    own, verdict = SETTINGS[case]
    folder = shutil.copytree(checkpoint.parent, tmp_path / "copy")
    path, tokenizer = folder / "base" / "generation_config.json", byte_tokenizer(True)
    plain = reference(checkpoint, "CAUSAL_LM")
    free = own_texts(plain, tokenizer, PROMPTS)
    own = own(PROMPTS[0], free[0]) if callable(own) else dict(own)
    if "pad_token_id" in own:
        own["pad_token_id"] = plain(**tokenizer("b", return_tensors="pt")).logits[0, -1].argmax().item()

    edit(path, own)
    asked = {
        "base": folder / "base", "generate": True, "max_new_tokens": NEW, "spans": "whole",
        "data": written(tmp_path, [{"prompt": prompt, "answer": "a"} for prompt in PROMPTS]),
        "out": tmp_path / "out", "progress": False,
    }  # fmt: skip
    if "own generate" in verdict:
        with pytest.raises(AdapterProbeError, match=verdict):
            ap.ablate(folder / checkpoint.name, **asked)
        return
    study = ap.ablate(folder / checkpoint.name, **asked)
    texts = study.texts[study.texts["variant"] == "intact"]["text"].tolist()
    if verdict == OBEYED:
        assert texts == own_texts(reference(folder / checkpoint.name, "CAUSAL_LM"), tokenizer, PROMPTS)
        assert texts != free
    else:
        assert texts == free
    said = [line for line in study.question if "not followed" in line]
    assert [line.endswith(f": {verdict}") for line in said] == [True] * (verdict not in (OBEYED, FREE))
    if case in ("stop strings", "no_repeat_ngram_size"):
        edit(path, stop_strings=["other"])  # which belongs to the study, whether there was one before or none
        with pytest.raises(AdapterProbeError, match=naming(str(tmp_path / "out"), "stop_strings", "other")):
            ap.ablate(folder / checkpoint.name, **asked)
