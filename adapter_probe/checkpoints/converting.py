"""Write a checkpoint in another format, without loss or with a known loss."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from adapter_probe.errors import AdapterProbeError, CheckpointError
from adapter_probe.models.methods import Adapters
from adapter_probe.results.atomic import make_folder, write_bytes, write_json

from .adapterhub import HEAD_CONFIG, HEAD_WEIGHTS, WEIGHTS
from .adapterhub_config import BOTTLENECK
from .embedding import folder_of_modules, saved_modules
from .files import CONFIG, DESCRIPTION, read_json_file
from .native import keep_record, save_checkpoint
from .opened_peft import OWN, OpenedPeft, OpenedPlaced, role_of
from .peft_writing import WRITABLE

_VERSION = "adapters.1.3.0"  # the library's name, and the version of its format
_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "swish": "swish", "tanh": "tanh"}
_PARTS = {
    "down.weight": "adapter_down.0.weight",
    "down.bias": "adapter_down.0.bias",
    "up.weight": "adapter_up.weight",
    "up.bias": "adapter_up.bias",
}
_FAMILIES = ("bert", "roberta", "xlm-roberta", "electra")


def to_native(opened: OpenedPlaced, out: Path) -> None:
    """Write this project's own format, which holds adapters, what was trained with them, and the data.

    Raises:
        CheckpointError: `opened` is of a causal language model or of embeddings, has a tokenizer of its own,
            or no known data.
    """
    if opened.description.task.about.is_language_model:
        raise CheckpointError(
            "a checkpoint of a causal language model cannot be written in this project's format, which "
            "remembers labelled data; keep it as it is, or give --to peft"
        )
    if opened.head == "features":
        raise CheckpointError(
            "a checkpoint of embeddings cannot be written in this project's format, which has no place for "
            "their pooling; keep it as it is"
        )
    if opened.own_tokenizer:
        raise CheckpointError(
            "this project's format holds no tokenizer, and that of the checkpoint differs from the "
            "base's; keep the checkpoint as it is, or give --to peft with --rank"
        )
    if not opened.description.task.files:
        raise CheckpointError(
            "this project's format records the data, but this checkpoint records none; give a file with "
            "labelled examples (--data FILE)"
        )
    save_checkpoint(out, opened.tensors, opened.description)


def to_adapterhub(opened: OpenedPlaced, out: Path, lossy: bool = False) -> list[str]:
    """Write a folder that AdapterHub's library loads with `load_adapter` and `load_head`.

    Args:
        lossy: leave out what the format cannot represent.

    Returns:
        what was left out.

    Raises:
        CheckpointError: the format cannot express the adapters, or something would be lost without `lossy`.
    """
    method = opened.description.method
    families = f"{', '.join(_FAMILIES[:-1])} and {_FAMILIES[-1]}"
    if not isinstance(method, Adapters):
        raise CheckpointError(
            f"only bottleneck adapters of this project, on {families}, can be written for AdapterHub, not "
            f"{method.name}; PEFT's format can represent {WRITABLE}"
        )
    if opened.description.task.about.of_words:
        raise CheckpointError("heads for tags cannot be written for AdapterHub; give --to native")
    family = opened.description.base.config["model_type"]
    if family not in _FAMILIES:
        raise CheckpointError(
            f"writing adapters of a {family} model for AdapterHub is not supported; supported are {families}"
        )
    for what, value, allowed in (
        ("interaction", method.interaction, "add"),
        ("norm", method.norm, "none"),
        ("hidden_layers", method.hidden_layers, 1),
    ):
        if value != allowed:
            raise CheckpointError(
                f"AdapterHub has no adapters with {what} {value!r}; supported are interaction "
                "'add', norm 'none' and hidden_layers 1"
            )
    prefix = f"{opened.model.base_model_prefix}."
    roles = {role_of(name, prefix, opened.shapes) for name in opened.trained}
    names = {"layernorms": "the trained LayerNorms", "pooler": "the pooler"}
    lost = [name for role, name in names.items() if role in roles]
    if lost and not lossy:
        raise CheckpointError(
            f"AdapterHub's format cannot represent {' and '.join(lost)}, and would use those of the base; "
            "leave them out with --lossy"
        )
    _write(opened, method, out)
    return lost


def settle(
    made: Path, out: Path, source: OpenedPeft, base: str | None, scores: Mapping[str, float | None]
) -> OpenedPeft:
    """Open a folder that was just written, and put its files into `out`, the configuration last.

    Args:
        made: a temporary folder with a checkpoint.
        out: the new folder; if the checkpoint cannot be opened, nothing is written there.
        base: folder or hub id of the base, if it is not the recorded one.
        scores: validation scores of the new one, empty if they are not known.
    """
    from .opening import open_any

    keep_files(source, made)
    try:
        opened = open_any(made, base)
        if (made / CONFIG).is_file():
            if "peft_type" in read_json_file(made / CONFIG) and opened.quantised is None:
                from .peft_loading import refuse_unloadable  # which imports PEFT

                refuse_unloadable(made, opened.model)
            keep_record(made, opened.description, source.folder, source.description, scores)
    except AdapterProbeError as error:
        said = str(error).replace(f"checkpoint {made}", "the new checkpoint").replace(f"{made}/", "")
        raise CheckpointError(
            f"{out} is not written, because it could not be opened again: {said}"
        ) from error
    last = (CONFIG, DESCRIPTION)
    files = [path for path in made.rglob("*") if path.is_file()]
    for path in sorted(files, key=lambda path: last.index(path.name) if path.name in last else -1):
        place = out / path.relative_to(made)
        make_folder(place.parent)
        write_bytes(place, path.read_bytes())
    return opened


def keep_files(source: OpenedPeft, made: Path) -> None:
    """Write beside a new checkpoint what makes embeddings, and the config.json that names the labels."""
    files, config = {}, source.folder / "config.json"
    if source.description.task.label_names and config.is_file():
        files[config.name] = config.read_bytes()
    if source.head == "features" and (folder := folder_of_modules(source.folder)) is not None:
        files |= saved_modules(folder)
    for name, data in files.items():
        if not (made / name).exists():
            make_folder((made / name).parent)
            write_bytes(made / name, data)


def _write(opened: OpenedPlaced, method: Adapters, out: Path) -> None:
    model, task = opened.model, opened.description.task
    adapters = {}
    for name, tensor in opened.tensors.items():
        holder, inside, part = name.partition(OWN)
        if inside:
            adapters[f"{holder}.adapters.task.{_PARTS[part]}"] = tensor.clone()
    inside_base = f"{model.base_model_prefix}."
    head = {n: t.clone() for n, t in model.state_dict().items() if not n.startswith(inside_base)}
    common = {
        "model_type": model.config.model_type,
        "hidden_size": opened.description.base.hidden_size,
        "model_name": opened.description.base.name,
        "model_class": type(model).__name__,
        "version": _VERSION,
    }
    names = task.label_names or [f"LABEL_{n}" for n in range(int(model.config.num_labels))]
    labels = {name: number for number, name in enumerate(names)}
    make_folder(out)
    torch.save(adapters, out / WEIGHTS[-1])
    torch.save(head, out / HEAD_WEIGHTS[-1])
    write_json(
        out / HEAD_CONFIG,
        {**common, "config": None, "name": None, "label2id": labels, "num_labels": len(names)},
    )
    hidden = opened.description.base.hidden_size
    config = {
        **BOTTLENECK,
        "mh_adapter": method.sites in {"both", "attention"},
        "output_adapter": method.sites in {"both", "ffn"},
        "reduction_factor": _reduction_factor(hidden, method.size),
        "non_linearity": _ACTIVATIONS[method.activation],
        "is_parallel": method.placement == "parallel",
        "leave_out": list(method.skip_layers),
    }
    write_json(out / CONFIG, {**common, "config": config, "name": "task"})


def _reduction_factor(hidden: int, size: int) -> float:
    """A factor f with hidden // f == size, which the library computes in floating point."""
    for divisor in (size, size + 0.5):
        if hidden // (hidden / divisor) == size:
            return hidden / divisor
    raise CheckpointError(f"AdapterHub cannot express an adapter size of {size} in {hidden} hidden units")
