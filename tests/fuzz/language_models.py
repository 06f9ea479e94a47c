"""Language models to change: rows of every form, and LoRA of PEFT on a tiny Llama and a tiny GPT-2.

What is right comes from PEFT's own forward of every text whole and alone; of a checkpoint that PEFT does
not open, and with adapters off, from transformers' own forward of the opened model.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig
from peft_folders import save_lora, saved
from safetensors.torch import load_file
from scorer import Scorer, n_alike
from transformers import AutoModelForCausalLM, AutoTokenizer
from truth import rows_of, unwrapped

SIZES = {
    "llama": {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64,
    },
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64},
}  # fmt: skip
ROWS: dict[str, list[dict[str, Any]]] = {
    "choices": [
        {"context": "ab ab", "choices": ["ab", "c", "abab ab"], "gold": 1},
        {"context": "", "choices": ["ab ab", "ab c"], "gold": 0},
    ],
    "questions": [
        {"question": "One?", "choices": ["ab", "b c"], "answer": 0, "id": "x"},
        {"question": "Which?", "choices": ["c", "a", "ab"], "answer": 2, "id": "y"},
    ],
    "pairs": [
        {"sentence_good": "Cats purr.", "sentence_bad": "Cats purrs.", "UID": "a"},
        {"sentence_good": "ab ab", "sentence_bad": "abs ab", "UID": "b"},
    ],
    "completions": [{"prompt": "Say: ", "completion": "ab"}, {"prompt": "x", "completion": "ab ab"}],
    "chats": [
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "ab"}]},
        {"messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "Hello"}]},
    ],
    "texts": [{"text": "a text that is longer than what the model reads at once, so that it is cut in two"}],
}


def make_model(family: str, folder: Path) -> None:
    """A LoRA far from the identity in ``folder/checkpoint`` on a tiny random model in ``folder/base``.

    That of ``grown`` was trained with three tokens more than its base, a Llama.
    """
    kind = "gpt2" if family == "gpt2" else "llama"
    targets = {"gpt2": ["c_attn"], "llama": ["v_proj", "down_proj"]}[kind]
    made = saved(folder, kind, SIZES[kind], "CAUSAL_LM", targets, noise=0.2, lora_alpha=8)
    if family == "grown":
        save_lora(folder, LoraConfig.from_pretrained(made), more_tokens=3)
    made.rename(folder / "checkpoint")


def write_rows(file: Path, form: str) -> None:
    """Rows of a form in the file's format."""
    write(file, ROWS[form])


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    """Rows in the file's format."""
    if file.suffix == ".txt":
        file.write_text(rows[0]["text"])
    elif file.suffix == ".json":
        file.write_text(json.dumps(rows))
    elif file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        mark = "\t" if file.suffix == ".tsv" else ","
        with file.open("w", newline="") as out:
            writer = csv.DictWriter(out, list(rows[0]), delimiter=mark, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def gold_of(row: dict[str, Any]) -> int:
    """The number of the right choice."""
    if {"context", "choices", "gold"} <= row.keys():
        number = row["gold"]
    elif {"question", "choices", "answer"} <= row.keys():
        number = row["answer"]
    else:
        return 0
    assert type(number) is int, f"a choice's number is {number!r}"
    assert 0 <= number < len(row["choices"]), f"there is no choice {number}"
    return number


def read(file: Path) -> list[dict[str, Any]]:
    """The rows, by Python's own readers."""
    if file.suffix == ".txt":
        return [{"text": file.read_bytes().decode("utf-8-sig")}]
    return rows_of(file)


def peft_model(checkpoint: Path, base: Path) -> torch.nn.Module | None:
    """PEFT's own model; None where PEFT does not open the checkpoint."""
    import peft

    try:
        plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        checkpoint = unwrapped(checkpoint)
        stored = load_file(checkpoint / "adapter_model.safetensors")
        rows = max((len(t) for name, t in stored.items() if "embed_tokens.weight" in name), default=0)
        if rows > plain.config.vocab_size:
            plain.resize_token_embeddings(rows)
        return peft.PeftModel.from_pretrained(plain, str(checkpoint)).float().eval()
    except Exception:  # whatever PEFT has to say
        return None


def judge_rows(name: str, inside: str = "") -> Callable[[Path, str], None]:
    """The likelihoods, right choices and accuracy of what was computed from the rows in a file.

    ``inside`` is the subfolder of the adapter in the checkpoint.
    """

    def judge(place: Path, _done: str) -> None:
        import adapter_probe

        rows = read(place / name)
        with np.load(place / "out" / "predictions.npz") as archive:
            found = dict(archive)
        checkpoint = place / "checkpoint" / inside
        opened = adapter_probe.open(checkpoint, base=str(place / "base"))
        tokenizer = AutoTokenizer.from_pretrained(place / "base")
        scorer = Scorer(opened.base, tokenizer, opened._opened.description.max_length)
        for (first, last), sums in zip(found["spans"].tolist(), found["logits"]):
            if first < 0:
                check(scorer, rows, sums, "intact")
                continue
            with opened.switched_off(first, last):
                check(scorer, rows, sums, f"{first}-{last}")
        check_score(place / "out" / "summary.json", rows, found["logits"][0], tokenizer)
        theirs = peft_model(checkpoint, place / "base")
        if theirs is not None:
            own = Scorer(theirs, tokenizer, opened._opened.description.max_length)
            check(own, rows, found["logits"][0], "intact, by PEFT")

    return judge


def check_score(summary: Path, rows: list[dict[str, Any]], sums: np.ndarray, tokenizer: Any) -> None:
    """The intact score from log-likelihoods ``[examples, continuations]``."""
    said = json.loads(summary.read_text())
    if not np.isfinite(sums).all():
        assert said["intact_score"] is None, f"a score from what is not finite: {said['intact_score']}"
        return
    texts = [row.get("completion", row.get("text", row.get("prompt"))) for row in rows]
    if said["metric"] == "accuracy":
        chosen = [int(np.argmax(own[: len(row.get("choices", "ab"))])) for row, own in zip(rows, sums)]
        right = np.mean([choice == gold_of(row) for choice, row in zip(chosen, rows)])
    elif said["metric"] == "bits_per_byte":
        right = -sums.sum() / np.log(2) / sum(len(text.encode()) for text in texts)
    else:
        assert said["metric"] == "nll"
        right = -np.mean([own[0] / n_tokens(row, tokenizer) for row, own in zip(rows, sums)])
    assert abs(said["intact_score"] - right) < 1e-4 * max(1, abs(right)), (
        f"{said['intact_score']}, not {right}"
    )


def n_tokens(row: dict[str, Any], tokenizer: Any) -> int:
    """Of a completion, encoded together with what it follows."""
    if "messages" in row:
        write, messages = tokenizer.apply_chat_template, row["messages"]
        before = write(messages[:-1], tokenize=False, add_generation_prompt=True)
        texts = before, write(messages, tokenize=False)
        before, whole = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
        return len(whole) - n_alike(before, whole)
    before, whole = row["prompt"], row["prompt"] + row["completion"]
    if not before.strip():
        return len(tokenizer.encode(whole, add_special_tokens=False))
    return len(tokenizer.encode(whole)) - len(tokenizer.encode(before.rstrip()))


def check(scorer: Scorer, rows: list[dict[str, Any]], found: np.ndarray, words: str) -> None:
    """Sums ``[examples, continuations]`` against the scorer's."""
    assert len(found) == len(rows), f"{len(found)} examples, not {len(rows)}"
    for row, sums in zip(rows, found):
        right = scorer.sums(row)
        same = np.allclose(sums[: len(right)], right, rtol=1e-4, atol=1e-3, equal_nan=True)
        assert same, f"{words}: {sums[: len(right)].tolist()}, not {right}"
