"""A finished study read back at once, if no byte that it was made from has changed.

Opening a checkpoint means loading torch, reading weights and encoding texts, only to find that the identity
of the results is unchanged. The same follows from the bytes: identical files, read with identical arguments
by identical code and libraries, have the same identity. A finished run therefore records the hash of every
file that its readers reported (see `adapter_probe.reads`), and the next run compares the hashes. If anything
differs or cannot be determined, the checkpoint is opened as usual and the identities are compared field by
field.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adapter_probe.analysis.study_records import AblationRecord
from adapter_probe.checkpoints.files import base_files, checkpoint_files, folder_of_base
from adapter_probe.custom_metric import CustomMetric
from adapter_probe.errors import AdapterProbeError
from adapter_probe.probe.ablation_arguments import PREDICTIONS_VERSION, AblationArguments
from adapter_probe.progress import activity
from adapter_probe.reads import Reads
from adapter_probe.results import schema
from adapter_probe.results.atomic import leftover_files
from adapter_probe.results.fingerprints import code_identity, hash_files, hash_json
from adapter_probe.results.manifests import MADE_FROM, read_note, write_note
from adapter_probe.results.rundir import PARTS, read_manifest

from .ablation_study import Ablation
from .asked import Parts
from .load import load
from .opened import Opened


def finished(name: str, opened: Opened, groups: Sequence[Parts]) -> list[list[Ablation]] | None:
    """The ablations, if all are there already and nothing that they were made from has changed."""
    from adapter_probe.device import check_threads

    machine = opened.machine
    if opened.model is not None or machine.device not in ("auto", "cpu") or machine.cluster is not None:
        return None
    check_threads(machine.threads)
    with activity(f"{name}: checking for changes since the last run", machine.progress):
        found = [[_reopen(*one) for one in parts] for parts in groups]
    return None if any(None in own for own in found) else found  # type: ignore[return-value]


def _reopen(arguments: AblationArguments, folder: Path) -> Ablation | None:
    """A finished ablation, if no byte of it or of its inputs has changed.

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
        read_manifest(folder / schema.MANIFEST)
        study = load(folder) if _hash_of_results(folder) == said["kept"] else None
        return study if isinstance(study, Ablation) else None
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
        write_note(folder, MADE_FROM, {**made_from, "kept": _hash_of_results(folder)})


def _recorded_arguments(arguments: AblationArguments) -> dict[str, Any] | None:
    """The arguments as plain JSON, without those that change no number: checkpoint path, rows per pass.

    None where the metric is a function, of which a name tells nothing, and of several adapters.
    """
    if isinstance(arguments.metric, CustomMetric) or arguments.adapters:
        return None
    settled = {**arguments.settled(), "code_schema": PREDICTIONS_VERSION[arguments.settings.precision]}
    return {
        name: value
        for name, value in settled.items()
        if name not in ("checkpoint", "tokens_per_pass", "device_map")
    }


def _hash_of_results(folder: Path) -> str:
    """The hash of the files of an ablation that are not drawn."""
    tables = [about["file"] for about in AblationRecord.files().values()]
    others = (schema.PREDICTIONS, schema.GENERATIONS, schema.GUARD)
    paths = [*sorted((folder / PARTS).glob("*")), *(folder / name for name in (*tables, *others))]
    return hash_json(hash_files({path.name: path for path in paths if path.is_file()}))
