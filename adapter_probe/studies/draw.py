"""The function `draw`, and what the commands report of finished studies besides their figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adapter_probe.argument_checks import as_tuple, taking
from adapter_probe.records import to_record
from adapter_probe.results import schema

from .comparison import average, compare_data
from .figure_arguments import Draw
from .load import studies_of
from .study_base import DrawnStudy, StoredStudy, draw_into_folder, write_figures

if TYPE_CHECKING:
    from adapter_probe.figures.gallery import GalleryItem

    from .ablation_study import Ablation
    from .race_study import Race
    from .rank_study import Ranks
    from .strength_study import Strengths
    from .suite import Suite
    from .sweep_trials import Sweep

SEVERAL = "figures"
"""Output folder for figures of several studies, unless another one is given."""


@taking(Draw)
def draw(call: Draw) -> list[GalleryItem]:
    """Write the figures and tables of one or several studies into one folder.

    Several ablations become panels of one figure, several initialisation sweeps lines in one plot.

    Returns:
        one entry per figure and table, with its `kind`, `stem`, `caption` and `files`.

    Raises:
        ResultsError: a study cannot be read, an argument is not allowed, the studies cannot be drawn together
            or averaged, or a file cannot be written.
    """
    given = as_tuple(call.studies)
    found: list[DrawnStudy] = [average(given)] if call.average else studies_of(given)
    if call.out is not None:
        return write_figures(found, call.out, call)
    alone = found[0] if len(found) == 1 else None
    return write_figures(found, alone.folder if isinstance(alone, StoredStudy) else SEVERAL, call)


def ablation_report(study: Ablation, tolerance: float = 1.0) -> dict[str, Any]:
    """Draw a finished ablation into its folder; its summary with the paths of all files."""
    names = {"spans": schema.SPANS_CSV, "layers": schema.LAYERS_CSV, "removable": schema.REMOVABLE_CSV,
             "predictions": schema.PREDICTIONS}  # fmt: skip
    if study.groups is not None:
        names["groups"] = schema.GROUPS_CSV
    if (study.folder / schema.GENERATIONS).is_file():
        names["generations"] = schema.GENERATIONS
    files = {name: str(study.folder / file) for name, file in names.items()}
    files |= draw_into_folder(study, tolerance=tolerance)
    if study.against is None:
        return {**study.summary.to_dict(), "files": files}
    files |= {path.stem + path.suffix.replace(".", "_"): str(path) for path in
              compare_data(study, study.against).save(study.folder)}  # fmt: skip
    return {**study.summary.to_dict(), "against": ablation_report(study.against, tolerance), "files": files}


def strength_report(study: Strengths) -> dict[str, Any]:
    """Draw a finished study of strengths into its folder; its summary and points with the paths of files."""
    files = {name: str(study.folder / f"{name}.csv") for name in ("strengths",)}
    said = study.summary
    against = {} if study.against is None else {"against": strength_report(study.against)}
    return {
        **to_record(said), "verdict": said.verdict, "points": schema.plain_rows(study.table), **against,
        "files": {**files, **draw_into_folder(study)},
    }  # fmt: skip


def race_report(study: Race) -> dict[str, Any]:
    """Draw a finished race into its folder; its summary with the paths of all files."""
    files = {"spans": str(study.folder / schema.SPANS_CSV), "race": str(study.folder / schema.RACE)}
    return {**to_record(study.summary), "files": {**files, **draw_into_folder(study)}}


def rank_report(study: Ranks) -> dict[str, Any]:
    """Draw a finished study of ranks into its folder; its summary and points with the paths of files."""
    files = {name: str(study.folder / f"{name}.csv") for name in ("ranks", "spectra")}
    said = study.summary
    return {
        **to_record(said), "verdict": said.verdict, "points": schema.plain_rows(study.table),
        "files": {**files, **draw_into_folder(study)},
    }  # fmt: skip


def sweep_report(study: Sweep, paper: bool = False) -> dict[str, Any]:
    """Draw a finished sweep into its folder; its points with the paths of all files."""
    figures = draw_into_folder(study, paper=paper)
    names = (schema.TRIALS_CSV, schema.SWEEP_CSV, schema.TRADEOFF_CSV, schema.SIZES_CSV, schema.AGGREGATE_CSV)
    tables = [path for name in names if (path := study.folder / name).is_file()]
    return {
        "points": schema.plain_rows(study.table),
        "files": {**{path.stem: str(path) for path in tables}, **figures},
    }


def suite_report(study: Suite, paper: bool = False) -> dict[str, Any]:
    """Draw every study of a suite into its folder; the tables and summaries with the paths of the figures."""
    paths = study.draw(paper=paper)
    sweeps = {"tradeoff": study.tradeoff, "init_sweep": study.init_sweep}
    return {
        **{name: schema.plain_rows(one.table) for name, one in sweeps.items() if one is not None},
        "ablations": {
            task: [one.summary.to_dict() for one in seeds] for task, seeds in study.ablations.items()
        },
        "parameters": [] if study.parameters is None else schema.plain_rows(study.parameters),
        "files": paths,
    }
