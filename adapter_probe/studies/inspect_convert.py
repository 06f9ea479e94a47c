"""Checkpoints as a whole: what one contains (`inspect`), and writing it in another format (`convert`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from adapter_probe import wording
from adapter_probe.ablation_settings import as_strength, read_strengths
from adapter_probe.argument_checks import as_tuple, taking
from adapter_probe.checkpoints.files import refuse_full
from adapter_probe.errors import AdapterProbeError, CheckpointError, DataError
from adapter_probe.models.methods import PeftMethod
from adapter_probe.settings import (
    Columned,
    Encoded,
    Labelled,
    OnBase,
    OneOfSeveral,
    flag_of,
    required,
    setting,
)

from .checkpoint_arguments import CHECKPOINT, in_words_of_ablate

if TYPE_CHECKING:
    from adapter_probe.checkpoints.opened_peft import OpenedPeft


@dataclass(frozen=True, eq=False, repr=False)
class Inspect(OneOfSeveral, OnBase):
    """The arguments of `adapter_probe.inspect`."""

    checkpoint: str | Path = field(metadata=CHECKPOINT)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Convert(Columned, Encoded, Labelled, OneOfSeveral, OnBase):
    """The arguments of `adapter_probe.convert`."""

    error: ClassVar[type[AdapterProbeError]] = CheckpointError

    source: str | Path = field(metadata=CHECKPOINT)
    out: str | Path = field(metadata=required("output folder.", metavar="FOLDER", argument=True))
    to: Literal["adapterhub", "native", "peft"] = field(
        metadata=required("format of the output.", panel="Output")
    )
    data: str | Path | Sequence[str | Path] = setting(
        (), "file of labelled validation examples, for ``native`` and a checkpoint that records no task.",
        panel="Data", shell=list[Path], place="file",
    )  # fmt: skip
    strength: float | str | Path | Sequence[float] | Mapping[str, float] | None = setting(
        None, "multiply what the adapters in the layers change by this number, in the weights that are "
        "written; or by one for every layer, such as 1,1,0.5, or for modules: a JSON file of patterns, such "
        'as {"*.down_proj": 0.5}, and strengths.', panel="Output", metavar="S|LIST|FILE", shell=str,
    )  # fmt: skip
    rank: int | None = setting(
        None, "of a fine-tuned model, for ``peft``: the largest rank of the LoRA that its "
        "difference to the base is written as.", least=1, panel="Output",
    )  # fmt: skip
    lossy: bool = setting(False, "drop what the output format cannot represent.", panel="Output")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strength is not None:
            object.__setattr__(self, "strength", as_strength(self.strength))
        for name in ("data", "columns", "label_names"):
            if self.to != "native" and getattr(self, name) not in ((), ""):
                raise CheckpointError(f"only --to native, which records the data, takes {flag_of(name)}")
        refuse_full(Path(self.out))


@taking(Inspect)
def inspect(call: Inspect) -> dict[str, Any]:
    """The layers, adapters, sizes and parameter counts of a checkpoint, whichever library wrote it.

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
    from adapter_probe.checkpoints.adapter_folder import choose_adapter
    from adapter_probe.checkpoints.base import load_without_weights
    from adapter_probe.checkpoints.opened_peft import contents_of
    from adapter_probe.checkpoints.opening import open_any

    place = None if call.base is None else str(call.base)
    folder = choose_adapter(Path(call.checkpoint), call.adapter)
    try:
        found = contents_of(open_any(folder, place, load=load_without_weights))
    except AdapterProbeError:
        raise
    except Exception:  # code of a tuner or a family that needs the numbers
        found = contents_of(open_any(folder, place))
    return {**found, "notes": list(in_words_of_ablate(found["notes"]))}


