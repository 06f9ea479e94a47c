"""The span ablation: the function `ablate`, from its arguments to the tables in the results folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from adapter_probe.analysis.studies import AblationRecord, ablation_record
from adapter_probe.errors import DataError, ResultsError
from adapter_probe.metrics import CustomMetric
from adapter_probe.progress import activity, print_message, progress_bar
from adapter_probe.results import schema
from adapter_probe.results.ablation_files import AblationResults, save_predictions, write_spans
from adapter_probe.results.atomic import write_csv, write_json
from adapter_probe.results.sealing import sealed
from adapter_probe.spans import SiteChoice

from .ablation import Ablation
from .checked import checked
from .gallery import SECONDS_OF_DRAWING
from .planning import AblationPlan, planned_by
from .rows import ExampleSource, as_files, check_files

if TYPE_CHECKING:
    from adapter_probe.jobs.slurm_options import SlurmOptions
    from adapter_probe.probe.arguments import AblationArguments, Precision
    from adapter_probe.probe.request import AblationRequest
    from adapter_probe.probe.resumable import AblationRun

_ANY_DEVICE = ("auto", "cpu")  # available on every machine
BESIDE = "against-"
"""Prefix of the subfolder that holds the same variants scored on other data."""


@planned_by(AblationPlan)
@checked
def ablate(
    checkpoint: str | Path,
    *,
    sites: SiteChoice = "both",
    complement: bool = False,
    spans: str = "all",
    group: int = 1,
    layers: str = "",
    layernorm: Literal["trained", "pretrained"] = "trained",
    base: str | Path | None = None,
    data: ExampleSource = (),
    task: str = "",
    split: str = "validation",
    metric: str | Callable[[np.ndarray, np.ndarray], float] | None = None,
    max_examples: int | None = None,
    device: str = "auto",
    threads: int = 0,
    precision: Precision = "float32",
    tokens_per_pass: int | None = None,
    out: str | Path | None = None,
    against: ExampleSource = (),
    encoding: str = "utf-8",
    cluster: SlurmOptions | None = None,
    progress: bool = True,
    dry_run: bool = False,
) -> Ablation | AblationPlan:
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
        dry_run: whether to estimate time and memory only, on a small batch and without `against`: the result
            is an `AblationPlan`, and nothing is written.

    Raises:
        CheckpointError, ModelError: the checkpoint or its base cannot be opened.
        DataError: the examples cannot be read, do not fit the task, or have changed since training.
        ResultsError: the folder belongs to another run, is in use, or cannot be written.
        TrainingError: jobs on the cluster failed.
        JobsDetached: the jobs were submitted, and `cluster` is set not to wait for them.
    """
    from adapter_probe.probe.arguments import AblationArguments, AblationSettings

    metric = CustomMetric(metric) if callable(metric) else metric
    settings = AblationSettings(sites, complement, layernorm, precision, spans, group, layers)
    place = Path(checkpoint if out is None else out)
    with TemporaryDirectory() if dry_run else nullcontext(place) as kept:
        files, others = (as_files(one, Path(kept), Path(checkpoint)) for one in (data, against))
        arguments = AblationArguments(
            str(checkpoint), settings, None if base is None else str(base), _with_task(files, task), split,
            metric, max_examples, tokens_per_pass, encoding,
        )  # fmt: skip
        check_files(checkpoint, encoding, *arguments.data, *others)
        folder = _folder_of(arguments, out)
        if dry_run:
            return _plan(arguments, folder, device, threads, progress)
        return _run(arguments, folder, device, threads, cluster, others, progress)


def _with_task(data: Sequence[str | Path], task: str | None) -> tuple[str, ...]:
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


