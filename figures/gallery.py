"""All figures and tables of a set of results: a new figure is a row of the table of functions.

A figure's function yields the drawings that it makes of the studies it knows, and ignores the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from adapter_probe.analysis.study_records import StudyRecord
from adapter_probe.errors import ResultsError

from . import aggregate, attribution, heatmap, init_sweep, joint, modules, span_curve, strengths, tradeoff
from .ablation_words import with_labels
from .drawing import Drawing
from .table_layouts import tables
from .tables import Table
from .venues import FigureOptions

FIGURES: tuple[Callable[[Sequence[StudyRecord], FigureOptions], Iterator[Drawing]], ...] = (
    heatmap.drawings,
    span_curve.drawings,
    modules.drawings,
    strengths.drawings,
    attribution.drawings,
    joint.drawings,
    init_sweep.drawings,
    tradeoff.drawings,
    aggregate.drawings,
    aggregate.sizes_drawings,
)


@dataclass(frozen=True)
class GalleryItem:
    """A ``figure`` or ``table`` on disk: its file name without suffix, its caption, and the paths written."""

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
    made: list[Drawing | Table] = [*figures_of(studies, options)]
    made += tables(with_labels(studies, options.labels), options)
    names = [name.strip() for name in options.only if name.strip()]
    for name in names:
        if not any(f"{one.stem}-".startswith(f"{name}-") for one in made):
            stems = ", ".join(dict.fromkeys(one.stem for one in made))
            raise ResultsError(f"--only {name!r} is not available; choose from {stems}")
    return [
        GalleryItem("figure", one.stem, one.caption, one.write(folder, options))
        if isinstance(one, Drawing)
        else GalleryItem("table", one.stem, one.caption, one.write(folder))
        for one in made
        if not names or any(f"{one.stem}-".startswith(f"{name}-") for name in names)
    ]


def figures_of(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Drawing]:
    """Yield all figures of the studies: ablations as panels, sweeps in one plot, each trade-off separately.

    Raises:
        ResultsError: the grids do not fit the width, or the number of labels differs from that of ablations.
    """
    named = with_labels(studies, options.labels)
    for drawings in FIGURES:
        yield from drawings(named, options)
