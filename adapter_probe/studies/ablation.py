"""The span ablation as one call and one object."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from adapter_probe.analysis.studies import AblationRecord, ablation_record
from adapter_probe.errors import DataError, ResultsError
from adapter_probe.metrics import CustomMetric
from adapter_probe.progress import progress_bar, say, working
from adapter_probe.results import schema
from adapter_probe.results.ablation_files import AblationResults, load_ablation, save_predictions, write_spans
from adapter_probe.results.atomic import write_csv, write_json
from adapter_probe.results.sealing import sealed
from adapter_probe.spans import SiteChoice

from .drawing import SECONDS_OF_DRAWING, DrawnStudy, Style, axes_for
from .rows import Examples, as_files
from .summaries import ablation_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes

    from adapter_probe.jobs.slurm_options import SlurmOptions
    from adapter_probe.probe.arguments import AblationArguments, Precision
    from adapter_probe.probe.request import AblationRequest

    from .reopening import Sources

_ANY_DEVICE = ("auto", "cpu")  # every machine has them
BESIDE = "against-"
"""How the folder with the same variants on other data begins, inside the ablation's own."""


@dataclass(frozen=True, eq=False, repr=False)
class Ablation(DrawnStudy):
    """A finished ablation; what `adapter_probe.ablate` and `adapter_probe.load` return.

    Attributes:
        record: its tables, summary and identity as plain data.
        against: the same variants on other examples, where `ablate` was given some; `adapter_probe.exchange`
            sets the two against one another.
    """

    record: AblationRecord
    _results: AblationResults | None = field(default=None)
    against: Ablation | None = None

    @property
    def folder(self) -> Path:
        """Where the results lie."""
        return self.record.folder

    @property
    def spans(self) -> pd.DataFrame:
        """One row per span, ``spans.csv``.

        `first`, `last` and `n_layers` (layers, both ends included); `score` (a fraction, in the metric's own
        units); `delta_points` = 100 (score - intact score), so that a loss is negative, with its 95 % paired
        bootstrap interval `ci_low_points`, `ci_high_points`; `p_value` against the intact model, `p_holm`
        and `significant` (below 0.05 after Holm's correction over all spans); `interaction_points` with its
        interval.
        """
        return self.record.spans

    @property
    def layers(self) -> pd.DataFrame | None:
        """One row per layer, ``layers.csv``: switched off alone, and its share of the drop of all layers."""
        return self.record.layers

    @property
    def removable(self) -> pd.DataFrame | None:
        """The longest removable spans within some tolerances, ``removable.csv``."""
        return self.record.removable

    @property
    def groups(self) -> pd.DataFrame | None:
        """What every variant scores on each part of the data, ``groups.csv``; None where there are no parts.

        The parts are `field` and `UID` of pairs of sentences, or the tasks of lm-evaluation-harness. Columns
        `group`, `n_examples`, `variant` (``intact``, ``all off`` or a span), `first`, `last`, `score`,
        `delta_points`.
        """
        return self.record.groups

    @property
    def summary(self) -> dict[str, Any]:
        """The numbers to act on, ``summary.json``; scores are fractions, differences in points."""
        return dict(self.record.summary)

    @cached_property
    def results(self) -> AblationResults:
        """Every example's outputs under every variant: `masks`, `spans`, `logits`, `labels` and more.

        Raises:
            ResultsError: the folder holds no predictions, or damaged ones.
        """
        return self._results if self._results is not None else load_ablation(self.folder)

    @property
    def predictions(self) -> np.ndarray:
        """Class numbers or regression values, ``[variants, examples]``; see `results` for the rest.

        The first variant is the intact model; `results.row_names` names all.
        """
        return self.results.predictions

    def heatmap(
        self,
        ax: Axes | None = None,
        *,
        tolerance: float = 1.0,
        paper: bool = False,
        colorbar: bool = True,
        notes: bool = True,
        style: Style | None = None,
    ) -> Axes:
        """Draw the first/last-ablated-layer heatmap; spans in a line are better drawn by `plot`.

        Args:
            ax: where to draw; by default the current Axes. The current rcParams apply.
            tolerance: drop in points that the black line marks.
            paper: set the grid that Houlsby et al. (2019) published of the same task beside.
            colorbar: whether to draw one.
            notes: whether task, scores and signs are explained in the empty corner.
            style: in place of `ax`: a figure of its own with the fonts and width of a venue, such as
                ``icml``.
        """
        from adapter_probe.figures.heatmap import heatmap

        with axes_for(ax, style) as place:
            return heatmap(
                self.record, place, tolerance=tolerance, paper=paper, colorbar=colorbar, notes=notes
            )

    def plot(
        self,
        ax: Axes | None = None,
        *,
        tolerance: float = 1.0,
        paper: bool = False,
        notes: bool = True,
        style: Style | None = None,
    ) -> Axes:
        """Draw what fits the spans: the heatmap, or of spans in a line a curve with its interval.

        In a line are spans that all begin at one layer (``spans="prefix"``), all end at one
        (``spans="suffix"``), or have no end in common (``spans="single"``).

        Args:
            ax: see `heatmap`.
            tolerance: drop in points that the black line marks.
            paper: draw what Houlsby et al. (2019) published of the same task too.
            notes: whether task, scores and signs are explained in a corner.
            style: see `heatmap`.
        """
        from adapter_probe.figures.ablation_figures import plot

        with axes_for(ax, style) as place:
            return plot(self.record, place, tolerance=tolerance, paper=paper, notes=notes)

    def attribution(self, ax: Axes | None = None, *, legend: bool = True, style: Style | None = None) -> Axes:
        """Draw each layer's share of the drop of all layers, beside its drop alone.

        Args:
            ax: see `heatmap`.
            style: see `heatmap`.
            legend: whether to explain bars and diamonds.

        Raises:
            ResultsError: the study has no shares: spans that were kept, or an undefined score.
        """
        from adapter_probe.figures.attribution import attribution

        with axes_for(ax, style) as place:
            return attribution(self.record, place, legend=legend)

    def __repr__(self) -> str:
        rows = dict(self.rows())
        advice = [
            f"{name}: {value}" for name, value in rows.items() if name.startswith(("longest", "shortest"))
        ]
        return "\n".join(
            [
                f"Ablation of {rows.get('task', self.folder)}",
                f"intact {rows.get('intact')}, all switched off {rows.get('all switched off')}",
                rows.get("note") or (advice[1] if len(advice) > 1 else ", ".join(advice)),
            ]
        )

    def rows(self) -> list[tuple[str, str]]:
        """The summary in words, as (what, value); of a folder without one, its name alone."""
        summary = self.record.summary
        return ablation_rows(summary) if summary else [("ablation", str(self.folder))]

    def _draw(self, ax: Axes) -> Axes:
        return self.plot(ax)


