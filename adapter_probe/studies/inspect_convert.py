"""Checkpoints as a whole: what one contains (`inspect`), and writing it in another format (`convert`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from adapter_probe import wording
from adapter_probe.argument_checks import as_tuple, taking
from adapter_probe.checkpoints.adapter_folder import choose_adapter
from adapter_probe.errors import CheckpointError
from adapter_probe.models.peft_method import PeftMethod

from .checkpoint_arguments import Convert, Inspect

if TYPE_CHECKING:
    from adapter_probe.checkpoints.headers import Contents
    from adapter_probe.checkpoints.opened_peft import OpenedPeft, OpenedPlaced


@taking(Inspect)
def inspect(call: Inspect) -> dict[str, Any]:
    """The layers, sites, sizes and parameter counts of a checkpoint, whichever library wrote it.

    Returns:
        plain JSON: `base`, `family`, how it is `quantised`, `task`, `metric` and `scores`; `n_layers`, by
        name also those of each of several `stacks`, `n_sites` (with an adapter) and `hidden_size`; the record
        of the `method`; numbers of `parameters` by role and, of these, `trained_by_role`; of
        `trained_parameters` and of `trained_parameters_without_head`; the latter as `percent_of_base`, and
        the adapters alone, which is what papers quote, as `adapters_percent_of_base`; `notes` on how the
        checkpoint was read.

    Raises:
        CheckpointError, ModelError: the checkpoint or its base cannot be opened.
    """
    from adapter_probe.checkpoints.headers import read_contents
    from adapter_probe.checkpoints.mlx import as_peft
    from adapter_probe.checkpoints.peft_headers import read_peft_contents

    place = None if call.base is None else str(call.base)
    translated = as_peft(choose_adapter(Path(call.checkpoint), call.adapter), place)
    folder = translated.folder
    contents = read_contents(folder, place) or read_peft_contents(folder, place)
    if contents is None:
        from adapter_probe.checkpoints.opened_peft import OpenedPlaced
        from adapter_probe.checkpoints.opening import open_any

        opened = open_any(folder, place)
        if isinstance(opened, OpenedPlaced):
            contents = contents_of(opened)
        else:
            contents = read_peft_contents(opened.folder, opened.description.base.name, opened=True)
            if contents is not None:
                described = replace(contents.description, task=opened.description.task)
                contents = replace(contents, description=described, notes=opened.notes)
    if contents is None:
        raise CheckpointError(f"checkpoint {folder} opens, but the files of its base cannot be listed")
    description, counts = contents.description, contents.counts
    return {
        "base": description.base.name,
        "family": contents.family,
        "quantised": contents.quantised and f"quantised with {contents.quantised}",
        "task": description.task.name,
        "metric": description.task.metric,
        "scores": description.scores,
        "n_layers": contents.n_layers,
        "stacks": dict(contents.stacks),
        "n_sites": contents.n_sites,
        "hidden_size": contents.hidden_size,
        "method": _method(description.method),
        "parameters": counts,
        "trained_by_role": contents.trained,
        "trained_parameters": sum(contents.trained.values()),
        "trained_parameters_without_head": contents.trained_body,
        "percent_of_base": 100 * contents.trained_body / contents.pretrained,
        "adapters_percent_of_base": 100 * counts["adapters"] / contents.pretrained,
        "notes": [*translated.notes, *contents.notes],
    }


def contents_of(opened: OpenedPlaced) -> Contents:
    """The contents of an open checkpoint, as `read_contents` reads them from files."""
    from adapter_probe.checkpoints.headers import Contents, count_parameters
    from adapter_probe.replay.stacks import find_layers
    from adapter_probe.replay.switches import Switches

    model, about = opened.model, opened.description
    parts = {layer.name: layer.parts for layer in find_layers(model, Switches())}
    counts = count_parameters(opened.shapes, opened.trained, opened.missing, f"{model.base_model_prefix}.")
    return Contents(
        about,
        model.config.model_type,
        len(opened.layer_names),
        about.base.hidden_size,
        sum(bool(part) for name in opened.layer_names for part in parts.get(name, ())),
        *counts,
        opened.notes,
    )


def _method(method: Any) -> dict[str, Any]:
    """The method's record; for other libraries, whose record lists every adapter, its summary."""
    from adapter_probe.models.adapters.imported import ImportedMethod

    found: dict[str, Any] = method.summary() if isinstance(method, ImportedMethod) else method.to_json()
    return found


