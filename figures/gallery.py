"""All figures and tables of a set of results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from adapter_probe.analysis.comparing import AverageRecord, ComparisonRecord
from adapter_probe.analysis.deltas import span_order
from adapter_probe.analysis.exchange import ExchangeRecord
from adapter_probe.analysis.studies import AblationRecord, StudyRecord, SweepRecord, TradeoffRecord
from adapter_probe.errors import ResultsError

from .ablation_figures import attribution_drawing, curve_drawing, heatmap_drawing, joint_drawing
from .aggregate import aggregate_drawing
from .curves import ScoreSeries
from .drawing import Drawing
from .exchange import exchange_drawing
from .heatmap import Grid, grid_of, published_grid
from .init_sweep import init_sweep_drawing, sweep_series
from .paper_tables import glue_table, tasks_table
from .size_robustness import size_robustness_drawing
from .table_layouts import lay_out_removable, lay_out_sizes, lay_out_tradeoff
from .tables import Table
from .tradeoff import tradeoff_drawing, tradeoff_series
from .venues import FigureOptions
from .wording import count_text, settings_text, study_label, task_label


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


_TOGETHER = 4  # maximum number of ablations whose shares can be distinguished in one figure


def write_gallery(
    studies: Sequence[StudyRecord], folder: str | Path, options: FigureOptions
) -> list[GalleryItem]:
    """Write all figures and tables of the studies into one folder.

    Raises:
        ResultsError: a table is not a grid of spans, the grids do not fit the width, the number of labels
            differs from that of ablations, a name in `only` is unknown, or a file cannot be written.
    """
    studies = with_labels(studies, options.labels)
    drawings, tables = list(figures_of(studies, options)), list(tables_of(studies, options.paper))
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


def with_labels(studies: Sequence[StudyRecord], labels: Sequence[str]) -> list[StudyRecord]:
    """The studies with their panel labels, in order; sweeps have none.

    Raises:
        ResultsError: the number of labels differs from that of ablations.
    """
    n_ablations = sum(isinstance(study, AblationRecord) for study in studies)
    if not labels:
        return list(studies)
    if len(labels) != n_ablations:
        raise ResultsError(
            f"{count_text(len(labels), 'label')} for {count_text(n_ablations, 'ablation')}; give --label "
            "once per ablation, in the order of the folders"
        )
    left = iter(labels)
    return [
        replace(study, overview=replace(study.overview, label=next(left)))
        if isinstance(study, AblationRecord)
        else study
        for study in studies
    ]


def figures_of(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Drawing]:
    """Yield the figures: ablations as panels, sweeps in one plot, each trade-off separately.

    Raises:
        ResultsError: the grids do not fit the width.
    """
    ablations = _named([study for study in studies if isinstance(study, AblationRecord)])
    for kind, suffix in (("ablated", ""), ("kept", "-kept")):
        same = [study for study in ablations if study.overview.study == kind]
        yield from _ablation_figures(same, options, suffix)
    for study in studies:
        if isinstance(study, (AverageRecord, ComparisonRecord)):
            yield joint_drawing(study, options)
        elif isinstance(study, ExchangeRecord):
            yield exchange_drawing(study, options)
    sweeps = [study for study in studies if isinstance(study, SweepRecord)]
    if sweeps:
        series = [
            _in_folder(one, s, sweeps)
            for s in sweeps
            for one in sweep_series(s.sweep, s.trials, options.paper)
        ]
        yield init_sweep_drawing(series, options, _identity(sweeps))
    tradeoffs = [study for study in studies if isinstance(study, TradeoffRecord)]
    for study in tradeoffs:
        yield from _tradeoff_figures(study, options, _suffix(study, tradeoffs))


def tables_of(studies: Sequence[StudyRecord], paper: bool) -> Iterator[Table]:
    """Yield the tables of each study, in the order of the figures.

    Args:
        studies: the studies.
        paper: whether to include the paper's values.
    """
    ablations = _named([study for study in studies if isinstance(study, AblationRecord)])
    for study in ablations:
        if study.removable is not None and study.overview.study == "ablated":
            table = lay_out_removable(study.removable, study_label(study.overview))
            yield _renamed(table, _suffix(study, ablations))
    tradeoffs = [study for study in studies if isinstance(study, TradeoffRecord)]
    for study in tradeoffs:
        found = [
            lay_out_tradeoff(study.tradeoff),
            tasks_table(study.tradeoff, paper),
            glue_table(study.tradeoff, paper),
        ]
        found.append(None if study.sizes is None else lay_out_sizes(study.sizes))
        yield from (_renamed(table, _suffix(study, tradeoffs)) for table in found if table is not None)


def _ablation_figures(
    studies: Sequence[AblationRecord], options: FigureOptions, suffix: str
) -> Iterator[Drawing]:
    orders = {study: span_order(study.spans) for study in studies}
    as_grids = [study for study in studies if orders[study] is None]
    grids = [grid_of(study) for study in as_grids]
    if options.paper:
        grids = _with_published(grids)
    if grids:
        yield _renamed(heatmap_drawing(grids, options, _identity(as_grids)), suffix)
    lines = dict.fromkeys(order for order in orders.values() if order is not None)
    for order in lines:
        alike = [study for study in studies if orders[study] == order]
        drawing = curve_drawing(alike, options, _identity(alike))
        yield _renamed(drawing, f"-{order}{suffix}" if len(lines) > 1 else suffix)
    shared = [study for study in studies if study.shares is not None]
    groups = [shared] if len(shared) <= _TOGETHER else [[study] for study in shared]
    for group in filter(None, groups):
        own = _suffix(group[0], shared) if len(groups) > 1 else ""
        yield _renamed(attribution_drawing(group, options, _identity(group)), own)


def _with_published(grids: Sequence[Grid]) -> list[Grid]:
    """The grids, with each published grid after the last ablation of its task."""
    theirs = [published_grid(grid.overview.task, grid.overview.study) for grid in grids]
    names = [None if grid is None else grid.notes[0] for grid in theirs]
    out: list[Grid] = []
    for index, (grid, published) in enumerate(zip(grids, theirs)):
        out += [grid] if published is None or names[index] in names[index + 1 :] else [grid, published]
    return out


def _tradeoff_figures(study: TradeoffRecord, options: FigureOptions, suffix: str) -> Iterator[Drawing]:
    curves = tradeoff_series(study.tradeoff, study.trials, options.paper)
    yield _renamed(tradeoff_drawing(curves, options, study.identity), suffix)
    tasks = list(dict.fromkeys(study.tradeoff["task"]))
    if study.aggregate is not None and study.aggregate["n_tasks"].max() > 1:
        yield _renamed(aggregate_drawing(study.aggregate, tasks, options, study.identity), suffix)
    if study.sizes is not None and len(study.sizes) > 1:
        yield _renamed(size_robustness_drawing(study.sizes, options, study.identity), suffix)


def _named(studies: list[AblationRecord]) -> list[AblationRecord]:
    """The same studies; equal labels are extended by settings or, if those are equal, by folders."""
    labels = [study_label(study.overview) for study in studies]
    named = list(studies)
    for label in {label for label in labels if labels.count(label) > 1}:
        same = [index for index, other in enumerate(labels) if other == label]
        for index, words in zip(same, _distinguishing_texts([studies[index] for index in same])):
            overview = replace(studies[index].overview, label=f"{label}, {words}" if words else label)
            named[index] = replace(studies[index], overview=overview)
    return named


def _distinguishing_texts(studies: Sequence[AblationRecord]) -> list[str]:
    """Short texts that distinguish the studies: settings, folder, or parent folder."""
    folders = [study.folder.resolve() for study in studies]
    settings = [settings_text(study) for study in studies]
    for words in (settings, [folder.name for folder in folders], [folder.parent.name for folder in folders]):
        if len(set(words)) == len(words):
            return words
    return [folder.name for folder in folders]


def _in_folder(series: ScoreSeries, study: SweepRecord, studies: Sequence[SweepRecord]) -> ScoreSeries:
    """The series, with its folder in the name if another series has the same task."""
    others = [task_label(str(task)) for s in studies if s is not study for task in s.sweep["task"].unique()]
    if series.name not in others:
        return series
    return replace(series, name=f"{series.name}, {study.folder.resolve().name}")


def _suffix(study: StudyRecord, studies: Sequence[StudyRecord]) -> str:
    """Suffix that distinguishes a study's files from others of its kind: empty, task, folder or number."""
    if len(studies) == 1:
        return ""
    for names in ([_task_slug(one) for one in studies], [one.folder.resolve().name for one in studies]):
        name = names[studies.index(study)]
        if name and names.count(name) == 1:
            return f"-{name}"
    same = [other for other in studies if other.folder.resolve().name == name]
    return f"-{name}-{1 + same.index(study)}"


def _task_slug(study: StudyRecord) -> str:
    """An ablation's task in a form allowed in file names; empty for other studies."""
    if not isinstance(study, AblationRecord):
        return ""
    return "-".join(re.findall(r"[a-z0-9]+", study_label(study.overview).lower()))


def _renamed(made: Drawing | Table, suffix: str) -> Drawing | Table:
    return replace(made, stem=f"{made.stem}{suffix}")


def _identity(studies: Sequence[StudyRecord]) -> dict[str, object]:
    """The identity of one study, or a list of several."""
    if len(studies) == 1:
        return dict(studies[0].identity)
    return {"studies": [dict(study.identity) for study in studies]}
