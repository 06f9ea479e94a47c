"""Read TensorFlow checkpoints written by the paper's code, google-research/adapter-bert.

Such a checkpoint holds the whole model: what was trained (adapters, all LayerNorms, the head), what was
frozen, and the optimiser's state, which is left out. TensorFlow itself reads the files (extra
``tensorflow``). Names and shapes are those of `modeling.py` and `run_classifier.py` there: a matrix maps
rows, so that ours is its transpose, except in the head.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from adapter_probe.errors import CheckpointError, install_extra, one_line
from adapter_probe.kinds.table import about_kind
from adapter_probe.models.adapters.imported import BottleneckSpec, ImportedMethod, SiteKind

from .adapter_folder import name_of_checkpoint
from .files import check_values, first_of
from .foreign import BaseShape, ForeignCheckpoint, TranslatedCheckpoint, refuse_left

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
_STEP, _OPTIMISER = "global_step", ("/adam_m", "/adam_v")
_EMBEDDINGS = ("word_embeddings", "token_type_embeddings", "position_embeddings")


def is_in(folder: Path) -> bool:
    """Whether a folder holds a TensorFlow checkpoint."""
    return any(folder.glob(f"*{INDEX}"))


def read(folder: Path) -> ForeignCheckpoint:
    """Read the files.

    Raises:
        CheckpointError: TensorFlow is not installed, it is ambiguous which checkpoint is meant, a file is
            missing or damaged, or it holds no adapters or no head of the authors' code.
    """
    index = _index(folder)
    shards = sorted(folder.glob(f"{index.stem}.data-*-of-*"))
    if not shards:
        raise CheckpointError(f"{folder} lacks {index.stem}.data-*-of-*, the values of {index.name}")
    variables = read_variables(index)
    if not any("/adapters/" in name for name in variables):
        raise CheckpointError(f"{index} contains no adapters of {LIBRARY}")
    tensors = {name: torch.from_numpy(values) for name, values in variables.items()}
    for name, tensor in tensors.items():
        check_values(index, name, tensor)
    if lacking := sorted(_HEAD.keys() - variables.keys()):
        raise CheckpointError(f"{index} lacks {lacking[-1]}, the head of {LIBRARY}'s run_classifier.py")
    outputs = len(tensors["output_bias"])  # the authors' code only classifies: one column means regression
    return ForeignCheckpoint(
        folder=folder,
        library=LIBRARY,
        kind="regression" if outputs == 1 else "classification",
        n_outputs=outputs,
        name=name_of_checkpoint(folder),
        files=(index, *shards),
        documents={},
        tensors=tensors,
    )


def read_variables(index: Path) -> dict[str, np.ndarray]:
    """All variables but the optimiser's in float32, read by TensorFlow."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # only errors on standard error
    try:
        import tensorflow
    except ModuleNotFoundError as error:
        raise CheckpointError(
            f"{index} is read by TensorFlow, and {error.name} is not installed; {install_extra('tensorflow')}"
        ) from None
    try:
        reader = tensorflow.train.load_checkpoint(str(index.with_suffix("")))
        types = reader.get_variable_to_dtype_map()
        names = [name for name in types if name != _STEP and not name.endswith(_OPTIMISER)]
        if odd := [name for name in names if not types[name].is_floating]:
            raise CheckpointError(f"{index}: {odd[0]} is of type {types[odd[0]].name}, expected floats")
        return {name: np.array(reader.get_tensor(name), dtype=np.float32) for name in names}
    except CheckpointError:
        raise
    except Exception as error:  # damaged files: of several classes, most of them private
        raise CheckpointError(f"{index} is damaged: {one_line(error)}") from None


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


def translate(source: ForeignCheckpoint, base: BaseShape) -> TranslatedCheckpoint:
    """Put a checkpoint into this project's terms.

    Raises:
        CheckpointError: it lacks variables, has others, or does not fit the base.
    """
    index = source.files[0]
    if base.config.model_type != "bert":
        raise CheckpointError(f"{index} is of a bert model, but the base is a {base.config.model_type} model")
    matches = [re.match(r"bert/encoder/layer_(\d+)/", name) for name in source.tensors]
    depth = 1 + max((int(match[1]) for match in matches if match), default=-1)
    n_layers = len(base.layer_names)
    if depth != n_layers:
        raise CheckpointError(f"{index} is of a model with {depth} layers, but the base has {n_layers}")
    trained, frozen = _names(base)
    names = {**trained, **frozen}
    if lacking := sorted(names.keys() - source.tensors.keys()):
        raise CheckpointError(f"{index} lacks {first_of(lacking)}")
    refuse_left(source.folder, source.tensors.keys() - names.keys())
    tensors = {ours: _turned(index, name, source.tensors[name]) for name, ours in names.items()}
    sizes = {
        (layer, site): len(tensors[f"{base.prefix}{base.adapter_name(layer, site)}.down.weight"])
        for layer in range(n_layers)
        for site in _SITES
    }
    bottlenecks = tuple(BottleneckSpec(*place, size, _ACTIVATION) for place, size in sizes.items())
    method = ImportedMethod(LIBRARY, ("feedforward_adapter",), bottlenecks)
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
    if about_kind(source.kind).is_number:
        notes.append("The head has one output, so the task is taken for a regression; the files do not say.")
    return TranslatedCheckpoint(method, tensors, tuple(notes), frozenset(frozen.values()))


def _names(base: BaseShape) -> tuple[dict[str, str], dict[str, str]]:
    """Our names of the variables that were trained (adapters, LayerNorms, head), and of the rest."""
    trained = {**_HEAD, **_under("bert/embeddings/LayerNorm", _NORM)}
    frozen = {f"bert/embeddings/{name}": f"bert.embeddings.{name}.weight" for name in _EMBEDDINGS}
    frozen |= _under("bert/pooler/dense", _DENSE)
    for layer in range(len(base.layer_names)):
        start = f"bert/encoder/layer_{layer}"
        for site, scope in _SITES.items():
            own = base.prefix + base.adapter_name(layer, site)
            trained |= _under(f"{start}/{scope}/adapters", _ADAPTER, own)
            trained |= _under(f"{start}/{scope}/LayerNorm", _NORM)
        for scope in _LINEAR_MAPS:
            frozen |= _under(f"{start}/{scope}", _DENSE)
    return trained, frozen


def _under(scope: str, parts: Mapping[str, str], module: str | None = None) -> dict[str, str]:
    """Our names of the variables in a scope, by default those of BERT's module in transformers."""
    module = module or scope.replace("layer_", "layer/").replace("/", ".")
    return {f"{scope}/{theirs}": f"{module}.{ours}" for theirs, ours in parts.items()}


def _turned(index: Path, name: str, tensor: Tensor) -> Tensor:
    if not name.endswith(("kernel", "weights1", "weights2", "biases1", "biases2")):
        return tensor
    if tensor.dim() != 2:
        raise CheckpointError(f"{index}: {name} has shape {list(tensor.shape)}, expected two dimensions")
    # The adapters' biases are [1, width].
    return tensor[0] if "/biases" in name and len(tensor) == 1 else tensor.T.contiguous()
