"""What a call of `ablate` asks for, and its study, if it is finished and none of its inputs has changed.

Opening a checkpoint means loading torch, reading weights and encoding texts, only to find that the identity
of the results is unchanged. The same follows from the bytes: identical files, read with identical arguments
by identical code and libraries, have the same identity. A finished run therefore records the hash of every
file that its readers reported (see `adapter_probe.reads`), and the next run compares the hashes. If anything
differs or cannot be determined, the checkpoint is opened as usual and the identities are compared field by
field.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.analysis.deltas import section_of
from adapter_probe.checkpoints.adapter_folder import choose_adapter, fetch_checkpoint, name_in_cache
from adapter_probe.checkpoints.files import base_files, checkpoint_files, folder_of_base
from adapter_probe.custom_metric import CustomMetric
from adapter_probe.data.generating import Generation, Prompting
from adapter_probe.data.rows import categories_of
from adapter_probe.errors import AdapterProbeError, CheckpointError, DataError, must_be
from adapter_probe.hub_names import is_hub_name, is_missing
from adapter_probe.metrics import COMPARISONS
from adapter_probe.probe.arguments import PREDICTIONS_VERSION, AblationArguments
from adapter_probe.progress import activity
from adapter_probe.reads import Reads
from adapter_probe.results import schema
from adapter_probe.results.atomic import leftover_files
from adapter_probe.results.fingerprints import code_identity, hash_files, hash_json, refuse_changes
from adapter_probe.results.rundir import PARTS, read_manifest
from adapter_probe.results.sealing import MADE_FROM, add_note, read_note, sealed_tables

from .checkpoint_arguments import Ablate
from .example_files import as_files, check_files, with_collections
from .load import load
from .model_in_memory import Called, Given, opened_call
from .study_base import StoredStudy

StudyT = TypeVar("StudyT", bound=StoredStudy)
USUAL = "ablation"
"""The results folder of an ablation with defaults, inside the checkpoint."""
AGAINST_PREFIX = "against-"
"""Prefix of the subfolder that holds the same variants scored on other data."""
_IN_MEMORY = ("tokenizer", "batches", "labels", "read")


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
    files = with_collections(as_files(call.data, rows, place, texts=call.metric in COMPARISONS), call.split)
    others = as_files(call.against, rows, place)
    metric = CustomMetric(call.metric) if callable(call.metric) else call.metric
    arguments = AblationArguments.of(
        call, checkpoint=str(checkpoint), settings=AblationSettings.of(call), metric=metric,
        data=_with_task(files, call.task), categories=categories_of(call.data),
    )  # fmt: skip
    check_files(checkpoint, call.encoding, *arguments.data, *others)
    folder = _folder_of(arguments, call.out, usual)
    if not others:
        return [(arguments, folder)]
    other = replace(
        arguments,
        data=tuple(others),
        split="validation",
        metric=None,
        **vars(Prompting()),
        **vars(Generation()),
    )
    return [(arguments, folder), (other, folder / f"{AGAINST_PREFIX}{Path(others[0]).stem}")]


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


@contextmanager
def opened_for(call: Called) -> Iterator[tuple[Called, Given | None, TemporaryDirectory[str] | None]]:
    """The arguments, and of a model in memory what `opened_call` gives; nothing of a checkpoint on disk."""
    if isinstance(call.checkpoint, (str, Path)):
        for one in fields(Ablate):
            if one.name in _IN_MEMORY and getattr(call, one.name) != one.default:
                raise DataError(
                    f"{one.name}= applies only to a model in memory, and {call.checkpoint} is on disk"
                )
        names = [name.strip() for name in (call.adapter or "").split(",")]
        on_disk = _on_disk(replace(call, adapter=None) if len(names) > 1 else call)
        yield on_disk, _several(on_disk, names) if len(names) > 1 else None, None
        return
    with opened_call(call) as opened:
        yield opened


def _several(call: Called, names: Sequence[str]) -> Given:
    """A checkpoint with several of its adapters active.

    Raises:
        CheckpointError: see `open_several`.
    """
    if call.cluster is not None:
        raise CheckpointError("--slurm takes one adapter of a checkpoint; give one name with --adapter")
    from adapter_probe.checkpoints.opening import open_several

    base = None if call.base is None else str(call.base)
    return Given(open_several(Path(str(call.checkpoint)), names, base, call.dequantise))


def _on_disk(call: Called) -> Called:
    """The arguments with the folder of a checkpoint that is named on the hub.

    Raises:
        CheckpointError: there is no such checkpoint, or a folder is given with a revision.
    """
    name = str(call.checkpoint)
    if call.base is not None and not isinstance(call.base, (str, Path)):
        raise DataError(f"base= is a model in memory, and {name} is on disk; give the folder of its base")
    if is_hub_name(name):
        with activity(f"ablate: looking for {name}", call.progress):
            place = fetch_checkpoint(name, call.revision, call.adapter)
            return replace(call, checkpoint=choose_adapter(place, call.adapter), adapter=None)
    if call.revision is not None:
        raise CheckpointError(
            f"--revision {call.revision} applies only to a name on the Hugging Face Hub, and {name} is a path"
        )
    if is_missing(name):
        raise CheckpointError(f"checkpoint {name}: no such folder")
    return replace(call, checkpoint=choose_adapter(Path(name), call.adapter), adapter=None)


def _with_task(data: Sequence[str | Path], task: str | None) -> tuple[str, ...]:
    """The data files, or else the tasks of lm-evaluation-harness.

    Raises:
        DataError: both are given, or `task` does not name tasks of lm-evaluation-harness.
    """
    from adapter_probe.data.lm_eval_tasks import PREFIX, is_task

    if task and not is_task(task):
        raise DataError(f"{must_be('--task', f'{PREFIX}NAME', task)}; data files are given with --data")
    if task and data:
        raise DataError(f"--data {data[0]} and --task {task} cannot be combined; give one of them")
    return (task,) if task else tuple(map(str, data))


def _folder_of(arguments: AblationArguments, out: str | Path | None, name: str) -> Path:
    """The results folder: `out`, or the usual one with settings that are not defaults added to its name."""
    if out is not None:
        return Path(out)
    said, data = arguments.slugs(), arguments.data
    if data:
        said["data"] = f"data-{Path(data[0]).stem}"
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


def reopen(arguments: AblationArguments, folder: Path, kind: type[StudyT]) -> StudyT | None:
    """A finished study of this kind, if no byte of it or of its inputs has changed.

    Returns:
        None if the study is not finished, if anything has changed or cannot be determined, or if a writer
        was killed in the folder, so that the run, which claims the folder, removes its leftovers.
    """
    said, asked = read_note(folder, MADE_FROM), _recorded_arguments(arguments)
    if not said or leftover_files(folder):
        return None
    if asked is None or (said.get("asked"), said.get("code")) != (asked, code_identity()):
        return None
    try:
        checkpoint = Path(arguments.checkpoint)
        files = {f"checkpoint/{name}": path for name, path in checkpoint_files(checkpoint).items()}
        if (base := folder_of_base(*said["base"])) is not None:
            files |= {f"base/{name}": path for name, path in base_files(base).items()}
        files = files | {
            name: Path(name.removeprefix("data/")) for name in said["sha256"] if name.startswith("data/")
        }
        if files.keys() != said["sha256"].keys() or hash_files(files) != said["sha256"]:
            return None
        if _hash_of_unsealed_files(folder) != said["kept"]:
            return None
        read_manifest(folder / schema.MANIFEST)
        study = load(folder) if sealed_tables(folder) else None
        return study if isinstance(study, kind) else None
    except (AdapterProbeError, OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError):
        return None  # resuming the run repairs or reports it


def record_reads(arguments: AblationArguments, reads: Reads, folder: Path) -> None:
    """Record the inputs of a finished ablation, unless one of them was rewritten while it ran.

    Raises:
        ResultsError: the record cannot be written.
    """
    asked = _recorded_arguments(arguments)
    if asked is None or not reads.known or reads.rewritten:
        return
    sums = hash_files(reads.files)
    if not reads.rewritten:  # while it was hashed
        made_from = {"asked": asked, "code": code_identity(), "base": reads.base, "sha256": sums}
        add_note(folder, MADE_FROM, {**made_from, "kept": _hash_of_unsealed_files(folder)})


def _recorded_arguments(arguments: AblationArguments) -> dict[str, Any] | None:
    """The arguments as plain JSON, without those that change no number: checkpoint path, rows per pass.

    None where the metric is a function, of which a name tells nothing.
    """
    if isinstance(arguments.metric, CustomMetric):
        return None
    settled = {**arguments.settled(), "code_schema": PREDICTIONS_VERSION[arguments.settings.precision]}
    return {name: value for name, value in settled.items() if name not in ("checkpoint", "tokens_per_pass")}


def _hash_of_unsealed_files(folder: Path) -> str:
    """The hash of a run's files that are not sealed tables: its parts and the record of mixed precision."""
    paths = [*sorted((folder / PARTS).glob("*")), folder / schema.GUARD]
    return hash_json(hash_files({path.name: path for path in paths if path.is_file()}))
