"""The interactive report of studies, with their checkpoints and texts. Never imports torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapter_probe.analysis.study_records import section_of
from adapter_probe.argument_checks import as_tuple, taking
from adapter_probe.checkpoints.files import CONFIG, DESCRIPTION
from adapter_probe.checkpoints.identity import checkpoint_identity
from adapter_probe.errors import ResultsError
from adapter_probe.figures.report.ablation_section import ReportedAblation
from adapter_probe.figures.report.page import Reported, write_report
from adapter_probe.results.atomic import make_folder, read_json, write_text
from adapter_probe.results.fingerprints import refuse_changes
from adapter_probe.results.schema import PREDICTIONS
from adapter_probe.settings import as_points
from adapter_probe.version import __version__

from .ablation_study import Ablation
from .comparison import Average, Comparison, average, compare
from .example_texts import texts_of
from .figure_arguments import Report
from .load import studies_of
from .strength_study import Strengths
from .study_base import DrawnStudy
from .sweep_trials import Sweep


@dataclass(frozen=True)
class ReportPage:
    """A report that has been written.

    Attributes:
        path: path of the HTML file.
        n_texts: number of examples that the included texts were taken from; 0 without texts.
    """

    path: Path
    n_texts: int


@taking(Report)
def report(call: Report) -> ReportPage:
    """Write a self-contained interactive HTML report of one or more studies.

    Studies of the same spans stand side by side: what is selected in one is selected in all.

    Raises:
        ResultsError: results, checkpoints or predictions are missing or damaged, the ablations cannot be
            averaged or compared, or the page cannot be written.
        DataError: the texts cannot be read, or are not those that were evaluated.
    """
    tolerance = as_points("--tolerance", call.tolerance, most=100)
    given, files = [Path(c) for c in as_tuple(call.checkpoints)], [Path(f) for f in as_tuple(call.data)]
    studies: list[DrawnStudy] = studies_of(as_tuple(call.folders))
    for study in studies:
        if not isinstance(study, (Ablation, Average, Comparison, Sweep, Strengths)):
            raise ResultsError(
                "a report describes ablations, their averages and comparisons, studies of strengths, and "
                f"sweeps, not {type(study).__name__}"
            )
    ablations = [study for study in studies if isinstance(study, Ablation)]
    _refuse_strangers(given, ablations)
    parts: list[Reported] = _joint(ablations, call.average, call.compare)
    n_texts = 0
    for study in studies:
        if isinstance(study, Ablation):
            part = _completed(study, given, files, call.encoding, call.examples)
            parts.append(part)
            n_texts += len(part.texts.texts) if part.texts else 0
        elif isinstance(study, (Average, Comparison)):
            parts.append(study.record)
    curves = [study.record for study in studies if isinstance(study, (Sweep, Strengths))]
    out = Path(call.out or ("report-space" if call.space else "report.html"))
    if call.space:
        of_checkpoints = [study for study in studies if isinstance(study, (Ablation, Strengths))]
        _write_space(out, [study.folder.resolve().parent.name for study in of_checkpoints])
        out /= "index.html"
    return ReportPage(write_report(out, parts, curves, tolerance=tolerance), n_texts)


def _write_space(folder: Path, names: Sequence[str]) -> None:
    """Write the README.md by which the Hugging Face Hub serves a folder as a static Space.

    Raises:
        ResultsError: there is a README.md that is not of a static Space, or it cannot be written.
    """
    path, title = make_folder(folder) / "README.md", " and ".join(dict.fromkeys(names)) or "Adapters"
    if path.is_file() and "sdk: static" not in path.read_text(encoding="utf-8", errors="replace"):
        raise ResultsError(
            f"--space: {path} exists and is not of a static Space; give another folder with --out"
        )
    about = {
        "title": f"Adapters of {title}" if names else title, "colorFrom": "indigo", "colorTo": "gray",
        "sdk": "static", "app_file": "index.html", "pinned": False, "tags": ["adapter-probe"],
    }  # fmt: skip
    said = "\n".join(
        f"{name}: {value if name == 'sdk' else json.dumps(value)}" for name, value in about.items()
    )
    text = "The page `index.html` shows which layers' adapters the model needs"
    made = f"It was written by adapter-probe {__version__} and loads nothing from elsewhere"
    write_text(path, f"---\n{said}\n---\n\n{text}. {made}.\n")


def _joint(ablations: Sequence[Ablation], mean: bool, difference: bool) -> list[Reported]:
    """The mean or the difference of the ablations, if it is wanted.

    Raises:
        ResultsError: there are too few or too many of them, or they do not fit each other.
    """
    if difference and len(ablations) != 2:
        raise ResultsError(f"--compare needs two ablations, got {len(ablations)}")
    joint: list[Reported] = [average(ablations).record] if mean else []
    return [*joint, compare(*ablations).record] if difference else joint


def _delta_of(study: Ablation) -> str | None:
    """The hash of the ablated weights, if the results record it."""
    value = section_of(study.identity, "checkpoint").get("delta_sha256")
    return value if isinstance(value, str) else None


def _refuse_strangers(checkpoints: Sequence[Path], ablations: Sequence[Ablation]) -> None:
    """Refuse checkpoints that do not belong to any of the ablations.

    Raises:
        ResultsError: a checkpoint belongs to none.
    """
    deltas = {_delta_of(study) for study in ablations}
    for folder in checkpoints:
        described = _description(folder)
        if described is None and (folder / CONFIG).is_file():
            raise ResultsError(
                f"--checkpoint {folder} is of another library, which records no texts; give the evaluated "
                "files with --data"
            )
        if described is None:
            raise ResultsError(f"--checkpoint {folder} is not a checkpoint: it contains no {DESCRIPTION}")
        if None not in deltas and described.get("delta_sha256") not in deltas:
            raise ResultsError(f"--checkpoint {folder} was not ablated in any of the given results folders")


def _description(folder: Path) -> dict[str, Any] | None:
    path = folder / DESCRIPTION
    return read_json(path) if path.is_file() else None


def _completed(
    study: Ablation,
    checkpoints: Sequence[Path],
    data: Sequence[Path],
    encoding: str,
    with_texts: bool,
) -> ReportedAblation:
    """The ablation with its predictions, its checkpoint's description and, if requested, its texts."""
    results = study.results if study.has_predictions else None
    folder = _checkpoint_of(study, checkpoints)
    described = None if folder is None else _description(folder)
    if folder is not None and described is not None:
        _refuse_changed(study, folder, described)
    if not with_texts:
        return ReportedAblation(study.record, results, described)
    if results is None:
        raise ResultsError(
            f"--examples: {study.folder} has no {PREDICTIONS}, so changed predictions are unknown"
        )
    texts = texts_of(study.folder, results, described, folder, data, encoding)
    return ReportedAblation(study.record, results, described, texts)


def _refuse_changed(study: Ablation, folder: Path, described: dict[str, Any]) -> None:
    """Refuse a checkpoint whose method or base differs from the ablation's; unknown fields are ignored.

    Raises:
        ResultsError: the checkpoint has changed.
    """
    old, new = {}, {}
    for section, facts in checkpoint_identity(described).items():
        then = section_of(study.identity, section)
        shared = {name for name, value in facts.items() if value and then.get(name)}
        old[section] = {name: then[name] for name in shared}
        new[section] = {name: facts[name] for name in shared}
    refuse_changes(old, new, f"{folder} has changed since {study.folder} was made")


def _checkpoint_of(study: Ablation, checkpoints: Sequence[Path]) -> Path | None:
    """The ablated checkpoint: a given one, the folder around the results, or a folder next to them."""
    parent, wanted = study.folder.resolve().parent, _delta_of(study)
    beside = sorted(path for path in parent.iterdir() if path.is_dir())
    for folder in (*checkpoints, parent, *(beside if wanted else ())):
        described = _description(folder)
        if described is not None and wanted in (None, described.get("delta_sha256")):
            return folder
    return None
