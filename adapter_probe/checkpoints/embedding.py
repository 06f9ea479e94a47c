"""Models of embeddings: what follows the Transformer, by sentence-transformers or by a choice of pooling."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adapter_probe.errors import CheckpointError, install_extra, listed, one_line
from adapter_probe.replay.tensors import split
from adapter_probe.startup import import_needed

from .files import MODULES, OF_MODULES, makes_embeddings, quote, read_json_file, whole_number_field

_LIBRARY = "sentence_transformers."
_LIMITS = "sentence_bert_config.json"
_SIMILARITIES = ("cosine", "dot")
_ALL_LAYERS = "WeightedLayerPooling"
# The fields of the two files: those that are read, and the values of others that change nothing.
_OF_MODEL: dict[str, Sequence[object]] = {
    **dict.fromkeys(("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim"), ()),
    "__version__": (), "model_type": ("SentenceTransformer",),
}  # fmt: skip
_OF_TRANSFORMER: dict[str, Sequence[object]] = {
    **dict.fromkeys(("max_seq_length", "do_lower_case", "modality_config", "unpad_inputs"), ()),
    "transformer_task": ("feature-extraction",), "module_output_name": ("token_embeddings",),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Embedding:
    """What makes an embedding of a text of the states of its tokens.

    Attributes:
        modules: modules of sentence-transformers after the Transformer, or what stands in for them.
        dot: whether embeddings are compared by their dot product instead of the cosine.
        prompts: text before another text, by its role; that of the role "" is the default.
        lower: whether texts are put into lower case.
        width: how many of an embedding's first numbers are kept; None for all.
    """

    modules: tuple[nn.Module, ...]
    dot: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    lower: bool = False
    width: int | None = None

    def __call__(self, model: nn.Module, run: Callable[[], Any], copies: int) -> Tensor:
        """The embeddings ``[copies, texts, width]`` of a forward of texts of one length, without padding."""
        states = run()["last_hidden_state"]  # [copies x texts, tokens, width]
        return split(self.of_states(states, torch.ones_like(states[..., 0], dtype=torch.long)), 0, copies)

    def of_states(self, states: Tensor, mask: Tensor) -> Tensor:
        """The embeddings ``[texts, width]`` of states ``[texts, tokens, width]``.

        Args:
            mask: int64 ``[texts, tokens]``, 0 for padding, which comes last.
        """
        features = {"token_embeddings": states, "attention_mask": mask}
        for module in self.modules:
            own = next((p.dtype for p in module.parameters()), states.dtype)
            floats = {k: x.to(own) if x.is_floating_point() else x for k, x in features.items()}
            features = module.to(states.device)(floats)
        return features["sentence_embedding"][..., : self.width]

    def refuse_unable(self, width: int, folder: Path) -> None:
        """Refuse modules that need more than the states of the last layer, of this width."""
        kinds = [type(one).__name__ for one in self.modules]
        try:
            self.of_states(torch.zeros(1, 2, width), torch.ones(1, 2, dtype=torch.long))
            if _ALL_LAYERS in kinds:  # which does nothing without them
                raise KeyError("all_layer_embeddings")
        except Exception as error:  # of another library's modules
            raise CheckpointError(
                f"{folder / MODULES}: the modules {', '.join(kinds)} cannot be run on the states of the last "
                f"layer alone ({type(error).__name__}: {one_line(error)}); load the model and give its "
                "Transformer to adapter_probe.ablate with batches= and read="
            ) from None

    def prepared(self, text: str, role: str = "") -> str:
        """A text as the tokenizer is given it."""
        whole = self.prompts.get(role, self.prompts.get("", "")) + text
        return whole.lower() if self.lower else whole


class Pooling(nn.Module):
    """One of the poolings of an adapter whose folder says nothing of it: mean, cls or last."""

    def __init__(self, how: str):
        super().__init__()
        self._how = how

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """The features with an embedding."""
        states, mask = features["token_embeddings"], features["attention_mask"]
        if self._how == "cls":
            found = states[:, 0]
        elif self._how == "last":
            found = states[torch.arange(len(states), device=states.device), mask.sum(dim=1) - 1]
        elif mask.all():
            found = states.mean(dim=1)
        else:
            found = (states * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        return {**features, "sentence_embedding": found}


def of_library(folder: Path) -> tuple[Embedding, int | None, dict[str, Path]]:
    """The modules that a folder lists, its limit of tokens, and the files that were read.

    Raises:
        CheckpointError: the library is not installed, or a module is not its own or cannot be loaded.
    """
    path = folder / MODULES
    first, *others = _listed(path)
    modules = []
    if not first[0].startswith(_LIBRARY) or first[0].rpartition(".")[2] != "Transformer":
        raise CheckpointError(f"{path}: the first module is {first[0]}, expected the library's Transformer")
    for name, inside in others:
        if not name.startswith(_LIBRARY):
            raise CheckpointError(
                f"{path}: the module {name} is not of sentence-transformers; its code is not run"
            )
        modules.append(_load(folder, name, inside))
    config = _settings(folder / OF_MODULES, _OF_MODEL)
    similarity = config.get("similarity_fn_name") or "cosine"
    if similarity not in _SIMILARITIES:
        raise CheckpointError(
            f"{folder / OF_MODULES}: embeddings are compared by {similarity}; allowed: "
            f"{listed(_SIMILARITIES)}"
        )
    prompts = {"query": "", "document": ""}  # which sentence-transformers fills in
    prompts |= {str(role): str(text) for role, text in (config.get("prompts") or {}).items()}
    prompts[""] = prompts.get(str(config.get("default_prompt_name")), "")
    if any(prompts.values()) and not all(getattr(one, "include_prompt", True) for one in modules):
        raise CheckpointError(f"{path}: the pooling leaves the prompt out, which is not supported")
    limits = _settings(folder / first[1] / _LIMITS, _OF_TRANSFORMER)
    if "message" in (limits.get("modality_config") or {}):
        raise CheckpointError(f"{folder}: texts go through a chat template, which embeddings here do not")
    counts = {
        name: None if value is None else whole_number_field(path, name, value, 1)
        for path, name, value in (
            (folder / first[1] / _LIMITS, "max_seq_length", limits.get("max_seq_length")),
            (folder / OF_MODULES, "truncate_dim", config.get("truncate_dim")),
        )
    }
    lower, files = bool(limits.get("do_lower_case")), _files(folder, (first, *others))
    made = Embedding(tuple(modules), similarity == "dot", prompts, lower, counts["truncate_dim"])
    return made, counts["max_seq_length"], files


def saved_modules(folder: Path) -> dict[str, bytes]:
    """By name, the files for a new folder that has the Transformer itself; none of the modules is loaded."""
    modules = _listed(folder / MODULES)
    made = {name: file.read_bytes() for name, file in _files(folder, modules).items()}
    (first, _), *others = modules
    entries = [
        {"idx": n, "name": str(n), "type": kind, "path": inside}
        for n, (kind, inside) in enumerate([(first, ""), *others])
    ]
    return made | {MODULES: json.dumps(entries, indent=2).encode()}


def _files(folder: Path, modules: Sequence[tuple[str, str]]) -> dict[str, Path]:
    """By name, the files that make embeddings of the states of the Transformer, the first of the modules."""
    (_, transformer), *others = modules
    files = {MODULES: folder / MODULES}
    for _, inside in others:
        _refuse_outside(folder, inside)
        files |= {f"{inside}/{own.name}": own for own in sorted((folder / inside).glob("*")) if own.is_file()}
    settings = (folder / OF_MODULES, folder / transformer / _LIMITS)
    return files | {path.name: path for path in settings if path.is_file()}


def _listed(path: Path) -> list[tuple[str, str]]:
    """The types and folders of the modules that a file lists, the Transformer first."""
    try:
        found = [(str(one["type"]), str(one["path"])) for one in json.loads(path.read_text("utf-8"))]
        return [found[0], *found[1:]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        said = f"{path} lists no modules of sentence-transformers"
        raise CheckpointError(f"{said}: {one_line(error)}") from None


def _refuse_outside(folder: Path, inside: str) -> None:
    if not (folder / inside).resolve().is_relative_to(folder.resolve()):
        raise CheckpointError(f"{folder / MODULES}: a module is outside the folder, at {inside}")


def _settings(path: Path, known: Mapping[str, Sequence[object]]) -> dict[str, Any]:
    """The fields of a file that may be missing.

    Args:
        known: the names of those that are read, and of others with the values that change nothing.

    Raises:
        CheckpointError: another field is set, or has another value.
    """
    found = read_json_file(path) if path.is_file() else {}
    for name, value in found.items():
        if (value and name not in known) or (known.get(name) and value not in (None, *known[name])):
            raise CheckpointError(
                f"{path}: {name} is {quote(value)}, which is not followed here, so embeddings would not be "
                "those of sentence-transformers"
            )
    return found


def folder_of_modules(folder: Path) -> Path | None:
    """The folder of sentence-transformers that an adapter belongs to: its own or the one above, if any."""
    return next((place for place in (folder, folder.parent) if makes_embeddings(place)), None)


def _load(folder: Path, name: str, inside: str) -> nn.Module:
    _refuse_outside(folder, inside)
    weights = {path.suffix for path in (folder / inside).glob("*")}
    if ".bin" in weights and ".safetensors" not in weights:
        raise CheckpointError(f"{folder / inside} has a pickle and no safetensors file, which is not loaded")
    try:
        place, _, own = name.rpartition(".")
        module = getattr(import_needed(place), own)
        found: nn.Module = module.load(str(folder), subfolder=inside, local_files_only=True)
    except ModuleNotFoundError as error:
        raise CheckpointError(
            f"{folder / MODULES}: {error.name} is not installed; {install_extra('embeddings')}"
        ) from None
    except Exception as error:  # of another library's files
        raise CheckpointError(f"{folder / inside}: {name} cannot be loaded ({one_line(error)})") from None
    return found.eval().requires_grad_(False)
