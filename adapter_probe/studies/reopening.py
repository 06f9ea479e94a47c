"""Reopen a finished ablation without opening its model, when none of its inputs has changed.

Opening a checkpoint means loading torch, reading weights and encoding texts, only to find that the identity
of the results is unchanged. The same follows from the bytes: identical files, read with identical arguments
by identical code and libraries, have the same identity. A finished run therefore records the hash of every
file that its readers reported (see `adapter_probe.reads`), and the next run compares the hashes. If anything
differs or cannot be determined, the checkpoint is opened as usual and the identities are compared field by
field.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adapter_probe.checkpoints.files import base_files, checkpoint_files, folder_of_base
from adapter_probe.custom_metric import CustomMetric
from adapter_probe.errors import AdapterProbeError
from adapter_probe.probe.arguments import PREDICTIONS_VERSION, AblationArguments
from adapter_probe.reads import Reads
from adapter_probe.results import schema
from adapter_probe.results.atomic import leftover_files
from adapter_probe.results.fingerprints import code_identity, hash_files, hash_json
from adapter_probe.results.rundir import PARTS, read_manifest
from adapter_probe.results.sealing import MADE_FROM, add_note, read_note, sealed_tables

from .ablation import Ablation
from .loading import load


def reopen_ablation(arguments: AblationArguments, folder: Path) -> Ablation | None:
    """A finished ablation, if no byte of it or of its inputs has changed.

    Args:
        arguments: arguments of the current call.
        folder: results folder.

    Returns:
        None if the ablation is not finished, if anything has changed or cannot be determined, or if a writer
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
        return study if isinstance(study, Ablation) else None
    except (AdapterProbeError, OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError):
        return None  # resuming the run repairs or reports it


def record_reads(arguments: AblationArguments, reads: Reads, folder: Path) -> None:
    """Record the inputs of a finished ablation, unless one of them was rewritten while it ran.

    Args:
        arguments: arguments of the current call.
        reads: what was read to run it.
        folder: results folder, written and sealed.

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