@taking(Convert)
def convert(call: Convert) -> list[str]:
    """Write a checkpoint in another format; a lossy conversion is refused unless `lossy` is given.

    The project's own format (``native``) represents every supported checkpoint but those of causal language
    models, of embeddings and with a tokenizer of their own. AdapterHub's format represents bottleneck
    adapters but not trained LayerNorms. PEFT's format represents LoRA, DoRA, (IA)³ and tuned LayerNorms.

    With `strength`, what the adapters in the layers change is multiplied by this number in the weights that
    are written, which is what `adapter_probe.strength` scores; heads and other modules stay as they are.

    With `rank`, the difference of a fine-tuned model to its base is written as a LoRA: of every linear map in
    the layers the largest singular values, and everything else that differs as a whole.

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
    if call.columns and not as_tuple(call.data):
        raise DataError(f"--columns {call.columns} applies to files of rows that are given with --data")
    with TemporaryDirectory() as made:
        source, lost = _write(call, Path(made))
        scores = {} if lost else _scores_of(source, call)
        settle(Path(made), Path(call.out), source, None if call.base is None else str(call.base), scores)
    return lost


def _scores_of(opened: OpenedPeft, call: Convert) -> dict[str, float | None]:
    """The scores of a checkpoint that still hold for the new one."""
    changed = call.strength is not None or as_tuple(call.data)
    return {} if changed else opened.description.scores


def _write(call: Convert, out: Path) -> tuple[OpenedPeft, list[str]]:
    """Write the checkpoint in the other format; the checkpoint, and what was left out of it."""
    from adapter_probe.checkpoints.adapter_folder import choose_adapter
    from adapter_probe.checkpoints.converting import to_adapterhub, to_native
    from adapter_probe.checkpoints.opened_peft import OpenedPlaced
    from adapter_probe.checkpoints.opening import open_any
    from adapter_probe.checkpoints.peft_rewriting import in_layers, scaled_bottlenecks
    from adapter_probe.data.forms import columns_named
    from adapter_probe.data.task_of_files import given_task

    source, files = choose_adapter(Path(call.source), call.adapter), as_tuple(call.data)
    opened = open_any(source, None if call.base is None else str(call.base))
    _refuse_rank(opened, call)
    strengths: Mapping[Any, float] | None = None
    if call.rank is None and call.strength is not None:
        strengths = in_layers(opened.model, read_strengths(call.strength))
        if isinstance(opened, OpenedPlaced):
            opened = scaled_bottlenecks(opened, strengths)
    if call.to == "peft":
        return opened, _write_peft(opened, out, call, strengths)
    if not isinstance(opened, OpenedPlaced):
        raise CheckpointError(
            f"checkpoint {call.source} is loaded by PEFT, so it can be written in PEFT's format only "
            "(--to peft)"
        )
    if call.to == "adapterhub":
        return opened, to_adapterhub(opened, out, call.lossy)
    if files:
        task = given_task(
            opened.description.task,
            files,
            "validation",
            source,
            call.encoding,
            as_tuple(call.label_names),
            reads=columns_named(call.columns),
        )
        opened = opened.with_task(task)
    scored = replace(opened.description, scores=_scores_of(opened, call))
    to_native(replace(opened, description=scored), out)
    return opened, []


def _refuse_rank(opened: OpenedPeft, call: Convert) -> None:
    """Refuse a rank of adapters, and a fine-tuned model without one where a LoRA is written."""
    from adapter_probe.checkpoints.opened_peft import OpenedFinetuned

    finetuned, lora = isinstance(opened, OpenedFinetuned), call.to == "peft"
    if call.rank is not None and not (finetuned and lora):
        raise CheckpointError(
            f"--rank {call.rank} applies only to a fine-tuned model that is written with --to peft"
        )
    if finetuned and isinstance(call.strength, str):
        raise CheckpointError(
            f"checkpoint {call.source} is a fine-tuned model, whose difference to its base has one strength, "
            f"and --strength {call.strength} has several"
        )
    if finetuned and call.rank is None and (lora or call.strength is not None):
        raise CheckpointError(
            f"checkpoint {call.source} is a fine-tuned model, whose difference to its base is written with "
            "--to peft as a LoRA; give its rank with --rank"
        )


def _write_peft(
    opened: OpenedPeft, out: Path, call: Convert, strengths: Mapping[Any, float] | None
) -> list[str]:
    """Write PEFT's format, whatever was opened; modules of PEFT are scaled by strengths."""
    from adapter_probe.checkpoints.opened_peft import OpenedFinetuned, OpenedPlaced
    from adapter_probe.checkpoints.peft_rewriting import write_scaled, write_without
    from adapter_probe.checkpoints.peft_writing import to_lora, to_peft

    if isinstance(opened, OpenedFinetuned) and call.rank is not None:
        assert call.strength is None or isinstance(call.strength, float), "several are refused"
        return [to_lora(opened, call.rank, out, call.strength)]
    if isinstance(opened, OpenedPlaced):
        to_peft(opened, out)
    elif strengths is not None:
        write_scaled(opened, strengths, out)
    else:
        write_without(opened, (), out)
    return []


def method_text(method: dict[str, Any]) -> str:
    """A training method and its settings, as text."""
    if "config" in method:
        of_peft = PeftMethod.from_json(method, "method").text
        name, _, settings = of_peft.partition(":")
        return ", ".join([wording.method_label(name), *filter(None, settings.split(","))])
    # Fine-tuning of no layers on top (k = 0) is a setting too.
    fields = []
    for name, value in method.items():
        if name not in ("name", "inner") and (value or name == "k"):
            text = "/".join(map(str, value)) if isinstance(value, list) else str(value)
            text = f"{value:g}" if isinstance(value, float) else text
            fields.append(f"{name.replace('_', ' ')} {text}")
    return ", ".join([wording.METHOD_LABELS.get(method["name"], "adapters"), *fields])
