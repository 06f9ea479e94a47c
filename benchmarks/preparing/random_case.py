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

from adapter_probe.checkpoints.base import load_base, load_tokenizer
from adapter_probe.checkpoints.description import Description
from adapter_probe.checkpoints.native import OpenedCheckpoint
from adapter_probe.data.encoding import Encoded
from adapter_probe.data.examples import load_examples
from adapter_probe.data.tasks import find_task
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.evaluation import evaluate
from adapter_probe.models.methods import Adapters

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = [f"w{number}" for number in range(2000)]
VOCABULARY = 30522  # of BERT-base, most of it unused
HEAD_WIDTH = 64
MISLABELLED = 0.1
# Multiples of 1 / sqrt(inputs): sharp enough attention and a large enough change in every sublayer that texts
# are told apart by what they say; with BERT's own start all texts give the same logits.
SHARPNESS, GAIN, HEAD_GAIN = 1.6, 1.1, 4.0
ADAPTER_STD, ADAPTER_BIAS = 0.1, 0.02


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
    opened, encoded = with_adapters(folder, method, install=spec["adapters"])
    base = opened.model.base
    logits = evaluate(opened.model, encoded)
    known = {**facts(base, method), "logit_spread": float(balance(base, logits))}
    labels = [int(n) if draw.random() > MISLABELLED else 1 - int(n) for n in predictions(logits)]
    save_texts(folder, labels, texts)
    save_base(base, folder / "model", folder)
    if spec["adapters"]:
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


def with_adapters(folder: Path, method: Adapters, install: bool) -> tuple[OpenedCheckpoint, Encoded]:
    """The base in the folder with random adapters, and its texts encoded."""
    loaded, tokenizer = load_base(str(folder / "model"), 2), load_tokenizer(str(folder / "model"), None)
    task = find_task(validation=[folder / "texts.tsv"], kind="classification")
    model = AdaptedModel(loaded.model)
    generator = torch.Generator().manual_seed(1)
    if install:
        model.install(method, generator)
    trained = [name for name, _ in model.base.named_parameters() if ".adapter." in name]
    with torch.no_grad():
        for name, parameter in model.base.named_parameters():
            if ".adapter." in name:
                parameter.normal_(
                    0, ADAPTER_STD if parameter.dim() == 2 else ADAPTER_BIAS, generator=generator
                )
    description = Description(method, loaded.identity, task, max_length=512, delta_sha256="")
    encoded = load_examples(tokenizer, task, "validation", 512).encoded
    return OpenedCheckpoint(model.eval(), tokenizer, description, frozenset(trained), frozenset()), encoded


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


def predictions(logits: np.ndarray) -> np.ndarray:
    """Class numbers ``[examples]``."""
    return logits.argmax(axis=-1)


if __name__ == "__main__":
    main()