@taking(Convert)
def convert(call: Convert) -> list[str]:
    """Write a checkpoint in another format; a lossy conversion is refused unless `lossy` is given.

    The project's own format (``native``) represents every supported checkpoint but those of causal language
    models. AdapterHub's format represents bottleneck adapters but not trained LayerNorms. PEFT's format
    represents LoRA, DoRA, (IA)³ and tuned LayerNorms, MLX-LM's LoRA and DoRA of language models.

    With `strength`, what the adapters in the layers change is multiplied by this number in the weights that
    are written, which is what `adapter_probe.strength` scores; heads and other modules stay as they are.

    Returns:
        what was dropped, as short texts such as ``the trained LayerNorms``.

    Raises:
        CheckpointError, ModelError, DataError: the checkpoint cannot be opened, or the format cannot
            represent it.
        ResultsError: the folder cannot be written.
    """
    from adapter_probe.checkpoints.converting import settle

    from .example_files import check_encoding

    check_encoding(call.encoding, as_tuple(call.data))
    with TemporaryDirectory() as made:
        lost = _write(call, Path(made))
        settle(Path(made), Path(call.out), None if call.base is None else str(call.base))
    return lost


def _write(call: Convert, out: Path) -> list[str]:
    """Write the checkpoint in the other format; what was left out of it."""
    from adapter_probe.checkpoints.converting import to_adapterhub, to_native
    from adapter_probe.checkpoints.mlx_writing import write_mlx
    from adapter_probe.checkpoints.opened_peft import OpenedPlaced
    from adapter_probe.checkpoints.opening import open_any
    from adapter_probe.data.given import given_task

    source, files = choose_adapter(Path(call.source), call.adapter), as_tuple(call.data)
    opened = open_any(source, None if call.base is None else str(call.base))
    if call.strength is not None and isinstance(opened, OpenedPlaced):
        from adapter_probe.checkpoints.scaling import scaled

        opened = scaled(opened, call.strength)
    if call.to == "mlx":
        base = opened.description.base
        with TemporaryDirectory() as made:
            _write_peft(opened, Path(made, "peft"), call.strength, "MLX-LM")
            write_mlx(Path(made, "peft"), base.n_layers, base.name, out)
        return []
    if call.to == "peft":
        _write_peft(opened, out, call.strength)
        return []
    if not isinstance(opened, OpenedPlaced):
        raise CheckpointError(
            f"checkpoint {call.source} is loaded by PEFT, so it can be written in PEFT's or MLX-LM's format "
            "only (--to peft, mlx)"
        )
    if call.to == "adapterhub":
        return to_adapterhub(opened, out, call.lossy)
    if files:
        task = given_task(
            opened.description.task, files, "validation", source, call.encoding, as_tuple(call.label_names)
        )
        opened = opened.with_task(task)
    to_native(opened, out)
    return []


def _write_peft(opened: OpenedPeft, out: Path, strength: float | None, library: str = "PEFT") -> None:
    """Write PEFT's format, whatever was opened; adapters of PEFT are scaled by a strength."""
    from adapter_probe.checkpoints.converting import to_peft
    from adapter_probe.checkpoints.opened_peft import OpenedPlaced

    if isinstance(opened, OpenedPlaced):
        to_peft(opened, out, library)
        return
    if strength is not None:
        from adapter_probe.checkpoints.scaling import in_layers, write_scaled

        write_scaled(opened, in_layers(opened.model), strength, out)
        return
    from adapter_probe.checkpoints.peft_pruning import write_without

    write_without(opened, (), out)


def method_text(method: dict[str, Any]) -> str:
    """A training method and its settings, as text."""
    if "config" in method:
        of_peft = PeftMethod.from_json(method, "method").text
        name, _, settings = of_peft.partition(":")
        return ", ".join([wording.method_label(name), *filter(None, settings.split(","))])
    # Fine-tuning of no layers on top (k = 0) is a setting too.
    fields = [
        f"{name.replace('_', ' ')} {_field(value)}"
        for name, value in method.items()
        if name not in ("name", "inner") and (value or name == "k")
    ]
    return ", ".join([wording.METHOD_LABELS.get(method["name"], "adapters"), *fields])


def _field(value: Any) -> str:
    if isinstance(value, list):
        return "/".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
