"""Open a checkpoint of any supported library, recognised by the files in its folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PretrainedConfig

from adapter_probe.data.spec import Columns, TaskSpec
from adapter_probe.errors import CheckpointError, ModelError
from adapter_probe.metrics import Kind, default_metric
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.bases.anatomy import length_limit
from adapter_probe.models.bases.family import Anatomy

from . import adapter_bert, adapterhub, native, peft
from .base import LoadedBase, load_base, load_tokenizer
from .base_config import load_config, resolve_base
from .description import Description
from .files import CONFIG, DESCRIPTION, read_json_file, shown
from .foreign import BaseShape, ForeignCheckpoint, TranslatedCheckpoint
from .identity import tokenizer_parts
from .native import OpenedCheckpoint
from .shared import SharedBase

# Without a recorded task, the columns of a file are inferred.
NO_COLUMNS = Columns("", None, "")


@dataclass(frozen=True)
class _Reader:
    """The reader of one library's checkpoints."""

    read: Callable[[Path], ForeignCheckpoint]
    translate: Callable[[ForeignCheckpoint, BaseShape], TranslatedCheckpoint]


def open_checkpoint(
    folder: str | Path,
    base: str | None = None,
    *,
    anatomy: Anatomy | None = None,
    dtype: torch.dtype = torch.float32,
    shared: SharedBase | None = None,
) -> OpenedCheckpoint:
    """Open a checkpoint on its base.

    Args:
        folder: checkpoint folder, of this project or another library.
        base: folder or hub id to use instead of the recorded base, which may have moved.
        anatomy: anatomy of the base; None for the one of its family.
        dtype: precision of the model in memory; the base is read once.
        shared: keeps the base in memory for other checkpoints; if it already has one, it is used.

    Raises:
        CheckpointError: no checkpoint, damaged files, parts that are not supported, or a base that is missing
            or does not fit.
        ModelError: the base is of an unsupported family.
    """
    folder = Path(folder)
    if (folder / DESCRIPTION).is_file() or not folder.is_dir():
        return native.open_native(folder, base, anatomy, dtype, shared)
    folder = _only_one(folder)
    reader = _reader_of(folder)
    return _open_foreign(reader.read(folder), reader, base, anatomy, dtype, shared)


def _only_one(folder: Path) -> Path:
    """The folder itself, or its only subfolder with an adapter.

    Raises:
        CheckpointError: there are several, or none.
    """
    if (folder / CONFIG).is_file() or adapter_bert.is_in(folder):
        return folder
    inside = sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))
    if len(inside) == 1:
        adapterhub.refuse_composed(inside[0], inside[0].name)
        return inside[0]
    if inside:
        raise CheckpointError(
            f"{folder} contains {len(inside)} adapters, {', '.join(path.name for path in inside)}; give one "
            "of these folders"
        )
    raise CheckpointError(
        f"{folder} is not a checkpoint: it contains neither {DESCRIPTION} nor {CONFIG}, nor TensorFlow's "
        f"*{adapter_bert.INDEX}"
    )


def _reader_of(folder: Path) -> _Reader:
    if not (folder / CONFIG).is_file():
        return _Reader(adapter_bert.read, adapter_bert.translate)
    document = read_json_file(folder / CONFIG)
    if "peft_type" in document:
        return _Reader(peft.read, peft.translate)
    if "config" in document:
        return _Reader(adapterhub.read, adapterhub.translate)
    raise CheckpointError(
        f"{folder / CONFIG} is neither from AdapterHub (no 'config') nor from PEFT (no 'peft_type')"
    )


def _open_foreign(
    source: ForeignCheckpoint,
    reader: _Reader,
    base: str | None,
    anatomy: Anatomy | None,
    dtype: torch.dtype,
    shared: SharedBase | None,
) -> OpenedCheckpoint:
    name, revision = (shared and shared.place) or _find_base(source, base)
    config = load_config(name, revision, anatomy)
    kind = source.kind or _kind_of(config)
    n_outputs = source.n_outputs or {"causal": None, "extractive": 2, "regression": 1}.get(
        kind, int(config.num_labels)
    )
    load = load_base if shared is None else shared.load
    loaded = load(name, n_outputs, kind=kind, revision=revision, dtype=dtype, anatomy=anatomy)
    model, translated = build(source, reader.translate, loaded)
    tokenizer = (load_tokenizer if shared is None else shared.tokenizer)(name, revision)
    description = Description(
        method=translated.method,
        base=loaded.identity,
        task=_task(source, kind, n_outputs),
        max_length=length_limit(None, config, tokenizer.model_max_length, loaded.anatomy),
        delta_sha256=source.sha256,
        tokenizer=tokenizer_parts(tokenizer),
    )
    return OpenedCheckpoint(
        model.eval().to(dtype),
        tokenizer,
        description,
        frozenset(translated.tensors),
        loaded.missing & {name for name, _ in model.base.named_parameters()},
        translated.notes,
    )