def _run(
    arguments: AblationArguments,
    folder: Path,
    device: str,
    threads: int,
    cluster: SlurmOptions | None,
    against: Sequence[str],
    progress: bool,
) -> Ablation:
    """Run `ablate` into a folder, or read its results back."""
    from adapter_probe.device import check_threads, choose_device, use_threads

    from .reopening import Sources, record_sources, reopen_ablation

    asked = [(arguments, folder)]
    if against:
        other = replace(arguments, data=tuple(against), split="validation", metric=None)
        asked.append((other, folder / f"{BESIDE}{Path(against[0]).stem}"))
    runs = [(one, Sources.find(one), place) for one, place in asked]
    if device in _ANY_DEVICE and cluster is None:
        check_threads(threads)
        with activity("ablate: checking for changes since the last run", progress):
            finished = [study for run in runs if (study := reopen_ablation(*run)) is not None]
        if len(finished) == len(runs):
            return _with_against(finished)
    from adapter_probe.probe.request import on_other_data, prepare_ablation

    with activity(f"ablate: opening {arguments.checkpoint}", progress):
        if cluster is None:
            use_threads(threads)
        request = prepare_ablation(arguments, choose_device(device if cluster is None else "auto"))
    if cluster is not None:
        from adapter_probe.jobs.running import Resources
        from adapter_probe.jobs.shards import compute_in_shards

        resources = Resources(0, threads, device, cluster)
        compute_in_shards(arguments, request, folder, resources, cluster, progress)
    studies = []
    for one, sources, place in runs:
        if one is not arguments:
            request = on_other_data(request, one)
        studies.append(run_ablation(request, place, progress=progress))
        record_sources(one, sources, place, request.checkpoint.description.base)
    return _with_against(studies)


def _with_against(studies: Sequence[Ablation]) -> Ablation:
    """The first study, with the second, if there is one, as its `against`."""
    return replace(studies[0], against=studies[1]) if len(studies) > 1 else studies[0]


def _plan(
    arguments: AblationArguments, folder: Path, device: str, threads: int, progress: bool
) -> AblationPlan:
    """Estimate the cost of `ablate`; see `adapter_probe.probe.resumable.plan_ablation`."""
    began = time.perf_counter()
    from adapter_probe.device import choose_device, use_threads
    from adapter_probe.probe.request import prepare_ablation
    from adapter_probe.probe.resumable import plan_ablation

    use_threads(threads)
    request = prepare_ablation(arguments, choose_device(device))
    opening = time.perf_counter() - began
    with activity("ablate: measuring the speed on a small batch", progress):
        plan = plan_ablation(request, folder)
    return AblationPlan(**plan, seconds_left=opening + plan["seconds_computing"] + SECONDS_OF_DRAWING)


def _folder_of(arguments: AblationArguments, out: str | Path | None) -> Path:
    """The results folder: `out`, or one inside the checkpoint, named after settings that are not defaults."""
    if out is not None:
        return Path(out)
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
    return Path(arguments.checkpoint) / "-".join(part for part in parts if part)


def run_ablation(request: AblationRequest, folder: Path, *, progress: bool = True) -> Ablation:
    """Compute the missing parts of an ablation and write its tables.

    Raises:
        ResultsError: the folder belongs to another run, is in use, or cannot be written.
    """
    from adapter_probe.probe.resumable import AblationRun

    with AblationRun(request, folder) as run:
        for damaged in run.damaged:
            print_message(f"{damaged} is damaged or belongs to another run; computing it again", progress)
        with _bar(run, request, progress) as report:
            results = run.compute(report)
        with activity("ablate: computing intervals and tests of every span", progress):
            record = ablation_record(results, folder, run.created_with)
            _write(record, results)
    return Ablation(record, results)


@contextmanager
def _bar(run: AblationRun, request: AblationRequest, progress: bool) -> Iterator[Any]:
    total, done = run.tokens_total, run.tokens_done
    if done == total:
        yield lambda _: None
        return
    if request.settings.precision == "mixed":
        from adapter_probe.probe.engine import bfloat16_speed

        if (speed := bfloat16_speed(request.device)) < 1:
            found = f"bfloat16 matrix products are {speed:.1f} times as fast as float32 on this machine"
            print_message(f"{found}; --precision float32 would be faster", progress)
    with progress_bar("ablate", total, "tokens", done, progress) as bar:
        yield bar.update


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
