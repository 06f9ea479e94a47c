"""Read checkpoints of AdapterHub's `adapters` library, and of `adapter-transformers` before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adapter_probe.errors import CheckpointError
from adapter_probe.kinds.table import about_kind
from adapter_probe.metrics import Kind

from .adapter_folder import name_of_checkpoint, weights_in
from .adapterhub_weights import HEAD_CONFIG
from .adapterhub_weights import REFUSED_KEYS as REFUSED_KEYS
from .adapterhub_weights import translate as translate
from .files import (
    CONFIG,
    first_file,
    quote,
    read_json_file,
    read_tensors,
    refuse_unknown,
    unsupported,
    whole_number_field,
)
from .foreign import ForeignCheckpoint
from .model_class import head_of_class

HEAD_WEIGHTS = ("model_head.safetensors", "pytorch_model_head.bin")
_FLEXIBLE: dict[str, Kind] = {
    "classification": "classification",
    "question_answering": "extractive",
    "causal_lm": "causal",
}
_CLASSES = ("ForSequenceClassification", "ForQuestionAnswering", "ForCausalLM", "LMHeadModel")
SUPPORTED_HEADS = (*(f"*{name}" for name in _CLASSES), *(f"flexible {name}" for name in _FLEXIBLE))
WEIGHTS = ("adapter.safetensors", "pytorch_adapter.bin")
REFUSED_FILES = {
    "adapter_fusion_config.json": "AdapterFusion",
    "adapter_interface.json": "a model interface",
    "adapter_setup.json": "a composition of several adapters",
}
_FUSION, _SETUP = "adapter_fusion_config.json", "adapter_setup.json"
_FIELDS = (
    "config", "config_id", "hidden_size", "label2id", "model_class", "model_name", "model_type", "name",
    "type", "version",
)  # fmt: skip


def read(folder: Path) -> ForeignCheckpoint:
    """Read the files.

    Raises:
        CheckpointError: a file is missing or damaged, or the checkpoint has parts that are not supported.
    """
    for name, what in REFUSED_FILES.items():
        if (folder / name).exists():
            raise unsupported(folder, f"{what} ({name})")
    path = folder / CONFIG
    config = read_json_file(path)
    refuse_unknown(path, config, _FIELDS, "adapters 1.3")
    for name in ("name", "model_name", "model_type", "version", "type"):
        if not isinstance(config.get(name), str | None):
            raise CheckpointError(f"{path}: {name} is {quote(config[name])}, expected a string")
    refuse_composed(folder, config.get("name"))
    weights = weights_in(folder, WEIGHTS)
    documents, files, tensors = {CONFIG: config}, [path, weights], read_tensors(weights)
    kind: Kind | None = "causal" if head_of_class(config.get("model_class"), False) == "causal" else None
    n_outputs: int | None = None  # without the head, neither its labels nor its weights are known
    label_names: tuple[str, ...] = ()
    head = first_file(folder, HEAD_WEIGHTS)
    if head is not None:
        if not (folder / HEAD_CONFIG).is_file():
            raise CheckpointError(f"checkpoint {folder} contains {head.name} without {HEAD_CONFIG}")
        documents[HEAD_CONFIG] = read_json_file(folder / HEAD_CONFIG)
        files += [folder / HEAD_CONFIG, head]
        tensors |= read_tensors(head)
        kind, n_outputs, label_names = read_head(folder, documents[HEAD_CONFIG])
    current = str(config.get("version", "")).startswith("adapters")
    return ForeignCheckpoint(
        folder=folder,
        library="adapters" if current else "adapter-transformers",
        name=config.get("name") or name_of_checkpoint(folder),
        files=tuple(files),
        documents=documents,
        tensors=tensors,
        base=config.get("model_name"),
        kind=kind,
        n_outputs=n_outputs,
        label_names=label_names,
    )


def refuse_composed(folder: Path, name: str | None) -> None:
    """Refuse an adapter that was saved as part of a composition, because alone it computes something else.

    Args:
        name: name of the adapter; None for all adapters in subfolders.
    """
    above = folder.resolve().parent
    setup = above / _SETUP
    parts = [setup] if setup.is_file() else []
    for fusion in sorted(above.glob(f"*/{_FUSION}")):
        fused = read_json_file(fusion).get("name")
        if name is not None and isinstance(fused, str) and name in fused.split(","):
            parts.append(fusion)
    if parts:
        what = REFUSED_FILES[parts[0].name]
        raise CheckpointError(
            f"checkpoint {folder} is part of {what} ({parts[0]}), which is not supported; to open the "
            "adapter alone, copy its folder elsewhere"
        )


def read_head(folder: Path, document: dict[str, Any]) -> tuple[Kind, int | None, tuple[str, ...]]:
    """Kind, number of logits and label names of the task that a head is for; see `ForeignCheckpoint`."""
    path, config, cls = folder / HEAD_CONFIG, document.get("config"), str(document.get("model_class"))
    if not isinstance(config, dict | None):
        raise CheckpointError(f"{path}: config is {quote(config)}, expected an object")
    if config is None:
        kind = head_of_class(cls, False) if cls.endswith(_CLASSES) else None
        what = f"the head of a {cls}"
    else:
        head_type = config.get("head_type")
        kind = _FLEXIBLE.get(head_type) if isinstance(head_type, str) else None
        what = f"a {quote(head_type)} head"
    if kind is None:
        raise unsupported(folder, what, SUPPORTED_HEADS)
    if not about_kind(kind).one_class:
        return kind, about_kind(kind).n_outputs, ()
    settings = config or document
    labels = settings.get("label2id") or {}
    if not isinstance(labels, dict):
        raise CheckpointError(f"{path}: label2id is {quote(labels)}, expected an object")
    for name, label in labels.items():
        whole_number_field(path, f"label2id of {name!r}", label)
    n = whole_number_field(path, "num_labels", settings.get("num_labels") or len(labels))
    if n == 1:
        return "regression", 1, ()
    if labels and sorted(labels.values()) != list(range(n)):
        raise CheckpointError(f"{path}: label2id {quote(labels)} does not number {n} labels from 0")
    if n < 2:
        raise CheckpointError(f"{path} does not record the number of labels of the head")
    return kind, n, tuple(sorted(labels, key=lambda name: labels[name]))
