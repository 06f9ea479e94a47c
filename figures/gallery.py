"""All figures and tables of a set of results, as two tables of functions: a new figure is a row here.

A figure's function yields the drawings that it makes of the studies it knows, and ignores the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from adapter_probe.analysis.study_records import StudyRecord
from adapter_probe.errors import ResultsError

from . import (
    aggregate,
    attribution,
    data_comparison,
    heatmap,
    init_sweep,
    joint,
    modules,
    paper_tables,
    race,
    ranks,
    size_robustness,
    span_curve,
    strengths,
    table_layouts,
    tradeoff,
)
from .drawing import Drawing
from .naming import with_labels
from .tables import Table
from .venues import FigureOptions

FIGURES: tuple[Callable[[Sequence[StudyRecord], FigureOptions], Iterator[Drawing]], ...] = (
    heatmap.drawings,
    span_curve.drawings,
    modules.drawings,
    strengths.drawings,
    race.drawings,
    ranks.drawings,
    attribution.drawings,
    joint.drawings,
    data_comparison.drawings,
    init_sweep.drawings,
    tradeoff.drawings,
    aggregate.drawings,
    size_robustness.drawings,
)
TABLES: tuple[Callable[[Sequence[StudyRecord], FigureOptions], Iterator[Table]], ...] = (
    table_layouts.removable_tables,
    table_layouts.tradeoff_tables,
    paper_tables.tasks_tables,
    paper_tables.glue_tables,
    table_layouts.sizes_tables,
)


@dataclass(frozen=True)
class GalleryItem:
    """A figure or a table on disk.

    Attributes:
        kind: ``figure`` or ``table``.
        stem: common file name without suffix.
        caption: caption for a paper.
        files: paths in the order written.
    """

    kind: str
    stem: str
    caption: str
    files: tuple[Path, ...]


def write_gallery(
    studies: Sequence[StudyRecord], folder: str | Path, options: FigureOptions
) -> list[GalleryItem]:
    """Write all figures and tables of the studies into one folder.

    Raises:
        ResultsError: a table is not a grid of spans, the grids do not fit the width, the number of labels
            differs from that of ablations, a name in `only` is unknown, or a file cannot be written.
    """
    drawings, tables = list(figures_of(studies, options)), list(tables_of(studies, options))
    wanted = _chosen_stems([made.stem for made in (*drawings, *tables)], options.only)
    figures = [
        GalleryItem("figure", d.stem, d.caption, d.write(folder, options))
        for d in drawings
        if d.stem in wanted
    ]
    return figures + [
        GalleryItem("table", t.stem, t.caption, t.write(folder)) for t in tables if t.stem in wanted
    ]


def _chosen_stems(stems: Sequence[str], only: Sequence[str]) -> set[str]:
    """The requested stems; a name matches the stem itself and stems that begin with it."""
    names = [name.strip() for name in only if name.strip()]
    chosen = {name: {stem for stem in stems if f"{stem}-".startswith(f"{name}-")} for name in names}
    if unknown := [name for name in names if not chosen[name]]:
        raise ResultsError(
            f"--only {unknown[0]!r} is not available; choose from {', '.join(dict.fromkeys(stems))}"
        )
    return set().union(*chosen.values()) if names else set(stems)


def figures_of(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Drawing]:
    """Yield all figures of the studies: ablations as panels, sweeps in one plot, each trade-off separately.

    Raises:
        ResultsError: the grids do not fit the width, or the number of labels differs from that of ablations.
    """
    named = with_labels(studies, options.labels)
    for drawings in FIGURES:
        yield from drawings(named, options)


def tables_of(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Table]:
    """Yield all tables of the studies; see `figures_of`."""
    named = with_labels(studies, options.labels)
    for tables in TABLES:
        yield from tables(named, options)
