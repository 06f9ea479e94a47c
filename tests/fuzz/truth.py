"""What the right numbers are, found without the code under test.

Logits come from transformers' own forward (and PEFT's, where PEFT opens the checkpoint); rows of data from
Python's own readers; options of a cluster from Python's TOML reader.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from brute_force import ACTIVATIONS
from mutations import WRAPPERS
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def assert_same(found: np.ndarray, right: np.ndarray, words: str) -> None:
    """Equal up to float32's rounding, and not finite at the same places."""
    assert found.shape == right.shape, f"{words}: shape {found.shape}, not {right.shape}"
    finite = np.isfinite(right)
    assert (np.isfinite(found) == finite).all(), f"{words}: not finite at other places"
    if finite.any():
        scale = max(1.0, float(np.abs(right[finite]).max()))
        worst = float(np.abs(found[finite] - right[finite]).max())
        assert worst < 2e-4 * scale, f"{words}: off by {worst:.3g} of {scale:.3g}"


def rows_of(file: Path) -> list[dict[str, Any]]:
    """The rows of a data file, by Python's own readers.

    Raises:
        ValueError: there is no sense in it.
    """
    text = file.read_bytes().decode("utf-8-sig")
    if file.suffix == ".jsonl":
        rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    elif file.suffix == ".json":
        rows = json.loads(text)
    else:
        mark = "\t" if file.suffix == ".tsv" else ","
        rows = list(csv.DictReader(io.StringIO(text, newline=""), delimiter=mark, strict=True))
    if not all(isinstance(row, dict) and None not in row and None not in row.values() for row in rows):
        raise ValueError("rows are not alike")
    return rows


def examples_of(file: Path, names: list[str]) -> tuple[list[str], list[int]]:
    """Texts and labels of a data file, for a checkpoint that knows these labels.

    Raises:
        ValueError, KeyError, TypeError: there is no sense in it.
    """
    texts, labels = [], []
    for row in rows_of(file):
        text, label = row["text"], row["label"]
        if not isinstance(text, str):
            raise TypeError("a text is no text")
        if isinstance(label, bool) or not isinstance(label, (str, int)):
            raise TypeError("a label is no label")
        texts.append(text)
        labels.append(names.index(label) if label in names else range(len(names))[int(label)])
    return texts, labels


@torch.no_grad()
def logits_of(model: torch.nn.Module, tokenizer: Any, texts: list[str], max_length: int) -> np.ndarray:
    """``[examples, labels]`` of the model's own forward, one text at a time."""
    rows = []
    for text in texts:
        inputs = tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")
        if "token_type_ids" not in tokenizer.model_input_names:
            inputs.pop("token_type_ids", None)
        inputs.pop("attention_mask", None)
        rows.append(model(**inputs).logits[0])
    return torch.stack(rows).float().numpy()


def native_logits(checkpoint: Path, base: Path, texts: list[str], spans: np.ndarray) -> np.ndarray:
    """``[spans, examples, labels]`` of a native checkpoint of bottleneck adapters, by plain hooks.

    The span ``(-1, -1)`` is the intact model.
    """
    about = json.loads((checkpoint / "adapter_probe.json").read_text("utf-8-sig"))
    tensors = load_file(checkpoint / "delta.safetensors")
    labels = len(about["task"]["label_names"])
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=labels).float().eval()
    plain = {name: tensor.float() for name, tensor in tensors.items() if ".adapter." not in name}
    unknown = model.load_state_dict(plain, strict=False).unexpected_keys
    assert not unknown, f"tensors that the model has no place for: {unknown}"
    activation = ACTIVATIONS[about["method"]["activation"]]
    off: set[int] = set()

    def hook(name: str, layer: int) -> None:
        parts = {
            (part, kind): tensors[f"{name}.adapter.{part}.{kind}"].float()
            for part in ("down", "up")
            for kind in ("weight", "bias")
        }

        def adapt(_module, _inputs, x):
            if layer in off:
                return x
            inner = activation(F.linear(x, parts["down", "weight"], parts["down", "bias"]))
            return x + F.linear(inner, parts["up", "weight"], parts["up", "bias"])

        model.get_submodule(name).dropout.register_forward_hook(adapt)

    for name in {name.partition(".adapter.")[0] for name in tensors if ".adapter." in name}:
        hook(name, int(name.split(".layer.")[1].split(".")[0]))
    tokenizer = AutoTokenizer.from_pretrained(base)
    out: list[np.ndarray] = []
    for first, last in spans.tolist():
        off.clear()
        off.update(range(first, last + 1) if first >= 0 else ())
        out.append(logits_of(model, tokenizer, texts, about["max_length"]))
    return np.stack(out)


def switched_logits(
    checkpoint: Path, base: Path, texts: list[str], spans: np.ndarray
) -> tuple[np.ndarray, int]:
    """``[spans, examples, labels]`` of an opened checkpoint by transformers' own forward, and its length."""
    import adapter_probe

    model = adapter_probe.open(checkpoint, base=str(base))
    longest = model._opened.description.max_length
    out = []
    for first, last in spans.tolist():
        if first < 0:
            out.append(logits_of(model.base, model.tokenizer, texts, longest))
        else:
            with model.switched_off(first, last):
                out.append(logits_of(model.base, model.tokenizer, texts, longest))
    return np.stack(out), longest


def unwrapped(checkpoint: Path) -> Path:
    """A copy of a checkpoint of PEFT whose names lack the wrappers, with which PEFT passes them over."""
    place = Path(shutil.copytree(checkpoint, checkpoint.parent / "unwrapped", dirs_exist_ok=True))
    file = place / "adapter_model.safetensors"
    if file.exists():
        tensors = load_file(file)
        for name in list(tensors):
            plain = name
            for wrapper in WRAPPERS:
                plain = plain.replace(f".{wrapper}", ".").removeprefix(wrapper)
            tensors[plain] = tensors.pop(name)
        save_file(tensors, file)
    return place


def peft_logits(checkpoint: Path, base: Path, texts: list[str], max_length: int) -> np.ndarray | None:
    """``[examples, labels]`` of the intact model, by PEFT; None where PEFT does not open the checkpoint."""
    from peft import PeftModel

    try:
        plain = AutoModelForSequenceClassification.from_pretrained(base, num_labels=3).float()
        model = PeftModel.from_pretrained(plain, str(unwrapped(checkpoint))).float().eval()
    except Exception:  # whatever PEFT has to say
        return None
    return logits_of(model, AutoTokenizer.from_pretrained(base), texts, max_length)
