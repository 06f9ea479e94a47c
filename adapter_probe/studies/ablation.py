"""The span ablation: the function `ablate` and its result, `Ablation`."""

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
from adapter_probe.progress import progress_bar, say, stage, working
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

_ANY_DEVICE = ("auto", "cpu")  # available on every machine
BESIDE = "against-"
"""Prefix of the subfolder that holds the same variants scored on other data."""


@dataclass(frozen=True, eq=False, repr=False)
class Ablation(DrawnStudy):
    """A finished ablation; what `adapter_probe.ablate` and `adapter_probe.load` return.

    Attributes:
        record: tables, summary and identity of the study as plain data.
        against: the same variants scored on the examples that `ablate` received as `against`, if any;
            `adapter_probe.exchange` relates the two.
    """

    record: AblationRecord
    _results: AblationResults | None = field(default=None)
    against: Ablation | None = None

    @property
    def folder(self) -> Path:
        """The results folder."""
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
        """One row per layer, ``layers.csv``: the drop without that layer, and its share of the total drop."""
        return self.record.layers

    @property
    def removable(self) -> pd.DataFrame | None:
        """The longest removable span within each of several tolerances, ``removable.csv``."""
        return self.record.removable

    @property
    def groups(self) -> pd.DataFrame | None:
        """One row per variant and group of examples, ``groups.csv``; None when the data has no groups.

        Groups are the values of `field` and `UID` in data with minimal pairs, or the tasks of
        lm-evaluation-harness. Columns: `group`, `n_examples`, `variant` (``intact``, ``all off`` or a span),
        `first`, `last`, `score`, `delta_points`.
        """
        return self.record.groups

    @property
    def summary(self) -> dict[str, Any]:
        """The main results, ``summary.json``; scores are fractions, differences are in points."""
        return dict(self.record.summary)

    @cached_property
    def results(self) -> AblationResults:
        """The outputs of every variant for every example: `masks`, `spans`, `logits`, `labels` and more.

        Raises:
            ResultsError: the folder contains no predictions, or they are damaged.
        """
        return self._results if self._results is not None else load_ablation(self.folder)

    @property
    def predictions(self) -> np.ndarray:
        """Predicted classes or regression values, ``[variants, examples]``; see `results` for the outputs.

        The first variant is the intact model; `results.row_names` lists the names of all variants.
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
        """Draw the heatmap of first and last ablated layer; see `plot` for spans that form a line.

        Args:
            ax: Axes to draw on; by default the current Axes. The current rcParams apply.
            tolerance: tolerated drop, in percentage points, marked by the black line.
            paper: draw the grid that Houlsby et al. (2019) published for this task next to it.
            colorbar: whether to draw a colour bar.
            notes: whether to print task, scores and the legend of symbols in the empty corner.
            style: publication venue, such as ``icml``: draws a new figure with the venue's width and fonts
                (instead of `ax`).
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
        """Draw the heatmap or, if the spans form a line, a curve with its interval.

        Spans form a line if all start at one layer (``spans="prefix"``), all end at one layer
        (``spans="suffix"``), or are disjoint (``spans="single"``).

        Args:
            ax: see `heatmap`.
            tolerance: tolerated drop, in percentage points, marked by the black line.
            paper: overlay the values that Houlsby et al. (2019) published for this task.
            notes: whether to print task, scores and the legend of symbols in a corner.
            style: see `heatmap`.
        """
        from adapter_probe.figures.ablation_figures import plot

        with axes_for(ax, style) as place:
            return plot(self.record, place, tolerance=tolerance, paper=paper, notes=notes)

    def attribution(self, ax: Axes | None = None, *, legend: bool = True, style: Style | None = None) -> Axes:
        """Draw each layer's share of the total drop next to the drop without that layer alone.

        Args:
            ax: see `heatmap`.
            style: see `heatmap`.
            legend: whether to draw the legend of bars and diamonds.

        Raises:
            ResultsError: the study has no shares, because it kept spans on or a score is undefined.
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
        """The summary as (name, value) pairs of text; without a summary, the folder only."""
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
    """Switch adapters off over every contiguous span of layers, or some of them, without retraining.

    The results are written to a folder inside the checkpoint, or to `out`. The same call resumes an
    interrupted run, and reads a finished one back.

    Args:
        checkpoint: checkpoint folder, written by this project, `adapters`, PEFT or the paper's code.
        sites: which adapters of each layer to switch off.
        complement: switch off every adapter outside the span instead of those inside it.
        spans: spans to switch off: ``all`` contiguous spans, ``single`` layers, spans that start at the
            lowest layer (``prefix``) or end at the highest (``suffix``), or a range of lengths such as
            ``1..4``.
        group: number of adjacent layers to switch off together.
        layers: restrict the study to these layers, such as ``8-23``.
        layernorm: LayerNorm weights to use after an adapter that is switched off: trained or pretrained.
        base: folder or Hugging Face Hub id of the base model, if it differs from the recorded one.
        data: labelled examples to use instead of the checkpoint's own task: a file, several files, a
            DataFrame, a list of rows (mappings from column to value), or a pair ``(texts, labels)``, in which
            a text may be a pair of texts. Data that is not a file is saved in a folder ``data/`` next to the
            results, under a name derived from its content.
        task: instead of `data`: ``lm-eval:NAME[,NAME]``, tasks of lm-evaluation-harness (extra ``lm-eval``)
            by name, task file or folder; several tasks are groups of one study, scored together.
        split: split of the checkpoint's own task to evaluate on.
        metric: evaluation metric: a name, or a function from labels and predictions (class indices or
            regression values, ``[examples]`` each) to a score of which more is better; by default the metric
            of the task. The bootstrap calls a function 10,000 times per variant.
        max_examples: evaluate on a fixed random subset of this many examples.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ...
        threads: number of CPU threads of this process from now on; 0 uses PyTorch's default.
        precision: numerical precision; ``mixed`` computes in bfloat16 and repeats close decisions in float32.
        tokens_per_pass: maximum number of rows (variants x tokens) per pass through a layer; bounds memory.
        out: results folder; by default a folder inside the checkpoint.
        against: examples that measure another ability, such as one of the base model, in any form that
            `data` accepts. They are scored under the same variants; see `Ablation.against`.
        encoding: text encoding of the files in `data` and `against`.
        cluster: SLURM cluster to compute on; by default this machine.
        progress: whether to show a progress bar.

    Raises:
        CheckpointError, ModelError: the checkpoint or its base cannot be opened.
        DataError: the examples cannot be read, do not fit the task, or have changed since training.
        ResultsError: the folder belongs to another run, is in use, or cannot be written.
        TrainingError: jobs on the cluster failed.
        JobsDetached: the jobs were submitted, and `cluster` is set not to wait for them.
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
    """The data files, or else the tasks of lm-evaluation-harness.

    Raises:
        DataError: both are given, or `task` does not name tasks of lm-evaluation-harness.
    """
    from adapter_probe.data.lm_eval_tasks import PREFIX, is_task

    if task and not is_task(task):
        raise DataError(f"--task {task!r} is not allowed; give {PREFIX}NAME, or data files with --data")
    if task and data:
        raise DataError(f"--data {data[0]} and --task {task} cannot be combined; give one of them")
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
    """Run `ablate` with arguments that have been collected already."""
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
        with working("ablate: checking for changes since the last run", progress):
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
    """The finished ablation with its `against`, if none of its inputs has changed; else None."""
    from .reopening import reopen

    records = [reopen(one, folder) for one, folder in zip(orders, folders)]
    if None in records:
        return None
    study, *against = (Ablation(record) for record in records if record is not None)
    return replace(study, against=against[0] if against else None)