def _kind_of(config: PretrainedConfig) -> Kind:
    """The kind of task of a base, for checkpoints that do not record it."""
    made_for = getattr(config, "architectures", None)
    causal = isinstance(made_for, list) and str(made_for[:1]).endswith(("ForCausalLM']", "LMHeadModel']"))
    return "causal" if causal else "classification"


def _find_base(source: ForeignCheckpoint, base: str | None) -> tuple[str, str | None]:
    if base is not None:
        return resolve_base(base)
    if not source.base:
        raise CheckpointError(f"checkpoint {source.folder} does not name its base; give it with --base")
    try:
        return resolve_base(source.base, source.revision)
    except CheckpointError as error:
        raise CheckpointError(
            f"checkpoint {source.folder} was trained on {shown(source.base)}, which is not a folder on "
            "this machine and not available from the Hugging Face Hub; give the base with --base"
        ) from error


def _task(source: ForeignCheckpoint, kind: Kind, n_outputs: int | None) -> TaskSpec:
    names = source.label_names
    if kind == "classification" and not names:
        names = tuple(str(number) for number in range(n_outputs or 0))
    return TaskSpec(source.name, kind, default_metric(kind), names, NO_COLUMNS, {}, {})


def build(
    source: ForeignCheckpoint,
    translate: Callable[[ForeignCheckpoint, BaseShape], TranslatedCheckpoint],
    loaded: LoadedBase,
) -> tuple[AdaptedModel, TranslatedCheckpoint]:
    """The model of another library's checkpoint, with all weights.

    Raises:
        CheckpointError: it does not fit the base, or a weight is in neither of them.
    """
    base, anatomy = loaded.model, loaded.anatomy
    shape = BaseShape(
        anatomy,
        base.config,
        f"{base.base_model_prefix}.",
        frozenset(name for name, _ in base.named_modules()),
        anatomy.layer_names(base.config),
        native.tied_embeddings(base),
    )
    own = dict(base.named_parameters(remove_duplicate=False))
    translated = translate(source, shape).without_copies(own, loaded.identity.name)
    try:
        model = native.make_model(loaded, translated.method, translated.tensors)
    except ModelError as error:
        raise CheckpointError(f"checkpoint {source.folder}: {error}") from error
    _load(model, translated, loaded, source)
    return model, translated


def _load(
    model: AdaptedModel, translated: TranslatedCheckpoint, loaded: LoadedBase, source: ForeignCheckpoint
) -> None:
    """Load every tensor, and refuse to leave any parameter at its random initial value.

    Raises:
        CheckpointError: names or shapes do not fit, or a parameter would stay random.
    """
    targets: Mapping[str, Tensor] = dict(model.base.named_parameters())
    head = str(model.anatomy.head[-1]) + "." if translated.method.head is not None else None
    empty = {n for n in targets if ".adapter." in n or n in loaded.missing or (head and n.startswith(head))}
    _refuse_random(empty - translated.tensors.keys(), loaded, source)
    if unknown := sorted(translated.tensors.keys() - targets.keys()):
        raise CheckpointError(
            f"checkpoint {source.folder} contains {unknown[0]}, which the model on base "
            f"{loaded.identity.name} does not have"
        )
    with torch.no_grad():
        for name, tensor in translated.tensors.items():
            target = targets[name]
            if tensor.shape != target.shape:
                raise CheckpointError(
                    f"checkpoint {source.folder}: {name} has shape {list(tensor.shape)}, the model on base "
                    f"{loaded.identity.name} needs {list(target.shape)}"
                )
            target.copy_(tensor)


def _refuse_random(names: Iterable[str], loaded: LoadedBase, source: ForeignCheckpoint) -> None:
    lacking = sorted(names)
    if not lacking:
        return
    if source.n_outputs is None:
        raise CheckpointError(
            f"checkpoint {source.folder} contains no prediction head, and base {loaded.identity.name} has "
            "none that fits either; its predictions would be random"
        )
    more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
    raise CheckpointError(
        f"neither checkpoint {source.folder} nor base {loaded.identity.name} has {lacking[0]}{more}; these "
        "weights would be random"
    )
