"""Which ablations a call asks for: their arguments, each with its results folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.analysis.score_changes import section_of
from adapter_probe.checkpoints.adapter_folder import choose_adapter, name_in_cache
from adapter_probe.custom_metric import CustomMetric
from adapter_probe.data.generating import Generation, Prompting
from adapter_probe.data.in_memory import categories_of
from adapter_probe.data.lm_eval_tasks import PREFIX, is_task
from adapter_probe.data.readers import uncompressed
from adapter_probe.errors import DataError, ResultsError, must_be
from adapter_probe.metrics import COMPARISONS
from adapter_probe.probe.ablation_arguments import AblationArguments
from adapter_probe.results import schema
from adapter_probe.results.fingerprints import refuse_changes
from adapter_probe.results.rundir import read_manifest

from .example_files import as_files, check_files, of_columns, with_collections
from .trainer_preferences import TokenisedPreferences

if TYPE_CHECKING:
    from .opened import Opened

Parts = Sequence[tuple[AblationArguments, Path]]
"""Ablations of one checkpoint on the same examples, with their results folders."""
USUAL = "ablation"
"""The results folder of an ablation with defaults, inside the checkpoint."""
AGAINST_PREFIX = "against-"
"""Prefix of the subfolder that holds the same variants scored on other data."""


def asked_of(
    opened: Opened, settings: AblationSettings, usual: str, rows: Path | None = None
) -> list[tuple[AblationArguments, Path]]:
    """The arguments of an ablation with its results folder, and then those on the data of `against`, if any.

    Args:
        opened: what it is about.
        settings: its settings.
        usual: name of the results folder with settings at their defaults.
        rows: where examples in memory are saved; by default beside the results.
    """
    subject, model, out = opened.subject, opened.model, opened.out
    checkpoint, columns = Path(str(subject.checkpoint)), subject.columns
    if opened.examples is not None and settings.precision == "mixed":
        raise ResultsError("precision 'mixed' needs texts; give float32, float64 or bfloat16 with batches")
    less_off = isinstance(subject.batches, TokenisedPreferences) and subject.batches.less_off
    if less_off and settings.reference == "rows":
        settings = replace(settings, reference="off")
    if rows is None:
        rows = _usual_folder(str(checkpoint), usual).parent if out is None else out
    adapters = tuple(name.strip() for name in (subject.adapter or "").split(",") if name.strip())
    place = choose_adapter(checkpoint, next(iter(adapters), None)) if model is None else rows
    causal = model is not None and model.description.task.about.is_language_model
    own = as_files(subject.data, rows, place, subject.metric in COMPARISONS, causal)
    files = with_collections(own, subject.split)
    others = as_files(subject.against, rows, place, causal=causal)
    if columns:
        files = of_columns(files, columns, rows, subject.encoding)
    if columns and others:
        others = of_columns(others, columns, rows, subject.encoding, or_new=True)
    if subject.task and not is_task(subject.task):
        wanted = must_be("--task", f"{PREFIX}NAME", subject.task)
        raise DataError(f"{wanted}; data files are given with --data")
    if subject.task and files:
        raise DataError(f"--data {files[0]} and --task {subject.task} cannot be combined; give one of them")
    metric = CustomMetric(subject.metric) if callable(subject.metric) else subject.metric
    arguments = AblationArguments.of(
        subject, checkpoint=str(checkpoint), settings=settings, metric=metric,
        data=(subject.task,) if subject.task else files, categories=categories_of(subject.data),
        adapters=adapters,
    )  # fmt: skip
    check_files(checkpoint, subject.encoding, *arguments.data, *others)
    folder = _folder_of(arguments, usual) if out is None else out
    if not others:
        return [(arguments, folder)]
    usually = {**vars(Prompting()), **vars(Generation()), "split": "validation", "metric": None}
    other = replace(arguments, data=tuple(others), **usually)
    return [(arguments, folder), (other, folder / f"{AGAINST_PREFIX}{uncompressed(others[0]).stem}")]


def refuse_other_settings(parts: Sequence[tuple[AblationArguments, Path]]) -> None:
    """Refuse folders of ablations with other settings, which is known before a checkpoint is opened."""
    for arguments, folder in parts:
        if (path := folder / schema.MANIFEST).is_file():
            refuse_changes(
                {"settings": section_of(read_manifest(path)["identity"], "settings")},
                {"settings": arguments.settings.to_json()},
                f"{folder} contains the results of another run",
                ". Choose another --out or remove the folder",
            )


def _folder_of(arguments: AblationArguments, name: str) -> Path:
    """The usual results folder, with settings that are not defaults added to its name."""
    said, data = arguments.slugs(), arguments.data
    if data:
        said["data"] = f"data-{uncompressed(data[0]).stem}"
    if arguments.compares:
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
