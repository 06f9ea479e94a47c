"""Prediction heads of AdapterHub's libraries: that of a transformers class, or a stack of linear maps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from torch import Tensor

from adapter_probe.errors import CheckpointError
from adapter_probe.metrics import Kind
from adapter_probe.models.adapters.imported import HeadSpec

from .files import shown, whole_number
from .foreign import BaseShape, refuse

HEAD_CONFIG = "head_config.json"
HEAD_WEIGHTS = ("model_head.safetensors", "pytorch_model_head.bin")
_CLASSES: tuple[tuple[str, Kind], ...] = (
    ("ForSequenceClassification", "classification"),
    ("ForQuestionAnswering", "extractive"),
    ("ForCausalLM", "causal"),
    ("LMHeadModel", "causal"),
)
_FLEXIBLE: dict[str, Kind] = {
    "classification": "classification",
    "question_answering": "extractive",
    "causal_lm": "causal",
}
CAUSAL_CLASSES = tuple(ending for ending, kind in _CLASSES if kind == "causal")
SUPPORTED_HEADS = (*(f"*{name}" for name, _ in _CLASSES), *(f"flexible {name}" for name in _FLEXIBLE))


def read_head(folder: Path, document: dict[str, Any]) -> tuple[Kind, int | None, tuple[str, ...]]:
    """Kind, number of logits and label names of the task that a head is for; see `ForeignCheckpoint`.

    Raises:
        CheckpointError: the kind of head is not supported, or the labels do not fit it.
    """
    path, config, cls = folder / HEAD_CONFIG, document.get("config"), str(document.get("model_class"))
    if not isinstance(config, dict | None):
        raise CheckpointError(f"{path}: config is {shown(config)}, expected an object")
    if config is None:
        kind = next((kind for ending, kind in _CLASSES if cls.endswith(ending)), None)
        what = f"the head of a {cls}"
    else:
        head_type = config.get("head_type")
        kind = _FLEXIBLE.get(head_type) if isinstance(head_type, str) else None
        what = f"a {shown(head_type)} head"
    if kind is None:
        raise refuse(folder, what, SUPPORTED_HEADS)
    if kind != "classification":
        return kind, 2 if kind == "extractive" else None, ()
    settings = config or document
    labels = settings.get("label2id") or {}
    if not isinstance(labels, dict):
        raise CheckpointError(f"{path}: label2id is {shown(labels)}, expected an object")
    for name, label in labels.items():
        whole_number(path, f"label2id of {name!r}", label)
    n = whole_number(path, "num_labels", settings.get("num_labels") or len(labels))
    if n == 1:
        return "regression", 1, ()
    if labels and sorted(labels.values()) != list(range(n)):
        raise CheckpointError(f"{path}: label2id {shown(labels)} does not number {n} labels from 0")
    if n < 2:
        raise CheckpointError(f"{path} does not record the number of labels of the head")
    return kind, n, tuple(sorted(labels, key=lambda name: labels[name]))


def translate_head(
    folder: Path,
    document: dict[str, Any],
    tensors: dict[str, Tensor],
    base: BaseShape,
    out: dict[str, Tensor],
) -> HeadSpec | None:
    """Move the head's weights from `tensors` into `out`, under the names of this project's model.

    Returns:
        the module that replaces the family's head; None if it is the family's head.

    Raises:
        CheckpointError: the weights do not match the head's configuration.
    """
    config = document.get("config")
    if config is None:
        for key in [k for k in tensors if ".adapters." not in k and ".loras." not in k]:
            out[key] = tensors.pop(key)
        return None
    pattern = re.compile(rf"heads\.{re.escape(str(document.get('name')))}\.(\d+)\.(weight|bias)")
    found: dict[int, dict[str, Tensor]] = {}
    for key in list(tensors):
        if match := pattern.fullmatch(key):
            found.setdefault(int(match[1]), {})[match[2]] = tensors.pop(key)
    if config["head_type"] == "causal_lm":
        return _output_embedding(folder, found, base, out)
    extractive = config["head_type"] == "question_answering"
    layers = int(config.get("layers", 1 if extractive else 2))
    if len(found) != layers:
        raise CheckpointError(f"checkpoint {folder}: the head has {len(found)} linear maps, not {layers}")
    if extractive and layers != 1:
        raise CheckpointError(
            f"checkpoint {folder} has a question answering head of {layers} layers; only 1 is supported"
        )
    last = str(base.anatomy.span_head[-1] if extractive else base.anatomy.head[-1])
    for number, (_, parts) in enumerate(sorted(found.items())):
        name = last if extractive else f"{last}.{number}"
        out.update({f"{name}.{part}": tensor for part, tensor in parts.items()})
    if extractive:
        return None
    activation = config.get("activation_function", "tanh")
    return HeadSpec(layers, activation, bool(config.get("use_pooler")), bool(config.get("bias", True)))


def _output_embedding(
    folder: Path, found: dict[int, dict[str, Tensor]], base: BaseShape, out: dict[str, Tensor]
) -> None:
    """Check a causal head of the library; only the output embedding is supported.

    Raises:
        CheckpointError: the head has more than an output embedding.
    """
    if [set(parts) for parts in found.values()] != [{"weight"}]:
        raise CheckpointError(
            f"checkpoint {folder} has a causal head with a bias or several layers; only the output "
            "embedding is supported"
        )
    name = next(name for name in ("lm_head", "embed_out") if name in base.modules)
    out[f"{name}.weight"] = next(iter(found.values()))["weight"]