def ablate(
    checkpoint: str | Path,
    *,
    sites: SiteChoice = "both",
    complement: bool = False,
    spans: str = "all",
    group: int = 1,
    layers: str = "",
    layernorm: Literal["trained", "pretrained"] = "trained",
    base: str | None = None,
    data: Examples = (),
    task: str = "",
    split: str = "validation",
    metric: str | Callable[[np.ndarray, np.ndarray], float] | None = None,
    max_examples: int | None = None,
    device: str = "auto",
    threads: int = 0,
    precision: Precision = "float32",
    tokens_per_pass: int | None = None,
    out: str | Path | None = None,
    against: Examples = (),
    encoding: str = "utf-8",
    cluster: SlurmOptions | None = None,
    progress: bool = True,
) -> Ablation:
    """Switch adapters off over every contiguous span of layers, or over some, without retraining.

    The results go to a folder inside the checkpoint, or to `out`; a call that was interrupted goes on from
    there, and a finished one is read back.

    Args:
        checkpoint: folder of a checkpoint of this project, AdapterHub's `adapters`, PEFT or the paper's code.
        sites: which of a layer's two adapters to switch.
        complement: keep only the span's adapters on.
        spans: ``all`` contiguous ones, ``single`` layers, those that begin at the lowest (``prefix``) or end
            at the highest layer (``suffix``), or lengths such as ``1..4``.
        group: switch this many layers at a time.
        layers: only these, such as ``8-23``.
        layernorm: the LayerNorm after a switched-off adapter: the trained one, or the base's.
        base: folder or Hugging Face hub id of the base model, if it is not where the checkpoint says.
        data: labelled examples, in place of those that the checkpoint remembers: a file, several files, a
            DataFrame, a list of rows (mappings from column to value), or a pair ``(texts, labels)``, in which
            a text may be a pair of texts. Rows that are no file yet are written to ``data/`` beside the
            results, under a name made from their content.
        task: ``lm-eval:NAME[,NAME]`` in place of files: tasks of lm-evaluation-harness (extra ``lm-eval``) by
            name, task file or folder; several are groups of one study, scored together.
        split: which of the remembered splits.
        metric: the score, if not the task's own: a name, or a function from labels and predictions (class
            indices or a regression's numbers, ``[examples]`` each) to a score, more being better. The
            bootstrap calls the function 10,000 times a variant.
        max_examples: use a fixed random subset of this size.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ...
        threads: of this process from now on; 0 for torch's own choice.
        precision: of weights and arithmetic; "mixed" computes most predictions in bfloat16.
        tokens_per_pass: bound on the rows (variants x tokens) that pass a layer together.
        out: results folder.
        against: examples of something else that the model can do, such as what the base could do before, in
            any form that `data` takes: they are scored under the same variants, see `Ablation.against`.
        encoding: of the files in `data` and `against`.
        cluster: compute on a SLURM cluster.
        progress: show a progress bar.

    Raises:
        CheckpointError, ModelError: the checkpoint or its base cannot be opened.
        DataError: the examples cannot be read, do not fit the task, or have changed since training.
        ResultsError: the folder belongs to another run, is in use, or cannot be written.
        TrainingError: jobs on the cluster failed.
        JobsDetached: `cluster` asks not to wait for them.
    """
    from adapter_probe.probe.arguments import AblationArguments, AblationSettings

    metric = CustomMetric(metric) if callable(metric) else metric
    place = Path(checkpoint if out is None else out)
    files, others = (as_files(one, place, Path(checkpoint)) for one in (data, against))
    files = with_task(files, task)
    arguments = AblationArguments(
        str(checkpoint),
        AblationSettings(sites, complement, layernorm, precision, spans, group, layers), base,
        files, split, metric, max_examples, tokens_per_pass, encoding,
    )  # fmt: skip
    return run_from_arguments(
        arguments, out, device=device, threads=threads, cluster=cluster, against=others, progress=progress
    )