def _remember(
    arguments: AblationArguments, request: AblationRequest, folder: Path, sources: Sources | None
) -> None:
    """Record the inputs of the run, so that it can be reopened without opening its model."""
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
    """Estimated cost of an ablation, including start-up and figures.

    See `adapter_probe.probe.resumable.plan_ablation`; its ``seconds_left`` is ``seconds_computing`` here.
    """
    began = time.perf_counter()
    from adapter_probe.probe.resumable import plan_ablation

    request = _prepare(arguments, device, threads, None)
    opening = time.perf_counter() - began
    with stage("ablate: measuring the speed on a small batch"):
        plan = plan_ablation(request, _folder_of(arguments, out))
    whole = opening + plan["seconds_left"] + SECONDS_OF_DRAWING
    return {**plan, "seconds_computing": plan["seconds_left"], "seconds_left": whole}


def _prepare(
    arguments: AblationArguments, device: str, threads: int, cluster: SlurmOptions | None
) -> AblationRequest:
    """The opened checkpoint together with its examples."""
    from adapter_probe.models.device import choose_device, use_threads

    if cluster is None:
        use_threads(threads)
    return arguments.prepare(choose_device(device if cluster is None else "auto"))


def _folder_of(arguments: AblationArguments, out: str | Path | None) -> Path:
    """The results folder."""
    return Path(out) if out is not None else Path(arguments.checkpoint) / _folder_name(arguments)


def run_ablation(request: AblationRequest, folder: Path, *, progress: bool = True) -> Ablation:
    """Compute the missing parts of an ablation and write its tables.

    Raises:
        ResultsError: the folder belongs to another run, is in use, or cannot be written.
    """
    from adapter_probe.probe.resumable import AblationRun

    with AblationRun.folder(request, folder) as run:
        for damaged in run.damaged:
            say(f"{damaged} is damaged or belongs to another run; computing it again", progress)
        ablation = AblationRun(request, run)
        with _bar(ablation, request, progress) as report:
            results = ablation.compute(report)
        with working("ablate: computing intervals and tests of every span", progress):
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
            found = f"bfloat16 matrix products are {speed:.1f} times as fast as float32 on this machine"
            say(f"{found}; --precision float32 would be faster", progress)
    with progress_bar("ablate", total, "tokens", done, progress) as bar:
        yield bar.update


def _folder_name(arguments: AblationArguments) -> str:
    """Name of the results folder; settings that change the numbers appear in it unless they are defaults."""
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
    """Write the tables, predictions and summary of an ablation into its folder."""
    folder = record.folder
    if record.layers is None or record.removable is None:
        raise ResultsError(f"{folder}: the ablation has no tables, so it cannot be written")
    with sealed(folder, schema.ABLATION_FILES):
        write_spans(folder, record.spans)
        write_csv(folder / schema.LAYERS_CSV, record.layers)
        write_csv(folder / schema.REMOVABLE_CSV, record.removable)
        if record.groups is not None:
            write_csv(folder / schema.GROUPS_CSV, record.groups)
        save_predictions(folder, results)
        write_json(folder / schema.SUMMARY, record.summary)
