"""Read TensorFlow checkpoints written by the paper's code, google-research/adapter-bert.

Such a checkpoint holds the whole model: what was trained (adapters, all LayerNorms, the head), what was
frozen, and the optimiser's state, which is left out. Names and shapes are those of `modeling.py` and
`run_classifier.py` there: a matrix maps rows, so that ours is its transpose, except in the head.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from adapter_probe.errors import CheckpointError
from adapter_probe.models.adapters.imported import BottleneckSpec, ImportedMethod, SiteKind

from .files import first_of
from .foreign import BaseShape, ForeignCheckpoint, TranslatedCheckpoint, refuse_left
from .tensor_bundle import read_bundle

INDEX = ".index"
LATEST = "checkpoint"  # names the newest of several checkpoints
LIBRARY = "google-research/adapter-bert"
_ACTIVATION = "gelu_new"  # the tanh approximation
_EPSILON = 1e-12  # of tf.contrib's layer_norm
_HEAD = {"output_weights": "classifier.weight", "output_bias": "classifier.bias"}
_SITES: dict[SiteKind, str] = {"attention": "attention/output", "ffn": "output"}
_ADAPTER = {"weights1": "down.weight", "biases1": "down.bias", "weights2": "up.weight", "biases2": "up.bias"}
_DENSE = {"kernel": "weight", "bias": "bias"}
_NORM = {"gamma": "weight", "beta": "bias"}
_LINEAR_MAPS = (
    "attention/self/query",
    "attention/self/key",
    "attention/self/value",
    "attention/output/dense",
    "intermediate/dense",
    "output/dense",
)
_EMBEDDINGS = ("word_embeddings", "token_type_embeddings", "position_embeddings")


def is_in(folder: Path) -> bool:
    """Whether a folder holds a TensorFlow checkpoint."""
    return any(folder.glob(f"*{INDEX}"))


def read(folder: Path) -> ForeignCheckpoint:
    """Read the files.

    Raises:
        CheckpointError: it is ambiguous which checkpoint is meant, a file is missing or damaged, or it
            holds no adapters or no head of the authors' code.
    """
    bundle = read_bundle(_index(folder))
    names = [name for name in bundle.entries if not _is_state(name)]
    if not any("/adapters/" in name for name in names):
        raise CheckpointError(f"{bundle.index} contains no adapters of {LIBRARY}")
    tensors = {}
    for name in names:
        tensor = torch.from_numpy(bundle.read(name).copy()).to(torch.float32)
        if not torch.isfinite(tensor).all():
            raise CheckpointError(f"{bundle.index}: {name} contains NaN or infinite values")
        tensors[name] = tensor
    outputs = _outputs(bundle.index, tensors)
    return ForeignCheckpoint(
        folder=folder,
        library=LIBRARY,
        kind="regression" if outputs == 1 else "classification",
        n_outputs=outputs,
        name=folder.resolve().name,
        files=(bundle.index, *bundle.shards),
        documents={},
        tensors=tensors,
    )


def _index(folder: Path) -> Path:
    """The index of the checkpoint that the folder's ``checkpoint`` names, or of the only one."""
    found = sorted(folder.glob(f"*{INDEX}"))
    latest = folder / LATEST
    if latest.is_file():
        match = re.search(
            r'^model_checkpoint_path:\s*"(.+)"', latest.read_text("utf-8", "replace"), re.MULTILINE
        )
        if match is None:
            raise CheckpointError(f"{latest} is damaged: it has no model_checkpoint_path")
        # A path on the machine that wrote it, of which only the last part is still valid.
        wanted = folder / (re.split(r"[/\\]", match[1])[-1] + INDEX)
        if wanted not in found:
            raise CheckpointError(
                f"{latest} names {wanted.name}, which does not exist; remove it or make it name one of "
                f"{', '.join(path.name for path in found)}"
            )
        return wanted
    if len(found) > 1:
        raise CheckpointError(
            f"{folder} has {len(found)} TensorFlow checkpoints, {', '.join(path.name for path in found)}, "
            f"and no file {LATEST!r} that names one"
        )
    return found[0]


def _is_state(name: str) -> bool:
    """Whether a variable is the optimiser's."""
    return name == "global_step" or name.endswith(("/adam_m", "/adam_v"))


def _outputs(index: Path, tensors: Mapping[str, Tensor]) -> int:
    """Columns of the head's logits: the authors' code only classifies, so one column means regression."""
    for name in _HEAD:
        if name not in tensors:
            raise CheckpointError(f"{index} lacks {name}, the head of {LIBRARY}'s run_classifier.py")
    return len(tensors["output_bias"])


