"""A case's folder: base and adapter apart, as every contender can open them, and the texts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel
from transformers.utils import logging

from adapter_probe.checkpoints.converting import to_adapterhub
from adapter_probe.checkpoints.opened_peft import OpenedPlaced
from adapter_probe.models.methods import Adapters

TOKENIZER_FILES = ("vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def save_base(model: PreTrainedModel, tokenizer: Path, folder: Path) -> None:
    """Write ``model/``: the base with its trained LayerNorms, pooler and head, without adapters.

    Args:
        model: may have adapters in it.
        tokenizer: folder of the tokenizer; its files are copied, for libraries of several versions read them.
        folder: the case.
    """
    logging.disable_progress_bar()
    state = {name: tensor for name, tensor in model.state_dict().items() if ".adapter." not in name}
    model.save_pretrained(folder / "model", state_dict=state)
    for name in TOKENIZER_FILES:
        if (tokenizer / name).exists() and tokenizer != folder / "model":
            shutil.copy(tokenizer / name, folder / "model" / name)


def save_adapter(opened: OpenedPlaced, folder: Path) -> None:
    """Write ``adapter/`` in AdapterHub's format; what that has no place for is in the base already."""
    shutil.rmtree(folder / "adapter", ignore_errors=True)
    to_adapterhub(opened, folder / "adapter", lossy=True)


def save_texts(folder: Path, labels: Sequence[str | int], texts: Sequence[Sequence[str]]) -> None:
    """Write ``texts.tsv``: label, text and perhaps a second text; tabs and line ends become spaces."""
    names = ["label", "text", "text_b"][: 1 + len(texts[0])]
    lines = [[str(label), *(" ".join(text.split()) for text in row)] for label, row in zip(labels, texts)]
    content = "".join("\t".join(line) + "\n" for line in [names, *lines])
    (folder / "texts.tsv").write_text(content, encoding="utf-8")


def facts(model: PreTrainedModel, method: Adapters) -> dict[str, Any]:
    """What operations are counted from: shapes, and multiply-adds a token of what a site switches."""
    config = model.config
    each = 2 * config.hidden_size * method.size
    return {
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "inner": config.intermediate_size,
        "heads": config.num_attention_heads,
        "site_products": [each, each],
        "forks_early": [False, False],
    }


def finish(folder: Path, spec: dict[str, Any], known: dict[str, Any]) -> None:
    """Write ``case.json``, last: a folder that has it is complete."""
    (folder / "case.json").write_text(json.dumps({"spec": spec, **known}, indent=2) + "\n", encoding="utf-8")