def with_task(data: Sequence[str | Path], task: str | None) -> tuple[str, ...]:
    """The files to judge on, or the tasks of lm-evaluation-harness in their place.

    Raises:
        DataError: both are given, or the task is none.
    """
    from adapter_probe.data.lm_eval_tasks import PREFIX, is_task

    if task and not is_task(task):
        raise DataError(f"task {task!r} is not allowed; give {PREFIX}NAME, or files with --data")
    if task and data:
        raise DataError(f"{data[0]} and task {task!r} are both given; give either --data or --task")
    return (task,) if task else tuple(map(str, data))


def run_from_arguments(
    arguments: AblationArguments,
    out: str | Path | None = None,
    *,
    device: str = "auto",
    threads: int = 0,
    cluster: SlurmOptions | None = None,
    against: Sequence[str] = (),
    progress: bool = True,
) -> Ablation:
    """`ablate`, for an ablation whose arguments are already put together."""
    from adapter_probe.models.device import check_threads
    from adapter_probe.probe.given_data import refuse_idle_encoding

    from .reopening import Sources

    refuse_idle_encoding(arguments.encoding, *arguments.data, *against)
    folder = _folder_of(arguments, out)
    others: tuple[AblationArguments, ...] = ()
    beside = folder
    if against:
        others = (replace(arguments, data=tuple(against), split="validation", metric=None),)
        beside = folder / f"{BESIDE}{Path(against[0]).stem}"
    if device in _ANY_DEVICE and cluster is None:
        check_threads(threads)
        with working("ablate: looking for changes since the last run", progress):
            finished = _reopened((arguments, *others), (folder, beside))
        if finished is not None:
            return finished
    with working(f"ablate: opening {arguments.checkpoint}", progress):
        sources = [Sources.find(one) for one in (arguments, *others)]
        request = _prepare(arguments, device, threads, cluster)
    if cluster is not None:
        _compute_on_cluster(arguments, request, folder, threads, device, cluster, progress)
    study = run_ablation(request, folder, progress=progress)
    _remember(arguments, request, folder, sources[0])
    for other, found in zip(others, sources[1:]):
        from adapter_probe.probe.request import on_other_data

        request = on_other_data(request, other.data, arguments.max_examples, arguments.encoding)
        study = replace(study, against=run_ablation(request, beside, progress=progress))
        _remember(other, request, beside, found)
    return study


def _reopened(orders: Sequence[AblationArguments], folders: Sequence[Path]) -> Ablation | None:
    """The finished ablation, and that on other data, if nothing that made them has changed."""
    from .reopening import reopen

    records = [reopen(one, folder) for one, folder in zip(orders, folders)]
    if None in records:
        return None
    study, *against = (Ablation(record) for record in records if record is not None)
    return replace(study, against=against[0] if against else None)


def _remember(
    arguments: AblationArguments, request: AblationRequest, folder: Path, sources: Sources | None
) -> None:
    """Note what the run was made from, so that it is reopened without its model."""
    from .reopening import remember

    remember(arguments, folder, sources, request.checkpoint.description.base)


