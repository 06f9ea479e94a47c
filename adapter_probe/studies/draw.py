"""The function `draw`: the figures and tables of finished studies, and what commands report of a study."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adapter_probe.argument_checks import as_tuple, taking
from adapter_probe.results.fingerprints import code_identity, hash_files, hash_json
from adapter_probe.results.manifests import FIGURES, read_note, write_note
from adapter_probe.results.schema import GENERATIONS, PREDICTIONS, SUMMARY

from .ablation_study import Ablation
from .comparison import average, compare_data
from .figure_arguments import Draw
from .load import studies_of
from .study_base import DrawnStudy, StoredStudy, write_figures

if TYPE_CHECKING:
    from adapter_probe.analysis.study_records import StudyRecord
    from adapter_probe.figures.gallery import GalleryItem

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
    alone = found[0] if len(found) == 1 else None
    usual = alone.folder if isinstance(alone, StoredStudy) else SEVERAL
    return write_figures(found, usual if call.out is None else call.out, call)


def study_report(study: StoredStudy, **options: Any) -> dict[str, Any]:
    """Draw a finished study into its folder; its main results with the paths of all files."""
    about = study.record.files().values()
    names = [one["file"] for one in about if one["file"] != SUMMARY]
    there = [path for name in (*names, PREDICTIONS, GENERATIONS) if (path := study.folder / name).is_file()]
    files = {path.stem: str(path) for path in there} | draw_into_folder(study, **options)
    against, others = getattr(study, "against", None), {}
    if against is not None:
        others = {"against": study_report(against, **options)}
        if isinstance(study, Ablation):
            both = compare_data(study, against).save(study.folder)
            files |= {path.stem + path.suffix.replace(".", "_"): str(path) for path in both}
    return {**study.facts(), **others, "files": files}


def drawn_of(record: StudyRecord, **options: Any) -> str:
    """The hash of everything that determines a study's figures."""
    paths = [record.folder / about["file"] for about in record.files().values()]
    tables = hash_files({path.name: path for path in paths if path.is_file()})
    return hash_json([tables, dict(record.identity), options, code_identity()])


def draw_into_folder(study: StoredStudy, *, tolerance: float = 1.0, paper: bool = False) -> dict[str, str]:
    """Draw a finished study into its folder; return paths by name and format, such as ``heatmap_pdf``.

    Figures drawn earlier from the same tables by the same code and options are not drawn again.
    """
    folder, names = study.folder, []
    of = drawn_of(study.record, tolerance=tolerance, paper=paper)
    said = read_note(folder, FIGURES)
    if said.get("of") == of and isinstance(sums := said.get("sha256"), dict):
        files = {name: folder / name for name in sums}
        unchanged = all(path.is_file() for path in files.values()) and hash_files(files) == sums
        names = list(sums) if unchanged else []
    if not names:
        drawn = study.save(folder, tolerance=tolerance, paper=paper)
        names = [path.name for path in drawn]
        write_note(folder, FIGURES, {"of": of, "sha256": hash_files({path.name: path for path in drawn})})
    paths = [folder / name for name in names]
    return {f"{path.stem}_{path.suffix[1:]}".replace("-", "_"): str(path) for path in paths}
