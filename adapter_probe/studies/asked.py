"""Which ablations a call asks for: their arguments, each with its results folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.analysis.score_changes import section_of
from adapter_probe.checkpoints.adapter_folder import name_in_cache
from adapter_probe.custom_metric import CustomMetric
from adapter_probe.data.generating import Generation, Prompting
from adapter_probe.data.lm_eval_tasks import PREFIX, is_task
from adapter_probe.data.readers import uncompressed
from adapter_probe.data.rows import categories_of
from adapter_probe.errors import DataError, must_be
from adapter_probe.metrics import COMPARISONS
from adapter_probe.probe.ablation_arguments import AblationArguments
from adapter_probe.results import schema
from adapter_probe.results.fingerprints import refuse_changes
from adapter_probe.results.rundir import read_manifest

from .checkpoint_arguments import Ablate
from .example_files import as_files, check_files, of_columns, with_collections

if TYPE_CHECKING:
    from .opened import Given

Parts = Sequence[tuple[AblationArguments, Path]]
"""Ablations of one checkpoint on the same examples, with their results folders."""
USUAL = "ablation"
"""The results folder of an ablation with defaults, inside the checkpoint."""
AGAINST_PREFIX = "against-"
"""Prefix of the subfolder that holds the same variants scored on other data."""


def asked_of(
    call: Ablate, usual: str, opened: Given | None, rows: Path | None = None
) -> list[tuple[AblationArguments, Path]]:
    """The arguments of an ablation with its results folder, and then those on the data of `against`, if any.

    Args:
        call: what the user gave.
        usual: name of the results folder with settings at their defaults.
        opened: of a model in memory, what `opened_for` gives.
        rows: where examples in memory are saved; by default beside the results.
    """
    checkpoint = Path(str(call.checkpoint))
    if rows is None:
        rows = _usual_folder(str(checkpoint), usual).parent if call.out is None else Path(call.out)
    place = rows if opened else checkpoint
    causal = opened is not None and opened.opened.description.task.kind == "causal"
    own = as_files(call.data, rows, place, call.metric in COMPARISONS, causal)
    files = with_collections(own, call.split)
    if call.columns:
        files = of_columns(files, call.columns, rows, call.encoding)
    others = as_files(call.against, rows, place, causal=causal)
    if call.columns and others:
        others = of_columns(others, call.columns, rows, call.encoding, or_new=True)
    if call.task and not is_task(call.task):
        wanted = must_be("--task", f"{PREFIX}NAME", call.task)
        raise DataError(f"{wanted}; data files are given with --data")
    if call.task and files:
        raise DataError(f"--data {files[0]} and --task {call.task} cannot be combined; give one of them")
    metric = CustomMetric(call.metric) if callable(call.metric) else call.metric
    arguments = AblationArguments.of(
        call, checkpoint=str(checkpoint), settings=AblationSettings.of(call), metric=metric,
        data=(call.task,) if call.task else files, categories=categories_of(call.data),
    )  # fmt: skip
    check_files(checkpoint, call.encoding, *arguments.data, *others)
    folder = _folder_of(arguments, call.out, usual)
    if not others:
        return [(arguments, folder)]
    usually = {**vars(Prompting()), **vars(Generation()), "split": "validation", "metric": None}
    other = replace(arguments, data=tuple(others), **usually)
    return [(arguments, folder), (other, folder / f"{AGAINST_PREFIX}{uncompressed(others[0]).stem}")]


def refuse_other_settings(parts: Sequence[tuple[AblationArguments, Path]]) -> None:
    """Refuse folders of ablations with other settings, which is known before a checkpoint is opened.

    Raises:
        ResultsError: a folder has one.
    """
    for arguments, folder in parts:
        if (path := folder / schema.MANIFEST).is_file():
            refuse_changes(
                {"settings": section_of(read_manifest(path)["identity"], "settings")},
                {"settings": arguments.settings.to_json()},
                f"{folder} contains the results of another run",
                ". Choose another --out or remove the folder",
            )


def _folder_of(arguments: AblationArguments, out: str | Path | None, name: str) -> Path:
    """The results folder: `out`, or the usual one with settings that are not defaults added to its name."""
    if out is not None:
        return Path(out)
    said, data = arguments.slugs(), arguments.data
    if data:
        said["data"] = f"data-{uncompressed(data[0]).stem}"
    if arguments.metric in COMPARISONS:
        said["metric"] = str(arguments.metric)
    named = ("split", "data", *vars(Prompting()), *vars(Generation()), "max_examples", "metric")
    last = [said[one] for one in named if one in said]
    usual, slugs = _usual_folder(arguments.checkpoint, name), arguments.settings.slugs()
    if name != USUAL and slugs.get("spans") == "whole":  # the default of a study of strengths
        del slugs["spans"]
    return usual.with_name("-".join([usual.name, *slugs.values(), *last]))


def _usual_folder(checkpoint: str, usual: str) -> Path:
    """The results folder of a study with defaults: in the checkpoint, but not in the hub's cache."""
    name = name_in_cache(Path(checkpoint))
    return Path(checkpoint) / usual if name is None else Path.cwd() / f"{name}-{usual}"