def _compute_on_cluster(
    arguments: AblationArguments,
    request: AblationRequest,
    folder: Path,
    threads: int,
    device: str,
    cluster: SlurmOptions,
    progress: bool,
) -> None:
    from adapter_probe.jobs.running import Resources
    from adapter_probe.jobs.shards import compute_in_shards

    resources = Resources(0, threads, device, cluster)
    compute_in_shards(arguments, request, folder, resources, cluster, progress)


def plan_from_arguments(
    arguments: AblationArguments, out: str | Path | None = None, *, device: str = "auto", threads: int = 0
) -> dict[str, Any]:
    """What an ablation would cost, its start and its figures included.

    See `adapter_probe.probe.resumable.plan_ablation`, whose ``seconds_left`` are here ``seconds_computing``.
    """
    began = time.perf_counter()
    from adapter_probe.probe.resumable import plan_ablation

    request = _prepare(arguments, device, threads, None)
    opening = time.perf_counter() - began
    plan = plan_ablation(request, _folder_of(arguments, out))
    whole = opening + plan["seconds_left"] + SECONDS_OF_DRAWING
    return {**plan, "seconds_computing": plan["seconds_left"], "seconds_left": whole}


def _prepare(
    arguments: AblationArguments, device: str, threads: int, cluster: SlurmOptions | None
) -> AblationRequest:
    """The opened checkpoint with its examples."""
    from adapter_probe.models.device import choose_device, use_threads

    if cluster is None:
        use_threads(threads)
    return arguments.prepare(choose_device(device if cluster is None else "auto"))


def _folder_of(arguments: AblationArguments, out: str | Path | None) -> Path:
    """Where the results lie."""
    return Path(out) if out is not None else Path(arguments.checkpoint) / _folder_name(arguments)


def run_ablation(request: AblationRequest, folder: Path, *, progress: bool = True) -> Ablation:
    """Compute what a folder lacks of an ablation and write its tables.

    Raises:
        ResultsError: the folder belongs to another run, is in use, or cannot be written.
    """
    from adapter_probe.probe.resumable import AblationRun

    with AblationRun.folder(request, folder) as run:
        for damaged in run.damaged:
            say(f"{damaged} is damaged or not of this run, and is computed again", progress)
        ablation = AblationRun(request, run)
        with _bar(ablation, request, progress) as report:
            results = ablation.compute(report)
        with working("ablate: intervals and tests of every span", progress):
            record = ablation_record(results, folder)
            _write(record, results)
    return Ablation(record, results)


@contextmanager
def _bar(ablation: Any, request: AblationRequest, progress: bool) -> Iterator[Any]:
    done, total = ablation.tokens_done, ablation.tokens_total
    if done == total:
        yield lambda _: None
        return
    if request.settings.precision == "mixed":
        from adapter_probe.probe.engine import bfloat16_speed

        if (speed := bfloat16_speed(request.device)) < 1:
            found = f"bfloat16 products are {speed:.1f} times as fast as float32 ones here"
            say(f"{found}: float32 would be faster", progress)
    with progress_bar("ablate", total, "tokens", done, progress) as bar:
        yield bar.update


def _folder_name(arguments: AblationArguments) -> str:
    """One folder per study: settings that change the numbers show in its name unless they are the default."""
    settings, split = arguments.settings, arguments.split
    parts = [
        "ablation",
        settings.sites if settings.sites != "both" else "",
        "complement" if settings.complement else "",
        settings.spans.replace("..", "to") if settings.spans != "all" else "",
        f"by{settings.group}" if settings.group != 1 else "",
        f"layers{settings.layers}" if settings.layers else "",
        "pretrained-layernorm" if settings.layernorm == "pretrained" else "",
        settings.precision if settings.precision != "float32" else "",
        split if split != "validation" else "",
        f"data-{Path(arguments.data[0]).stem}" if arguments.data else "",
        f"n{arguments.max_examples}" if arguments.max_examples else "",
    ]
    return "-".join(part for part in parts if part)


def _write(record: AblationRecord, results: AblationResults) -> None:
    """The tables, predictions and summary of an ablation, into its folder."""
    folder = record.folder
    if record.layers is None or record.removable is None:
        raise ResultsError(f"{folder}: an ablation without its tables cannot be written")
    with sealed(folder, schema.ABLATION_FILES):
        write_spans(folder, record.spans)
        write_csv(folder / schema.LAYERS_CSV, record.layers)
        write_csv(folder / schema.REMOVABLE_CSV, record.removable)
        if record.groups is not None:
            write_csv(folder / schema.GROUPS_CSV, record.groups)
        save_predictions(folder, results)
        write_json(folder / schema.SUMMARY, record.summary)
