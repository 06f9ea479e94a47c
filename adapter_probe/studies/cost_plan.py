"""What a study would take: the plans that `plan` functions return, and how they are measured."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapter_probe.analysis.summary_text import aligned_columns, duration_text, plain_text
from adapter_probe.progress import activity
from adapter_probe.results.schema import MANIFEST
from adapter_probe.wording import count_text

from .inspect_convert import method_text
from .study_base import BYTES_OF_DRAWING, SECONDS_OF_DRAWING

if TYPE_CHECKING:
    from adapter_probe.jobs.running import Resources
    from adapter_probe.jobs.trials import Trial
    from adapter_probe.probe.request import AblationRequest


class Plan:
    """Base class of the plans: a table in a notebook, and aligned columns as text."""

    def rows(self) -> list[tuple[str, str]]:
        """The plan as (name, value) pairs of text."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """The values as a dictionary, which the commands print with ``--dry-run --json``."""
        return dict(vars(self))

    def _sections(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """The rows under their titles; an empty title is not shown."""
        return [("", self.rows())]

    def __repr__(self) -> str:
        return "\n\n".join(
            f"{title}\n{aligned_columns(rows)}".lstrip("\n") for title, rows in self._sections()
        )

    def _repr_html_(self) -> str:
        tables = []
        for title, rows in self._sections():
            lines = "".join(
                f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in rows
            )
            tables.append(f"<table><caption>{title}</caption>{lines}</table>")
        return "".join(tables)


@dataclass(frozen=True, eq=False, repr=False)
class AblationPlan(Plan):
    """The estimated cost of an ablation; what `adapter_probe.ablate.plan` returns.

    Attributes:
        n_variants: number of variants, the intact model included.
        n_distinct: number of variants that differ.
        n_examples: number of examples.
        n_tokens: number of tokens of all examples.
        layer_evaluations: evaluations of a layer per batch, with every shared prefix computed once: of the
            attention sublayer and of the feed-forward sublayer.
        separate_layer_evaluations: evaluations of a layer per batch with one run per variant.
        n_spans: number of spans.
        parts_done: number of parts that the results folder contains already.
        parts: number of parts that the examples are divided into.
        tokens_per_pass: maximum number of rows (variants x tokens) per pass through a layer.
        seconds_left: estimated time in seconds, including start-up and figures.
        peak_memory_bytes: estimated peak memory; None if it is unknown.
        device: compute device.
        folder: results folder.
        seconds_computing: the part of `seconds_left` in which the model computes.
        n_strengths: number of strengths, for each of which all variants are computed.
        question: what the study asks of which rows, and what is not read, one line each.
        first_row: the first row as the model gets it.
    """

    n_variants: int
    n_distinct: int
    n_examples: int
    n_tokens: int
    layer_evaluations: tuple[int, int]
    separate_layer_evaluations: int
    n_spans: int
    parts_done: int
    parts: int
    tokens_per_pass: int
    seconds_left: float
    peak_memory_bytes: float | None
    device: str
    folder: Path
    seconds_computing: float
    n_strengths: int = 1
    question: tuple[str, ...] = ()
    first_row: str = ""

    def rows(self) -> list[tuple[str, str]]:
        """See `Plan.rows`."""
        attention, ffn = self.layer_evaluations
        memory = self.peak_memory_bytes
        strengths = f" at each of {self.n_strengths} strengths" if self.n_strengths > 1 else ""
        return [
            *(("" if number else "question", line) for number, line in enumerate(self.question)),
            *([("first row", plain_text(self.first_row))] if self.first_row else []),
            ("variants", f"{self.n_variants} ({self.n_spans} spans){strengths}"),
            ("examples", f"{self.n_examples:,} ({self.n_tokens:,} tokens)"),
            ("layer evaluations, separate runs", f"{self.separate_layer_evaluations:,} per batch"),
            ("layer evaluations, shared", f"{ffn:,} per batch ({attention:,} of the attention sublayer)"),
            ("parts done", f"{self.parts_done} of {self.parts}"),
            ("tokens per pass", f"{self.tokens_per_pass:,}"),
            ("time left, estimated", duration_text(self.seconds_left)),
            (
                "peak memory, estimated",
                "unknown" if memory is None else f"{memory / 1e9:.1f} GB on {self.device}",
            ),
            ("results folder", str(self.folder)),
        ]


@dataclass(frozen=True, eq=False, repr=False)
class SweepPlan(Plan):
    """The trials of a sweep; what `init_sweep.plan` and `tradeoff.plan` return.

    Attributes:
        trials: one dictionary per trial: `trial` (its id), `task`, `method`, `learning_rate`, `epochs`,
            `seed`, `done`, and the `seconds` that it is estimated to take, None for those that are done.
        done: number of finished trials.
        left: number of trials still to train.
        workers: number of trials that train at the same time.
        seconds_left: estimated time in seconds, including start-up and figures.
        folder: output folder.
    """

    trials: Sequence[dict[str, Any]]
    done: int
    left: int
    workers: int
    seconds_left: float
    folder: Path

    def rows(self) -> list[tuple[str, str]]:
        """See `Plan.rows`."""
        rows = []
        for trial in self.trials:
            said = method_text(trial["method"])
            if trial["learning_rate"] is not None:
                epochs = count_text(trial["epochs"], "epoch")
                said += f"; lr {trial['learning_rate']:g}, {epochs}, seed {trial['seed']}"
            state = "done" if trial["done"] else f"about {duration_text(trial['seconds'])}"
            rows.append((f"{trial['task']}: {said}", state))
        return [
            *rows,
            ("trials", f"{len(self.trials)}, {self.done} done, {self.workers} in parallel"),
            ("time left, estimated", duration_text(self.seconds_left)),
            ("folder", str(self.folder)),
        ]


@dataclass(frozen=True, eq=False, repr=False)
class SuitePlan(Plan):
    """The studies of a suite; what `adapter_probe.suite.plan` returns.

    Attributes:
        tradeoff: the plan of the trade-off, or None.
        init_sweep: the plan of the initialisation sweep, or None.
        checkpoints: folders of the checkpoints that are trained and ablated. The estimates do not cover them.
    """

    tradeoff: SweepPlan | None
    init_sweep: SweepPlan | None
    checkpoints: Sequence[Path]

    def _sweeps(self) -> dict[str, SweepPlan]:
        plans = {"tradeoff": self.tradeoff, "init-sweep": self.init_sweep}
        return {name: plan for name, plan in plans.items() if plan is not None}

    def _sections(self) -> list[tuple[str, list[tuple[str, str]]]]:
        sections = [(name, plan.rows()) for name, plan in self._sweeps().items()]
        folders = [("", str(folder)) for folder in self.checkpoints]
        return [*sections, ("checkpoints", folders)] if folders else sections

    def rows(self) -> list[tuple[str, str]]:
        """See `Plan.rows`."""
        return [row for _, rows in self._sections() for row in rows]

    def to_dict(self) -> dict[str, Any]:
        """See `Plan.to_dict`; studies that the file does not contain are left out."""
        plans: dict[str, Any] = {name: plan.to_dict() for name, plan in self._sweeps().items()}
        return {**plans, "checkpoints": list(self.checkpoints)} if self.checkpoints else plans


def plan_ablation(
    parts: Sequence[tuple[AblationRequest, Path]], folder: Path, seconds_before: float = 0.0
) -> AblationPlan:
    """The estimated cost of an ablation, or of one for each strength; nothing is written.

    The time is measured with some of the variants on one small batch per lane, and scaled by tokens and layer
    passes. The peak memory is measured meanwhile, to which statistics and figures add theirs.

    Args:
        parts: the requests, which differ only in their strength, with their results folders.
        folder: the results folder of all.
        seconds_before: what opening the checkpoint took.

    Raises:
        ResultsError: a folder belongs to another run, or is in use.
    """
    from adapter_probe.probe.engine import Engine
    from adapter_probe.probe.plan import count_work
    from adapter_probe.probe.resumable import AblationRun

    request, _ = parts[0]
    runs = [AblationRun(one, place) for one, place in parts]
    for run, (_, place) in zip(runs, parts):
        if (place / MANIFEST).exists():
            with run:  # to see which parts are there, and how the examples are divided
                pass
    engine = Engine(request)
    per_token = engine.seconds_per_token()
    total = sum(run.tokens_total for run in runs)
    seconds = per_token * (total - sum(run.tokens_done for run in runs))
    done, n_parts = (sum(numbers) for numbers in zip(*(run.parts_done() for run in runs)))
    work = count_work(
        request.variants.masks, request.encoded.lengths, request.model.forks_early, len(request.model.sites)
    )
    return AblationPlan(
        **asdict(work),
        n_spans=sum(span is not None for span in request.variants.spans),
        parts_done=done,
        parts=n_parts,
        tokens_per_pass=engine.tokens_per_pass,
        seconds_left=seconds_before + seconds + SECONDS_OF_DRAWING,
        seconds_computing=seconds,
        peak_memory_bytes=_peak_memory(engine.peak_memory(), request),
        device=str(request.device),
        folder=folder,
        n_strengths=len(parts),
        question=request.question,
        first_row=first.first if (first := request.examples.question) else "",
    )


def _peak_memory(computing: int | None, request: AblationRequest) -> int | None:
    """Peak memory of the whole study in bytes: of computing, or of the statistics and figures that follow.

    These run on the host: where an accelerator computes, `computing` is its memory, and is what is told.
    """
    from adapter_probe.analysis.resampling import N_DRAWS

    if computing is None or request.device.type != "cpu":
        return computing
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        resident = pages * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        resident = computing
    bootstrap = 2 * 8 * N_DRAWS * len(request.variants.masks)  # scores and their differences, float64
    return max(computing, resident + BYTES_OF_DRAWING + bootstrap)


def plan_sweep(trials: Sequence[Trial], out: Path, resources: Resources) -> SweepPlan:
    """The trials that will be trained, which of them are done, and a measured estimate of the time left."""
    from adapter_probe.device import choose_device, use_threads
    from adapter_probe.jobs.trials import estimate_seconds, finished_trials, seconds_of_start

    device = choose_device("auto" if resources.cluster else resources.device)
    if not resources.cluster:
        use_threads(resources.threads)
    done = finished_trials(out, trials)
    left = [trial for trial in trials if trial.id not in done]
    with activity("measuring a few training steps of each method", resources.progress):
        seconds = estimate_seconds(left, device)
        start = seconds_of_start() if left else 0.0  # start-up of this program and of each worker
    count = min(resources.at_a_time(len(left)), max(1, len(left)))
    starts = len(left) if resources.cluster else count  # each task of a job array runs one trial
    wall = start + (sum(seconds.values()) + starts * start) / count + SECONDS_OF_DRAWING if left else 0.0
    rows = []
    for trial in trials:
        request, names = trial.request, ("learning_rate", "epochs", "seed")
        chosen = {name: getattr(request.settings, name) for name in names}
        rows.append({
            "trial": trial.id, "task": request.task.name, "method": request.method.to_json(), **chosen,
            "done": trial.id in done, "seconds": seconds.get(trial.id),
        })  # fmt: skip
    return SweepPlan(rows, len(done), len(left), resources.at_a_time(len(left)), wall, out)
