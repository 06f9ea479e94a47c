"""The function `load`. Only this module reads finished studies back; everything else takes the studies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import adapter_probe
from adapter_probe.analysis.study_records import RECORDS, AblationRecord
from adapter_probe.argument_checks import checked
from adapter_probe.errors import ResultsError, listed
from adapter_probe.results import schema
from adapter_probe.results.ablation_files import load_ablation, read_spans
from adapter_probe.results.atomic import read_json
from adapter_probe.results.manifests import read_study
from adapter_probe.results.trial_files import study_identity

from .ablation_study import Ablation
from .study_base import DrawnStudy, StoredStudy

if TYPE_CHECKING:
    import pandas as pd

    from adapter_probe import InitSweep, Ranks, Strengths, Tradeoff

KNOWN_BY = tuple(dict.fromkeys((*(one.known_by for one in RECORDS), *schema.SWEEP_TABLES)))
"""The files by which a folder with results is known, unfinished ones included."""


@checked
def load(folder: str | Path) -> Ablation | InitSweep | Tradeoff | Strengths | Ranks:
    """Read the study in a results folder, without torch.

    Args:
        folder: results folder of a study, or a checkpoint with one ablation.

    Raises:
        ResultsError: the folder does not exist, contains no or several studies, or a table is damaged.
    """
    folders = find_results([folder])
    if len(folders) > 1:
        names = ", ".join(str(path) for path in folders)
        raise ResultsError(f"{folder} contains {len(folders)} studies; give one of {names}")
    return _read(folders[0])  # type: ignore[return-value]


def studies_of(given: Sequence[DrawnStudy | str | Path]) -> list[DrawnStudy]:
    """The given studies and those in the given folders, in this order.

    A checkpoint is replaced by the ablations inside it. A folder is read once, and not if its study is given.

    Raises:
        ResultsError: a folder does not exist, contains nothing to draw, or contains a damaged table.
    """
    known = {one.folder.resolve() for one in given if isinstance(one, StoredStudy)}
    studies: list[DrawnStudy] = []
    for one in given:
        if isinstance(one, DrawnStudy):
            studies.append(one)
            continue
        for folder in find_results([one]):
            if folder.resolve() not in known:
                known.add(folder.resolve())
                studies.append(_read(folder))
    return studies


def ablations_of(given: Sequence[Ablation | str | Path]) -> list[Ablation]:
    """The given ablations and those in the given folders, one each: other studies beside it are left out.

    Of several ablations in a folder it is the one whose name all folders have; of several of these it is
    that of spans of layers, not a map of layers and modules.

    Raises:
        ResultsError: as `load`, a study is not an ablation, or all folders have several of equal names.
    """
    there = [ablations_in(one) for one in given]
    names = [{path.name for path in own} for own in there if own]
    found: list[Any] = []
    for one, own in zip(given, there):
        alike = own if len(own) == 1 else [path for path in own if all(path.name in some for some in names)]
        if len(alike) > 1:
            alike = [path for path in alike if "module" not in read_spans(path)]
        if len(alike) > 1 and len(names) > 1:
            first = [str(path) for own in there for path in own if path.name == alike[0].name]
            raise ResultsError(
                f"{one} and the other folders contain ablations {listed(path.name for path in alike)} each; "
                f"give the folders of one of them, such as {' '.join(first)}"
            )
        found.append(one if isinstance(one, Ablation) else load(alike[0] if len(alike) == 1 else one))
    for one, study in zip(given, found):
        if not isinstance(study, Ablation):
            what = f"a study of type {type(study).__name__}"
            raise ResultsError(f"{one} contains {what}; give an ablation")
    return found


def ablations_in(folder: Any) -> list[Path]:
    """The ablations in a folder, which other studies may be beside; none in what is no folder."""
    there = find_results([folder]) if isinstance(folder, (str, Path)) else []
    return [path for path in there if (path / AblationRecord.known_by).is_file()]


def find_results(folders: Iterable[str | Path]) -> list[Path]:
    """The results folders among `folders`; others are replaced by their subfolders with results.

    For example, a checkpoint is replaced by the ablations inside it. Duplicates are dropped.

    Raises:
        ResultsError: a folder does not exist, or neither it nor a subfolder contains results.
    """
    found: dict[Path, Path] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise ResultsError(f"{folder}: no such folder; give results folders")
        here = [folder] if holds_results(folder) else sorted(filter(holds_results, folder.iterdir()))
        if not here:
            raise ResultsError(
                f"{folder} contains no results: none of {', '.join(KNOWN_BY)} is in it or in a subfolder"
            )
        for path in here:
            found.setdefault(path.resolve(), path)
    return list(found.values())


def holds_results(folder: Path) -> bool:
    """Whether the folder itself contains results."""
    return any((folder / name).is_file() for name in KNOWN_BY)


def _read(folder: Path) -> StoredStudy:
    """The study in a results folder, as the class of its record declares its files."""
    known = next((one for one in RECORDS if (folder / one.known_by).is_file()), None)
    if known is None:
        names = ", ".join(one.known_by for one in RECORDS)
        raise ResultsError(f"{folder} contains nothing to draw: none of {names} is in it")
    read: dict[str, Any] = {}
    hints = get_type_hints(known)
    files = sorted(known.files().items(), key=lambda one: one[1]["file"] != known.known_by)
    for name, about in files:
        path = folder / about["file"]
        if path.name == schema.SPANS_CSV:
            read[name] = read_spans(folder)
        elif about["columns"] is None:
            said = read_json(path) if path.name == known.known_by else schema.read_summary(folder)
            read[name] = hints[name].from_dict(said, path)
        else:
            missing = NoneType in get_args(hints[name]) and not path.is_file()
            read[name] = None if missing else _table(path, about["columns"], about.get("others"))
    record: Any = known
    if "created_with" in known.__annotations__:
        manifest = read_json(folder / schema.MANIFEST) if (folder / schema.MANIFEST).is_file() else {}
        identity, versions = manifest.get("identity"), manifest.get("created_with")
        read["identity"] = identity if isinstance(identity, dict) else {"folder": folder.resolve().name}
        read["created_with"] = versions if isinstance(versions, dict) else {}
    elif "trials" in read:
        read["identity"] = study_identity(folder / known.known_by)
    else:
        path = folder / schema.STUDY
        read["identity"] = read_study(path) if path.is_file() else {}
    if issubclass(known, AblationRecord):
        there = (folder / schema.PREDICTIONS).is_file()
        return Ablation(record(folder=folder, **read), partial(load_ablation, folder) if there else None)
    study: type[StoredStudy] = getattr(adapter_probe, known.study)
    return study(record(folder=folder, **read))


def _table(path: Path, columns: Mapping[str, str], others: str | None) -> pd.DataFrame:
    """A table; `others` is the kind of the columns besides the fixed ones, such as one for each task."""
    table = schema.read_columns(path, columns)
    if others is None:
        return table
    return schema.read_columns(path, {**dict.fromkeys(table, others), **columns})
