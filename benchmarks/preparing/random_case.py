"""A random BERT with random adapters in every layer and random texts: nothing to download, any shape.

    python random_case.py FOLDER SPEC

SPEC is JSON: layers, hidden, texts, shortest and longest (tokens), and adapters (false for a base alone).
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from saving import facts, finish, save_adapter, save_base, save_texts
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel

from adapter_probe.checkpoints.base import AnyLoaded, load_any_base
from adapter_probe.checkpoints.base_config import find_any_base
from adapter_probe.checkpoints.foreign import BaseShape
from adapter_probe.checkpoints.model_class import choose_class
from adapter_probe.checkpoints.native import Description, save_checkpoint
from adapter_probe.checkpoints.opened_peft import OWN, OpenedPlaced
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.checkpoints.placed import put_method
from adapter_probe.checkpoints.places import places_in
from adapter_probe.checkpoints.tokenizer import load_tokenizer
from adapter_probe.data.encoding import Encoded
from adapter_probe.data.examples import Reading
from adapter_probe.data.tasks import TaskSpec, find_task
from adapter_probe.models.methods import Adapters
from adapter_probe.probe.runners import alike
from adapter_probe.probe.switchable_model import inputs_of

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = [f"w{number}" for number in range(2000)]
VOCABULARY = 30522  # of BERT-base, most of it unused
HEAD_WIDTH = 64
MISLABELLED = 0.1
# Multiples of 1 / sqrt(inputs): sharp enough attention and a large enough change in every sublayer that texts
# are told apart by what they say; with BERT's own start all texts give the same logits.
SHARPNESS, GAIN, HEAD_GAIN = 1.6, 1.1, 4.0
ADAPTER_STD, ADAPTER_BIAS = 0.1, 0.02
TOKENS_AT_ONCE = 4096


def main() -> None:
    """Make the case."""
    folder, spec = Path(sys.argv[1]), json.loads(sys.argv[2])
    (folder / "model").mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder / "model")
    base = random_bert(spec, torch.Generator().manual_seed(0))
    save_base(base, folder / "model", folder)
    draw = random.Random(0)
    texts = [[random_text(draw, spec["shortest"], spec["longest"])] for _ in range(spec["texts"])]
    save_texts(folder, [0, 1] * (len(texts) // 2) + [0] * (len(texts) % 2), texts)  # for now
    method = Adapters(size=min(64, spec["hidden"]))
    loaded = load(folder)
    opened = with_adapters(folder, loaded, method) if spec["adapters"] else None
    base = loaded.model if opened is None else opened.model
    logits = all_logits(base, encoded_texts(folder))
    known = {**facts(base, method), "logit_spread": float(balance(base, logits))}
    labels = [int(n) if draw.random() > MISLABELLED else 1 - int(n) for n in logits.argmax(axis=-1)]
    save_texts(folder, labels, texts)
    save_base(base, folder / "model", folder)
    if opened is not None:
        save_adapter(opened, folder)
    finish(folder, spec, known)


def write_tokenizer(folder: Path) -> None:
    """WordPiece in which every word is one token, in the plain files that every version reads."""
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS]) + "\n", encoding="utf-8")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings) + "\n", encoding="utf-8")


def random_text(draw: random.Random, shortest: int, longest: int) -> str:
    """Words for a number of tokens between the two, [CLS] and [SEP] included."""
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(shortest, longest) - 2))


@torch.no_grad()
def random_bert(spec: dict[str, Any], generator: torch.Generator) -> BertForSequenceClassification:
    """A BERT of the wanted shape whose outputs depend on all that it reads."""
    hidden = spec["hidden"]
    config = BertConfig(
        vocab_size=VOCABULARY if hidden >= 768 else len(SPECIAL) + len(WORDS),
        hidden_size=hidden,
        num_hidden_layers=spec["layers"],
        num_attention_heads=max(1, hidden // HEAD_WIDTH),
        intermediate_size=4 * hidden,
        num_labels=2,
    )
    model = BertForSequenceClassification(config).eval()
    for name, parameter in model.named_parameters():
        if "embeddings" in name and parameter.dim() == 2:
            parameter.normal_(0, 1 if "word" in name else 0.3, generator=generator)
        elif parameter.dim() == 2:
            gain = HEAD_GAIN if name.startswith("classifier") else GAIN
            gain = SHARPNESS if ".query." in name or ".key." in name else gain
            parameter.normal_(0, gain / parameter.shape[1] ** 0.5, generator=generator)
    return model


def load(folder: Path) -> AnyLoaded:
    """The base in the folder."""
    found = find_any_base(str(folder / "model"))
    cls = choose_class(found.name, found.config, "classification", ())
    return load_any_base(found, cls, 2, torch.float32)


def task_of(folder: Path) -> TaskSpec:
    """The folder's texts."""
    return find_task(validation=[folder / "texts.tsv"], kind="classification")


def encoded_texts(folder: Path) -> Encoded:
    """The folder's texts, encoded."""
    encoded = (
        Reading(load_tokenizer(str(folder / "model")), task_of(folder), "validation", 512).examples().encoded
    )
    assert isinstance(encoded, Encoded)
    return encoded


def with_adapters(folder: Path, loaded: AnyLoaded, method: Adapters) -> OpenedPlaced:
    """The base in the folder with random adapters."""
    shape, generator = BaseShape.of(loaded.model, places_in(loaded.model.config)), torch.Generator()
    generator.manual_seed(1)
    tensors, encoder = {}, f"{loaded.model.base_model_prefix}."
    for name, tensor in put_method(loaded, shape, method, torch.float32).items():
        if OWN in name:
            std = ADAPTER_STD if tensor.dim() == 2 else ADAPTER_BIAS
            tensors[name] = torch.empty_like(tensor).normal_(0, std, generator=generator)
        elif "LayerNorm" in name or not name.startswith(encoder):  # which train with the adapters
            tensors[name] = tensor
    about = Description(method, loaded.identity, task_of(folder), max_length=512, delta_sha256="")
    opened = open_any(save_checkpoint(folder / "own", tensors, about), str(folder / "model"))
    assert isinstance(opened, OpenedPlaced)
    return opened


@torch.no_grad()
def all_logits(model: PreTrainedModel, encoded: Encoded) -> np.ndarray:
    """Logits ``[examples, 2]``."""
    found = {}
    for group in alike(encoded.lengths, np.arange(len(encoded)), TOKENS_AT_ONCE):
        inputs = inputs_of(model, encoded, group, torch.device("cpu"))
        found |= dict(zip(group.tolist(), model(**inputs).logits.float().numpy()))
    return np.stack([found[item] for item in range(len(encoded))])


@torch.no_grad()
def balance(base: PreTrainedModel, logits: np.ndarray) -> float:
    """Move the head's bias so that half of the texts fall to each class; the margins' spread.

    Args:
        base: whose head is changed.
        logits: ``[examples, 2]``, moved along.
    """
    margins = logits[:, 1] - logits[:, 0]
    middle = float(np.median(margins))
    base.classifier.bias[1] -= middle
    logits[:, 1] -= middle
    return margins.std()


if __name__ == "__main__":
    main()