def translate(source: ForeignCheckpoint, base: BaseShape) -> TranslatedCheckpoint:
    """Put a checkpoint into this project's terms.

    Raises:
        CheckpointError: it lacks variables, has others, or does not fit the base.
    """
    index = source.files[0]
    if base.config.model_type != "bert":
        raise CheckpointError(f"{index} is of a bert model, but the base is a {base.config.model_type} model")
    _refuse_other_depth(index, source.tensors, len(base.layer_names))
    adapters, trained, frozen = _adapters(base), _trained(base), _frozen(base)
    names = {**adapters, **trained, **frozen}
    if lacking := sorted(names.keys() - source.tensors.keys()):
        raise CheckpointError(f"{index} lacks {first_of(lacking)}")
    refuse_left(source.folder, source.tensors.keys() - names.keys())
    tensors = {ours: _turned(index, name, source.tensors[name]) for name, ours in names.items()}
    sizes = [
        BottleneckSpec(layer, site, len(tensors[adapters[f"{scope}/weights1"]]), _ACTIVATION)
        for layer, site, scope in _sites(base)
    ]
    method = ImportedMethod(LIBRARY, ("feedforward_adapter",), tuple(sizes))
    return TranslatedCheckpoint(method, tensors, _notes(source, base), frozenset(frozen.values()))


def _refuse_other_depth(index: Path, tensors: Mapping[str, Tensor], n_layers: int) -> None:
    matches = [re.match(r"bert/encoder/layer_(\d+)/", name) for name in tensors]
    depth = 1 + max((int(match[1]) for match in matches if match), default=-1)
    if depth != n_layers:
        raise CheckpointError(f"{index} is of a model with {depth} layers, but the base has {n_layers}")


def _sites(base: BaseShape) -> list[tuple[int, SiteKind, str]]:
    """Every site, as (layer, site, scope of the adapter's variables)."""
    return [
        (layer, site, f"bert/encoder/layer_{layer}/{scope}/adapters")
        for layer in range(len(base.layer_names))
        for site, scope in _SITES.items()
    ]


def _adapters(base: BaseShape) -> dict[str, str]:
    """Our names of the adapters' variables."""
    names = {}
    for layer, site, scope in _sites(base):
        holder = f"{base.prefix}{base.layer_names[layer]}.{getattr(base.anatomy.layer, f'{site}_site')}"
        names |= {f"{scope}/{theirs}": f"{holder}.adapter.{ours}" for theirs, ours in _ADAPTER.items()}
    return names


def _trained(base: BaseShape) -> dict[str, str]:
    """Our names of what is trained besides: all LayerNorms, and the head."""
    scopes = ["bert/embeddings", *(scope.removesuffix("/adapters") for *_, scope in _sites(base))]
    norms = {
        f"{scope}/LayerNorm/{theirs}": f"{_dotted(scope)}.LayerNorm.{ours}"
        for scope in scopes
        for theirs, ours in _NORM.items()
    }
    return {**norms, **_HEAD}


def _frozen(base: BaseShape) -> dict[str, str]:
    """Our names of what is not trained."""
    scopes = [
        f"bert/encoder/layer_{layer}/{scope}"
        for layer in range(len(base.layer_names))
        for scope in _LINEAR_MAPS
    ]
    maps = {
        f"{scope}/{theirs}": f"{_dotted(scope)}.{ours}"
        for scope in (*scopes, "bert/pooler/dense")
        for theirs, ours in _DENSE.items()
    }
    return maps | {f"bert/embeddings/{name}": f"bert.embeddings.{name}.weight" for name in _EMBEDDINGS}


def _dotted(scope: str) -> str:
    """A module of BERT by its name in transformers."""
    return scope.replace("layer_", "layer/").replace("/", ".")


def _turned(index: Path, name: str, tensor: Tensor) -> Tensor:
    """A variable in the layout that torch's modules have."""
    if not name.endswith(("kernel", "weights1", "weights2", "biases1", "biases2")):
        return tensor
    if tensor.dim() != 2:
        raise CheckpointError(f"{index}: {name} has shape {list(tensor.shape)}, expected two dimensions")
    # The adapters' biases are [1, width].
    return tensor[0] if "/biases" in name and len(tensor) == 1 else tensor.T.contiguous()


def _notes(source: ForeignCheckpoint, base: BaseShape) -> tuple[str, ...]:
    notes = []
    if base.config.hidden_act == "gelu":
        notes.append(
            "The authors' code approximates GELU by tanh in BERT too, while the base computes it exactly "
            "(hidden_act 'gelu'), which changes the logits slightly; 'gelu_new' in the base's config.json "
            "reproduces the authors' logits."
        )
    epsilon = float(base.config.layer_norm_eps)
    if epsilon != _EPSILON:
        notes.append(f"The authors' LayerNorms add {_EPSILON:g} to the variance, the base's {epsilon:g}.")
    if source.kind == "regression":
        notes.append("The head has one output, so the task is taken for a regression; the files do not say.")
    return tuple(notes)
